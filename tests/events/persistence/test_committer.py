"""Group commit: who shares a write, what each caller is told, and what a full, slow or failing disk does to them."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from events.errors import BusError, LogPoisoned, OutcomeUnknown, ReadOnly, StorageError, StorageFull
from events.persistence.codec import Record
from events.persistence.committer import MAX_BATCH_BYTES, CommittedLog
from events.persistence.mark import read_mark
from events.persistence.store import Entry, StoreLog
from events.persistence.wal import WalSettings, WalStore
from events.testing.clock import FakeClock
from events.testing.simulated import Fault, SimulatedFileSystem
from tests.events.persistence.logs import AT, NAME, WORKSPACE, entries, read_all, store_on, wal_files, wal_path

SEGMENT = "t.00000001.jsonl"


class GatedFileSystem(SimulatedFileSystem):
    """A disk whose syncs do not return while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def sync(self, handle: int) -> None:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(10), "nobody opened the gate"
        super().sync(handle)


@asynccontextmanager
async def threaded_store(
    fs: SimulatedFileSystem, *, clock: FakeClock | None = None, **settings: Any
) -> AsyncIterator[tuple[WalStore, list[tuple[int, int]]]]:
    """A store with real threads, and the batches that it said were durable, as (first, last)."""
    told: list[tuple[int, int]] = []

    def durable(log: StoreLog, records: Sequence[Record]) -> None:
        told.append((records[0].offset, records[-1].last))

    store = WalStore(WORKSPACE, WalSettings(**{"ballast_bytes": 0, **settings}), fs=fs, clock=clock or FakeClock(AT))
    await store.open(durable)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        try:
            yield store, told
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await store.close()


async def until(event: threading.Event) -> None:
    """Wait for a thread without blocking the loop."""
    await anyio.to_thread.run_sync(event.wait, 10)
    assert event.is_set()


class Outcomes:
    """What became of appends that run in tasks of their own."""

    def __init__(self, log: StoreLog) -> None:
        self._log = log
        self.offsets: dict[int, list[int]] = {}
        self.errors: dict[int, Exception] = {}

    async def append(self, number: int, some: Sequence[Entry] | None = None, timeout_s: float = 30.0) -> None:
        """Append and remember what was answered."""
        try:
            self.offsets[number] = await self._log.append(some or entries(number), timeout_s=timeout_s)
        except BusError as error:
            self.errors[number] = error


# -- sharing ---------------------------------------------------------------------------------------------------


async def test_appends_that_arrive_together_share_one_sync() -> None:
    """Group commit: a hundred concurrent appends cost two syncs, one batch is in flight, each gets its own offset."""
    fs = GatedFileSystem()
    async with threaded_store(fs) as (store, told):
        log = await store.log(NAME)
        outcomes = Outcomes(log)
        await log.append(entries(0), timeout_s=30)
        fs.gate.clear()
        syncs = fs.calls["sync"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 1)
            await until(fs.waiting)
            for number in range(2, 102):
                tasks.start_soon(outcomes.append, number)
            await wait_all_tasks_blocked()
            assert told == [(1, 1)]
            assert log.next_offset == 2
            fs.gate.set()
        assert fs.calls["sync"] - syncs == 2
        assert told == [(1, 1), (2, 2), (3, 102)]
        assert sorted(offset for offsets in outcomes.offsets.values() for offset in offsets) == list(range(2, 103))
        by_offset = {record.offset: record.members()["n"] for record in await read_all(log)}
        for number, offsets in outcomes.offsets.items():
            assert [by_offset[offset] for offset in offsets] == [number]


async def test_a_call_may_need_several_batches() -> None:
    """Group commit: a call that is larger than a batch, or than a segment, still gets every offset, in order."""
    size = MAX_BATCH_BYTES // 3
    async with store_on(SimulatedFileSystem()) as store:
        log = await store.log(NAME)
        assert await log.append(entries(*range(1, 8), size=size), timeout_s=30) == list(range(1, 8))
    async with store_on(SimulatedFileSystem(), segment_lines=2) as store:
        log = await store.log(NAME)
        assert await log.append(entries(1), timeout_s=30) == [1]
        assert await log.append(entries(*range(2, 9)), timeout_s=30) == list(range(2, 9))
        assert [record.members()["n"] for record in await read_all(log)] == list(range(1, 9))


async def test_a_call_of_a_thousand_batches() -> None:
    """Group commit: however many batches a call takes, they follow each other without growing the stack."""
    async with store_on(SimulatedFileSystem(), segment_lines=1) as store:
        log = await store.log(NAME)
        assert await log.append(entries(*range(1, 1501)), timeout_s=30) == list(range(1, 1501))


async def test_durable_is_told_before_the_publisher_and_in_order() -> None:
    """W1: the bus hears of a batch before its publishers return, and of batches in the order of their offsets."""
    fs = GatedFileSystem()
    async with threaded_store(fs) as (store, told):
        log = await store.log(NAME)
        returned: list[int] = []

        async def publish(number: int) -> None:
            offsets = await log.append(entries(number), timeout_s=30)
            assert told[-1][1] >= offsets[-1]
            returned.extend(offsets)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(publish, number)
                if number % 7 == 0:
                    await anyio.sleep(0.001)
        assert sorted(returned) == list(range(1, 51))
        assert [first for first, _ in told] == [1, *(last + 1 for _, last in told[:-1])]


async def test_no_entries_are_no_append() -> None:
    """An empty call is answered at once and writes nothing."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        assert await log.append([], timeout_s=1) == []
        assert (log.next_offset, wal_files(fs)) == (1, {})


# -- a full disk -----------------------------------------------------------------------------------------------


async def filled(fs: SimulatedFileSystem, store: WalStore) -> StoreLog:
    """A log with one event on a disk that has no room for another."""
    log = await store.log(NAME)
    assert await log.append(entries(1), timeout_s=30) == [1]
    assert isinstance(log, CommittedLog)
    log.keep(0.0, sync_due=False)  # so that the mark has its blocks
    fs.capacity_bytes = sum(map(len, fs.files().values())) + 20
    return log


async def test_a_full_disk_is_waited_for() -> None:
    """ENOSPC: publishers wait, `storage_full` says so, and they go on by themselves when there is room again."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with store_on(fs, clock=clock, running=True) as store:
        log = await filled(fs, store)
        outcomes = Outcomes(log)
        async with anyio.create_task_group() as tasks:
            for number in (2, 3):
                tasks.start_soon(outcomes.append, number)
                await wait_all_tasks_blocked()
            await clock.advance(0.6)
            assert store.storage_full
            assert outcomes.offsets == {}
            assert len(wal_files(fs)[SEGMENT].splitlines()) == 1
            fs.capacity_bytes = None
            await clock.advance(0.2)
        assert outcomes.offsets == {2: [2], 3: [3]}
        assert not store.storage_full
        assert [record.members()["n"] for record in await read_all(log)] == [1, 2, 3]


async def test_a_disk_that_stays_full_withdraws_the_line() -> None:
    """ENOSPC: after its timeout a publisher gets STORAGE_FULL, and then its line is never written."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with store_on(fs, clock=clock, running=True) as store:
        log = await filled(fs, store)
        outcomes = Outcomes(log)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 2, None, 0.4)
            await wait_all_tasks_blocked()
            tasks.start_soon(outcomes.append, 3, None, 60.0)
            await clock.advance(0.6)
            assert isinstance(outcomes.errors[2], StorageFull)
            assert outcomes.errors[2].code == "STORAGE_FULL"
            assert 3 not in outcomes.errors
            fs.capacity_bytes = None
            await clock.advance(0.2)
        assert outcomes.offsets == {3: [2]}
        assert [record.members()["n"] for record in await read_all(log)] == [1, 3]


async def test_a_call_of_which_a_part_is_durable_is_not_called_withdrawn() -> None:
    """W2: when some events of a call are durable and the disk is full for the rest, the error says unknown."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with store_on(fs, clock=clock, running=True, segment_lines=2) as store:
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=30)
        await clock.advance(0.2)
        fs.capacity_bytes = sum(map(len, fs.files().values())) + 300  # for one of them
        outcomes = Outcomes(log)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 2, entries(*range(2, 12)), 0.4)
            await clock.advance(0.6)
        assert log.next_offset > 2
        assert isinstance(outcomes.errors[2], OutcomeUnknown)
        fs.capacity_bytes = None
        await clock.advance(0.6)
        there = log.next_offset
        assert await log.append(entries(there), timeout_s=30) == [there]


async def test_closing_on_a_full_disk() -> None:
    """W17: closing does not wait for room; who waited is told that nothing was written."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with anyio.create_task_group() as tasks, store_on(fs, clock=clock) as store:
        log = await filled(fs, store)
        outcomes = Outcomes(log)
        tasks.start_soon(outcomes.append, 2)
        await wait_all_tasks_blocked()
    assert isinstance(outcomes.errors[2], StorageFull)
    fs.capacity_bytes = None
    async with store_on(fs.crash()) as store:
        assert [record.members()["n"] for record in await read_all(await store.log(NAME))] == [1]


# -- a slow disk -----------------------------------------------------------------------------------------------


async def test_a_disk_that_hangs_leaves_the_outcome_unknown() -> None:
    """W2: after its timeout a publisher whose line is with the disk is told unknown; here it was written after all."""
    fs, clock = GatedFileSystem(), FakeClock(AT)
    async with threaded_store(fs, clock=clock) as (store, told):
        log = await store.log(NAME)
        outcomes = Outcomes(log)
        await log.append(entries(1), timeout_s=30)
        fs.gate.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 2, None, 0.4)
            await until(fs.waiting)
            tasks.start_soon(outcomes.append, 3, None, 60.0)
            await wait_all_tasks_blocked()
            tasks.start_soon(outcomes.append, 4, None, 0.4)
            await clock.advance(0.6)
            assert isinstance(outcomes.errors[2], OutcomeUnknown)
            assert outcomes.errors[2].code == "OUTCOME_UNKNOWN"
            assert isinstance(outcomes.errors[4], OutcomeUnknown)
            assert 3 not in outcomes.errors
            fs.gate.set()
        assert outcomes.offsets == {3: [3]}
        assert told == [(1, 1), (2, 2), (3, 3)]
        assert [record.members()["n"] for record in await read_all(log)] == [1, 2, 3]


async def test_what_was_given_up_is_not_written_later() -> None:
    """W2: a caller that stopped waiting is gone: when the disk then says that there was no room, its line goes too."""

    class FullInTheEnd(GatedFileSystem):
        def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
            if not self.gate.is_set():
                self.waiting.set()
                assert self.gate.wait(10)
                raise OSError(errno.ENOSPC, "full")
            return super().pwrite(handle, data, position)

    fs, clock = FullInTheEnd(), FakeClock(AT)
    async with threaded_store(fs, clock=clock) as (store, _):
        log = await store.log(NAME)
        outcomes = Outcomes(log)
        await log.append(entries(1), timeout_s=30)
        await clock.advance(0.2)
        fs.gate.clear()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcomes.append, 2, entries(2, 3), 600.0)
                await until(fs.waiting)
                scope.cancel()
        fs.gate.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 4)
            await anyio.sleep(0.05)  # for the thread to come back with the answer of the disk
            await clock.advance(0.2)
        assert outcomes.offsets == {4: [2]}
        assert [record.members()["n"] for record in await read_all(log)] == [1, 4]


# -- cancellation ----------------------------------------------------------------------------------------------


async def test_cancelled_before_it_was_taken_it_is_never_written() -> None:
    """W2: a publisher that is cancelled while another batch is in flight leaves no trace; its neighbours do."""
    fs = GatedFileSystem()
    async with threaded_store(fs) as (store, told):
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=30)
        outcomes = Outcomes(log)
        fs.gate.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 2)
            await until(fs.waiting)
            tasks.start_soon(outcomes.append, 3)
            scope = anyio.CancelScope()

            async def cancelled() -> None:
                with scope:
                    await outcomes.append(4)

            tasks.start_soon(cancelled)
            await wait_all_tasks_blocked()
            tasks.start_soon(outcomes.append, 5)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            fs.gate.set()
        assert sorted(outcomes.offsets) == [2, 3, 5]
        assert [record.members()["n"] for record in await read_all(log)] == [1, 2, 3, 5]
        assert told[-1] == (3, 4)


async def test_cancelled_with_the_disk_it_is_whole_or_not_there() -> None:
    """W2, S5: a publisher that is cancelled while its line is with the disk may be there; the log goes on."""
    fs = GatedFileSystem()
    async with threaded_store(fs) as (store, told):
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=30)
        fs.gate.clear()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(Outcomes(log).append, 2, entries(2, 3))
                await until(fs.waiting)
                scope.cancel()
        fs.gate.set()
        assert await log.append(entries(4), timeout_s=30) == [4]
        assert [record.members()["n"] for record in await read_all(log)] == [1, 2, 3, 4]
        assert told == [(1, 1), (2, 3), (4, 4)]


# -- a failing disk --------------------------------------------------------------------------------------------


async def test_a_failed_sync_is_told_to_everyone_who_waits() -> None:
    """Poisoning: who was in the batch, who stood behind it and who comes later get the same answer: unknown."""
    fs = GatedFileSystem()
    async with threaded_store(fs) as (store, told):
        log = await store.log(NAME)
        outcomes = Outcomes(log)
        await log.append(entries(1), timeout_s=30)
        fs.gate.clear()
        fs.inject(Fault(on=frozenset({"sync"}), loses=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 2)
            await until(fs.waiting)
            tasks.start_soon(outcomes.append, 3)
            await wait_all_tasks_blocked()
            fs.gate.set()
        await outcomes.append(4)
        assert {type(error) for error in outcomes.errors.values()} == {LogPoisoned}
        assert set(outcomes.errors) == {2, 3, 4}
        assert told == [(1, 1)]
        assert isinstance(log.error, LogPoisoned)
        assert [record.members()["n"] for record in await read_all(log)] == [1]
        with pytest.raises(LogPoisoned):
            await log.append(entries(5), timeout_s=1)


async def test_a_write_error_is_told_to_its_batch_alone() -> None:
    """S5: a failed write that was cut back concerns its own callers; the next append is as good as ever."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=30)
        fs.inject(Fault(on=frozenset({"pwrite"})))
        with pytest.raises(StorageError, match="nothing of the batch was written") as caught:
            await log.append(entries(2), timeout_s=30)
        assert caught.value.code == "STORAGE"
        assert await log.append(entries(3), timeout_s=30) == [2]


async def test_the_rest_of_a_call_that_failed_is_not_written() -> None:
    """W2: when a later batch of one call fails, what was durable before stays, the rest is not tried, and the

    error says unknown, since some of the events are there and some are not.
    """
    fs = SimulatedFileSystem()
    async with store_on(fs, segment_lines=2) as store:
        log = await store.log(NAME)
        fs.inject(Fault(at=2, on=frozenset({"pwrite"})))
        with pytest.raises(OutcomeUnknown):
            await log.append(entries(*range(1, 8)), timeout_s=30)
        assert [record.members()["n"] for record in await read_all(log)] == [1, 2]
        assert await log.append(entries(9), timeout_s=30) == [3]


async def test_a_damaged_log_refuses_at_once() -> None:
    """Corrupt: nothing is staged for a log that awaits its repair."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1, 2, 3), timeout_s=30)
    fs.put(wal_path(SEGMENT), wal_files(fs)[SEGMENT][:-9])
    async with store_on(fs) as store:
        log = await store.log(NAME)
        assert log.error is not None
        with pytest.raises(ReadOnly):
            await log.append(entries(4), timeout_s=30)
        assert len(await read_all(log)) == 2
        assert [(name, found.condition) for name, found in store.reports] == [(NAME, "corrupt")]


# -- housekeeping ----------------------------------------------------------------------------------------------


async def test_the_mark_follows_within_100_ms() -> None:
    """F6: 100 ms after the last commit the mark covers it, and then the log is left in peace."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with store_on(fs, clock=clock, running=True) as store:
        log = await store.log(NAME)
        for upto in (1, 2, 3):
            await log.append(entries(upto), timeout_s=30)
            await clock.advance(0.1)
            mark, _ = read_mark(fs, wal_path(".t.mark.json"))
            assert mark is not None
            assert (mark.durable, mark.log_id) == (upto, log.log_id)
        await clock.advance(0.1)
        before = dict(fs.calls)
        await clock.advance(10)
        assert fs.calls == before


async def test_interval_syncs_are_done_by_the_housekeeping() -> None:
    """`sync=interval`: what was handed to the kernel is synced within the interval, without anybody asking."""
    fs, clock = SimulatedFileSystem(), FakeClock(AT)
    async with store_on(fs, clock=clock, running=True, sync="interval", sync_interval_s=1.0) as store:
        log = await store.log(NAME)
        await log.append(entries(1, 2), timeout_s=30)
        assert wal_files(fs.crash()).get(SEGMENT, b"") == b""
        await clock.advance(1.1)
        assert len(wal_files(fs.crash())[SEGMENT].splitlines()) == 2
        await clock.advance(0.2)
        mark, _ = read_mark(fs, wal_path(".t.mark.json"))
        assert mark is not None
        assert mark.durable == 2


async def test_sync_makes_everything_durable() -> None:
    """F7: `sync` returns when all that was appended is on disk, in every sync mode."""
    for mode in ("always", "interval", "never"):
        fs = SimulatedFileSystem()
        async with store_on(fs, sync=mode) as store:
            log = await store.log(NAME)
            await log.append(entries(1, 2, 3), timeout_s=30)
            await log.sync()
            assert len(wal_files(fs.crash())[SEGMENT].splitlines()) == 3


async def test_a_poisoned_log_is_left_in_peace() -> None:
    """M: housekeeping does not come back for a log that takes no more."""
    for mode in ("always", "interval"):
        fs, clock = SimulatedFileSystem(), FakeClock(AT)
        async with store_on(fs, clock=clock, running=True, sync=mode) as store:
            log = await store.log(NAME)
            await log.append(entries(1), timeout_s=30)
            fs.inject(Fault(on=frozenset({"sync"}), loses=True))
            if mode == "always":
                with pytest.raises(LogPoisoned):
                    await log.append(entries(2), timeout_s=30)
            await clock.advance(2)
            assert isinstance(log.error, LogPoisoned)
            assert not store._attended


async def test_a_failed_last_sync_does_not_keep_the_workspace() -> None:
    """W17: whatever fails while closing, the lock is given back, and recovery sees to the rest."""
    for call in ("sync", "pwrite", "close", "sync_directory"):
        fs = SimulatedFileSystem()
        async with store_on(fs, sync="interval") as store:
            log = await store.log(NAME)
            await log.append(entries(1), timeout_s=30)
            fs.inject(Fault(on=frozenset({call}), forever=True, loses=True))
        fs.heal()
        async with store_on(fs) as store:
            log = await store.log(NAME)
            assert await log.append(entries(log.next_offset), timeout_s=30) == [2]
            assert len(await read_all(log)) == 2


async def test_deleting_waits_for_its_turn() -> None:
    """F5: segments are deleted between two batches, never during one."""
    fs = GatedFileSystem()
    async with threaded_store(fs, segment_lines=1) as (store, _):
        log = await store.log(NAME)
        for number in (1, 2, 3):
            await log.append(entries(number), timeout_s=30)
        fs.gate.clear()
        outcomes = Outcomes(log)
        firsts: list[int] = []

        async def drop() -> None:
            firsts.append(await log.drop_before(3))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.append, 4)
            await until(fs.waiting)
            tasks.start_soon(drop)
            await wait_all_tasks_blocked()
            assert log.first_offset == 1
            fs.gate.set()
        assert (firsts, outcomes.offsets) == ([3], {4: [4]})
        assert [record.offset for record in await read_all(log)] == [3, 4]
