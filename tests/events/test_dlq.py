"""Dead letters from death to retry and purge: on a live bus, without a bus, and beside one (rule W10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from events.attention_gate import Admit, Decision, Defer, Drop, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Delivery
from events.dlq import DLQInspector
from events.errors import UnknownGroup, WorkspaceLocked, error_code_of
from events.persistence.memory import MemoryStore
from events.persistence.retention import compact
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.testing.recording import Recorded, Recorder
from events.types import Event, Nack
from tests.events.bus_support import (
    HOME,
    PATIENCE_S,
    Collector,
    an_event,
    disk_bus,
    group_of,
    killed,
    settled,
    some_events,
    until,
)


class _Moody:
    """A handler that fails for as long as it is told to."""

    def __init__(self) -> None:
        self.fails = True
        self.seen: list[tuple[int, int, str]] = []

    async def __call__(self, event: Event, delivery: Delivery) -> None:
        self.seen.append((delivery.offset, delivery.attempt, delivery.identity))
        if self.fails:
            raise LookupError(f"not {delivery.offset}")


async def _dead_bus(workspace: Path, number: int = 3, **settings: Any) -> tuple[EventBus, _Moody]:
    """A bus on disk with some dead letters of one group."""
    bus, moody = disk_bus(workspace, **settings), _Moody()
    await bus.subscribe("actions", "learner", moody, max_retries=0)
    await bus.publish_many(some_events(range(number)))
    await settled(bus)
    return bus, moody


# -- dying -----------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_says_everything(tmp_path: Path) -> None:
    """W10: the whole event, every attempt's error, group, times; listed, shown, and in a file that one can read."""
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", _Moody(), max_retries=1)
        event = an_event(1, key="k", headers={"a": "b"})
        receipt = await bus.publish(event)
        await settled(bus)
        [dead] = await bus.dlq.list()
        shown = await bus.dlq.show(topic="actions", space="home", group="learner", offset=receipt.offset)
        assert shown == dead
        assert dead.event == event
        assert (dead.space_id, dead.topic, dead.group, dead.offset, dead.round) == ("home", "actions", "learner", 1, 0)
        assert (dead.event_id, dead.attempts, dead.reason) == (event.meta.event_id, 2, "retries exhausted")
        assert dead.errors == ("LookupError: not 1", "LookupError: not 1")
        assert dead.appended_ms <= dead.died_ms
        assert not dead.is_retrying
    [path] = (tmp_path / "w").rglob("*.dlq*.jsonl")
    assert event.meta.event_id in path.read_text()


async def test_a_dead_letter_is_on_disk_before_its_event_is_settled(tmp_path: Path) -> None:
    """W10: whatever moment the process is killed at, the event is open or dead, never neither and never both."""
    bus = disk_bus(tmp_path / "w", checkpoint_interval_s=60)
    await bus.subscribe("actions", "learner", _Moody(), max_retries=0)
    await bus.publish(an_event(1))
    await settled(bus)
    copy = killed(tmp_path / "w")  # the dead letter is there, the checkpoint that settles is not
    await bus.close()
    assert not list(copy.rglob("offsets/*.json"))
    collector = Collector()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", collector)
        await settled(bus)
        assert collector.numbers == []
        assert len(await bus.dlq.list()) == 1


async def test_listing_pages_from_the_latest_death(fake_clock: FakeClock) -> None:
    """W10: newest first by when they died, paged by offset and limit, by topic, space and group."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    recorder = Recorder(lambda recorded: Nack("no"))
    await bus.subscribe("*", "learner", recorder, max_retries=0)
    await bus.subscribe("notes", "other", recorder, max_retries=0)
    for number in range(10):
        await bus.publish(an_event(number, topic="notes" if number % 2 else "actions", space="ab"[number % 2]))
        await fake_clock.advance(1)
    inspector = bus.dlq
    everything = await inspector.list(group="learner")
    assert [dead.event.payload["n"] for dead in everything] == list(range(9, -1, -1))
    pages = [await inspector.list(group="learner", offset=offset, limit=4) for offset in (0, 4, 8, 12)]
    assert [dead.event.payload["n"] for page in pages for dead in page] == list(range(9, -1, -1))
    assert [len(page) for page in pages] == [4, 4, 2, 0]
    assert len(await inspector.list()) == 15
    assert len(await inspector.list(topic="notes")) == 10
    assert len(await inspector.list(space="a")) == 5
    assert {dead.group for dead in await inspector.list(group="other")} == {"other"}
    await bus.close(timeout_s=0)


async def test_what_is_not_there_is_said_so(event_bus: EventBus) -> None:
    """UNKNOWN_GROUP: `show` names what it looked for; lists and retries of nothing are empty."""
    with pytest.raises(UnknownGroup) as unknown:
        await event_bus.dlq.show(topic="actions", space="home", group="learner", offset=1)
    assert error_code_of(unknown.value) == "UNKNOWN_GROUP"
    assert await event_bus.dlq.list() == []
    assert await event_bus.dlq.retry() == 0
    assert await event_bus.dlq.purge(older_than_s=0) == 0


# -- retrying ----------------------------------------------------------------------------------------------------------


async def test_a_retry_goes_to_that_group_alone_with_fresh_attempts(tmp_path: Path) -> None:
    """W10: the other groups see nothing of it; the lineage stays: same event, same offset, the next round."""
    bus, moody = await _dead_bus(tmp_path / "w", 1)
    other = Collector()
    await bus.subscribe("actions", "other", other)
    await settled(bus)
    moody.fails = False
    assert await bus.dlq.retry() == 1
    await settled(bus)
    assert moody.seen == [(1, 1, "home/actions/1"), (1, 1, "home/actions/1#1")]
    assert other.numbers == [0]
    assert await bus.dlq.list() == []
    assert group_of(bus, "learner")["acked"] == 1
    await bus.close()


async def test_a_retry_that_fails_is_the_next_round_of_one_dead_letter(tmp_path: Path) -> None:
    """W10: one entry a round, the latest one is listed; rounds go on counting across restarts."""
    bus, moody = await _dead_bus(tmp_path / "w", 1, max_retries=0)
    [first] = await bus.dlq.list()
    for round in (1, 2, 3):
        assert await bus.dlq.retry() == 1
        await settled(bus)
        [dead] = await bus.dlq.list()
        assert (dead.round, dead.offset, dead.attempts, dead.event) == (round, 1, 1, first.event)
        assert (dead.appended_ms, dead.event_id) == (first.appended_ms, first.event_id)
        if round == 2:
            await bus.close()
            bus = disk_bus(tmp_path / "w", max_retries=0)
            await bus.subscribe("actions", "learner", moody, max_retries=0)
            await settled(bus)
    moody.fails = False
    await bus.dlq.retry()
    await settled(bus)
    assert await bus.dlq.list() == []
    assert [identity for _, _, identity in moody.seen][-1] == "home/actions/1#4"
    await bus.close()
    [path] = (tmp_path / "w").rglob("*.dlq*.jsonl")
    assert path.read_text().count('"dead":') == 4


async def test_retries_have_their_own_attempts(fake_clock: FakeClock) -> None:
    """W10, W6: a round has as many attempts as the first delivery had."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    recorder = Recorder(lambda recorded: Nack(f"no {recorded.attempt}"))
    await bus.subscribe("actions", "learner", recorder, max_retries=2)
    await bus.publish(an_event(1))
    await fake_clock.advance(100)
    await bus.dlq.retry()
    await fake_clock.advance(100)
    assert [one.attempt for one in recorder.deliveries] == [1, 2, 3, 1, 2, 3]
    [dead] = await bus.dlq.list()
    assert (dead.round, dead.attempts, dead.errors) == (1, 3, ("no 1", "no 2", "no 3"))
    await bus.close(timeout_s=0)


async def test_one_or_some_may_be_retried(tmp_path: Path) -> None:
    """W10: by offset, by group, or a limited number; what is under way is left alone."""
    bus, moody = await _dead_bus(tmp_path / "w", 6)
    moody.fails = False
    assert await bus.dlq.retry(topic="actions", space="home", group="learner", offset=4) == 1
    assert await bus.dlq.retry(group="nobody") == 0
    assert await bus.dlq.retry(limit=2) == 2
    await settled(bus)
    assert sorted(dead.offset for dead in await bus.dlq.list()) == [3, 5, 6]
    assert await bus.dlq.retry() == 3
    await settled(bus)
    assert await bus.dlq.list() == []
    await bus.close()


async def test_a_retry_that_is_under_way_is_not_begun_again(fake_clock: FakeClock) -> None:
    """W10: until its round has ended a dead letter is listed as being retried, and not retried twice."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    runs: list[int] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        runs.append(delivery.offset)
        if len(runs) == 1:
            raise LookupError
        await fake_clock.sleep(10)

    await bus.subscribe("actions", "learner", handler, max_retries=0)
    await bus.publish(an_event(1))
    await fake_clock.advance(0)
    retried: list[int] = []

    async def retry() -> None:
        retried.append(await bus.dlq.retry())

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(retry)
    await fake_clock.advance(1)
    [dead] = await bus.dlq.list()
    assert dead.is_retrying
    assert await bus.dlq.retry() == 0
    await fake_clock.advance(60)
    await settled(bus)
    assert runs == [1, 1]
    await bus.close(timeout_s=0)


async def test_a_retry_keeps_its_keys_lane(fake_clock: FakeClock) -> None:
    """W10: outside offset order, but never beside another event of its key."""
    running: list[str] = []
    order: list[str] = []
    fails = True

    async def handler(event: Event, delivery: Delivery) -> None:
        name = f"{event.meta.key}{event.payload['n']}"
        assert not [one for one in running if one[0] == name[0]]
        running.append(name)
        await fake_clock.sleep(1)
        running.remove(name)
        if fails and event.payload["n"] == 1:
            raise LookupError
        order.append(name)

    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", handler, max_retries=0, workers=4)
    await bus.publish_many([an_event(1, key="a"), an_event(1, key="b")])
    await fake_clock.advance(2)
    fails = False
    await bus.publish_many([an_event(number, key=key) for number in (2, 3) for key in "ab"])
    await fake_clock.advance(0.5)
    assert await bus.dlq.retry() == 2
    await fake_clock.advance(30)
    await settled(bus)
    assert sorted(order) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    assert order.index("a1") > order.index("a2")
    await bus.close(timeout_s=0)


async def test_a_retry_is_outside_time_to_live_and_gate(fake_clock: FakeClock) -> None:
    """W10: what somebody asks for by hand is delivered, however old it is and whatever the gate would say."""
    asked: list[int] = []

    class Gate:
        strict = False

        def decide(self, event: Event, context: GateContext) -> Decision:
            asked.append(context.offset)
            return Drop() if self.strict else Admit()

    gate = Gate()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate)
    recorder = Recorder(lambda recorded: Nack() if len(recorder.deliveries) == 1 else None)
    await bus.subscribe("actions", "learner", recorder, max_retries=0)
    await bus.publish(an_event(1, ttl_sec=5))
    await fake_clock.advance(1)
    gate.strict = True
    await fake_clock.advance(1000)
    assert await bus.dlq.retry() == 1
    await fake_clock.advance(1)
    await settled(bus)
    assert (recorder.offsets, asked) == ([1, 1], [1])
    assert await bus.dlq.list() == []
    await bus.close(timeout_s=0)


async def test_a_retry_does_not_depend_on_the_log(tmp_path: Path) -> None:
    """W10: it is delivered from the dead letter's own copy, also when its segment was compacted away."""
    wal = WalSettings(ballast_bytes=0, segment_lines=5, tail_bytes=500)
    bus = disk_bus(tmp_path / "w", wal=wal)
    moody = _Moody()
    await bus.subscribe("actions", "learner", moody, max_retries=0)
    for first in range(0, 30, 5):
        await bus.publish_many(some_events(range(first, first + 5)))
        await settled(bus)
        await anyio.sleep(0.02)
    await bus.close()
    bus = disk_bus(tmp_path / "w", wal=wal)
    await bus.start()
    assert (await compact(bus.store, HOME)).first_now > 1
    moody.fails = False
    moody.seen.clear()
    await bus.subscribe("actions", "learner", moody, max_retries=0)
    assert await bus.dlq.retry(offset=1) == 1
    await settled(bus)
    assert [(offset, identity) for offset, _, identity in moody.seen] == [(1, "home/actions/1#1")]
    await bus.close()


async def test_a_crash_during_a_retry_repeats_the_round_and_no_more(tmp_path: Path) -> None:
    """W10, W1: between the retry's line and its end the round is open; whoever comes next delivers it."""
    bus, _ = await _dead_bus(tmp_path / "w", 2, checkpoint_interval_s=60)
    started = anyio.Event()

    async def hang(event: Event) -> None:
        started.set()
        await anyio.sleep_forever()

    await bus.close()
    bus = disk_bus(tmp_path / "w")
    await bus.subscribe("actions", "learner", hang, max_retries=0)
    await bus.dlq.retry(offset=2)
    await started.wait()
    copy = killed(tmp_path / "w")
    await bus.close(timeout_s=0)
    moody = _Moody()
    moody.fails = False
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", moody, max_retries=5)
        await settled(bus)
        assert [dead.offset for dead in await bus.dlq.list()] == [1]
    assert [(offset, identity) for offset, _, identity in moody.seen] == [(2, "home/actions/2#1")]


async def test_a_crash_between_the_end_of_a_round_and_the_checkpoint_repeats_nothing(tmp_path: Path) -> None:
    """W10: the end of a round is a line of the dead-letter log, so no checkpoint is needed to know it."""
    bus, moody = await _dead_bus(tmp_path / "w", 1, checkpoint_interval_s=60)
    moody.fails = False
    await bus.dlq.retry()
    await settled(bus)
    copy = killed(tmp_path / "w")
    await bus.close()
    again = _Moody()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", again)
        await settled(bus)
        assert await bus.dlq.list() == []
    assert again.seen == []


async def test_a_retry_for_a_group_that_is_not_here_waits_for_it(tmp_path: Path) -> None:
    """W10: the retry is durable when it returns; the group gets it when it next consumes."""
    bus, moody = await _dead_bus(tmp_path / "w", 2)
    await bus.close()
    async with disk_bus(tmp_path / "w") as bus:
        assert await bus.dlq.retry() == 2
    moody.fails = False
    moody.seen.clear()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", moody)
        await settled(bus)
        assert await bus.dlq.list() == []
    assert sorted(offset for offset, _, _ in moody.seen) == [1, 2]


async def test_a_retry_right_after_subscribing_is_not_lost(tmp_path: Path) -> None:
    """W10: whether the group has opened its logs yet makes no difference to a retry on a live bus."""
    for attempt in range(8):
        bus, moody = await _dead_bus(tmp_path / f"w{attempt}", 1)
        await bus.close()
        moody.fails = False
        async with disk_bus(tmp_path / f"w{attempt}") as bus:
            await bus.subscribe("actions", "learner", moody)
            for _ in range(attempt * 3):
                await anyio.lowlevel.checkpoint()
            assert await bus.dlq.retry() == 1
            with anyio.fail_after(PATIENCE_S):
                while await bus.dlq.list():
                    await anyio.sleep(0.005)
        assert [identity for _, _, identity in moody.seen][1:] == ["home/actions/1#1"]


# -- purging -----------------------------------------------------------------------------------------------------------


async def test_purging_goes_by_when_they_died(fake_clock: FakeClock) -> None:
    """W10: an old event that died today stays; what died so long ago or longer goes, the moment itself included."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    recorder = Recorder(lambda recorded: Nack())
    await bus.subscribe("actions", "learner", recorder, max_retries=0)
    await bus.subscribe("actions", "other", recorder, max_retries=0)
    for number in range(4):
        await bus.publish(an_event(number))
        await fake_clock.advance(10)
    assert await bus.dlq.purge(older_than_s=1000) == 0
    assert await bus.dlq.purge(older_than_s=20, group="learner") == 3
    assert [dead.offset for dead in await bus.dlq.list(group="learner")] == [4]
    assert len(await bus.dlq.list(group="other")) == 4
    assert await bus.dlq.purge(older_than_s=0) == 5
    assert await bus.dlq.list() == []
    assert await bus.dlq.retry() == 0
    await bus.close(timeout_s=0)


async def test_a_purge_survives_a_restart_and_settles_nothing_anew(tmp_path: Path) -> None:
    """W10: forgotten dead letters stay forgotten, and their events stay settled."""
    bus, moody = await _dead_bus(tmp_path / "w", 5)
    assert await bus.dlq.purge(older_than_s=0) == 5
    await bus.publish(an_event(9))
    await settled(bus)
    await bus.close()
    moody.seen.clear()
    moody.fails = False
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", moody)
        await settled(bus)
        assert [dead.offset for dead in await bus.dlq.list()] == [6]
    assert moody.seen == []


async def test_a_purge_spares_what_is_being_retried(fake_clock: FakeClock) -> None:
    """W10: a round that is under way keeps its dead letter, so that it can still be read."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    fails = True

    async def handler(event: Event) -> None:
        if fails:
            raise LookupError
        await fake_clock.sleep(5)

    await bus.subscribe("actions", "learner", handler, max_retries=0)
    await bus.publish_many(some_events([1, 2]))
    await fake_clock.advance(0)
    fails = False
    await bus.dlq.retry(offset=1)
    await fake_clock.advance(1)
    assert await bus.dlq.purge(older_than_s=0) == 1
    assert [dead.offset for dead in await bus.dlq.list()] == [1]
    await fake_clock.advance(10)
    await settled(bus)
    assert await bus.dlq.list() == []
    await bus.close(timeout_s=0)


# -- without a bus -----------------------------------------------------------------------------------------------------


async def test_the_inspector_needs_no_bus(tmp_path: Path) -> None:
    """W10: list, show, retry and purge work on a workspace that nobody holds."""
    bus, moody = await _dead_bus(tmp_path / "w", 3)
    await bus.close()
    inspector = DLQInspector(tmp_path / "w")
    assert [dead.offset for dead in await inspector.list()] == [3, 2, 1]
    assert (await inspector.show(topic="actions", space="home", group="learner", offset=2)).errors == (
        "LookupError: not 2",
    )
    assert await inspector.retry(offset=2) == 1
    assert [dead.is_retrying for dead in await inspector.list()] == [False, True, False]
    assert await inspector.purge(older_than_s=0) == 2
    moody.fails = False
    moody.seen.clear()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", moody)
        await settled(bus)
    assert [offset for offset, _, _ in moody.seen] == [2]
    assert await inspector.list() == []


async def test_beside_a_running_bus_it_reads_and_does_not_write(tmp_path: Path) -> None:
    """W10: reading calls work beside the holder of the workspace; changing ones say who holds it."""
    bus, _ = await _dead_bus(tmp_path / "w", 2)
    inspector = DLQInspector(tmp_path / "w")
    with anyio.fail_after(PATIENCE_S):
        while len(found := await inspector.list()) < 2:  # proven durable within 100 ms
            await anyio.sleep(0.01)
    assert [dead.offset for dead in found] == [2, 1]
    assert found[0].event.payload == {"n": 1}
    with pytest.raises(WorkspaceLocked):
        await inspector.retry()
    with pytest.raises(WorkspaceLocked):
        await inspector.purge(older_than_s=0)
    assert len(await bus.dlq.list()) == 2
    await bus.close()


async def test_an_error_on_a_workspace_without_a_bus_is_the_error_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W18: what goes wrong inside is not wrapped in a group of exceptions."""
    bus, _ = await _dead_bus(tmp_path / "w", 1)
    await bus.close()

    async def fail(*arguments: object, **settings: object) -> None:
        raise UnknownGroup("injected")

    monkeypatch.setattr("events.persistence.committer.CommittedLog.append", fail)
    with pytest.raises(UnknownGroup):
        await DLQInspector(tmp_path / "w").retry()


async def test_an_empty_workspace_has_no_dead_letters(tmp_path: Path) -> None:
    """W10: looking into a workspace where nothing ever died finds nothing."""
    async with disk_bus(tmp_path / "w") as bus:
        await bus.publish(an_event(1))
    assert await DLQInspector(tmp_path / "w").list() == []
    assert await DLQInspector(tmp_path / "w").retry() == 0


async def test_the_dead_of_many_logs_are_found_and_retried_together(tmp_path: Path) -> None:
    """W10: one inspector over all spaces and topics; each retry goes home to its own log."""
    recorder = Recorder(lambda recorded: Nack() if recorded.attempt == 1 and not retried else None)
    retried: list[int] = []
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("*", "learner", recorder, max_retries=0, workers=4)
        places = [(f"space {number}", topic) for number in range(5) for topic in ("actions", "notes")]
        await bus.publish_many([an_event(1, space=space, topic=topic) for space, topic in places])
        await settled(bus)
        assert {(dead.space_id, dead.topic) for dead in await bus.dlq.list()} == set(places)
        retried.append(1)
        assert await bus.dlq.retry() == 10
        await settled(bus)
        assert await bus.dlq.list() == []
    assert sorted((one.space_id, one.topic) for one in recorder.deliveries) == sorted(places * 2)


async def test_a_deferred_gate_does_not_defer_a_retry(fake_clock: FakeClock) -> None:
    """W10, W13: deferral is for first deliveries; a retry starts at once."""

    class Later:
        def decide(self, event: Event, context: GateContext) -> Decision:
            return Admit() if context.deferrals else Defer(100)

    def verdict(recorded: Recorded) -> Nack | None:
        return Nack() if len(recorder.deliveries) == 1 else None

    recorder = Recorder(verdict)
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=Later(), config=BusConfig())
    await bus.subscribe("actions", "learner", recorder, max_retries=0)
    await bus.publish(an_event(1))
    await fake_clock.advance(101)
    assert len(await bus.dlq.list()) == 1
    await bus.dlq.retry()
    await fake_clock.advance(0)
    await until(lambda: len(recorder.deliveries) == 2)
    await bus.close(timeout_s=0)
