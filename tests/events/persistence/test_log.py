"""One log: bytes into segments and out again, under every error that a file system can answer with."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product

import pytest

from events.errors import CorruptLog, LogPoisoned, OffsetGone, ReadOnly, StorageError
from events.persistence.codec import encode_line
from events.persistence.handles import Handles
from events.persistence.log import DiskFull, Log, LogLimits, Sync
from events.persistence.mark import read_mark
from events.persistence.recovery import examine, open_log
from events.testing.crashes import crash_states
from events.testing.images import Fate
from events.testing.simulated import Call, Fault, SimulatedFileSystem
from tests.events.persistence.logs import (
    ASIDE,
    AT,
    DIRECTORY,
    MARK,
    NAMING,
    append,
    append_batches,
    is_genuine,
    members,
    new_fs,
    offsets_of,
    opened_log,
    segment,
)

LINE = len(encode_line(1, members(1), AT, 1))
SYNCS: tuple[Sync, ...] = ("always", "interval", "never")
SYNC = frozenset[Call]({"sync"})
WRITE = frozenset[Call]({"pwrite"})


def new_log(limits: LogLimits | None = None) -> tuple[SimulatedFileSystem, Log]:
    """An empty log."""
    fs = new_fs()
    return fs, opened_log(fs, limits)[0]


# -- rotation --------------------------------------------------------------------------------------------------


def test_a_segment_is_full_at_its_limit_of_bytes() -> None:
    """F4: a batch that does not fit begins the next segment; one that is larger than a segment has its own."""
    fs, log = new_log(LogLimits(segment_bytes=5 * LINE))
    append_batches(log, [1, 2, 2])
    append_batches(log, [7, 1])
    sizes = {name: data.count(b"\n") for name, data in fs.files().items() if name.startswith(DIRECTORY)}
    assert sizes == {segment(1): 5, segment(2): 7, segment(3): 1}
    assert offsets_of(log.records(1, 13)) == list(range(1, 14))


def test_a_segment_is_full_at_its_limit_of_lines() -> None:
    """F4: rotation by lines, which counts on after a reopen."""
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1, 2, 2])
    assert log.segment_numbers == [1, 2]
    log, _ = opened_log(fs, LogLimits(segment_lines=3))
    append(log)
    assert log.segment_numbers == [1, 2]
    append(log)
    assert log.segment_numbers == [1, 2, 3]
    assert offsets_of(log.records(1, 7)) == list(range(1, 8))


@pytest.mark.parametrize("sync", SYNCS)
def test_a_segment_is_synced_before_its_successor_is_created(sync: Sync) -> None:
    """F4: in every sync mode no segment has a successor while a byte of it could still be lost."""
    fs, log = new_log(LogLimits(segment_lines=2, sync=sync))
    fs.records = True
    for _ in range(9):
        append(log)
    created = [image for image in fs.history if image.call.startswith("create")]
    assert len(created) == 5
    for image in created:
        assert [change.kind for change in image.unsynced()] == ["names"]


def test_nothing_is_preallocated() -> None:
    """F4: a segment is as long as what was appended to it."""
    fs, log = new_log()
    append(log, 3)
    assert len(fs.files()[segment()]) == 3 * LINE == log.active_bytes


# -- sync modes and what a line says about the past ------------------------------------------------------------


@pytest.mark.parametrize("sync", SYNCS)
def test_batch_says_what_was_durable(sync: Sync) -> None:
    """F1: every offset below a line's `batch` was durable when the line was written, in every sync mode."""
    fs, log = new_log(LogLimits(sync=sync, segment_lines=7))
    fs.records = True
    for count in (1, 3, 1, 2, 2):
        append(log, count)
        if count == 2:
            log.sync()
    for image in fs.history:
        on_disk = SimulatedFileSystem(image).crash()
        durable = examine(on_disk, DIRECTORY, NAMING, named=0).last_offset
        seen = SimulatedFileSystem(image).crash([Fate(0, 10**6, True)] * len(image.unsynced()))
        for record in opened_log(seen)[0].records(1, examine(seen, DIRECTORY, NAMING, named=0).last_offset):
            assert record.batch - 1 <= durable, image.call


def test_batch_is_the_first_offset_of_the_commit_when_every_batch_is_synced() -> None:
    """F1: with `sync=always` the lines of one commit share its first offset."""
    _, log = new_log()
    append_batches(log, [1, 3, 2])
    assert [record.batch for record in log.records(1, 6)] == [1, 2, 2, 2, 5, 5]


def test_batch_stays_between_two_syncs() -> None:
    """F1: with `sync=interval` all lines between two syncs share it."""
    _, log = new_log(LogLimits(sync="interval"))
    append_batches(log, [1, 2])
    assert log.durable == 0
    log.sync()
    assert log.durable == 3
    append_batches(log, [1, 1])
    log.sync()
    append(log)
    assert [record.batch for record in log.records(1, 6)] == [1, 1, 1, 4, 4, 6]


@pytest.mark.parametrize(("sync", "syncs"), [("always", 10), ("interval", 0), ("never", 0)])
def test_when_bytes_are_synced(sync: Sync, syncs: int) -> None:
    """F7: `always` syncs every batch before it returns, the others when asked; asking twice syncs once."""
    fs, log = new_log(LogLimits(sync=sync))
    before = fs.calls.get("sync", 0)
    append_batches(log, [1] * 10)
    assert fs.calls.get("sync", 0) - before == syncs
    log.sync()
    log.sync()
    assert fs.calls["sync"] - before == max(1, syncs)
    assert log.durable == 10


@pytest.mark.parametrize("sync", SYNCS)
def test_what_was_acknowledged_survives_a_crash_at_once(sync: Sync) -> None:
    """S1: everything up to `durable` is there after a crash that takes all it can."""
    fs, log = new_log(LogLimits(sync=sync, segment_lines=4))
    for count in (1, 2, 3, 1, 1):
        append(log, count)
        survivor, _ = opened_log(fs.crash())
        assert survivor.next_offset > log.durable
    log.sync()
    assert opened_log(fs.crash())[0].next_offset == log.next_offset


# -- the mark --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", SYNCS)
def test_the_mark_is_never_ahead_of_a_sync(sync: Sync) -> None:
    """F6: at no moment can a crash leave a mark that promises more than the segments hold."""
    fs, log = new_log(LogLimits(sync=sync, segment_lines=3))
    fs.records = True
    for step in range(8):
        append(log, 1 + step % 2)
        log.write_mark()
        if step % 3 == 2:
            log.sync()
            log.write_mark(sync=step == 5)
    states = 0
    for state in crash_states(fs.history, limit=150):
        mark, _ = read_mark(state.fs, MARK)
        found = examine(state.fs, DIRECTORY, NAMING, named=0)
        assert found.condition != "corrupt", f"{state}: {found.damage}"
        assert mark is None or mark.durable <= found.last_offset
        states += 1
    assert states > 200


def test_the_mark_knows_whether_it_is_behind() -> None:
    """F6: housekeeping writes the mark only when there is news."""
    _, log = new_log()
    assert not log.mark_is_behind
    append(log)
    assert log.mark_is_behind
    log.write_mark()
    assert not log.mark_is_behind


# -- errors of the file system ---------------------------------------------------------------------------------


def test_a_full_disk_cuts_the_batch_back() -> None:
    """ENOSPC: nothing of the batch stays, durably; the offsets are given again once there is room."""
    fs, log = new_log()
    append(log, 2)
    content = fs.files()[segment()]
    used = sum(map(len, fs.files().values()))
    for room in (0, 1, LINE, 2 * LINE + 5):
        fs.capacity_bytes = used + room
        with pytest.raises(DiskFull):
            append(log, 3)
        assert fs.files()[segment()] == content
        assert fs.crash().files()[segment()] == content
        assert (log.next_offset, log.durable, log.poison) == (3, 2, None)
    fs.capacity_bytes = None
    assert append(log, 3) == [3, 4, 5]
    assert offsets_of(opened_log(fs.crash())[0].records(1, 5)) == [1, 2, 3, 4, 5]


def test_a_full_disk_while_a_segment_begins() -> None:
    """ENOSPC: creating a segment may fail, or its first write; both are tried again and leave no hole."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append(log, 2)
    used = sum(map(len, fs.files().values()))
    for room in (0, 1, 50):
        fs.capacity_bytes = used + room
        for _ in range(2):
            with pytest.raises(DiskFull):
                append(log)
            assert offsets_of(log.records(1, 2)) == [1, 2]
            assert log.offset_at(AT + 1) == 3
    fs.capacity_bytes = None
    assert append(log) == [3]
    assert log.segment_numbers == [1, 2]
    assert offsets_of(opened_log(fs.crash())[0].records(1, 3)) == [1, 2, 3]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_write_that_fails_half_way_leaves_nothing(number: int) -> None:
    """S5: after a failed write the log is as it was, durably; only a full disk is worth waiting for."""
    fs, log = new_log()
    append(log)
    fs.inject(Fault(on=WRITE, short=30))
    fs.inject(Fault(at=2, on=WRITE, error=number))
    full = number in (errno.ENOSPC, errno.EDQUOT)
    with pytest.raises(DiskFull if full else StorageError):
        append(log, 2)
    assert len(fs.files()[segment()]) == LINE
    for state in crash_states([fs.image()]):
        assert examine(state.fs, DIRECTORY, NAMING, named=1).last_offset == 1
    assert log.poison is None
    assert append(log) == [2]


def test_a_batch_that_cannot_be_cut_back_poisons() -> None:
    """S5: when the cut itself fails nobody knows what is there, so the log takes no more and says unknown."""
    for call in ("truncate", "sync"):
        fs, log = new_log()
        append(log)
        fs.inject(Fault(on=WRITE, error=errno.ENOSPC))
        fs.inject(Fault(on=frozenset({call}), error=errno.EIO))
        with pytest.raises(LogPoisoned, match="cut back"):
            append(log)
        with pytest.raises(LogPoisoned):
            append(log)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("loses", [False, True])
def test_a_failed_sync_poisons_and_is_never_retried(number: int, loses: bool) -> None:
    """Poisoning: after one failed fsync, ENOSPC included, no further write and no further fsync is tried.

    The kernel may have dropped the pages and would report success; what was durable before can still be read.
    """
    fs, log = new_log()
    append(log, 2)
    fs.inject(Fault(on=SYNC, error=number, loses=loses))
    with pytest.raises(LogPoisoned) as caught:
        append(log, 3)
    assert caught.value.code == "POISONED"
    calls = dict(fs.calls)
    for count in (1, 2):
        with pytest.raises(LogPoisoned):
            append(log, count)
        log.sync()  # all that was acknowledged is durable, so there is nothing to sync
    assert {call: fs.calls.get(call, 0) for call in ("pwrite", "sync")} == {
        call: calls.get(call, 0) for call in ("pwrite", "sync")
    }
    assert (log.durable, log.next_offset) == (2, 3)
    assert offsets_of(log.records(1, 2)) == [1, 2]


@pytest.mark.parametrize("sync", ["interval", "never"])
def test_a_failed_interval_sync_poisons(sync: Sync) -> None:
    """F7: what was appended but not synced is never vouched for after a failed fsync."""
    fs, log = new_log(LogLimits(sync=sync))
    append(log, 2)
    fs.inject(Fault(on=SYNC, loses=True))
    with pytest.raises(LogPoisoned):
        log.sync()
    syncs = fs.calls["sync"]
    for _ in range(3):
        with pytest.raises(LogPoisoned):
            log.sync()
        with pytest.raises(LogPoisoned):
            append(log)
    assert fs.calls["sync"] == syncs
    assert log.durable == 0


def test_a_poisoned_log_is_well_again_after_recovery() -> None:
    """Poisoning: a new process writes the unproven tail again, so that what it serves is on disk.

    The cache shows the batch whose fsync failed; the disk never got it. Recovery must not believe the cache.
    """
    fs, log = new_log()
    append(log, 2)
    fs.inject(Fault(on=SYNC, loses=True))
    with pytest.raises(LogPoisoned):
        append(log, 3)
    assert len(fs.crash().files()[segment()]) == 2 * LINE
    restarted = fs.after_kill()
    survivor, found = opened_log(restarted)
    assert (found.condition, survivor.next_offset) == ("whole", 6)
    assert offsets_of(opened_log(restarted.crash())[0].records(1, 5)) == [1, 2, 3, 4, 5]
    assert append(survivor) == [6]


def test_short_and_interrupted_writes_are_looped() -> None:
    """Short writes are looped and EINTR repeated: the batch is whole, and synced once."""
    fs, log = new_log()
    fs.inject(Fault(on=WRITE, short=7, forever=True))
    fs.inject(Fault(at=3, on=WRITE, error=errno.EINTR))
    append(log, 2)
    assert fs.calls["sync"] == 1
    assert offsets_of(opened_log(fs.crash())[0].records(1, 2)) == [1, 2]


def test_a_write_of_nothing_is_an_error() -> None:
    """A file system that takes no byte and reports no error does not hang the log."""
    fs, log = new_log()
    append(log)
    fs.inject(Fault(on=WRITE, short=0, forever=True))
    with pytest.raises(StorageError, match="wrote nothing"):
        append(log)


def test_a_failed_close_poisons() -> None:
    """Poisoning: close may be where a write error shows; whoever wrote the segment takes no more."""
    fs = new_fs()
    handles = Handles(fs, 1)
    log, _ = open_log(fs, handles, DIRECTORY, NAMING, LogLimits(segment_lines=1), aside=ASIDE)
    append(log)
    fs.inject(Fault(on=frozenset({"close"})))
    append(log)  # seals the first segment; its batch is synced, so it counts
    with pytest.raises(LogPoisoned, match="close failed"):
        append(log)
    assert offsets_of(opened_log(fs.crash())[0].records(1, 2)) == [1, 2]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EROFS])
def test_a_segment_that_cannot_be_opened(number: int) -> None:
    """W18: an error before the write is a storage error that says so, and the log is as it was."""
    fs, log = new_log(LogLimits(segment_lines=2))
    for expected in ([1], [2], [3]):
        log._handles.close()
        fs.inject(Fault(on=frozenset({"open"}), error=number))
        with pytest.raises(StorageError, match="nothing of the batch was written"):
            append(log)
        fs.heal()
        assert append(log) == expected


def test_a_directory_that_cannot_be_synced_poisons() -> None:
    """Fsync the directory after create: a segment whose name may vanish takes no event."""
    fs, log = new_log(LogLimits(segment_lines=1))
    append(log)
    fs.inject(Fault(on=frozenset({"sync_directory"}), loses=True))
    with pytest.raises(LogPoisoned, match="name"):
        append(log)
    with pytest.raises(LogPoisoned):
        append(log)
    assert opened_log(fs.crash())[0].next_offset == 2


def test_a_segment_of_somebody_else_is_not_written_to() -> None:
    """S4: a file where the next segment should begin is not overwritten."""
    fs, log = new_log(LogLimits(segment_lines=1))
    append(log)
    fs.put(segment(2), b"not ours\n")
    with pytest.raises(LogPoisoned, match="somebody else"):
        append(log)
    assert fs.files()[segment(2)] == b"not ours\n"


class EvictingHandles(Handles):
    """Another thread opens another file at the very moment at which a writer wants to hold its own."""

    def hold(self, path: str) -> None:
        with self.pinned("/other"):
            pass
        super().hold(path)


def test_a_handle_with_unsynced_bytes_is_never_closed() -> None:
    """Poisoning: what is not synced stays open, since a close could swallow the write error."""
    fs = new_fs()
    fs.put("/other", b"")
    log, _ = open_log(fs, EvictingHandles(fs, 1), DIRECTORY, NAMING, LogLimits(sync="interval"), aside=ASIDE)
    append(log)
    opens = fs.calls["open"]
    append_batches(log, [1, 1])
    log.sync()
    assert fs.calls["open"] == opens
    assert log.durable == 3


ERRORS = (errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE, errno.EROFS, 0)
FAULTS = [(number, forever) for number in ERRORS for forever in (0, 1)]


@pytest.mark.parametrize(("number", "forever"), FAULTS)
@pytest.mark.parametrize("sync", ["always", "interval"])
def test_an_error_at_every_file_operation(number: int, forever: bool, sync: Sync) -> None:
    """S1, S4, S5: whichever call fails, once or from then on, what was acknowledged is there and nothing else is.

    0 stands for a short write. Calls are counted one by one until a pass in which nothing went wrong.
    """
    forever = bool(forever)
    limits = LogLimits(segment_lines=3, sync=sync)
    for at in range(1, 500):
        fs = new_fs()
        fault = Fault(at=at, error=number, forever=forever, short=None if number else 3, loses=True)
        acknowledged = 0
        with faulty(fs, fault) as struck, suppress(OSError, StorageError):
            log, _ = opened_log(fs, limits)
            for count in (1, 2, 2, 1):
                with suppress(DiskFull, StorageError):
                    append(log, count)
                    if sync == "always":
                        acknowledged = log.next_offset - 1
                log.write_mark()
            log.sync()
            acknowledged = log.next_offset - 1
        for restarted in (fs.crash(), fs.after_kill()):
            survivor, found = opened_log(restarted, limits)
            assert found.condition != "corrupt", f"call {at}: {found.damage}"
            assert survivor.next_offset > acknowledged, f"call {at}"
            records = list(survivor.records(1, survivor.next_offset - 1))
            assert all(map(is_genuine, records))
            assert append(survivor) == [survivor.next_offset - 1]
        if not struck():
            return
    pytest.fail("there was no clean pass")


@contextmanager
def faulty(fs: SimulatedFileSystem, fault: Fault) -> Iterator[Callable[[], bool]]:
    """A block in which one call fails; afterwards the disk is well, and the result says whether it struck."""
    if fault.short is not None:
        fault = Fault(at=fault.at, on=WRITE, short=fault.short, forever=fault.forever)
    fs.inject(fault)
    armed = fs._faults[-1]
    try:
        yield lambda: armed.count >= fault.at
    finally:
        fs.heal()


# -- reading ---------------------------------------------------------------------------------------------------


def test_reading_from_any_offset() -> None:
    """A read gives the records from an offset on, across segments, none beyond its end, reading nothing before it."""
    _, log = new_log(LogLimits(segment_lines=4))
    append_batches(log, [1, 3, 2, 4, 3])
    for start in range(1, 14):
        for through in (start - 1, start, 9, 13):
            assert offsets_of(log.records(start, through)) == list(range(start, through + 1))


def test_a_read_is_bounded() -> None:
    """M: about as many bytes as asked for, and at least one record."""
    _, log = new_log(LogLimits(segment_lines=4))
    append_batches(log, [2] * 6)
    assert offsets_of(log.read(3, 12, 1)) == [3]
    assert offsets_of(log.read(3, 12, 3 * LINE)) == [3, 4, 5]
    assert offsets_of(log.read(3, 12, 3 * LINE + 1)) == [3, 4, 5, 6]


def test_a_read_opens_few_segments() -> None:
    """A seek costs a bounded number of reads, however many segments there are."""
    fs, log = new_log(LogLimits(segment_lines=1))
    append_batches(log, [1] * 200)
    fresh, _ = opened_log(fs)
    before = fs.calls["pread"]
    assert offsets_of(fresh.read(137, 137)) == [137]
    assert fs.calls["pread"] - before <= 12


def test_reading_by_time() -> None:
    """A time leads to the first offset appended then or later, as reading every line would."""
    _, log = new_log(LogLimits(segment_lines=3))
    times = [AT, AT, AT + 5, AT + 5, AT + 5, AT + 9, AT + 20, AT + 20]
    for at in times:
        append(log, at=at)
    for wanted in range(AT - 1, AT + 23):
        expected = next((offset for offset, at in enumerate(times, start=1) if at >= wanted), len(times) + 1)
        assert log.offset_at(wanted) == expected


def test_an_empty_log() -> None:
    """A log without a line has no offsets, no segments and no first time."""
    fs, log = new_log()
    assert (log.next_offset, log.first_offset, log.durable, log.active) == (1, 1, 0, 0)
    assert list(log.records(1, 0)) == []
    assert log.offset_at(0) == 1
    assert log.offset_within(10**9) == 1
    assert log.drop_before(5) == []
    assert fs.files() == {}


def test_reading_while_a_first_batch_is_on_its_way() -> None:
    """S5: half a batch in a new segment is neither found nor taken for damage by those who read meanwhile."""
    fs = new_fs()
    seen: list[tuple[int, list[int]]] = []

    class Peeking(SimulatedFileSystem):
        def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
            written = super().pwrite(handle, data[: len(data) // 2 + 1], position)
            seen.append((log.offset_at(AT + 1), offsets_of(log.records(1, log.next_offset - 1))))
            return written

    peeking = Peeking(fs.image())
    log, _ = opened_log(peeking, LogLimits(segment_lines=2))
    append(log, 2)
    append(log, 2, at=AT + 1)
    assert set(dict(seen)) == {1, 3}
    assert seen[-1] == (3, [1, 2])
    assert log.offset_at(AT + 1) == 3


def flip(fs: SimulatedFileSystem, path: str, byte: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(fs.files()[path])
    content[byte] ^= 1 << bit
    fs.put(path, bytes(content))


def test_damage_that_reading_meets_is_reported() -> None:
    """Corrupt is never hidden: a read that reaches a bad line names file, byte and offset, before and behind serve."""
    fs, log = new_log(LogLimits(segment_lines=4))
    append_batches(log, [1] * 10)
    log.write_mark(sync=True)
    flip(fs, segment(2), LINE + 30)
    damaged, found = opened_log(fs)
    assert found.condition == "clean"  # the mark covers it, so opening does not look
    assert offsets_of(damaged.records(1, 5)) == [1, 2, 3, 4, 5]
    with pytest.raises(CorruptLog) as caught:
        list(damaged.records(1, 10))
    assert (caught.value.path, caught.value.byte, caught.value.first_missing) == (segment(2), LINE, 6)
    assert offsets_of(damaged.records(9, 10)) == [9, 10]


def test_a_segment_whose_head_is_damaged() -> None:
    """No wrong event is served, and damage is never taken for a deletion: each read is right, or says corrupt.

    A flip may turn the first offset of a segment into any other; what follows must not count as deleted.
    """
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1] * 8)
    log.write_mark(sync=True)
    for number, first in ((1, 1), (2, 4), (3, 7)):
        for byte, bit in product(range(14), range(8)):
            damaged_fs = fs.crash()
            flip(damaged_fs, segment(number), byte, bit)
            damaged, _ = opened_log(damaged_fs)
            for start in range(1, 9):
                try:
                    records = list(damaged.records(start, 8))
                except CorruptLog:
                    continue
                assert offsets_of(records) == list(range(start, 9))
                assert start > first
            with suppress(CorruptLog):
                assert damaged.offset_at(AT) == 1


def test_a_segment_that_is_missing() -> None:
    """Corrupt is never hidden: a segment that nobody deleted by the rules is damage, not retention."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 6)
    fs.unlink(segment(2))
    log._handles.close()
    with pytest.raises(CorruptLog, match="missing"):
        list(log.records(1, 6))
    with pytest.raises(CorruptLog, match="missing"):
        list(log.records(3, 3))


def test_a_log_that_awaits_repair_takes_nothing() -> None:
    """Corrupt: the log opens for reading, and an append says why it is refused."""
    fs, log = new_log()
    append(log, 3)
    log.write_mark(sync=True)
    fs.put(segment(), fs.files()[segment()][:-5])
    damaged, found = opened_log(fs)
    assert found.condition == "corrupt"
    with pytest.raises(ReadOnly) as caught:
        append(damaged)
    assert isinstance(caught.value.__cause__, CorruptLog)
    assert offsets_of(damaged.records(1, 2)) == [1, 2]


# -- deleting --------------------------------------------------------------------------------------------------


def test_dropping_keeps_the_last_record() -> None:
    """F4: sealed segments wholly below an offset go; the segment with the last record never does."""
    for upto, first in ((0, 1), (3, 1), (4, 4), (6, 4), (7, 7), (8, 7), (100, 7)):
        _, log = new_log(LogLimits(segment_lines=3))
        append_batches(log, [1] * 8)
        log.drop_before(upto)
        assert log.first_offset == first
        assert offsets_of(log.records(first, 8)) == list(range(first, 9))
        assert append(log) == [9]
        if first > 1:
            with pytest.raises(OffsetGone) as caught:
                list(log.records(first - 1, 8))
            assert caught.value.first_retained == first


def test_dropping_keeps_the_last_record_when_the_newest_segment_is_empty() -> None:
    """F4: a segment that was begun and never filled does not count as the one with the last record."""
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1] * 6)
    fs.capacity_bytes = sum(map(len, fs.files().values())) + 1
    with pytest.raises(DiskFull):
        append(log)
    assert log.segment_numbers == [1, 2, 3]
    fs.capacity_bytes = None
    log.drop_before(100)
    assert log.segment_numbers == [2, 3]
    assert offsets_of(log.records(4, 6)) == [4, 5, 6]
    reopened, _ = opened_log(fs.crash())
    reopened.drop_before(100)
    assert offsets_of(reopened.records(4, 6)) == [4, 5, 6]
    assert append(reopened) == [7]


def test_a_crash_while_segments_are_deleted() -> None:
    """Retention writes the new first offset before it deletes: every crash leaves a log that is whole from there."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 9)
    fs.records = True
    log.drop_before(6)
    dropped_at = len(fs.history)
    append_batches(log, [1, 1])
    log.drop_before(8)
    states = 0
    for state in crash_states(fs.history, limit=300):
        survivor, found = opened_log(state.fs)
        assert found.condition != "corrupt", f"{state}: {found.damage}"
        assert survivor.first_offset in ((1, 5) if state.moment < dropped_at else (5, 7)), str(state)
        last = survivor.next_offset - 1
        assert last >= 9
        assert offsets_of(survivor.records(survivor.first_offset, last)) == list(range(survivor.first_offset, last + 1))
        names = [name for name in state.fs.listdir(DIRECTORY) if name.endswith(".jsonl")]
        assert len(names) == len(survivor.segment_numbers), "what retention announced is deleted when the log opens"
        states += 1
    assert states > 30


def test_a_bad_slot_after_a_deletion_brings_nothing_back() -> None:
    """Retention: both slots of the mark say where the log begins, so one bad bit cannot miss what was deleted."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 9)
    for _ in range(2):
        log.write_mark(sync=True)
    log.drop_before(6)
    for slot in (0, 600):
        damaged = fs.crash()
        flip(damaged, MARK, slot)
        survivor, found = opened_log(damaged)
        assert (found.condition, survivor.first_offset) == ("whole", 5)


def test_a_flipped_bit_deletes_nothing_too_early() -> None:
    """F5: which segments are below an offset is decided by lines that check out, not by what a head claims."""
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1] * 12)
    log.write_mark(sync=True)
    for number, byte, bit in product((2, 3, 4), range(14), range(8)):
        damaged_fs = fs.crash()
        flip(damaged_fs, segment(number), byte, bit)
        damaged, _ = opened_log(damaged_fs)
        with pytest.raises(CorruptLog):
            damaged.drop_before(5)
        assert damaged_fs.files().keys() == fs.files().keys()


def test_how_far_back_some_bytes_reach() -> None:
    """Retention by size counts whole segments from the newest one back."""
    _, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 7)
    assert log.offset_within(0) == 8
    assert log.offset_within(LINE) == 7
    assert log.offset_within(3 * LINE - 1) == 7
    assert log.offset_within(3 * LINE) == 5
    assert log.offset_within(10**9) == 1
