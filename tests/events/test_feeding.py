"""Reading for a group: what it fell behind on, what falls due, and logs that cannot be read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.errors import StorageError
from events.persistence.memory import MemoryStore
from events.persistence.retention import compact, retain
from events.persistence.store import Store
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.testing.faulty import FaultyStore
from events.testing.recording import Recorder
from events.types import Event, Nack
from tests.events.bus_support import (
    HOME,
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    settled,
    some_events,
    until,
)

SMALL = WalSettings(ballast_bytes=0, tail_bytes=1_000, segment_lines=10)


async def test_a_group_reads_what_it_missed_from_the_segments(tmp_path: Path) -> None:
    """W4: far behind, with a tail in memory of a few lines, the group gets everything in order."""
    collector = Collector()
    async with disk_bus(tmp_path / "w", wal=SMALL, read_bytes=1_500) as bus:
        for first in range(0, 500, 50):
            await bus.publish_many(some_events(range(first, first + 50)))
        await bus.subscribe("actions", "learner", collector, max_inflight=7)
        await settled(bus)
    assert collector.numbers == list(range(500))


async def test_parked_events_are_read_again_from_the_segments(tmp_path: Path) -> None:
    """W7: what is parked is an offset and nothing else; its line is read again when it is due."""
    async with disk_bus(tmp_path / "w", wal=SMALL) as bus:
        recorder = Recorder(lambda recorded: Nack(delay=0.02) if recorded.attempt == 1 else None)
        await bus.subscribe("actions", "learner", recorder, workers=4)
        await bus.publish_many(some_events(range(100)))
        await settled(bus)
    firsts = [one.event.payload["n"] for one in recorder.deliveries if one.attempt == 1]
    seconds = [one.event.payload["n"] for one in recorder.deliveries if one.attempt == 2]
    assert sorted(firsts) == sorted(seconds) == list(range(100))


async def test_several_logs_are_read_side_by_side(fake_clock: FakeClock) -> None:
    """W15: a space with a long history does not make the others wait for all of it."""
    recorder = Recorder()
    bus = EventBus(store=MemoryStore(clock=fake_clock), config=BusConfig(read_bytes=500))
    await bus.publish_many(some_events(range(1000), space="big"))
    await bus.publish_many(some_events(range(10), space="small"))
    await bus.subscribe("actions", "learner", recorder, max_inflight=10)
    await settled(bus)
    last_small = max(index for index, one in enumerate(recorder.deliveries) if one.space_id == "small")
    assert last_small < 200
    assert len(recorder.deliveries) == 1010
    await bus.close(timeout_s=0)


async def test_what_is_always_due_does_not_keep_new_events_waiting(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """L: retries without a pause and fresh events share the feeder."""
    done: list[int] = []
    tries = 0

    async def handler(event: Event) -> Nack | None:
        nonlocal tries
        if event.payload["n"] == 0 and tries < 2000:
            tries += 1
            return Nack(delay=0, count=False)
        done.append(event.payload["n"])
        return None

    await timed_bus.subscribe("actions", "learner", handler, max_inflight=2, overflow="spill")
    await timed_bus.publish_many(some_events(range(50)))
    await fake_clock.advance(1)
    await settled(timed_bus)
    assert sorted(done) == list(range(50))


async def test_a_log_that_cannot_be_read_is_reported_and_holds_up_no_other(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Health: the trouble is said once and shown while it lasts; other logs go on; so does this one when it can."""
    broken = True

    def trouble(operation: str) -> None:
        if broken and operation == "read":
            raise StorageError("injected: unreadable")

    class Reader(MemoryStore):
        """A store that has nothing in memory, so that every record is read."""

    store = FaultyStore(Reader(clock=fake_clock), trouble)
    collector = Collector()
    bus = EventBus(store=cast(Store, store))
    await bus.publish_many([an_event(1, space="bad"), an_event(2, space="bad")])
    recorder = Recorder(lambda recorded: Nack(delay=1) if recorded.attempt == 1 else None)
    await bus.subscribe("actions", "retrying", recorder, space="bad")
    await bus.subscribe("actions", "learner", collector, space="good")
    with caplog.at_level(logging.WARNING, logger="events.feeding"):
        await fake_clock.advance(10)
        assert any("unreadable" in problem for problem in bus.health().problems)
        assert len([one for one in caplog.records if "cannot read" in one.message]) == 1
    await bus.publish_many([an_event(3, space="good")])
    await fake_clock.advance(0)
    assert collector.numbers == [3]
    broken = False
    await fake_clock.advance(5)
    await settled(bus)
    assert bus.health().ok
    assert sorted(recorder.offsets) == [1, 1, 2, 2]
    await bus.close(timeout_s=0)


async def test_a_log_that_cannot_be_opened_holds_up_no_other_of_its_group(fake_clock: FakeClock) -> None:
    """Health: one unreadable log of many; the group works on all the others and tries again now and then."""
    broken = True

    class Half(MemoryStore):
        async def load_checkpoint(self, name: object, group: str) -> None:
            if broken and name == ("bad", "actions"):
                raise StorageError("injected: no checkpoint can be read")

    collector = Collector()
    bus = EventBus(store=Half(clock=fake_clock))
    await bus.publish_many([an_event(1, space="bad"), an_event(2, space="good"), an_event(3, space="other")])
    await bus.subscribe("actions", "learner", collector)
    await fake_clock.advance(0)
    assert sorted(collector.numbers) == [2, 3]
    await bus.publish(an_event(4, space="good"))
    await fake_clock.advance(3)
    assert sorted(collector.numbers) == [2, 3, 4]
    assert not bus.health().ok
    broken = False
    await fake_clock.advance(3)
    await settled(bus)
    assert sorted(collector.numbers) == [1, 2, 3, 4]
    assert bus.health().ok
    await bus.close(timeout_s=0)


async def test_what_retention_took_is_lost_with_a_count(tmp_path: Path) -> None:
    """W11, F5: a group that was robbed skips what is gone, says how much, and goes on."""
    collector = Collector()
    async with disk_bus(tmp_path / "w", wal=SMALL) as bus:
        subscription = await bus.subscribe("actions", "learner", collector)
        await bus.publish_many(some_events(range(5)))
        await settled(bus)
        await bus.unsubscribe(subscription)
        for first in range(5, 100, 10):
            await bus.publish_many(some_events(range(first, first + 10)))
        dropped = await retain(bus.store, HOME, now_ms=bus.clock.now_ms(), max_bytes=6_000)
        assert dict(dropped.robbed)["learner"] == dropped.first_now - 6
        await bus.subscribe("actions", "learner", collector)
        await settled(bus)
        assert group_of(bus, "learner")["lost"] == dropped.first_now - 6
    assert collector.numbers == [*range(5), *range(dropped.first_now - 1, 105)]


async def test_parked_events_that_retention_took_are_lost_with_a_count(tmp_path: Path) -> None:
    """W11: also what backed off, and those behind it in its lane."""
    async with disk_bus(tmp_path / "w", wal=SMALL) as bus:
        done: list[int] = []

        async def handler(event: Event) -> Nack | None:
            if event.payload["n"] == 0:
                return Nack(delay=0.15)
            done.append(event.payload["n"])
            return None

        await bus.subscribe("actions", "learner", handler)
        for first in range(0, 60, 10):
            await bus.publish_many(some_events(range(first, first + 10), key="k"))
        await until(lambda: group_of(bus, "learner")["parked"] == 60)
        await retain(bus.store, HOME, now_ms=bus.clock.now_ms(), max_bytes=5_000)
        await settled(bus)
        assert group_of(bus, "learner")["lost"] + len(done) == 60
        assert done == sorted(done)
        assert done[-1] == 59


async def test_compaction_takes_nothing_that_a_group_still_needs(tmp_path: Path) -> None:
    """F5: segments that every group has settled go; what one of them holds parked stays."""
    async with disk_bus(tmp_path / "w", wal=SMALL) as bus:
        held, collector = Held(), Collector()
        await bus.subscribe("actions", "slow", held)
        await bus.subscribe("actions", "quick", collector)
        for first in range(0, 50, 10):
            await bus.publish_many(some_events(range(first, first + 10)))
        await until(lambda: len(collector.numbers) == 50)
        await anyio.sleep(0.05)
        assert (await compact(bus.store, HOME)).first_now == 1
        held.let_go()
        await settled(bus)
    async with disk_bus(tmp_path / "w", wal=SMALL) as bus:
        await compact(bus.store, HOME)
        late = Collector()
        await bus.subscribe("actions", "late", late)
        await settled(bus)
        assert late.numbers
        assert late.numbers == list(range(50))[-len(late.numbers) :]
