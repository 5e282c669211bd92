"""Recovery: what is torn, what is corrupt, and that neither a crash nor a liar of a page cache changes the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from events.errors import CorruptLog, LogPoisoned
from events.persistence.codec import decode_line, encode_gap, encode_line
from events.persistence.handles import Handles
from events.persistence.log import DiskFull, Log, LogLimits
from events.persistence.mark import MarkFile, read_mark
from events.persistence.recovery import examine, open_log, salvage
from events.testing.crashes import crash_states
from events.testing.simulated import Fault, SimulatedFileSystem
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


def built(counts: list[int], *, marked: bool = True, limits: LogLimits | None = None, size: int = 40) -> Log:
    """A log of these batches; `log.fs` is its file system."""
    log, _ = opened_log(new_fs(), limits)
    append_batches(log, counts, size=size)
    if marked:
        log.write_mark(sync=True)
    return log


def disk_of(log: Log) -> SimulatedFileSystem:
    """A copy of the file system of a log, with everything on disk."""
    assert isinstance(log.fs, SimulatedFileSystem)
    return log.fs.crash()


def lines_of(fs: SimulatedFileSystem, number: int = 1) -> list[bytes]:
    """The lines of a segment."""
    return fs.files()[segment(number)].splitlines(keepends=True)


def set_lines(fs: SimulatedFileSystem, lines: list[bytes], number: int = 1) -> None:
    """Replace the lines of a segment."""
    fs.put(segment(number), b"".join(lines))


def spoiled(line: bytes) -> bytes:
    """A line with one bit changed."""
    return line[:15] + bytes([line[15] ^ 1]) + line[16:]


# -- what is well ----------------------------------------------------------------------------------------------


def test_a_log_that_was_closed_is_clean() -> None:
    """Recovery reads the last line before the mark and no more, and changes nothing where the mark covers all."""
    fs = disk_of(built([3, 2, 4]))
    before = fs.digest()
    log, found = opened_log(fs)
    assert (found.condition, found.last_offset) == ("clean", 9)
    assert found.bytes_read <= 4096
    assert (log.next_offset, log.durable, log.last_at) == (10, 9, AT)
    assert fs.digest() == before
    assert "sync" not in fs.calls


def test_a_tail_that_nothing_proves_is_written_again() -> None:
    """Recovery rewrites the unproven tail with the same bytes, syncs it, and writes the mark before it serves."""
    fs = disk_of(built([3, 2, 4], marked=False))
    content = fs.files()[segment()]
    log, found = opened_log(fs)
    assert (found.condition, log.next_offset) == ("whole", 10)
    assert fs.files()[segment()] == content
    assert fs.calls["sync"] == 2
    mark, _ = read_mark(fs, MARK)
    assert mark is not None
    assert (mark.durable, mark.position, mark.log_id) == (9, len(content), log.mark_file.mark.log_id)
    assert opened_log(fs.crash())[1].condition == "clean"


def test_only_the_last_batch_is_written_again() -> None:
    """A line's `batch` proves what stands before it: that is not written a second time."""
    fs = disk_of(built([3, 2, 4], marked=False))
    lines = lines_of(fs)
    found = examine(fs, DIRECTORY, NAMING, named=0)
    assert found.proven_end == sum(map(len, lines[:5]))
    interval, _ = opened_log(new_fs(), LogLimits(sync="interval"))
    append_batches(interval, [2, 2])
    interval.sync()
    append_batches(interval, [1, 2])
    assert isinstance(interval.fs, SimulatedFileSystem)
    found = examine(interval.fs, DIRECTORY, NAMING, named=0)
    assert found.proven_end == sum(map(len, lines_of(interval.fs)[:4]))


def test_an_empty_last_segment_is_no_damage() -> None:
    """A crash between creating a segment and its first batch leaves it empty; the log goes on in it."""
    for marked in (True, False):
        fs = disk_of(built([2, 2], marked=marked, limits=LogLimits(segment_lines=2)))
        fs.put(segment(3), b"")
        log, found = opened_log(fs, LogLimits(segment_lines=2))
        assert (found.condition, log.next_offset, log.active) == ("whole", 5, 3)
        assert append(log, 2) == [5, 6]
        assert log.segment_numbers == [1, 2, 3]
        assert offsets_of(opened_log(fs.crash())[0].records(1, 6)) == [1, 2, 3, 4, 5, 6]


def test_a_first_segment_that_is_empty_is_no_damage() -> None:
    """A crash right after the log was begun leaves an empty log."""
    fs = new_fs()
    fs.put(segment(), b"")
    log, found = opened_log(fs)
    assert (found.condition, log.next_offset) == ("whole", 1)
    assert append(log) == [1]


def test_a_mark_of_a_segment_that_never_came_to_be_is_no_damage() -> None:
    """A mark may name the next segment, empty, before that is there."""
    log = built([2, 2])
    fs = disk_of(log)
    mark = replace(log.mark_file.mark, segment=2, position=0)
    MarkFile(fs, MARK, log.mark_file.mark).write(mark, sync=True)
    survivor, found = opened_log(fs)
    assert (found.condition, survivor.next_offset) == ("whole", 5)


def test_a_log_that_was_never_written_is_clean() -> None:
    """No file is no damage."""
    log, found = opened_log(new_fs())
    assert (found.condition, log.next_offset, found.damage) == ("clean", 1, None)


def test_a_gap_is_part_of_a_whole_log() -> None:
    """F2: a gap line counts as its offsets when the log is opened, and the log goes on behind it."""
    fs = new_fs()
    fs.put(segment(), encode_line(1, members(1), AT, 1) + encode_gap(2, 6, AT, 2) + encode_line(7, members(7), AT, 7))
    log, found = opened_log(fs)
    assert (found.condition, log.next_offset) == ("whole", 8)
    assert offsets_of(log.records(1, 7)) == [1, 2, 3, 4, 5, 6, 7]
    assert [record.is_gap for record in log.records(4, 7)] == [True, False]
    assert append(log) == [8]


# -- torn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [b"{", b'{"offset":5,"n', b"\0" * 50, b"\n", b"\xff" * 300, b"garbage\n" * 3])
def test_a_torn_tail_is_kept_aside_and_cut_off(rest: bytes) -> None:
    """Rule 4: what stands behind the last valid record is kept in a side file, then cut off; nothing else changes."""
    fs = disk_of(built([2, 2]))
    content = fs.files()[segment()]
    fs.put(segment(), content + rest)
    log, found = opened_log(fs)
    assert (found.condition, found.surplus, found.end) == ("torn", len(rest), len(content))
    assert found.kept_aside is not None
    survivor = fs.crash()
    assert survivor.files()[found.kept_aside] == rest
    assert survivor.files()[segment()] == content
    assert append(log) == [5]
    assert opened_log(survivor)[1].condition == "clean"


def test_a_second_torn_tail_does_not_overwrite_the_first() -> None:
    """Rule 4: bytes that were set aside stay, also those of another space's log of the same name."""
    fs = disk_of(built([2]))
    content = fs.files()[segment()]
    for _ in range(3):
        fs.put(segment(), content + b"torn")
        opened_log(fs)
    assert sorted(data for path, data in fs.files().items() if path.startswith(ASIDE)) == [b"torn"] * 3


def test_a_hole_in_the_batch_that_was_in_flight_is_torn() -> None:
    """Rule 2: lines of the same batch behind the bad place prove nothing: the disk may write them first."""
    fs = disk_of(built([2, 4]))
    mark = read_mark(fs, MARK)[0]
    assert mark is not None
    lines = lines_of(fs)
    MarkFile(fs, MARK, mark).write(replace(mark, durable=2, position=len(lines[0] + lines[1])), sync=True)
    for bad in (2, 3, 4):
        damaged = fs.crash()
        set_lines(damaged, [*lines[:bad], b"\0" * len(lines[bad]), *lines[bad + 1 :]])
        log, found = opened_log(damaged)
        assert (found.condition, log.next_offset) == ("torn", bad + 1)


# -- corrupt ---------------------------------------------------------------------------------------------------


def untouched(fs: SimulatedFileSystem, named: int = 0) -> str:
    """Open a log that must be found corrupt and left as it is; what is said about it."""
    before = fs.digest()
    log, found = opened_log(fs, named=named)
    assert (found.condition, fs.digest()) == ("corrupt", before)
    damage = found.damage
    assert damage is not None
    assert damage is log.damage
    assert (damage.code, damage.path.startswith(DIRECTORY)) == ("CORRUPT", True)
    with suppress(CorruptLog):
        assert all(map(is_genuine, log.records(log.first_offset, log.next_offset - 1)))
    return f"{damage.byte} {damage.first_missing} {damage.reason}"


def test_damage_in_a_sealed_segment_is_corrupt() -> None:
    """Rule 1: a segment that has a successor was synced, so damage in it is never a torn write."""
    fs = disk_of(built([2, 2, 1], marked=False, limits=LogLimits(segment_lines=2)))
    lines = lines_of(fs, 2)
    for wrong in ([lines[0], spoiled(lines[1])], [lines[0]], [lines[0], lines[1][:-1]], []):
        damaged = fs.crash()
        set_lines(damaged, wrong, 2)
        assert untouched(damaged)


def test_damage_that_a_later_batch_vouches_for_is_corrupt() -> None:
    """Rule 2: a valid record behind the bad place whose `batch` is beyond it proves that the place had been synced."""
    fs = disk_of(built([2, 2, 1], marked=False))
    lines = lines_of(fs)
    for bad in range(4):
        damaged = fs.crash()
        set_lines(damaged, [*lines[:bad], spoiled(lines[bad]), *lines[bad + 1 :]])
        byte = sum(map(len, lines[:bad]))
        assert untouched(damaged).startswith(f"{byte} {bad + 1} ")
    set_lines(fs, [*lines[:4], spoiled(lines[4])])
    assert opened_log(fs)[1].condition == "torn"  # the one place that cannot be told from a torn write


def test_a_lost_newline_hides_no_witness() -> None:
    """Rule 2: a line whose end was damaged runs into the next one, which is found all the same."""
    fs = disk_of(built([1, 1, 1], marked=False))
    lines = lines_of(fs)
    set_lines(fs, [lines[0], lines[1][:-1] + b"\x0b", lines[2]])
    assert "had been synced" in untouched(fs)


def test_a_log_that_ends_before_its_mark_is_corrupt() -> None:
    """Rule 3: the mark was written after a sync, so what it covers was there."""
    fs = disk_of(built([2, 2, 3]))
    content = fs.files()[segment()]
    for size in (0, 1, 100, len(content) - 1):
        fs.put(segment(), content[:size])
        assert "offset 7 was durable" in untouched(fs)


def test_a_log_that_ends_before_what_another_file_names_is_corrupt() -> None:
    """Rule 3: a checkpoint, a group record or a dead letter that names an offset proves that it was synced."""
    fs = disk_of(built([2, 2], marked=False))
    assert examine(fs, DIRECTORY, NAMING, named=4).condition == "whole"
    assert "offset 5 was durable" in untouched(fs, named=5)
    fs.put(segment(), fs.files()[segment()] + b"torn")
    assert "offset 5 was durable" in untouched(fs, named=5)


def test_segments_that_are_missing_are_corrupt() -> None:
    """Rule 1: a hole in the numbers, a first segment that retention did not take, or none at all."""
    fs = disk_of(built([2, 2, 2, 1], limits=LogLimits(segment_lines=2)))
    for gone, first_missing in (([2], 3), ([1], 1), ([1, 2], 1), ([3], 5), ([1, 2, 3, 4], 1), ([4], 7)):
        damaged = fs.crash()
        for number in gone:
            damaged.unlink(segment(number))
        assert untouched(damaged.after_kill()).startswith(f"0 {first_missing} " if gone != [4] else "")


def test_an_interrupted_repair_is_corrupt_until_it_was_run_again() -> None:
    """A repair announces itself in the mark; until it is done nobody appends."""
    log = built([2])
    fs = disk_of(log)
    MarkFile(fs, MARK, log.mark_file.mark).write(replace(log.mark_file.mark, repairing=True), sync=True)
    assert "repair was interrupted" in untouched(fs)


# -- the mark --------------------------------------------------------------------------------------------------


def test_without_a_mark_the_segments_tell() -> None:
    """Where both copies of the mark are bad the log is read from the last sealed segment on, and it is reported."""
    for counts in ([1], [2, 2], [2, 2, 2, 2, 1]):
        log = built(counts, limits=LogLimits(segment_lines=2))
        fs = disk_of(log)
        fs.put(MARK, b"\xff" * 1024)
        survivor, found = opened_log(fs, LogLimits(segment_lines=2))
        assert (found.condition, found.mark_damaged) == ("whole", True)
        assert offsets_of(survivor.records(1, sum(counts))) == list(range(1, sum(counts) + 1))
        assert opened_log(fs)[1].mark_damaged is False


def test_without_a_mark_retention_is_remembered_by_the_segments() -> None:
    """Where the mark is lost after a deletion the log begins with the first segment that is there."""
    log = built([2, 2, 2, 1], limits=LogLimits(segment_lines=2))
    log.drop_before(5)
    fs = disk_of(log)
    fs.unlink(MARK)
    survivor, found = opened_log(fs)
    assert (found.condition, survivor.first_offset, survivor.next_offset) == ("whole", 5, 8)


def test_without_a_mark_a_damaged_beginning_is_corrupt() -> None:
    """No wrong event is served: where the log begins is not taken from a line that does not check out."""
    fs = disk_of(built([2, 2, 2, 1], limits=LogLimits(segment_lines=2)))
    fs.unlink(MARK)
    lines = lines_of(fs)
    for byte in range(10, 12):
        damaged = fs.after_kill()
        set_lines(damaged, [lines[0][:byte] + bytes([lines[0][byte] ^ 2]) + lines[0][byte + 1 :], lines[1]])
        log, found = opened_log(damaged)
        assert (found.condition, log.damage is not None) == ("corrupt", True)


def test_a_log_keeps_its_id() -> None:
    """A log id tells a recreated log from the one a checkpoint means; without a mark a checkpoint tells it."""
    log = built([1])
    fs = disk_of(log)
    assert opened_log(fs)[0].mark_file.mark.log_id == log.mark_file.mark.log_id
    fs.unlink(MARK)
    survivor, _ = open_log(fs, Handles(fs, 4), DIRECTORY, NAMING, LogLimits(), log_id="c" * 32, aside=ASIDE)
    assert survivor.mark_file.mark.log_id == "c" * 32
    fresh, _ = opened_log(new_fs())
    assert fresh.mark_file.mark.log_id != log.mark_file.mark.log_id


def test_the_time_of_the_last_line_is_carried_on() -> None:
    """F1: `at` never goes backwards within a log, also when the next process's clock is behind."""
    log, _ = opened_log(new_fs())
    append(log, at=AT + 5000)
    log.write_mark(sync=True)
    assert opened_log(disk_of(log))[0].last_at == AT + 5000
    append(log, at=AT + 9000)
    assert opened_log(disk_of(log))[0].last_at == AT + 9000


# -- reading it whole ------------------------------------------------------------------------------------------


def test_a_full_read_finds_what_the_mark_hides() -> None:
    """Verify reads every byte: damage that the mark covers is found, which opening the log does not look for."""
    fs = disk_of(built([2, 2, 2], limits=LogLimits(segment_lines=2)))
    assert examine(fs, DIRECTORY, NAMING, named=0, whole=True).condition == "clean"
    for number in (1, 2, 3):
        lines = lines_of(fs, number)
        for bad in (0, 1):
            damaged = fs.crash()
            set_lines(damaged, [spoiled(line) if index == bad else line for index, line in enumerate(lines)], number)
            found = examine(damaged, DIRECTORY, NAMING, named=0, whole=True)
            assert found.condition == "corrupt"
            assert found.damage is not None
            assert (found.damage.path, found.damage.first_missing) == (segment(number), 2 * number - 1 + bad)


def test_salvage_finds_every_valid_line_wherever_it_begins() -> None:
    """Repair and rule 2: garbage before a line, on the same line or above it, hides nothing that is intact."""
    lines = [encode_line(offset, members(offset, 200), AT, offset) for offset in range(1, 6)]
    fs = SimulatedFileSystem()
    for content, expected in (
        (b"".join(lines), [1, 2, 3, 4, 5]),
        (b"\0" * 70 + lines[0] + lines[1][:40] + lines[2], [1, 3]),
        (lines[0][:-1] + lines[1], [2]),
        (b"\n\n" + lines[4] + b"\n" + lines[3], [5, 4]),
        (b'{"offset":1,{"offset":2,' + lines[2] + lines[3][:-1], [3]),
        (b"\xff" * 600_000 + lines[0] + b"\0" * 300_000, [1]),
        (b"", []),
    ):
        fs.put("/x", content)
        handle = fs.open("/x")
        found = list(salvage(fs, handle, 1, 0, len(content)))
        assert [record.offset for record in found] == expected
        for record in found:
            assert content[record.position :].startswith(record.line)
            assert decode_line(record.line).offset == record.offset


# -- crashes during recovery -----------------------------------------------------------------------------------


def _torn() -> tuple[SimulatedFileSystem, int]:
    fs = disk_of(built([2, 1], marked=False))
    fs.put(segment(), fs.files()[segment()] + b'{"offset":4,"n":4,"bo')
    return fs, 3


def _torn_in_a_new_segment() -> tuple[SimulatedFileSystem, int]:
    fs = disk_of(built([2, 1], limits=LogLimits(segment_lines=3)))
    fs.put(segment(2), b"\0" * 60)
    return fs, 3


def _after_a_lost_sync() -> tuple[SimulatedFileSystem, int]:
    log = built([2, 1])
    assert isinstance(log.fs, SimulatedFileSystem)
    log.fs.inject(Fault(on=frozenset({"sync"}), loses=True))
    with pytest.raises(LogPoisoned):
        append(log, 2)
    return log.fs.after_kill(), 3


def _killed_during_a_deletion() -> tuple[SimulatedFileSystem, int]:
    log = built([2, 2, 2], limits=LogLimits(segment_lines=2))
    fs = log.fs
    assert isinstance(fs, SimulatedFileSystem)
    fs.inject(Fault(on=frozenset({"unlink"})))
    with pytest.raises(OSError, match="injected"):
        log.drop_before(5)
    return fs.after_kill(), 6


def _killed_while_a_segment_began() -> tuple[SimulatedFileSystem, int]:
    log = built([2], limits=LogLimits(segment_lines=2), marked=False)
    fs = log.fs
    assert isinstance(fs, SimulatedFileSystem)
    fs.inject(Fault(on=frozenset({"sync_directory"}), loses=True))
    with pytest.raises(LogPoisoned):
        append(log)
    return fs.after_kill(), 2


def _cut_back_and_killed() -> tuple[SimulatedFileSystem, int]:
    log = built([2])
    fs = log.fs
    assert isinstance(fs, SimulatedFileSystem)
    fs.inject(Fault(on=frozenset({"pwrite"}), short=100))
    fs.inject(Fault(at=2, on=frozenset({"pwrite"}), error=28))
    with pytest.raises(DiskFull):
        append(log, 2)
    return fs.after_kill(), 2


STARTS: list[Callable[[], tuple[SimulatedFileSystem, int]]] = [
    _torn,
    _torn_in_a_new_segment,
    _after_a_lost_sync,
    _killed_during_a_deletion,
    _killed_while_a_segment_began,
    _cut_back_and_killed,
]


def test_a_crash_during_recovery_three_deep(capsys: pytest.CaptureFixture[str]) -> None:
    """S1, S4, S5: recovery that crashes at any call, in the recovery of a recovery, three deep, loses nothing.

    What one recovery served is there in the next; what had been acknowledged before is there in all.
    """
    counts: Counter[str] = Counter()
    for start in STARTS:
        fs, acknowledged = start()
        _recover_and_crash(fs, acknowledged, {}, depth=3, seen=set(), counts=counts)
    with capsys.disabled():
        print(f"\ncrashes during recovery, three deep: {counts['states']:,} distinct states recovered")
    assert counts["states"] > 400


def _recover_and_crash(
    fs: SimulatedFileSystem,
    acknowledged: int,
    served: dict[int, bytes],
    *,
    depth: int,
    seen: set[tuple[bytes, object]],
    counts: Counter[str],
) -> None:
    fs.records = True
    log, found = opened_log(fs, LogLimits(segment_lines=3))
    assert found.condition != "corrupt", str(found.damage)
    last = log.next_offset - 1
    assert last >= acknowledged
    records = list(log.records(log.first_offset, last))
    assert offsets_of(records) == list(range(log.first_offset, last + 1))
    assert all(map(is_genuine, records))
    assert all(served[record.offset] == record.line for record in records if record.offset in served)
    counts["states"] += 1
    after = {record.offset: record.line for record in records}
    # A crash during recovery may still take what was not acknowledged; one after it may take nothing more.
    if depth:
        for state in crash_states(fs.history, limit=40, cuts=2, seen=seen):
            _recover_and_crash(state.fs, acknowledged, {}, depth=depth - 1, seen=seen, counts=counts)
        _recover_and_crash(fs.crash(), last, after, depth=0, seen=seen, counts=counts)
