"""The bus as a whole: its life, what a publish promises, what it says about itself."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Hop, HopResult, Next
from events.errors import (
    BusClosed,
    Denied,
    InvalidMessage,
    InvalidSpace,
    InvalidTopic,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    StorageFull,
    WorkspaceLocked,
    error_code_of,
)
from events.persistence.files import OsFileSystem
from events.persistence.memory import MemoryStore
from events.persistence.store import Store
from events.persistence.wal import WalSettings, WalStore
from events.subscription import Subscription, SubscriptionRegistry
from events.testing.clock import FakeClock
from events.testing.faulty import FaultyStore
from events.testing.recording import Recorder
from events.types import Event, EventMeta, EventType, Nack
from tests.events.bus_support import (
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    history,
    killed,
    publish_each,
    settled,
    some_events,
    until,
)

# -- life --------------------------------------------------------------------------------------------------------


async def test_first_use_starts_the_bus(workspace: Path, recorder: Recorder) -> None:
    """Nobody has to call `start`: subscribing and publishing do."""
    bus = EventBus()
    await bus.subscribe("actions", "learner", recorder)
    await bus.publish(an_event(1))
    await settled(bus)
    await bus.close()
    assert recorder.offsets == [1]
    assert (workspace / ".bus" / "groups" / "learner.json").exists(), "EVENTS_WORKSPACE says where"


async def test_starting_twice_and_from_many_tasks_is_one_start(tmp_path: Path) -> None:
    """`start` may be called by everybody; the workspace is opened once."""
    bus = disk_bus(tmp_path / "w")
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(bus.start)
    await bus.start()
    assert bus.health().ok
    await bus.close()


async def test_a_bus_may_be_started_used_and_closed_in_different_tasks(tmp_path: Path, recorder: Recorder) -> None:
    """The bus belongs to no task: each step of its life may come from another one."""
    bus = disk_bus(tmp_path / "w")

    async def use() -> None:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(an_event(1))

    steps: list[Callable[[], Coroutine[Any, Any, object]]] = [bus.start, use, lambda: settled(bus), bus.close]
    for step in steps:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    assert recorder.offsets == [1]


async def test_a_workspace_that_is_held_is_refused_and_said_so(tmp_path: Path) -> None:
    """LOCKED (W18): the second bus on a workspace does not start, and the first does not notice."""
    async with disk_bus(tmp_path / "w") as first:
        second = disk_bus(tmp_path / "w")
        with pytest.raises(WorkspaceLocked) as refused:
            await second.publish(an_event())
        assert error_code_of(refused.value) == "LOCKED"
        assert str(os.getpid()) in str(refused.value)
        assert not second.health().ok
        assert any("held by" in problem for problem in second.health().problems)
        await second.close()
        await first.publish(an_event())


async def test_a_bus_that_was_never_used_can_be_closed(tmp_path: Path) -> None:
    """Closing before first use opens nothing, and the bus stays closed."""
    bus = disk_bus(tmp_path / "w")
    await bus.close()
    assert not (tmp_path / "w").exists()
    with pytest.raises(BusClosed):
        await bus.publish(an_event())


async def test_a_program_may_end_without_closing(tmp_path: Path, recorder: Recorder) -> None:
    """A loop that shuts down around the bus lets go of the workspace, and what was published is there."""
    workspace = tmp_path / "w"

    async def forgetful() -> None:
        await disk_bus(workspace).publish(an_event(1))

    for backend in ("asyncio", "trio"):
        await anyio.to_thread.run_sync(partial(anyio.run, forgetful, backend=backend))
    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await settled(bus)
    assert recorder.offsets == [1, 2]


async def test_it_serves_until_the_process_is_told_to_end(tmp_path: Path) -> None:
    """SIGTERM in an application leads to the same as `close` (W17)."""
    bus = disk_bus(tmp_path / "w")
    held = Held()
    await bus.subscribe("actions", "learner", held)
    await bus.publish(an_event(1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bus.run_until_terminated)
        await until(lambda: held.begun)
        await wait_all_tasks_blocked()
        os.kill(os.getpid(), signal.SIGTERM)
        held.let_go()
    assert held.ended == [1]
    assert bus.health().state == "closed"


# -- publishing --------------------------------------------------------------------------------------------------


async def test_a_receipt_says_where_the_event_stands(tmp_path: Path) -> None:
    """Offsets count from 1 in each space and topic, and receipts come in the order of the events."""
    async with disk_bus(tmp_path / "w") as bus:
        events = [an_event(0), an_event(1, space="work"), an_event(2), an_event(3, topic="notes")]
        receipts = await bus.publish_many(events)
        assert [receipt[:3] for receipt in receipts] == [
            ("home", "actions", 1),
            ("work", "actions", 1),
            ("home", "actions", 2),
            ("home", "notes", 1),
        ]
        assert [receipt.event_id for receipt in receipts] == [event.meta.event_id for event in events]
        assert await bus.publish_many([]) == []
        assert (await bus.publish(an_event(4))).offset == 3


async def test_what_was_published_is_on_disk_before_the_receipt(tmp_path: Path) -> None:
    """S1: a copy of the files, taken the moment a publish returned, has the event."""
    async with disk_bus(tmp_path / "w") as bus:
        for number in range(5):
            await bus.publish(an_event(number))
            async with disk_bus(killed(tmp_path / "w", f"killed-{number}")) as found:
                assert [record.event.payload["n"] for record in await history(found)] == list(range(number + 1))


async def test_the_topic_beside_the_event_wins(event_bus: EventBus) -> None:
    """`publish(event, topic)`: the argument is where the event goes, and what its meta says then (E2)."""
    receipt = await event_bus.publish(an_event(1), "notes")
    assert receipt.topic == "notes"
    [record] = await history(event_bus)
    assert record.event.meta.topic == "notes"
    receipt = await event_bus.publish(an_event(2), EventType.HIPPO_ENCODE)
    assert receipt.topic == "HIPPO_ENCODE"


@pytest.mark.parametrize(
    ("event", "topic", "error", "code"),
    [
        ("not an event", None, InvalidMessage, "INVALID_MESSAGE"),
        (an_event(), "../up", InvalidTopic, "INVALID_TOPIC"),
        (an_event(), "a*", InvalidTopic, "INVALID_TOPIC"),
        (Event(EventMeta.model_construct(topic="a", type="T", space_id=""), {}), None, InvalidSpace, "INVALID_SPACE"),
        (Event(an_event().meta, {"x": object()}), None, InvalidMessage, "INVALID_MESSAGE"),
        (Event(an_event().meta, {"x": "y" * 5000}), None, PayloadTooLarge, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_what_cannot_be_published_is_refused_whole(
    event: Any, topic: str | None, error: type[Exception], code: str
) -> None:
    """W18: a bad event is refused by its code before anything is written, its neighbours in a batch too."""
    async with EventBus(store=MemoryStore(), config=BusConfig(max_event_bytes=1000)) as bus:
        with pytest.raises(error) as refused:
            await bus.publish(event, topic)
        assert error_code_of(refused.value) == code
        with pytest.raises(error):
            await bus.publish_many([an_event(), event], topic)
        assert await history(bus) == []
        assert bus.statistics().published == 0


async def test_a_publish_cancelled_while_it_waits_for_room_is_never_written(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W2: cancel before the line is staged means never written."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(timed_bus.publish, an_event(2))
            await fake_clock.advance(1)
            scope.cancel()
    held.let_go()
    await settled(timed_bus)
    assert held.begun == [1]
    assert len(await history(timed_bus)) == 1


class _SlowDisk(OsFileSystem):
    """A disk on which syncs of log segments take until somebody lets them pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = threading.Event()
        self.passes.set()

    def sync(self, handle: int) -> None:
        self.passes.wait(20)
        super().sync(handle)


async def test_after_the_line_was_handed_over_the_outcome_is_unknown(tmp_path: Path) -> None:
    """W2: a timeout while the disk writes says that nobody knows; here the event turns out to be there."""
    disk = _SlowDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    async with EventBus(store=store) as bus:
        await bus.publish(an_event(1))
        disk.passes.clear()
        with pytest.raises(OutcomeUnknown) as unknown:
            await bus.publish(an_event(2), timeout_s=0.05)
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        disk.passes.set()
        receipt = await bus.publish(an_event(3))
        assert receipt.offset == 3
        assert [record.event.payload["n"] for record in await history(bus)] == [1, 2, 3]


async def test_a_publish_cancelled_while_the_disk_writes_is_whole_or_not_there(tmp_path: Path) -> None:
    """W2, S5: the line was handed over, so cancelling comes too late; the log goes on without a gap."""
    disk = _SlowDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    async with EventBus(store=store) as bus:
        await bus.publish(an_event(1))
        disk.passes.clear()
        with anyio.move_on_after(0.05) as scope:
            await bus.publish_many(some_events([2, 3]))
        assert scope.cancelled_caught
        disk.passes.set()
        receipt = await bus.publish(an_event(4))
        offsets = [record.offset for record in await history(bus)]
        assert offsets == list(range(1, receipt.offset + 1))


# -- W1: at least once, and once where it is settled ---------------------------------------------------------------


async def test_a_killed_process_leaves_each_group_exactly_what_it_had_not_durably_settled(tmp_path: Path) -> None:
    """W1, S3: acked ones stay settled, whatever lies between them; all others come again, in order."""
    workspace = tmp_path / "w"
    stuck = anyio.Event()

    async def only_even(event: Event) -> None:
        if event.payload["n"] % 2:
            await stuck.wait()

    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "even", only_even, workers=20)
        collector = Collector()
        await bus.subscribe("actions", "all", collector)
        await bus.publish_many(some_events(range(1, 21)))
        await until(lambda: group_of(bus, "even").get("acked") == 10 and len(collector.numbers) == 20)
        await anyio.sleep(0.05)  # the checkpoint follows within 10 ms
        copy = killed(workspace)
        stuck.set()

    again, all_again = Collector(), Collector()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "even", again)
        await bus.subscribe("actions", "all", all_again)
        await settled(bus)
    assert again.numbers == list(range(1, 21, 2))
    assert all_again.numbers == []


async def test_after_a_close_nothing_that_was_settled_comes_again(tmp_path: Path) -> None:
    """W1, W17: close saves what was settled, also what was settled a moment before it."""
    for number in range(1, 6):
        collector = Collector()
        async with disk_bus(tmp_path / "w", checkpoint_interval_s=60) as bus:
            await bus.subscribe("actions", "learner", collector)
            await bus.publish(an_event(number))
            await settled(bus)
        assert collector.numbers == [number]


async def test_what_was_published_while_nobody_consumed_is_delivered_later(tmp_path: Path) -> None:
    """W1: a group that exists gets everything, also what was published while it was not consuming."""
    collector = Collector()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.unsubscribe(await bus.subscribe("actions", "learner", collector))
        await bus.publish_many(some_events(range(10)))
    async with disk_bus(tmp_path / "w") as bus:
        await bus.publish_many(some_events(range(10, 20)))
        await bus.subscribe("actions", "learner", collector)
        await settled(bus)
    assert collector.numbers == list(range(20))


# -- a registry --------------------------------------------------------------------------------------------------


async def test_a_registry_is_subscribed_at_the_start_and_what_joins_it_later_soon_after() -> None:
    """Handlers declared before there is a bus consume once it runs; those declared later follow."""
    registry = SubscriptionRegistry()
    first, second = Collector(), Collector()
    _, declared = registry.register_subscription("actions", first, group="first")
    async with EventBus(store=MemoryStore(), registry=registry) as bus:
        assert declared.is_active
        _, late = registry.register_subscription("actions", second, group="second")
        await until(lambda: late.is_active)
        await bus.publish(an_event(1))
        await settled(bus)
    assert (first.numbers, second.numbers) == ([1], [1])


async def test_a_registration_that_cannot_be_subscribed_does_not_stop_the_bus(caplog: pytest.LogCaptureFixture) -> None:
    """A late registration in conflict with a group is logged; everybody else goes on."""
    registry = SubscriptionRegistry()
    collector = Collector()
    registry.register_subscription("actions", collector, group="learner")
    async with EventBus(store=MemoryStore(), registry=registry) as bus:
        _, wrong = registry.register_subscription("notes", collector, group="learner")
        await until(lambda: "could not subscribe" in caplog.text)
        assert not wrong.is_active
        await bus.publish(an_event(1))
        await settled(bus)
        assert bus.health().ok
    assert collector.numbers == [1]


async def test_a_registry_outlives_its_bus() -> None:
    """After a close the registry takes registrations for the next bus."""
    registry = SubscriptionRegistry()
    first, second = Collector(), Collector()
    registry.register_subscription("actions", first, group="first")
    store = MemoryStore()
    async with EventBus(store=store, registry=registry):
        pass
    registry.register_subscription("actions", second, group="second")
    async with EventBus(store=store, registry=registry) as bus:
        await bus.publish(an_event(1))
        await settled(bus)
    assert (first.numbers, second.numbers) == ([1], [1])


# -- what it says about itself -------------------------------------------------------------------------------------


async def test_health_follows_the_life_of_the_bus(tmp_path: Path) -> None:
    """`ok` is true exactly while the bus can do its work."""
    bus = disk_bus(tmp_path / "w")
    assert (bus.health().ok, bus.health().state) == (False, "new")
    await bus.start()
    assert (bus.health().ok, bus.health().state, bus.health().problems) == (True, "running", ())
    await bus.close()
    assert (bus.health().ok, bus.health().state) == (False, "closed")
    assert "closed" in repr(bus)


async def test_statistics_are_a_snapshot(event_bus: EventBus, recorder: Recorder) -> None:
    """What was handed out does not change under the reader, and counts published, settled and lag."""
    await event_bus.subscribe("actions", "learner", recorder)
    before = event_bus.statistics()
    await event_bus.publish_many(some_events(range(3)))
    await settled(event_bus)
    after = event_bus.statistics()
    assert (before.published, after.published) == (0, 3)
    assert "acked" not in before.groups["learner"]
    assert after.groups["learner"]["acked"] == 3
    assert (after.groups["learner"]["lag"], after.groups["learner"]["inflight"]) == (0, 0)
    with pytest.raises(AttributeError):
        after.published = 7  # type: ignore[misc]


async def test_lag_counts_what_a_group_has_not_settled(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """`lag`, `inflight` and the age of the oldest event are there to alert on."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=2, overflow="spill")
    await timed_bus.publish_many(some_events(range(5)))
    await fake_clock.advance(7)
    stats = group_of(timed_bus, "slow")
    assert (stats["lag"], stats["inflight"], stats["oldest_s"]) == (5, 2, 7.0)
    held.let_go()
    await settled(timed_bus)
    assert (group_of(timed_bus, "slow")["lag"], group_of(timed_bus, "slow")["oldest_s"]) == (0, 0.0)


async def test_wait_settled_gives_up_in_time(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """With a limit it says whether everything was settled by then."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held)
    await timed_bus.publish(an_event(1))
    outcome: list[bool] = []

    async def wait() -> None:
        outcome.append(await timed_bus.wait_settled(5))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await fake_clock.advance(4)
        assert outcome == []
        await fake_clock.advance(2)
    assert outcome == [False]
    held.let_go()


# -- a full disk -------------------------------------------------------------------------------------------------


class _FullDisk(OsFileSystem):
    """A disk that has no room for log segments while `full`; checkpoints still fit."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.everything = False

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        if self.full and (self.everything or bytes(data[:10]) == b'{"offset":'):
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwrite(handle, data, position)


async def test_a_full_disk_makes_publishers_wait_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Disk full: publish waits, `health` and the statistics say so, and with room it goes on without help."""
    disk = _FullDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    async with EventBus(store=store) as bus:
        collector = Collector()
        await bus.subscribe("actions", "learner", collector)
        await bus.publish(an_event(1))
        disk.full = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.publish, an_event(2))
            await until(lambda: bus.statistics().storage_full)
            assert not bus.health().ok
            assert any("no space left" in problem for problem in bus.health().problems)
            disk.full = False
        await settled(bus)
        assert bus.health().ok
        assert not bus.statistics().storage_full
    assert collector.numbers == [1, 2]


async def test_a_disk_that_stays_full_ends_in_storage_full_with_nothing_written(tmp_path: Path) -> None:
    """STORAGE_FULL: the line is withdrawn, and what comes later takes its offset."""
    disk = _FullDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    async with EventBus(store=store) as bus:
        await bus.publish(an_event(1))
        disk.full = True
        with pytest.raises(StorageFull) as refused:
            await bus.publish(an_event(2), timeout_s=0.1)
        assert refused.value.code == "STORAGE_FULL"
        disk.full = False
        receipt = await bus.publish(an_event(3))
        assert receipt.offset == 2
        assert [record.event.payload["n"] for record in await history(bus)] == [1, 3]


class _FailingDisk(OsFileSystem):
    """A disk whose syncs fail while `fails`."""

    fails = False

    def sync(self, handle: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "injected")
        super().sync(handle)


async def test_a_disk_that_fails_is_said_so_and_the_rest_goes_on(tmp_path: Path) -> None:
    """POISONED (W18): a failed sync closes that log for writing; `health` names it, other logs work."""
    disk = _FailingDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    collector = Collector()
    async with EventBus(store=store) as bus:
        await bus.subscribe("*", "learner", collector)
        await bus.publish(an_event(1))
        disk.fails = True
        with pytest.raises(OutcomeUnknown) as unknown:
            await bus.publish(an_event(2))
        assert unknown.value.code == "POISONED"
        disk.fails = False
        with pytest.raises(OutcomeUnknown):
            await bus.publish(an_event(3))
        assert any("takes no more" in problem for problem in bus.health().problems)
        await bus.publish(an_event(4, topic="notes"))
        await settled(bus)
        assert collector.numbers == [1, 4]


async def test_a_full_disk_charges_a_handler_no_attempt(tmp_path: Path) -> None:
    """STORAGE_FULL in a nested publish is not the handler's fault: it is tried again, uncounted, until it works."""
    disk = _FullDisk()
    store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0), fs=disk)
    attempts: list[int] = []
    config = BusConfig(publish_timeout_s=0.05, backoff_base=0.001, backoff_max=0.01)
    async with EventBus(store=store, config=config) as bus:

        async def handler(event: Event, delivery: Any) -> None:
            attempts.append(delivery.attempt)
            disk.full = len(attempts) < 4
            await bus.publish(an_event(2, topic="results"))

        await bus.subscribe("actions", "worker", handler, max_retries=1)
        await bus.publish(an_event(1))
        await settled(bus)
        assert await bus.dlq.list() == []
        assert len(await history(bus, "results")) == 1
    assert len(attempts) >= 4
    assert set(attempts) == {1}


async def test_checkpoints_that_cannot_be_saved_are_tried_again(tmp_path: Path) -> None:
    """A disk that refuses checkpoints stops nothing; once it takes them, what was settled stays settled."""
    trouble = {"save_checkpoint": True}

    def raise_trouble(operation: str) -> None:
        if trouble.get(operation):
            raise OSError(errno.EIO, "injected")

    store = FaultyStore(WalStore(tmp_path / "w", WalSettings(ballast_bytes=0)), raise_trouble)
    collector = Collector()
    config = BusConfig(checkpoint_interval_s=0.01)
    async with EventBus(store=cast(Store, store), config=config) as bus:
        await bus.subscribe("actions", "learner", collector)
        await bus.publish_many(some_events(range(5)))
        await settled(bus)
        await anyio.sleep(0.05)
        assert not list((tmp_path / "w").rglob("offsets/*.json"))
        trouble.clear()
        await until(lambda: list((tmp_path / "w").rglob("offsets/*.json")))
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", collector)
        await settled(bus)
    assert collector.numbers == list(range(5))


# -- middleware, as far as the bus goes ----------------------------------------------------------------------------


class _Journal:
    """A middleware that notes what the bus asks of it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        self.notes.append(f"{hop.kind} {len(hop.metas)}")
        return await call_next(hop)

    async def start(self) -> None:
        self.notes.append("start")

    async def close(self) -> None:
        self.notes.append("close")

    async def before_checkpoint(self) -> None:
        if "checkpoint" not in self.notes:
            self.notes.append("checkpoint")


async def test_middleware_sees_every_publish_and_every_delivery() -> None:
    """It starts before anything passes and is closed when nothing can any more; a batch is one crossing."""
    journal = _Journal()
    async with EventBus([journal], store=MemoryStore()) as bus:
        await bus.subscribe("actions", "learner", Collector(), batch=10)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
    assert journal.notes == ["start", "publish 3", "handle 3", "checkpoint", "close"]


async def test_middleware_that_fails_fails_the_publish_and_the_attempt() -> None:
    """What a middleware raises around a publish reaches the publisher; around a delivery it is a failed attempt."""
    broken: set[str] = set()

    async def middleware(hop: Hop, call_next: Next) -> HopResult:
        if hop.kind in broken:
            broken.discard(hop.kind)
            raise LookupError("no luck")
        return await call_next(hop)

    collector = Collector()
    config = BusConfig(backoff_base=0.001)
    async with EventBus([middleware], store=MemoryStore(), config=config) as bus:
        await bus.subscribe("actions", "learner", collector)
        broken.add("publish")
        with pytest.raises(LookupError):
            await bus.publish(an_event(1))
        broken.add("handle")
        await bus.publish(an_event(2))
        await settled(bus)
        assert group_of(bus, "learner")["failed"] == 1
    assert collector.numbers == [2]


async def test_a_denied_publish_and_subscribe_write_nothing() -> None:
    """DENIED: whoever may not, gets the error, and neither event nor group exists."""

    class NotMallory:
        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            if hop.kind == "publish" and hop.subject == "mallory":
                raise Denied("mallory", "publish", "actions", "home")
            return await call_next(hop)

        def authorise(self, subject: str | None, action: str, topic: str, space: str, *_: object) -> None:
            if subject == "mallory":
                raise Denied("mallory", action, topic, space)

    async with EventBus([NotMallory()], store=MemoryStore()) as bus:
        mallory = bus.bind("mallory")
        with pytest.raises(Denied) as denied:
            await mallory.publish(an_event(1))
        assert error_code_of(denied.value) == "DENIED"
        with pytest.raises(Denied):
            await mallory.subscribe("actions", "learner", Collector())
        with pytest.raises(Denied):
            [record async for record in mallory.replay("actions")]
        assert await bus.store.groups() == []
        assert await history(bus) == []


# -- robustness --------------------------------------------------------------------------------------------------


async def test_payloads_belong_to_who_received_them(event_bus: EventBus) -> None:
    """Nobody can change what another group, the next attempt, or the publisher's own copy holds."""
    seen: list[tuple[str, Any]] = []
    original = {"list": [1], "n": 0}

    def meddler(name: str, fails: int) -> Any:
        async def handler(event: Event, delivery: Any) -> Nack | None:
            seen.append((name, event.payload["list"][:]))
            event.payload["list"].append(99)
            event.payload["new"] = True
            return Nack(delay=0) if delivery.attempt <= fails else None

        return handler

    await event_bus.subscribe("actions", "first", meddler("first", 2))
    await event_bus.subscribe("actions", "second", meddler("second", 1))
    event = Event(an_event().meta, original)
    await event_bus.publish(event)
    original["list"].append(5)  # type: ignore[attr-defined]
    await settled(event_bus)
    assert sorted(seen) == [("first", [1])] * 3 + [("second", [1])] * 2
    assert event.payload == {"list": [1, 5], "n": 0}


async def test_failed_attempts_are_logged_with_structure_and_without_the_payload(
    event_bus: EventBus, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed attempt, the last one too, says who, where, how often and what kind of error it was."""

    async def handler(event: Event) -> None:
        raise LookupError("no such drawer")

    await event_bus.subscribe("actions", "learner", handler, max_retries=1, backoff_base=0.001)
    event = Event(an_event().meta, {"n": 1, "diary": "dear diary"})
    with caplog.at_level(logging.DEBUG, logger="events"):
        await event_bus.publish(event)
        await settled(event_bus)
    failures = [record for record in caplog.records if getattr(record, "attempt", None) is not None]
    assert [vars(record)["attempt"] for record in failures] == [1, 2]
    for record in failures:
        fields = vars(record)
        assert (fields["group"], fields["space"], fields["topic"], fields["offset"]) == (
            "learner",
            "home",
            "actions",
            1,
        )
        assert (fields["event_id"], fields["max_retries"]) == (event.meta.event_id, 1)
        assert "LookupError" in str(fields["error"])
    assert "dear diary" not in caplog.text


def _io_threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("events-io")}


async def test_two_hundred_buses_leave_nothing_behind(tmp_path: Path) -> None:
    """W17: no task, thread or open file outlives its bus (M)."""

    async def one(number: int) -> None:
        async with disk_bus(tmp_path / f"w{number % 10}") as bus:
            collector = Collector()
            await bus.subscribe("actions", "learner", collector, workers=3)
            await bus.publish(an_event(number))
            await settled(bus)
            assert collector.numbers == [number]

    async def ten(first: int) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(first, first + 10):
                tasks.start_soon(one, number)

    threads = _io_threads()
    await ten(0)
    await until(lambda: _io_threads() <= threads)
    gc.collect()
    files, tasks = len(os.listdir("/proc/self/fd")), len(anyio.get_running_tasks())
    for first in range(10, 200, 10):
        await ten(first)
    await until(lambda: _io_threads() <= threads)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files
    assert len(anyio.get_running_tasks()) <= tasks


async def test_errors_carry_their_codes_to_the_caller(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W18: `error_code_of` names each refusal, also through a chain of causes."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    codes: list[str | None] = []

    async def publish() -> None:
        try:
            try:
                await timed_bus.publish(an_event(2), timeout_s=3)
            except QueueFull as error:
                raise RuntimeError("the module could not say it") from error
        except RuntimeError as error:
            codes.append(error_code_of(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        await fake_clock.advance(3)
    assert codes == ["QUEUE_FULL"]
    held.let_go()
    await publish_each(timed_bus, [])
    subscription = Subscription("actions", "x", Collector())
    assert repr(subscription) == "Subscription(x on 'actions' in '*')"
