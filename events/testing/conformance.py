"""The conformance suite of stores: subclass it, say what your store can do, and pytest runs the contract against it.

    class TestMyStore(StoreConformance):
        features = StoreFeatures(shares_batches=True)

        def make_store(self, folder: Path, clock: Clock) -> Store:
            return MyStore(folder / "data", clock=clock)

`make_store` is called again with the same folder to reopen: the new store must find what the old one kept. The tests
are coroutines and run on each async backend that the suite is set up for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest

from events.clock import Clock
from events.errors import InvalidGroup, InvalidMessage, InvalidSpace, InvalidTopic, OffsetGone
from events.persistence.codec import Record, event_members
from events.persistence.store import Attempts, Checkpoint, Deferral, Entry, GroupRecord, LogName, Store, StoreLog
from events.testing.clock import FakeClock
from events.types import EventMeta

NAME: Final = LogName("home", "actions")
TIMEOUT_S: Final = 30.0
HOSTILE_NAMES: Final = ("", "..", "a/b", "a\0b", "a\nb", "-a", ".a", "a__b", "a..b", "*", "ä", "a" * 101)
HOSTILE_SPACES: Final = ("", "a\nb", "a\0b", "\ud800", "a" * 201)
GROUP: Final = GroupRecord(
    name="readers",
    topic="actions.**",
    space="*",
    filters=({"path": "meta.priority", "value": "high", "operator": "exact"}, {"any": [1, None, True, "ü"]}),
    start="timestamp",
    start_value=1_700_000_000_123,
    ends={"home": {"actions": 17}, "Ä / b": {"a.b": 3}},
    held=True,
    created_ms=1_700_000_000_456,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFeatures:
    """What a store can do beyond the contract that every store keeps.

    `survives_reopen`: what was kept outlives the store's close. `shares_batches`: appends that arrive together become
    durable together. `bounds_reads`: a read stops at about the bytes that it was asked for, not only at the end of
    what happens to be in memory.
    """

    survives_reopen: bool = True
    shares_batches: bool = False
    bounds_reads: bool = True


@dataclass
class OpenStore:
    """A store at work, and every batch that it said was durable."""

    store: Store
    told: list[tuple[StoreLog, list[Record]]] = field(default_factory=list)

    async def log(self, name: LogName = NAME) -> StoreLog:
        """A log of the store."""
        return await self.store.log(name)

    @property
    def told_offsets(self) -> list[int]:
        """The offsets that the store said were durable, in the order in which it did."""
        return [record.offset for _, records in self.told for record in records]


def entry(number: int, filler: int = 0) -> Entry:
    """An event that says a number."""
    meta = EventMeta(topic=NAME.topic, type="NOTED", space_id=NAME.space_id)
    raw = meta.to_json()
    payload = orjson.dumps({"number": number, "filler": "x" * filler})
    return Entry(event_members(raw, payload), meta, len(raw))


def numbers(records: Sequence[Record]) -> list[int]:
    """What the events say."""
    return [record.event.payload["number"] for record in records]


async def everything(log: StoreLog, offset: int | None = None, max_bytes: int = 1000) -> list[Record]:
    """All records of a log from an offset on, read piece by piece."""
    found: list[Record] = []
    offset = log.first_offset if offset is None else offset
    while offset < log.next_offset:
        records = await log.read(offset, max_bytes)
        assert records, f"nothing at offset {offset}, though the next one is {log.next_offset}"
        assert records[0].offset == offset
        found += records
        offset = records[-1].last + 1
    return found


def full_checkpoint(log: StoreLog, committed: int = 12) -> Checkpoint:
    """A checkpoint in which every field is used."""
    tried = Attempts(
        count=3, due_ms=99, delay_ms=500, errors=("ValueError: a", "ü\n"), running=True, alone=True, spared=2
    )
    return Checkpoint(
        log_id=log.log_id,
        committed=committed,
        ranges=((committed + 2, committed + 3), (committed + 7, committed + 7)),
        attempts={committed + 1: tried, committed + 5: Attempts()},
        deferrals={committed + 6: Deferral(1_700_000_000_000, 250, 4), committed + 9: Deferral(5)},
        retries={(3, 1, 7): tried, (3, 2, 9): Attempts(count=1)},
        dead_letters=9,
    )


class StoreConformance:
    """The contract of `events.persistence.store`, as tests."""

    features = StoreFeatures()

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """A store, not yet open, that keeps what it is given in this folder."""
        raise NotImplementedError("a conformance suite says how to make its store")

    @asynccontextmanager
    async def opened(self, folder: Path, clock: Clock | None = None) -> AsyncIterator[OpenStore]:
        """The store, open and with its housekeeping running."""
        at_work = OpenStore(self.make_store(folder, clock or FakeClock()))
        await at_work.store.open(lambda log, records: at_work.told.append((log, list(records))))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at_work.store.run)
            try:
                yield at_work
            finally:
                with anyio.CancelScope(shield=True):
                    await at_work.store.close()
                tasks.cancel_scope.cancel()

    # -- appending ---------------------------------------------------------------------------------------------

    async def test_offsets_start_at_one_and_have_no_gaps(self, tmp_path: Path) -> None:
        """F2: each append gets the offsets that come next, whatever its size."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            assert (log.first_offset, log.next_offset, log.error) == (1, 1, None)
            expected = 1
            for count in (1, 3, 1, 7, 0, 2):
                offsets = await log.append([entry(n) for n in range(count)], timeout_s=TIMEOUT_S)
                assert offsets == list(range(expected, expected + count))
                expected += count
                assert log.next_offset == expected
            assert [record.offset for record in await everything(log)] == list(range(1, expected))

    async def test_every_caller_gets_its_own_offsets(self, tmp_path: Path) -> None:
        """F2, S4: what many append at the same time stands where each of them was told."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            told: dict[int, list[int]] = {}

            async def append(number: int) -> None:
                some = [entry(number * 10 + index) for index in range(1 + number % 3)]
                told[number] = await log.append(some, timeout_s=TIMEOUT_S)

            async with anyio.create_task_group() as tasks:
                for number in range(60):
                    tasks.start_soon(append, number)
            by_offset = {record.offset: record for record in await everything(log)}
            assert sorted(offset for offsets in told.values() for offset in offsets) == sorted(by_offset)
            for number, offsets in told.items():
                wanted = [number * 10 + index for index in range(len(offsets))]
                assert numbers([by_offset[offset] for offset in offsets]) == wanted
            if self.features.shares_batches:
                assert len(at_work.told) < 30

    async def test_durable_is_told_first_and_in_order(self, tmp_path: Path) -> None:
        """W1: the bus hears of a batch before its publisher returns, once, in offset order, with the events in it."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()

            async def append(number: int) -> None:
                offsets = await log.append([entry(number), entry(number)], timeout_s=TIMEOUT_S)
                assert set(offsets) <= set(at_work.told_offsets)

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(append, number)
            assert at_work.told_offsets == list(range(1, 41))
            assert all(teller is log for teller, _ in at_work.told)
            told = [record.line for _, records in at_work.told for record in records]
            assert told == [record.line for record in await everything(log)]

    async def test_cancelled_before_it_begins_it_writes_nothing(self, tmp_path: Path) -> None:
        """W2: an append whose caller is cancelled already is never written."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await log.append([entry(1)], timeout_s=TIMEOUT_S)
            assert scope.cancelled_caught
            assert await log.append([entry(2)], timeout_s=TIMEOUT_S) == [1]
            assert numbers(await everything(log)) == [2]

    async def test_appended_bytes_come_back_unchanged(self, tmp_path: Path) -> None:
        """F1: meta and payload of an event, and the members of other lines, are what was given."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            payload = b'{"b":[1.50,{"at":1}],"a":"\xc3\xa9\\n","payload":{}}'
            meta = EventMeta(topic=NAME.topic, type="NOTED", space_id=NAME.space_id, key="k", headers={"h": "1"})
            raw = meta.to_json()
            event = Entry(event_members(raw, payload), meta, len(raw))
            await log.append([event, Entry(b'"x":[1,2]')], timeout_s=TIMEOUT_S)
            first, second = await everything(log)
            assert (first.meta, first.raw_payload) == (meta, payload)
            assert second.members()["x"] == [1, 2]

    # -- reading -----------------------------------------------------------------------------------------------

    async def test_reading_from_any_offset(self, tmp_path: Path) -> None:
        """W4: a read begins at the offset that was asked for, and is empty at the end of the log."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            for number in range(1, 30):
                await log.append([entry(number)], timeout_s=TIMEOUT_S)
            for offset in range(1, 30):
                assert numbers(await everything(log, offset)) == list(range(offset, 30))
                assert [record.offset for record in log.recent(offset)[:1]] in ([], [offset])
            for offset in (30, 31, 10**9):
                assert await log.read(offset, 1000) == []

    async def test_a_read_stops_at_about_its_bytes(self, tmp_path: Path) -> None:
        """M: a reader that is far behind gets a piece at a time, and at least one record."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            await log.append([entry(number, filler=1000) for number in range(50)], timeout_s=TIMEOUT_S)
            assert len(await log.read(1, 1)) >= 1
            if self.features.bounds_reads:
                assert len(await log.read(1, 1)) == 1
                assert 2 <= len(await log.read(1, 5000)) <= 6

    async def test_reading_by_time(self, tmp_path: Path) -> None:
        """W4: a time leads to the first event that was appended then or later; beyond the last, to the next offset."""
        clock = FakeClock()
        async with self.opened(tmp_path, clock) as at_work:
            log = await at_work.log()
            times: list[int] = []
            for step in (0, 0, 0.5, 0.1, 1, 0):
                await clock.advance(step)
                times.append(clock.now_ms())
                await log.append([entry(0)], timeout_s=TIMEOUT_S)
            assert [record.at for record in await everything(log)] == times
            for at in {time + step for time in times for step in (-1, 0, 1)}:
                expected = next((offset for offset, time in enumerate(times, start=1) if time >= at), len(times) + 1)
                assert await log.offset_at(at) == expected

    async def test_append_times_never_go_backwards(self, tmp_path: Path) -> None:
        """F1: a store that is reopened under a clock that is years behind goes on from the last time."""
        if not self.features.survives_reopen:
            return
        async with self.opened(tmp_path, FakeClock(2_000_000_000_000)) as at_work:
            await (await at_work.log()).append([entry(1)], timeout_s=TIMEOUT_S)
        async with self.opened(tmp_path, FakeClock(1_000_000_000_000)) as at_work:
            log = await at_work.log()
            await log.append([entry(2)], timeout_s=TIMEOUT_S)
            first, second = await everything(log)
            assert second.at >= first.at

    async def test_logs_are_apart(self, tmp_path: Path) -> None:
        """F2: each topic in each space has its own offsets, and a log is the same object every time."""
        async with self.opened(tmp_path) as at_work:
            names = [LogName(space, topic) for space in ("home", "Ä / b", "..") for topic in ("actions", "a.b", "a-b")]
            for index, name in enumerate(names):
                log = await at_work.log(name)
                assert log.name == name
                assert await log.append([entry(index)], timeout_s=TIMEOUT_S) == [1]
                assert await at_work.log(name) is log
            assert sorted(await at_work.store.log_names()) == sorted(names)
            for index, name in enumerate(names):
                assert numbers(await everything(await at_work.log(name))) == [index]
            assert len({(await at_work.log(name)).log_id for name in names}) == len(names)

    async def test_one_log_for_all_who_open_it_at_once(self, tmp_path: Path) -> None:
        """S4: a log that several ask for at the same moment is opened once."""
        async with self.opened(tmp_path) as at_work:
            found: list[StoreLog] = []

            async def ask() -> None:
                found.append(await at_work.log())

            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(ask)
            assert len(set(map(id, found))) == 1

    # -- deleting ----------------------------------------------------------------------------------------------

    async def test_dropping_keeps_what_was_asked_for_and_the_last_record(self, tmp_path: Path) -> None:
        """F4, F5: nothing at or behind the offset goes, the last record never does, and offsets go on."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            for number in range(1, 21):
                await log.append([entry(number)], timeout_s=TIMEOUT_S)
            for offset in (0, 1, 7, 15, 20, 500):
                first = await log.drop_before(offset)
                assert first == log.first_offset
                assert first <= min(max(offset, 1), 20)
                assert numbers(await everything(log)) == list(range(first, 21))
            if log.first_offset > 1:
                with pytest.raises(OffsetGone) as caught:
                    await log.read(log.first_offset - 1, 1000)
                assert caught.value.first_retained == log.first_offset
            assert await log.append([entry(21)], timeout_s=TIMEOUT_S) == [21]
            first = log.first_offset
        if self.features.survives_reopen:
            async with self.opened(tmp_path) as at_work:
                log = await at_work.log()
                assert (log.first_offset, log.next_offset) == (first, 22)

    async def test_how_far_back_some_bytes_reach(self, tmp_path: Path) -> None:
        """F5: no bytes reach nothing, all bytes reach the first offset, and more never reach less."""
        async with self.opened(tmp_path) as at_work:
            log = await at_work.log()
            for number in range(1, 11):
                await log.append([entry(number)], timeout_s=TIMEOUT_S)
            assert await log.offset_within(0) == 11
            assert await log.offset_within(10**9) == 1
            reached = [await log.offset_within(size) for size in range(0, 4000, 100)]
            assert reached == sorted(reached, reverse=True)

    # -- other logs --------------------------------------------------------------------------------------------

    async def test_dead_letters_and_journals_are_logs_of_their_own(self, tmp_path: Path) -> None:
        """W10, W13: they have their own offsets, the bus is not told of them, and they are no topics."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(1), entry(2)], timeout_s=TIMEOUT_S)
            assert not await store.has_dead_letters(NAME)
            dead = await store.dead_letters(NAME)
            assert await dead.append([Entry(b'"dead":1', names=2)], timeout_s=TIMEOUT_S) == [1]
            assert await store.has_dead_letters(NAME)
            assert await store.journals(NAME.space_id, "gate") == []
            journal = await store.journal(NAME.space_id, "gate", "actions__readers")
            assert await journal.append([Entry(b'"gate":1')], timeout_s=TIMEOUT_S) == [1]
            assert await store.journal(NAME.space_id, "gate", "actions__readers") is journal
            assert await store.journals(NAME.space_id, "gate") == ["actions__readers"]
            assert await store.dead_letters(NAME) is dead
            assert at_work.told_offsets == [1, 2]
            assert await store.log_names() == [NAME]
            for other, member in ((dead, "dead"), (journal, "gate")):
                assert [record.members()[member] for record in await everything(other)] == [1]
                await other.sync()
            assert numbers(await everything(log)) == [1, 2]

    # -- groups and checkpoints --------------------------------------------------------------------------------

    async def test_group_records_come_back_as_they_were(self, tmp_path: Path) -> None:
        """W3: every field of a group's record, and the last one that was saved."""
        async with self.opened(tmp_path) as at_work:
            assert await at_work.store.groups() == []
            await at_work.store.save_group(GROUP)
            await at_work.store.save_group(replace(GROUP, name="others", filters=(), ends={}, start="earliest"))
            assert {group.name: group for group in await at_work.store.groups()}["readers"] == GROUP
            await at_work.store.save_group(replace(GROUP, held=False))
            assert replace(GROUP, held=False) in await at_work.store.groups()
        if self.features.survives_reopen:
            async with self.opened(tmp_path) as at_work:
                groups = {group.name: group for group in await at_work.store.groups()}
                assert groups["readers"] == replace(GROUP, held=False)
                assert set(groups) == {"readers", "others"}

    async def test_checkpoints_come_back_as_they_were(self, tmp_path: Path) -> None:
        """W6, W10: ranges, attempts with their errors, deferrals and retries included; each group has its own."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(number) for number in range(1, 31)], timeout_s=TIMEOUT_S)
            assert await store.load_checkpoint(NAME, "readers") is None
            for committed in (2, 12):
                await store.save_checkpoint(NAME, "readers", full_checkpoint(log, committed))
                assert await store.load_checkpoint(NAME, "readers") == full_checkpoint(log, committed)
            await store.save_checkpoint(NAME, "others", Checkpoint(log_id=log.log_id, committed=1))
            saved = full_checkpoint(log)
        if self.features.survives_reopen:
            async with self.opened(tmp_path) as at_work:
                assert await at_work.store.load_checkpoint(NAME, "readers") == saved
                other = await at_work.store.load_checkpoint(NAME, "others")
                assert other == Checkpoint(log_id=saved.log_id, committed=1)
                assert await at_work.store.load_checkpoint(LogName("home", "elsewhere"), "readers") is None

    async def test_a_checkpoint_of_another_log_does_not_count(self, tmp_path: Path) -> None:
        """S1: a log id tells a recreated log from the one that a checkpoint means: it settles nothing here."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(number) for number in range(5)], timeout_s=TIMEOUT_S)
            foreign = replace(full_checkpoint(log, 3), log_id="0" * 32)
            for _ in range(2):
                await store.save_checkpoint(NAME, "readers", foreign)
            assert await store.load_checkpoint(NAME, "readers") is None
            assert await store.settled_by(NAME, "readers") == 0

    async def test_settled_is_what_both_checkpoints_say(self, tmp_path: Path) -> None:
        """F5: a group has settled the lower of its last two checkpoints, since the last one may yet be lost."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(number) for number in range(1, 31)], timeout_s=TIMEOUT_S)
            assert await store.settled_by(NAME, "readers") == 0
            for committed, settled in ((4, 4), (9, 4), (9, 9), (20, 9)):
                await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=committed))
                assert await store.settled_by(NAME, "readers") == settled
        if self.features.survives_reopen:
            async with self.opened(tmp_path) as at_work:
                assert await at_work.store.settled_by(NAME, "readers") == 9

    async def test_checkpoints_that_are_saved_at_once(self, tmp_path: Path) -> None:
        """S2: when several are saved at the same moment one of them stays, whole, and none fails for the others."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(number) for number in range(1, 31)], timeout_s=TIMEOUT_S)

            async def save(committed: int) -> None:
                await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=committed))
                await store.save_group(replace(GROUP, created_ms=committed))

            async with anyio.create_task_group() as tasks:
                for committed in range(1, 21):
                    tasks.start_soon(save, committed)
            saved = await store.load_checkpoint(NAME, "readers")
            assert saved is not None
            assert saved.committed in range(1, 21)

    async def test_a_deleted_group_is_forgotten(self, tmp_path: Path) -> None:
        """W3: only `delete_group` forgets, and it forgets all of that group: record, checkpoints and their copies."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(1), entry(2)], timeout_s=TIMEOUT_S)
            for group in ("readers", "readers-2"):
                await store.save_group(replace(GROUP, name=group))
                for committed in (1, 2):
                    await store.save_checkpoint(NAME, group, Checkpoint(log_id=log.log_id, committed=committed))
            await store.delete_group("readers")
            await store.delete_group("never-there")
            assert [group.name for group in await store.groups()] == ["readers-2"]
            assert await store.load_checkpoint(NAME, "readers") is None
            assert await store.settled_by(NAME, "readers") == 0
            assert await store.settled_by(NAME, "readers-2") == 1

    # -- names and life ----------------------------------------------------------------------------------------

    async def test_hostile_names_are_refused(self, tmp_path: Path) -> None:
        """F3: a name outside the grammar is refused, wherever it is used, before anything is made."""
        async with self.opened(tmp_path) as at_work:
            store = at_work.store
            for name in HOSTILE_NAMES:
                for call in (store.log, store.dead_letters):
                    with pytest.raises(InvalidTopic):
                        await call(LogName("home", name))
                with pytest.raises(InvalidGroup):
                    await store.save_group(replace(GROUP, name=name))
                with pytest.raises(InvalidMessage):
                    await store.journal("home", name, "actions")
                if name != "a__b":
                    with pytest.raises(InvalidMessage):
                        await store.journal("home", "gate", name)
            for space in HOSTILE_SPACES:
                for call in (store.log, store.dead_letters):
                    with pytest.raises(InvalidSpace):
                        await call(LogName(space, "actions"))
            for folder in ("wal", "dlq", "offsets"):
                with pytest.raises(InvalidMessage):
                    await store.journal("home", folder, "actions")
            assert await store.log_names() == []
            assert await store.groups() == []

    async def test_everything_is_there_after_close_and_reopen(self, tmp_path: Path) -> None:
        """S1: what one store kept the next one has, and goes on from there; closing twice is closing once."""
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            await log.append([entry(number) for number in range(1, 26)], timeout_s=TIMEOUT_S)
            await (await store.dead_letters(NAME)).append([Entry(b'"dead":1')], timeout_s=TIMEOUT_S)
            journal = await store.journal("home", "gate", "actions__readers")
            await journal.append([Entry(b'"g":1')], timeout_s=TIMEOUT_S)
            log_id, lines = log.log_id, [record.line for record in await everything(log)]
            await store.close()
        async with self.opened(tmp_path) as at_work:
            store, log = at_work.store, await at_work.log()
            if not self.features.survives_reopen:
                assert log.next_offset == 1
                return
            assert (log.log_id, log.first_offset, log.next_offset, log.error) == (log_id, 1, 26, None)
            assert [record.line for record in await everything(log)] == lines
            assert at_work.told == []
            assert await log.append([entry(26)], timeout_s=TIMEOUT_S) == [26]
            assert (await store.dead_letters(NAME)).next_offset == 2
            assert (await store.journal("home", "gate", "actions__readers")).next_offset == 2
            assert await store.journals("home", "gate") == ["actions__readers"]
            assert (store.storage_full, list(store.reports)) == (False, [])

    async def test_statistics_are_numbers(self, tmp_path: Path) -> None:
        """M: a store says how many logs, open files and groups it has."""
        async with self.opened(tmp_path) as at_work:
            await at_work.log()
            await at_work.store.save_group(GROUP)
            statistics: dict[str, Any] = dict(at_work.store.statistics())
            assert (statistics["logs"], statistics["groups"]) == (1, 1)
            assert all(isinstance(value, int) for value in statistics.values())
