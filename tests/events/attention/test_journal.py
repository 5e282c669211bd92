"""The journal of a gate: on disk before what relies on it, bounded, rotated, and readable by a person."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from events.attention.history import JournalKey, OutsideHistory, StoreHistory, decode_run, spans
from events.attention.journal import journal_name
from events.attention_gate import Admit, Boost, Defer, Drop, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.errors import StorageFull
from events.persistence.codec import Record
from events.persistence.memory import MemoryStore
from events.persistence.store import Checkpoint, Entry, LogName, StoreLog
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event
from tests.events.attention.support import Scripted, an_event, gated
from tests.events.bus_support import settled, until

KEY = JournalKey("home", "actions", "learner")


def by_number(event: Event, context: GateContext) -> Any:
    """Every fourth is admitted, dropped, boosted, deferred once."""
    words = [Admit(), Drop("dull", 0.1, (("priority", 0.1),)), Boost(80, "keen"), Defer(0.001, "later")]
    return Admit() if context.deferrals else words[event.payload["n"] % 4]


class Noting(MemoryStore):
    """A store that notes the order in which things become durable, and fails to write journals when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, Any]] = []
        self.journals_fail = False

    async def journal(self, space_id: str, folder: str, name: str) -> StoreLog:
        log: Any = await super().journal(space_id, folder, name)
        return _NotingLog(log, self)

    async def log(self, name: LogName) -> StoreLog:
        return _SyncingLog(await super().log(name), self)

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        self.order.append(("checkpoint", checkpoint))
        await super().save_checkpoint(name, group, checkpoint)


class _NotingLog:
    def __init__(self, inner: Any, store: Noting) -> None:
        self._inner, self._store = inner, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        if self._store.journals_fail:
            raise StorageFull("gate", 0.0)
        offsets: list[int] = await self._inner.append(entries, timeout_s=timeout_s)
        for record in self._inner.recent(offsets[0]):
            asks = decode_run(record, KEY)
            self._store.order.append(("journal", {ask.context.offset for ask in asks}))
        return offsets


class _SyncingLog(_NotingLog):
    async def sync(self) -> None:
        self._store.order.append(("sync", self._inner.next_offset - 1))
        await self._inner.sync()

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        offsets: list[int] = await self._inner.append(entries, timeout_s=timeout_s)
        return offsets


async def all_lines(bus: EventBus, key: JournalKey = KEY) -> list[Record]:
    """Every line of a journal."""
    return [line async for line in StoreHistory(bus.store).lines(key)]


async def test_a_decision_is_durable_before_the_checkpoint_that_settles_it() -> None:
    """W13: whatever a checkpoint settles or defers was journaled before, and F7: the log was synced before that."""
    store = Noting()
    async with gated(Scripted(by_number), store=store, checkpoint_interval_s=0.001) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        for number in range(40):
            await bus.publish(an_event({"n": number}))
        await settled(bus)
    journaled: set[int] = set()
    synced = checkpoints = 0
    for kind, about in store.order:
        if kind == "sync":
            synced = max(synced, about)
        elif kind == "journal":
            journaled |= about
            assert max(about) <= synced
        else:
            named = {*range(1, about.committed + 1), *about.deferrals}
            named |= {offset for first, last in about.ranges for offset in range(first, last + 1)}
            assert named <= journaled
            checkpoints += 1
    assert journaled == set(range(1, 41))
    assert checkpoints > 0


async def test_no_checkpoint_without_its_journal(caplog: pytest.LogCaptureFixture) -> None:
    """W13: while the journal cannot be written nothing is settled on disk, and nothing noted is lost meanwhile."""
    store = Noting()
    store.journals_fail = True
    recorder = Recorder()
    async with gated(Scripted(by_number), store=store, checkpoint_interval_s=0.001) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([an_event({"n": number}) for number in range(8)])
        await recorder.wait_for(6)
        await until(lambda: "could not be saved" in caplog.text)
        assert [kind for kind, _ in store.order if kind == "checkpoint"] == []
        store.journals_fail = False
        await settled(bus)
        explained = await bus.attention.decisions()
        assert sorted({one.ask.context.offset for one in explained}) == [2, 3, 4, 6, 7, 8]
        plain = [ask for line in await all_lines(bus) for ask in decode_run(line, KEY) if ask.is_plain]
        assert [ask.context.offset for ask in plain] == [1, 5]


async def test_what_is_read_is_what_was_decided(fake_clock: FakeClock) -> None:
    """Every decision comes back with its context as the gate had it, and plain admits with theirs."""
    gate = Scripted(by_number)
    async with gated(gate, store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event({"n": number}, priority=number) for number in range(12)])
        await fake_clock.advance(1)
        asks = [ask for line in await all_lines(bus) for ask in decode_run(line, KEY)]
    by_offset = {(ask.context.offset, ask.context.deferrals): ask for ask in asks}
    assert len(by_offset) == len(gate.asked) == 15
    for context in gate.asked:
        ask = by_offset[context.offset, context.deferrals]
        assert ask.context._replace(appended_ms=context.appended_ms) == context
        assert ask.policy == "Scripted"
    assert by_offset[2, 0].treated == Drop("dull", 0.1, (("priority", 0.1),))
    assert by_offset[3, 0].treated == Boost(80, "keen")
    assert by_offset[4, 0].treated == Defer(0.001, "later")
    assert by_offset[4, 1].treated == Admit()
    assert by_offset[1, 0].is_plain
    assert not by_offset[4, 1].is_plain


async def test_a_line_can_be_read_by_a_person(workspace: Path) -> None:
    """On disk: `gate/<topic>__<group>.00000001.jsonl`, JSON with names for everything that is no plain admit."""
    async with EventBus(workspace=workspace, gate=Scripted(by_number)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event({"n": number}) for number in range(4)])
        await settled(bus)
    file = workspace / ".bus" / "spaces" / "home" / "gate" / "actions__learner.00000001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    said = [decided for line in lines for decided in line["gate"]["decided"]]
    assert {one["decision"] for one in said} == {"drop", "boost", "defer", "admit"}
    dropped = next(one for one in said if one["decision"] == "drop")
    assert dropped["reason"] == "dull"
    assert (dropped["score"], dropped["parts"]) == (0.1, {"priority": 0.1})
    assert dropped["event_id"].startswith("ev-")
    assert lines[0]["gate"]["policy"] == "Scripted"
    assert lines[0]["gate"]["situation"] == {"level": "calm", "load": 0.0, "focus": []}
    assert [ask[0] for line in lines for ask in line["gate"]["admitted"]] == [1]


async def test_the_journal_is_rotated_and_bounded(workspace: Path) -> None:
    """Segments as small as the log's, and no more of them than the bound allows; what is left can still be read."""
    segment_bytes, bound = 4_096, 16_384
    config = BusConfig(
        wal=WalSettings(segment_bytes=segment_bytes, ballast_bytes=0),
        gate_journal_bytes=bound,
        checkpoint_interval_s=0.0,
    )
    gate = Scripted(lambda event, context: Drop("a reason of some length, so that the journal grows " * 2))
    async with EventBus(workspace=workspace, gate=gate, config=config) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        for start in range(0, 600, 5):
            await bus.publish_many([an_event({"n": n}) for n in range(start, start + 5)])
            await settled(bus)
            await bus.attention.decisions(limit=1)
        kept = [ask for line in await all_lines(bus) for ask in decode_run(line, KEY)]
        report = await bus.attention.what_if(gate)
    files = sorted((workspace / ".bus" / "spaces" / "home" / "gate").glob("actions__learner.*.jsonl"))
    assert len(files) > 1
    assert files[0].name != "actions__learner.00000001.jsonl"
    assert sum(file.stat().st_size for file in files) <= bound + 2 * segment_bytes
    offsets = [ask.context.offset for ask in kept]
    assert offsets == list(range(offsets[0], 601))
    assert (report.changes, report.events) == ((), len(offsets))


async def test_a_journal_survives_the_process_and_is_read_from_outside(workspace: Path) -> None:
    """Whoever opens the workspace next, or only looks at it, finds the same decisions."""
    async with EventBus(workspace=workspace, gate=Scripted(by_number)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event({"n": number}) for number in range(8)])
        await settled(bus)
        inside = [line.line async for line in StoreHistory(bus.store).lines(KEY)]
    outside = OutsideHistory(workspace)
    assert await outside.keys() == [KEY]
    assert [line.line async for line in outside.lines(KEY)][: len(inside)] == inside
    records = await outside.events(KEY.log, [1, 3, 8])
    assert {offset: record.event.payload["n"] for offset, record in records.items()} == {1: 0, 3: 2, 8: 7}
    async with EventBus(workspace=workspace) as bus:
        assert await StoreHistory(bus.store).keys() == [KEY]
        assert [line.line for line in await all_lines(bus)][: len(inside)] == inside


async def test_without_a_gate_there_is_no_journal() -> None:
    """Who has no gate pays for none."""
    store = MemoryStore()
    async with EventBus(store=store) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish(an_event({"n": 0}))
        await settled(bus)
        assert await store.journals("home", "gate") == []


def test_scattered_offsets_are_read_in_few_stretches() -> None:
    """Neighbours share a read, and what lies far apart does not."""
    assert list(spans([1, 2, 40, 500, 501, 9_000])) == [(1, 40), (500, 501), (9_000, 9_000)]
    assert list(spans([])) == []


def test_a_journals_name_names_topic_and_group() -> None:
    """F3: neither may hold `__`, so the name can be taken apart again."""
    assert journal_name("actions.fast", "learner-1") == "actions.fast__learner-1"
