"""Checkpoints: soon, together, in the right order, and again when they fail."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Hop, HopResult, Next
from events.persistence.memory import MemoryStore
from events.persistence.store import Checkpoint, LogName, Store
from events.testing.clock import FakeClock
from events.testing.faulty import FaultyStore
from events.types import Event
from tests.events.bus_support import (
    HOME,
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    killed,
    settled,
    some_events,
    until,
)


class _Watched(MemoryStore):
    """A store that notes every checkpoint that it is given."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.saves: list[tuple[float, str, int]] = []
        self.delay_s = 0.0

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        if self.delay_s:
            await self.clock.sleep(self.delay_s)
        self.saves.append((self.clock.monotonic(), group, checkpoint.committed))
        await super().save_checkpoint(name, group, checkpoint)


async def test_many_acks_share_a_checkpoint(fake_clock: FakeClock) -> None:
    """Step 10: within the interval one write a log and group, however much was settled."""
    store = _Watched(fake_clock)
    bus = EventBus(store=store, config=BusConfig(checkpoint_interval_s=1))
    await bus.subscribe("actions", "learner", Collector())
    for number in range(100):
        await bus.publish(an_event(number))
    await fake_clock.advance(0.9)
    assert store.saves == []
    await fake_clock.advance(0.2)
    assert store.saves == [(1.0, "learner", 100)]
    await fake_clock.advance(100)
    assert len(store.saves) == 1, "nothing new, nothing to save"
    await bus.close(timeout_s=0)


async def test_close_waits_for_a_checkpoint_that_is_under_way(fake_clock: FakeClock) -> None:
    """W17: what was settled before the close is saved by it, also when a save was running at that moment."""
    store = _Watched(fake_clock)
    bus = EventBus(store=store, config=BusConfig(checkpoint_interval_s=1))
    await bus.subscribe("actions", "learner", Collector())
    await bus.publish(an_event(1))
    store.delay_s = 5
    await fake_clock.advance(2)
    assert store.saves == []
    await bus.publish(an_event(2))
    await fake_clock.advance(0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bus.close)
        await fake_clock.advance(60)
    assert store.saves[-1][2] == 2
    checkpoint = await store.load_checkpoint(HOME, "learner")
    assert checkpoint is not None
    assert checkpoint.committed == 2


async def test_unsubscribing_waits_for_a_checkpoint_that_is_under_way(fake_clock: FakeClock) -> None:
    """W3: whoever takes the group up next finds all that was settled."""
    store = _Watched(fake_clock)
    bus = EventBus(store=store, config=BusConfig(checkpoint_interval_s=1))
    collector = Collector()
    subscription = await bus.subscribe("actions", "learner", collector)
    await bus.publish_many(some_events(range(5)))
    store.delay_s = 5
    await fake_clock.advance(2)

    async def change_hands() -> None:
        await bus.unsubscribe(subscription)
        await bus.subscribe("actions", "learner", collector)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(change_hands)
        await fake_clock.advance(60)
    await fake_clock.advance(1)
    assert collector.numbers == list(range(5))
    await bus.close(timeout_s=0)


async def test_what_a_checkpoint_relies_on_is_durable_first(fake_clock: FakeClock) -> None:
    """F7: middleware first, then the log, then the checkpoint that names its offsets."""
    order: list[str] = []

    class Journal:
        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        async def before_checkpoint(self) -> None:
            order.append("journal")

    class Store(MemoryStore):
        async def log(self, name: LogName) -> Any:
            log = await super().log(name)

            async def sync() -> None:
                order.append("log")

            log.sync = sync  # type: ignore[method-assign]
            return log

        async def save_checkpoint(self, *arguments: Any) -> None:
            order.append("checkpoint")
            await super().save_checkpoint(*arguments)

    bus = EventBus([Journal()], store=Store(clock=fake_clock))
    await bus.subscribe("actions", "learner", Collector())
    await bus.publish(an_event(1))
    await fake_clock.advance(1)
    assert order[:3] == ["journal", "log", "checkpoint"]
    await bus.close(timeout_s=0)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "injected"), RuntimeError("a middleware's own fault")])
async def test_a_checkpoint_that_fails_is_tried_again(
    fake_clock: FakeClock, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """L: neither a failing disk nor a failing hook stops the bus; the next round saves it all."""
    broken = True

    class Hook:
        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        async def before_checkpoint(self) -> None:
            if broken:
                raise error

    collector = Collector()
    store = MemoryStore(clock=fake_clock)
    bus = EventBus([Hook()], store=store)
    await bus.subscribe("actions", "learner", collector)
    await bus.publish(an_event(1))
    await fake_clock.advance(5)
    assert await store.load_checkpoint(HOME, "learner") is None
    assert "will be tried again" in caplog.text
    await bus.publish(an_event(2))
    await fake_clock.advance(0)
    broken = False
    await fake_clock.advance(5)
    checkpoint = await store.load_checkpoint(HOME, "learner")
    assert checkpoint is not None
    assert checkpoint.committed == 2
    assert collector.numbers == [1, 2]
    await bus.close(timeout_s=0)


async def test_a_deleted_group_is_not_saved_again(fake_clock: FakeClock) -> None:
    """W3: a checkpoint that could not be saved is not written behind the back of `delete_group`."""
    broken = True

    def trouble(operation: str) -> None:
        if broken and operation == "save_checkpoint":
            raise OSError(errno.EIO, "injected")

    store = MemoryStore(clock=fake_clock)
    bus = EventBus(store=cast(Store, FaultyStore(store, trouble)))
    collector = Collector()
    await bus.subscribe("actions", "learner", collector)
    await bus.publish_many(some_events(range(3)))
    await fake_clock.advance(1)
    await bus.delete_group("learner")
    broken = False
    await fake_clock.advance(5)
    assert await store.load_checkpoint(HOME, "learner") is None
    await bus.subscribe("actions", "learner", collector)
    await fake_clock.advance(1)
    assert collector.numbers == [0, 1, 2, 0, 1, 2]
    await bus.close(timeout_s=0)


async def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(tmp_path: Path) -> None:
    """RELIABILITY: bad one, then the previous copy, then the start; never the end of the log."""
    held = Held()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", held, workers=1)
        held.let_go()
        for number in range(5):
            await bus.publish(an_event(number))
            await settled(bus)
            await anyio.sleep(0.02)
        copy = killed(tmp_path / "w")
    [path] = list(copy.rglob("offsets/actions__learner.json"))
    path.write_bytes(path.read_bytes()[:-10])
    first = Collector()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", first)
        await settled(bus)
    assert 0 < len(first.numbers) < 5
    assert first.numbers == list(range(5))[-len(first.numbers) :]
    copy = killed(tmp_path / "w", "both")
    for path in copy.rglob("offsets/actions__learner.json*"):
        path.write_bytes(b"{}")
    second = Collector()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", second)
        await settled(bus)
    assert second.numbers == list(range(5))


async def test_many_groups_and_spaces_are_all_saved(tmp_path: Path) -> None:
    """Step 10: one round saves whatever was touched, and a restart finds each where it was."""
    collectors = [Collector() for _ in range(4)]
    spaces = [f"space {number}" for number in range(15)]
    async with disk_bus(tmp_path / "w") as bus:
        for index, collector in enumerate(collectors):
            await bus.subscribe("actions", f"group-{index}", collector)
        await bus.publish_many([an_event(1, space=space) for space in spaces])
        await settled(bus)
        await until(lambda: len(list((tmp_path / "w").rglob("offsets/*.json"))) == 60)
    async with disk_bus(tmp_path / "w") as bus:
        for index, collector in enumerate(collectors):
            await bus.subscribe("actions", f"group-{index}", collector)
        await settled(bus)
        assert all(group_of(bus, f"group-{index}")["lag"] == 0 for index in range(4))
    assert [len(collector.numbers) for collector in collectors] == [15] * 4


async def test_a_handler_settles_before_its_checkpoint_and_may_repeat_after_a_kill(tmp_path: Path) -> None:
    """W1: at least once: an ack that no checkpoint has seen is repeated after a kill, and only that."""
    seen: list[int] = []

    async def handler(event: Event) -> None:
        seen.append(event.payload["n"])

    async with disk_bus(tmp_path / "w", checkpoint_interval_s=60) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
        copy = killed(tmp_path / "w")
    again = Collector()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", again)
        await settled(bus)
    assert seen == again.numbers == [0, 1, 2]
