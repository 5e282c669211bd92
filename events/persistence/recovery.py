"""Opening a log after whatever happened to it: what may be trusted, what is torn, what is corrupt.

Let V be the end of the last valid contiguous record. Damage in a segment that is not the last is corrupt; so is
a bad place behind which a valid record says that it had been synced; so is a log that ends before an offset which
another durable file names. Anything else behind V is a torn write: it is kept aside and cut off. Corrupt is never
cut. Torn or whole, the tail that nothing proves durable is written again and synced before it is served: after a
failed fsync the page cache may show what the disk never got.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from events.errors import CorruptLog
from events.persistence.codec import BadLine, Record, decode_line
from events.persistence.files import FileSystem, list_or_empty, opened, read_all, write_all
from events.persistence.handles import Handles
from events.persistence.log import Log, LogLimits
from events.persistence.mark import Mark, read_mark
from events.persistence.segment import BLOCK_BYTES, Naming, first_offset, read_blocks

Condition = Literal["clean", "whole", "torn", "corrupt"]
_LAST_LINE_BYTES: Final = 4096
_RECORD_STARTS: Final = (b'{"offset":', b'{"gap":')


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a log is found to be, before anything is changed. Positions are in segment `segment`."""

    condition: Condition
    numbers: list[int]
    mark: Mark | None
    mark_damaged: bool
    last_offset: int
    last_at: int
    segment: int
    end: int
    proven_end: int
    size: int
    bytes_read: int
    damage: CorruptLog | None = None
    kept_aside: str | None = None

    @property
    def surplus(self) -> int:
        """Bytes behind the last valid record."""
        return self.size - self.end


class _Scan:
    """Walks segments from a trusted place, and remembers what it proved on the way."""

    def __init__(self, fs: FileSystem, directory: str, naming: Naming) -> None:
        self.fs, self.directory, self.naming = fs, directory, naming
        self.bytes_read = 0
        self.last_offset = 0
        self.last_at = 0
        self.end = 0
        self.proven_end = 0
        self.size = 0
        self.bad: BadLine | None = None

    def path(self, number: int) -> str:
        return os.path.join(self.directory, self.naming.segment(number))

    def head(self, number: int) -> int | None:
        with opened(self.fs, self.path(number)) as handle:
            self.bytes_read += 64
            return first_offset(self.fs, handle)

    def segment(self, number: int, position: int, expected: int) -> None:
        """Read a segment from `position`; afterwards `end` is V in it, and `bad` what stands behind V."""
        with opened(self.fs, self.path(number)) as handle:
            self.size = self.fs.size(handle)
            if position and not self._stands(handle, number, position, expected - 1):
                # Less than what was durable: see how much of it is left.
                position, expected = 0, first_offset(self.fs, handle) or 1
                self.last_offset = expected - 1
            self.end = self.proven_end = position
            for block in read_blocks(self.fs, handle, number, position, self.size, expected):
                for record in block.records:
                    self.last_offset = record.last
                    if record.offset == record.batch:
                        self.proven_end = record.position  # all before it was synced when it was written
                if block.records:
                    self.last_at = block.records[-1].at
                self.end, self.bad = block.end, block.bad
        self.bytes_read += max(0, self.size - position)

    def _stands(self, handle: int, number: int, position: int, offset: int) -> bool:
        """Whether the record of an offset ends at `position`: what was cut off or wiped before the mark shows here."""
        size = _LAST_LINE_BYTES
        while True:
            start = max(0, position - size)
            data = read_all(self.fs, handle, position - start, start)
            self.bytes_read += len(data)
            line = data.rfind(b"\n", 0, -1) + 1
            if line or not start:
                break
            size *= 8
        try:
            return len(data) == position - start and decode_line(data[line:], number, start + line).last == offset
        except BadLine:
            return False


def examine(fs: FileSystem, directory: str, naming: Naming, *, named: int, whole: bool = False) -> Examination:
    """Classify a log without changing it. `named` is the highest offset that other durable files name.

    `whole` reads every segment from its beginning; otherwise what the mark covers is believed.
    """
    # The mark first: beside a running bus the segments that it names are there when they are listed.
    mark, mark_damaged = read_mark(fs, os.path.join(directory, naming.mark()))
    found = (naming.number(name) for name in list_or_empty(fs, directory))
    numbers = sorted(number for number in found if number is not None)
    if mark is not None:
        # A crash between the mark of a deletion and the deletion itself.
        numbers = [number for number in numbers if number >= mark.first_segment] or numbers[-1:]
    scan = _Scan(fs, directory, naming)
    first_missing, damage = 1, None
    if mark is not None:
        scan.last_offset, scan.last_at = mark.durable, mark.at

    def result(condition: Condition) -> Examination:
        return Examination(
            condition=condition,
            numbers=numbers,
            mark=mark,
            mark_damaged=mark_damaged,
            last_offset=scan.last_offset,
            last_at=scan.last_at,
            segment=numbers[-1] if numbers else 1,
            end=scan.end,
            proven_end=scan.proven_end,
            size=scan.size,
            bytes_read=scan.bytes_read,
            damage=damage,
        )

    def corrupt(number: int, byte: int, reason: str) -> Examination:
        nonlocal damage
        damage = CorruptLog(scan.path(number), byte, first_missing, max(named, first_missing), reason)
        return result("corrupt")

    named = max(named, mark.durable if mark is not None else 0)
    if not numbers:
        scan.last_offset = 0
        if named:
            return corrupt(1, 0, f"no segment is there, but offset {named} was durable")
        return result("clean")

    if mark is not None and mark.repairing:
        return corrupt(numbers[0], 0, "a repair was interrupted and must be run again")
    start, position = _trusted_place(scan, numbers, mark, whole=whole)
    if mark is not None and numbers[0] > mark.first_segment:
        first_missing = mark.first
        return corrupt(mark.first_segment, 0, f"segment {mark.first_segment} is missing")
    expected = scan.last_offset + 1
    for index, number in enumerate(numbers):
        if index and number != numbers[index - 1] + 1:
            first_missing = _last_in(scan, numbers[index - 1]) + 1
            return corrupt(numbers[index - 1] + 1, 0, f"segment {numbers[index - 1] + 1} is missing")
        if number < start:
            continue
        scan.segment(number, position if number == start else 0, expected)
        expected = first_missing = scan.last_offset + 1
        if scan.bad is not None and number != numbers[-1]:
            return corrupt(number, scan.end, f"{scan.bad}, in a segment that was sealed")

    last = numbers[-1]
    if scan.bad is not None:
        witness = _later_witness(scan, last, first_missing)
        if witness is not None:
            return corrupt(
                last,
                scan.end,
                f"{scan.bad}; yet the record at byte {witness.position} says that all below "
                f"{witness.batch} had been synced",
            )
    if scan.last_offset < named:
        reason = str(scan.bad) if scan.bad is not None else "the log ends here"
        return corrupt(last, scan.end, f"{reason}, but offset {named} was durable")
    if scan.bad is not None:
        return result("torn")
    is_marked = mark is not None and (mark.durable, mark.segment, mark.position) == (
        scan.last_offset,
        last,
        scan.end,
    )
    return result("clean" if is_marked and not mark_damaged else "whole")


def _trusted_place(scan: _Scan, numbers: list[int], mark: Mark | None, *, whole: bool) -> tuple[int, int]:
    """The segment and byte to read from, with `scan.last_offset` set to the offset before it."""
    if mark is not None and not whole:
        if mark.segment in numbers:
            return mark.segment, mark.position
        # It may name a segment that never came to be: then what stands before that one was synced long ago.
        whole_from = numbers[-1] if mark.segment > numbers[-1] else numbers[0]
    else:
        # No mark to lean on: the sealed segment before the last tells where the last one must begin.
        whole_from = numbers[0] if whole else numbers[max(0, len(numbers) - 2)]
    head = scan.head(whole_from)
    if mark is not None and whole_from == numbers[0]:
        head = mark.first
    scan.last_offset = (head or 1) - 1
    return whole_from, 0


def _last_in(scan: _Scan, number: int) -> int:
    """The last offset that can be read in a segment."""
    reading = _Scan(scan.fs, scan.directory, scan.naming)
    first = scan.head(number) or 1
    reading.last_offset = first - 1
    reading.segment(number, 0, first)
    return reading.last_offset


def _later_witness(scan: _Scan, number: int, first_missing: int) -> Record | None:
    """A valid record behind the bad place that was written after the missing offset had been synced."""
    with opened(scan.fs, scan.path(number)) as handle:
        for record in salvage(scan.fs, handle, number, scan.end, scan.size):
            if record.batch > first_missing:
                return record
    return None


def salvage(fs: FileSystem, handle: int, number: int, position: int, end: int) -> Iterator[Record]:
    """Every valid record in a damaged stretch, wherever it begins: a lost newline hides no neighbour."""
    rest = b""
    while position + len(rest) < end:
        data = read_all(fs, handle, min(BLOCK_BYTES, end - position - len(rest)), position + len(rest))
        if not data:
            return
        block = rest + data
        begin = 0
        newline = block.find(b"\n")
        while newline >= 0:
            for start in _starts(block, begin, newline):
                try:
                    yield decode_line(block[start : newline + 1], number, position + start)
                except BadLine:
                    continue
                break
            begin = newline + 1
            newline = block.find(b"\n", begin)
        rest = block[begin:]
        position += begin


def _starts(block: bytes, begin: int, end: int) -> list[int]:
    places: list[int] = []
    for start_bytes in _RECORD_STARTS:
        place = block.find(start_bytes, begin, end)
        while place >= 0:
            places.append(place)
            place = block.find(start_bytes, place + 1, end)
    return sorted(places)


def open_log(
    fs: FileSystem,
    handles: Handles,
    directory: str,
    naming: Naming,
    limits: LogLimits,
    *,
    named: int = 0,
    log_id: str | None = None,
    aside: str,
) -> tuple[Log, Examination]:
    """Recover a log and open it for writing. Only the holder of the workspace's lock may call this.

    A corrupt log is opened too, for reading: its `damage` says what is wrong, and every append raises it.
    Crashing anywhere in here and starting again comes to the same end.
    """
    found = examine(fs, directory, naming, named=named)
    log = Log(fs, handles, directory, naming, limits)
    if found.mark is not None:
        log.mark_file.mark = found.mark
    elif log_id is not None:
        log.mark_file.mark = replace(log.mark_file.mark, log_id=log_id)
    log.names = log.mark_file.mark.names
    if found.damage is not None:
        log.damage = found.damage
        log.adopt(found.numbers, last_offset=found.last_offset, last_at=found.last_at, active_bytes=found.end)
        log.first_offset = found.mark.first if found.mark is not None else 1
        return log, found
    if not found.numbers:
        return log, found
    if found.condition == "torn":
        found = replace(found, kept_aside=_keep_aside(log, found, aside))
    if found.condition != "clean":
        _settle_tail(log, found)
    log.adopt(found.numbers, last_offset=found.last_offset, last_at=found.last_at, active_bytes=found.end)
    try:
        log.first_offset = found.mark.first if found.mark is not None else _first_of(log)
    except CorruptLog as damage:
        log.damage = damage
        return log, replace(found, condition="corrupt", damage=damage)
    if found.condition != "clean":
        log.write_mark(sync=True)
        if found.mark_damaged and found.mark is None:
            log.write_mark(sync=True)  # both slots were bad, and two good ones are what the next bad bit needs
    if found.mark is not None:
        _finish_deletion(log, found.mark)
    return log, found


def _keep_aside(log: Log, found: Examination, aside: str) -> str:
    """Copy what stands behind V to a file of its own, durably, before it is cut off."""
    name = f"{log.naming.segment(found.segment)}.{found.end}"
    path = os.path.join(aside, name)
    taken = set(list_or_empty(log.fs, aside))
    copies = 0
    while os.path.basename(path) in taken:
        copies += 1
        path = os.path.join(aside, f"{name}.{copies}")
    with (
        opened(log.fs, log.segment_path(found.segment)) as source,
        opened(log.fs, path, create=True) as target,
    ):
        position = found.end
        while position < found.size:
            data = read_all(log.fs, source, BLOCK_BYTES, position)
            write_all(log.fs, target, data, position - found.end)
            position += len(data)
        log.fs.sync(target)
    log.fs.sync_directory(aside)
    return path


def _settle_tail(log: Log, found: Examination) -> None:
    """Cut the torn bytes off, write the unproven ones again, and sync file and directory."""
    with opened(log.fs, log.segment_path(found.segment), write=True) as handle:
        if found.surplus:
            log.fs.truncate(handle, found.end)
        position = found.proven_end
        while position < found.end:
            data = read_all(log.fs, handle, min(BLOCK_BYTES, found.end - position), position)
            write_all(log.fs, handle, data, position)
            position += len(data)
        log.fs.sync(handle)
    log.fs.sync_directory(log.directory)


def _first_of(log: Log) -> int:
    firsts = log.first_offsets()
    return firsts[0][1] if firsts else log.next_offset


def _finish_deletion(log: Log, mark: Mark) -> None:
    """Delete what a retention announced in the mark and did not get to."""
    leftovers = [
        name
        for name in list_or_empty(log.fs, log.directory)
        if (log.naming.number(name) or mark.first_segment) < mark.first_segment
    ]
    for name in leftovers:
        log.fs.unlink(log.path_of(name))
    if leftovers:
        log.fs.sync_directory(log.directory)
