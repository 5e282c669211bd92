"""Backpressure: who is waited for, for how long, and who never is (rule W12)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.dispatcher import Dispatcher
from events.errors import QueueFull
from events.group import Group
from events.persistence.memory import MemoryStore
from events.persistence.store import GroupRecord, LogName
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.types import Event
from tests.events.bus_support import (
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    history,
    settled,
    some_events,
)


class _FakeGroup:
    """A group as the dispatcher sees it."""

    def __init__(self, name: str, topic: str, space: str = "*") -> None:
        self.name = name
        self.record = GroupRecord(name=name, topic=topic, space=space)
        self.offered: list[Any] = []
        self.raises: Exception | None = None

    def offer(self, log: Any, records: Any) -> None:
        if self.raises is not None:
            raise self.raises
        self.offered.append(records)


class _FakeLog:
    name = LogName("home", "orders.paid")


def _dispatcher(*groups: _FakeGroup) -> Dispatcher:
    dispatcher = Dispatcher(FakeClock())
    for group in groups:
        dispatcher.add(cast(Group, group))
    return dispatcher


def _names(dispatcher: Dispatcher, space: str, topic: str) -> list[str]:
    return sorted(group.name for group in dispatcher.groups_of(LogName(space, topic)))


def test_a_log_finds_the_groups_whose_patterns_cover_it() -> None:
    """Step 5: exact topics, globs and spaces, and what leaves is found no more."""
    leaving = _FakeGroup("leaving", "orders.*")
    dispatcher = _dispatcher(
        _FakeGroup("exact", "orders.paid"),
        _FakeGroup("elsewhere", "orders.paid", "work"),
        _FakeGroup("all", "*", "home"),
        leaving,
    )
    assert _names(dispatcher, "home", "orders.paid") == ["all", "exact", "leaving"]
    assert _names(dispatcher, "work", "orders.paid") == ["elsewhere", "exact", "leaving"]
    assert _names(dispatcher, "home", "notes") == ["all"]
    dispatcher.remove(cast(Group, leaving))
    dispatcher.remove(cast(Group, leaving))
    assert _names(dispatcher, "home", "orders.paid") == ["all", "exact"]


def test_a_group_with_a_fault_costs_nobody_else_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Step 5: publishers and other groups must hear of a durable batch whatever one group makes of it."""
    broken, sound = _FakeGroup("broken", "*"), _FakeGroup("sound", "*")
    broken.raises = RuntimeError("a fault of our own")
    dispatcher = _dispatcher(broken, sound)
    with caplog.at_level(logging.ERROR):
        dispatcher.durable(cast(Any, _FakeLog()), cast(Any, ["batch"]))
    assert sound.offered == [["batch"]]
    assert "broken" in caplog.text or any(getattr(one, "group", "") == "broken" for one in caplog.records)


async def test_a_publisher_stops_at_max_inflight(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: with a stopped handler exactly `max_inflight` events are taken; then the publisher waits."""
    held = Held()
    await timed_bus.publish(an_event(0))
    await timed_bus.subscribe("actions", "slow", held, max_inflight=8)
    await fake_clock.advance(0)
    published: list[int] = [0]

    async def publish() -> None:
        for number in range(1, 20):
            await timed_bus.publish(an_event(number))
            published.append(number)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        await fake_clock.advance(20)
        assert len(published) == 8
        assert (group_of(timed_bus, "slow")["inflight"], timed_bus.statistics().published) == (8, 8)
        held.let_go()
    await settled(timed_bus)
    assert sorted(held.ended) == list(range(20))


async def test_an_impatient_publisher_gets_queue_full_and_nothing_is_written(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """QUEUE_FULL (W12): it names the group, came when the timeout was over, and left no line in the log."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    failures: list[tuple[float, QueueFull]] = []

    async def publish(timeout_s: float | None) -> None:
        with pytest.raises(QueueFull) as refused:
            await timed_bus.publish(an_event(2), timeout_s=timeout_s)
        failures.append((fake_clock.monotonic(), refused.value))

    async with anyio.create_task_group() as tasks:
        for timeout_s in (0, 5, None):
            tasks.start_soon(publish, timeout_s)
        await fake_clock.advance(60)
    assert [moment for moment, _ in failures] == [0, 5, 30]
    assert {(error.code, error.group, error.topic) for _, error in failures} == {("QUEUE_FULL", "slow", "actions")}
    held.let_go()
    await settled(timed_bus)
    assert len(await history(timed_bus)) == 1


async def test_a_batch_may_be_larger_than_the_window(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: `publish_many(500)` into a window of 64 enters once there is some room; the excess stays in the log."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=64)
    await fake_clock.advance(0)
    receipts = await timed_bus.publish_many(some_events(range(500)))
    assert len(receipts) == 500
    await fake_clock.advance(0)
    assert group_of(timed_bus, "slow")["inflight"] == 64
    held.let_go()
    await settled(timed_bus)
    assert held.ended == list(range(500))


async def test_spill_never_waits(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: with `overflow="spill"` a stuck group slows nobody down and holds no more than its window."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=4, overflow="spill")
    await fake_clock.advance(0)
    for number in range(300):
        await timed_bus.publish(an_event(number), timeout_s=0)
    stats = group_of(timed_bus, "slow")
    assert (stats["inflight"], stats["lag"]) == (4, 300)
    held.let_go()
    await settled(timed_bus)
    assert held.ended == list(range(300))


async def test_only_groups_that_cover_the_log_are_waited_for(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: a full group holds back its own topic and space and nothing else."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, space="home", max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(2, space="work"), timeout_s=0)
    await timed_bus.publish(an_event(3, topic="notes"), timeout_s=0)
    with pytest.raises(QueueFull):
        await timed_bus.publish(an_event(4), timeout_s=0)
    held.let_go()


async def test_a_slow_group_does_not_slow_its_neighbours(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: while one group with `spill` is stuck another one on the same topic keeps up."""
    held, collector = Held(), Collector()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=1, overflow="spill")
    await timed_bus.subscribe("actions", "quick", collector, max_inflight=4)
    await fake_clock.advance(0)
    for number in range(100):
        await timed_bus.publish(an_event(number))
    await fake_clock.advance(0)
    assert collector.numbers == list(range(100))
    held.let_go()


async def test_two_groups_that_publish_to_each_other_cannot_deadlock(tmp_path: Path) -> None:
    """W12: handlers never wait when they publish, however full the windows of those they publish to."""
    limit = 400
    counts = {"ping": 0, "pong": 0}
    async with disk_bus(tmp_path / "w") as bus:

        def echo(here: str, there: str) -> Any:
            async def handler(event: Event) -> None:
                counts[here] += 1
                if counts[here] < limit:
                    await bus.publish_many([an_event(topic=there), an_event(topic=there)])

            return handler

        await bus.subscribe("ping", "ping", echo("ping", "pong"), max_inflight=2)
        await bus.subscribe("pong", "pong", echo("pong", "ping"), max_inflight=2)
        await bus.publish_many(some_events(range(20), topic="ping"))
        await bus.publish_many(some_events(range(20), topic="pong"))
        await settled(bus)
    assert min(counts.values()) >= limit


async def test_a_plain_function_that_publishes_does_not_wait_either(tmp_path: Path) -> None:
    """W12: what a handler does in its worker thread counts as code that the bus runs."""
    done: list[int] = []
    async with disk_bus(tmp_path / "w", publish_timeout_s=5) as bus:

        def handler(event: Event) -> None:
            anyio.from_thread.run(bus.publish, an_event(topic="results"))
            done.append(event.payload["n"])

        held = Held()
        await bus.subscribe("results", "stuck", held, max_inflight=1)
        await bus.subscribe("actions", "worker", handler)
        await bus.publish_many(some_events(range(5)))
        while len(done) < 5:
            await anyio.sleep(0.01)
        assert sorted(done) == list(range(5))
        held.let_go()


async def test_a_group_that_catches_up_from_far_behind_holds_nobody_back(fake_clock: FakeClock) -> None:
    """W12: publishers wait only for groups at the head; once this one has caught up it is one of them."""
    bus = EventBus(store=MemoryStore(clock=fake_clock), config=BusConfig(read_bytes=2_000))
    await bus.publish_many(some_events(range(500)))
    held = Held()
    subscription = await bus.subscribe("actions", "late", held, max_inflight=4)
    await fake_clock.advance(0)
    assert held.begun == [0]
    for number in range(500, 520):
        await bus.publish(an_event(number), timeout_s=0)
    held.let_go()
    await settled(bus)
    assert held.ended == list(range(520))
    again = Held()
    await bus.unsubscribe(subscription)
    await bus.subscribe("actions", "late", again, max_inflight=1)
    await fake_clock.advance(0)
    await bus.publish(an_event(1), timeout_s=0)
    await fake_clock.advance(0)
    with pytest.raises(QueueFull):
        await bus.publish(an_event(2), timeout_s=0)
    await bus.close(timeout_s=0)


async def test_whoever_waits_goes_on_when_the_full_group_leaves(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: unsubscribing the group that held publishers back lets them go."""
    held = Held()
    subscription = await timed_bus.subscribe("actions", "slow", held, max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    receipts: list[int] = []

    async def publish() -> None:
        receipts.append((await timed_bus.publish(an_event(2))).offset)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        await fake_clock.advance(1)
        assert receipts == []
        await timed_bus.unsubscribe(subscription)
        await fake_clock.advance(0)
        assert receipts == [2]


async def test_many_publishers_and_a_small_window_on_disk(tmp_path: Path) -> None:
    """W12, L: a hundred publishers through a window of three; everything arrives once, memory stays in bounds."""
    wal = WalSettings(ballast_bytes=0, tail_bytes=4_000)
    collector = Collector()
    async with disk_bus(tmp_path / "w", wal=wal, read_bytes=2_000) as bus:
        await bus.subscribe("actions", "learner", collector, max_inflight=3, workers=2)

        async def publish(first: int) -> None:
            for number in range(first, first + 10):
                await bus.publish(an_event(number))

        async with anyio.create_task_group() as tasks:
            for first in range(0, 1000, 10):
                tasks.start_soon(publish, first)
        await settled(bus)
    assert sorted(collector.numbers) == list(range(1000))
