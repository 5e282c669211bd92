"""One log: numbered segments in a directory, appended to by one writer, read by anyone.

Synchronous and single-minded. `committer` decides when a batch is written, `recovery` what may be trusted when
a log is opened; this file knows how bytes get into segments and how to find them again.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

from events.errors import CorruptLog, LogPoisoned, OffsetGone, ReadOnly, StorageError
from events.persistence.codec import BadLine, Record
from events.persistence.files import DISK_FULL, FileSystem, write_all
from events.persistence.handles import Handles
from events.persistence.mark import Mark, MarkFile
from events.persistence.segment import Naming, find_first, first_offset, line_at, read_blocks

Sync = Literal["always", "interval", "never"]
READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How large a segment may grow, and when bytes are synced."""

    segment_bytes: int = 16 * 1024 * 1024
    segment_lines: int | None = None
    sync: Sync = "always"


class DiskFull(Exception):
    """There was no room; the log was cut back to where the batch began, and that is durable."""


@dataclass(slots=True)
class _Segment:
    number: int
    first: int | None = None  # read from the file when somebody asks


class Log:
    """A log that recovery has opened. One thread at a time may append; reads come from any thread.

    `next_offset` is what the next event gets, `durable` the last offset that a sync covers.
    """

    def __init__(self, fs: FileSystem, handles: Handles, directory: str, naming: Naming, limits: LogLimits) -> None:
        self.fs = fs
        self.directory = directory
        self.naming = naming
        self.limits = limits
        self._handles = handles
        self._segments: list[_Segment] = []
        self.mark_file = MarkFile(fs, self.path_of(naming.mark()), Mark(log_id=uuid.uuid4().hex))
        self.first_offset = 1
        self.next_offset = 1
        self.durable = 0
        self.last_at = 0
        self.active_bytes = 0
        self.active_lines = 0
        self.names = 0
        self.poison: LogPoisoned | None = None
        self.damage: CorruptLog | None = None
        self.is_shared = False  # whether another process may delete segments
        # Segment and byte, each pair replaced as a whole: readers in other threads look at them.
        self._durable_end = (0, 0)
        self._written_end = (0, 0)
        self._holds_active = False

    # -- where things are --------------------------------------------------------------------------------------

    def path_of(self, file_name: str) -> str:
        """A file of this log."""
        return os.path.join(self.directory, file_name)

    def segment_path(self, number: int) -> str:
        """The file of a segment."""
        return self.path_of(self.naming.segment(number))

    @property
    def segment_numbers(self) -> list[int]:
        """The numbers of the segments that there are, in order."""
        return [segment.number for segment in self._segments]

    @property
    def active(self) -> int:
        """The number of the segment that is appended to; 0 before there is one."""
        return self._segments[-1].number if self._segments else 0

    @property
    def topic(self) -> str:
        """What errors call this log."""
        return self.naming.stem

    def adopt(self, numbers: list[int], *, last_offset: int, last_at: int, active_bytes: int) -> None:
        """Take over what recovery found and made durable."""
        self._segments = [_Segment(number) for number in numbers]
        self.next_offset = last_offset + 1
        self.last_at = last_at
        self.active_bytes = active_bytes
        if numbers and self.limits.segment_lines is not None and active_bytes:
            self.active_lines = self.next_offset - (self._first_of(self._segments[-1]) or self.next_offset)
        self._written_end = (self.active, active_bytes)
        self._is_durable()

    # -- appending ---------------------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise what stands in the way of an append, if anything does."""
        if self.poison is not None:
            raise self.poison
        if self.damage is not None:
            raise ReadOnly(
                self.damage.path, f"it is damaged and awaits a repair ({self.damage.reason})"
            ) from self.damage

    def has_room(self, size: int, lines: int) -> bool:
        """Whether a batch fits the active segment; if not, `write` starts a new one."""
        if not self._segments:
            return False
        if self.active_bytes == 0:
            return True
        if self.limits.segment_lines is not None and self.active_lines + lines > self.limits.segment_lines:
            return False
        return self.active_bytes + size <= self.limits.segment_bytes

    def place(self, size: int, lines: int) -> tuple[int, int]:
        """The segment and byte at which a batch of this size will stand."""
        return (self.active, self.active_bytes) if self.has_room(size, lines) else (self.active + 1, 0)

    def write(self, data: bytes, lines: int, last_at: int) -> None:
        """Append the bytes of a batch. They are not durable before `sync`, which `sync="always"` does here.

        `DiskFull` and other errors that leave the log as it was mean that nothing of the batch is there. A
        failed sync poisons the log: the outcome is unknown and the log takes no more.
        """
        self.check_writable()
        number, start = self.place(len(data), lines)
        if number != self.active:
            self._start_segment(number)
        with self._writing_to(number) as handle:
            try:
                write_all(self.fs, handle, data, start)
            except OSError as error:
                self._cut_back(handle, start)
                raise self._unwritten(number, error) from error
            if self.limits.sync == "always":
                self._sync_handle(handle)
            elif not self._holds_active:
                self._handles.hold(self.segment_path(number))  # closing it now could swallow a write error
                self._holds_active = True
        self.active_bytes = start + len(data)
        self.active_lines += lines
        self.next_offset += lines
        self.last_at = last_at
        self._written_end = (number, self.active_bytes)
        if self.limits.sync == "always":
            self._is_durable()

    def sync(self) -> None:
        """Make everything that was appended durable (rule F7: before any other file names it)."""
        if self.durable == self.next_offset - 1:
            return
        self.check_writable()
        with self._pinned_for_writing(self.active) as handle:
            self._sync_handle(handle)
        if self._holds_active:
            self._handles.release(self.segment_path(self.active))
            self._holds_active = False
        self._is_durable()

    def _is_durable(self) -> None:
        self.durable = self.next_offset - 1
        self._durable_end = self._written_end

    def _pinned_for_writing(self, number: int, *, create: bool = False) -> AbstractContextManager[int]:
        return self._handles.pinned(self.segment_path(number), write=True, create=create, on_lost=self.poisoned)

    @contextmanager
    def _writing_to(self, number: int) -> Iterator[int]:
        with ExitStack() as stack:
            try:
                handle = stack.enter_context(self._pinned_for_writing(number))
            except OSError as error:
                raise self._unwritten(number, error) from error
            yield handle

    def _unwritten(self, number: int, error: OSError) -> DiskFull | StorageError:
        if error.errno in DISK_FULL:
            return DiskFull()
        return StorageError(f"{self.segment_path(number)}: {error}; nothing of the batch was written")

    def _sync_handle(self, handle: int) -> None:
        try:
            self.fs.sync(handle)
        except OSError as error:
            # Never again: the kernel may have dropped the pages, and would then report success.
            raise self.poisoned(self.segment_path(self.active), f"fsync failed ({error})") from error

    def _cut_back(self, handle: int, size: int) -> None:
        try:
            self.fs.truncate(handle, size)
            self.fs.sync(handle)
        except OSError as error:
            raise self.poisoned(self.segment_path(self.active), f"could not be cut back ({error})") from error

    def poisoned(self, path: str, reason: str) -> LogPoisoned:
        """Close the log for writing for good, and say why."""
        self.poison = self.poison or LogPoisoned(self.topic, path, reason)
        return self.poison

    def _start_segment(self, number: int) -> None:
        """Seal the active segment and create its successor: in this order, in every sync mode (rule F4)."""
        self.sync()
        sealed = self._segments[-1] if self._segments else None
        path = self.segment_path(number)
        try:
            with self._pinned_for_writing(number, create=True):
                pass
        except FileExistsError:
            # An attempt before this one got as far as the file; then nothing can be in it.
            if self.segment_size(number):
                raise self.poisoned(path, "it exists and is not empty, so somebody else writes here") from None
        except OSError as error:
            raise self._unwritten(number, error) from error
        try:
            self.fs.sync_directory(self.directory)
            if sealed is not None:
                self._handles.forget(self.segment_path(sealed.number))
        except OSError as error:
            raise self.poisoned(path, f"its name could not be made durable ({error})") from error
        self._segments.append(_Segment(number, self.next_offset))
        self.active_bytes = 0
        self.active_lines = 0

    def write_mark(self, *, sync: bool = False) -> None:
        """Say on disk what is durable. Nothing that the mark says is ever ahead of a sync."""
        segment, position = self._durable_end
        mark = replace(
            self.mark_file.mark,
            durable=self.durable,
            segment=segment,
            position=position,
            first=self.first_offset,
            first_segment=self._segments[0].number if self._segments else 1,
            at=self.last_at,
            names=self.names,
        )
        self.mark_file.write(mark, sync=sync)

    @property
    def mark_is_behind(self) -> bool:
        """Whether the mark on disk does not cover what is durable."""
        return self.mark_file.mark.durable < self.durable

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, through: int, max_bytes: int = READ_BYTES) -> list[Record]:
        """Records from `offset` on, none beyond `through`, about `max_bytes` of them; at least one if there is."""
        found: list[Record] = []
        size = 0
        for record in self.records(offset, through):
            found.append(record)
            size += len(record.line)
            if size >= max_bytes:
                break
        return found

    def records(self, offset: int, through: int) -> Iterator[Record]:
        """Records in order from the one that holds `offset`. Reads nothing before it."""
        if offset > through:
            return
        if offset < self.first_offset:
            raise OffsetGone(self.path_of(self.topic), offset, self.first_offset)
        segments = self._segments  # a deletion in another thread replaces the list
        index = self._segment_index(segments, offset)
        first = self._first_of(segments[index]) if segments else None
        if first is not None and first > offset:
            if offset < self.first_offset:  # by now
                raise OffsetGone(self.path_of(self.topic), offset, self.first_offset)
            path = self.segment_path(segments[index].number)
            raise CorruptLog(path, 0, offset, through, f"begins with offset {first} where an earlier one should be")
        position, expected = 0, offset
        if first is not None and first < offset:
            found = self._find(segments[index].number, lambda record: record.last >= offset)
            if found is not None:
                position, expected = found.position, found.offset
        for segment in segments[index:]:
            if expected > through:
                return
            expected = yield from self._segment_records(segment.number, position, expected, through)
            position = 0
        if expected <= through:
            number, end = self._written_end
            raise CorruptLog(self.segment_path(number), end, expected, through, "the log ends before them")

    def _segment_records(self, number: int, position: int, expected: int, through: int) -> Generator[Record, None, int]:
        """The records of one segment; returns the offset that comes next."""
        path = self.segment_path(number)
        with self._open(number) as (handle, end):
            for block in read_blocks(self.fs, handle, number, position, end, expected):
                for record in block.records:
                    if record.offset > through:
                        return expected
                    yield record
                    expected = record.last + 1
                if expected > through:
                    return expected
                if block.bad is not None:
                    raise CorruptLog(path, block.end, expected, through, str(block.bad))
        return expected

    def offset_at(self, at_ms: int) -> int:
        """The first offset that was appended at that time or later; the next one when there is none."""
        segments = self._segments
        low, high = 0, len(segments)
        while low < high:  # the first segment whose first line is not older
            middle = (low + high) // 2
            record = self._find(segments[middle].number)
            if record is not None and record.at < at_ms:
                low = middle + 1
            else:
                high = middle
        for segment in segments[max(0, low - 1) : low + 1]:
            found = self._find(segment.number, lambda record: record.at >= at_ms)
            if found is not None:
                return max(found.offset, self.first_offset)
        return self.next_offset

    def _find(self, number: int, wanted: Callable[[Record], bool] | None = None) -> Record | None:
        """The first record of a segment, or the first that is wanted."""
        with self._open(number) as (handle, end):
            try:
                if wanted is None:
                    return line_at(self.fs, handle, number, 0, end)
                return find_first(self.fs, handle, number, end, wanted)
            except BadLine as bad:
                path = self.segment_path(number)
                raise CorruptLog(
                    path, bad.position, self.first_offset, self.durable, f"{bad}, met while seeking"
                ) from None

    @contextmanager
    def _open(self, number: int) -> Iterator[tuple[int, int]]:
        """A segment's handle and how far it may be read; `OffsetGone` when it was deleted meanwhile."""
        try:
            with self._handles.pinned(self.segment_path(number)) as handle:
                last, end = self._written_end
                if number != last:  # sealed; or new, and a first batch for it is under way
                    end = self.fs.size(handle) if number < last else 0
                yield handle, end
        except FileNotFoundError:
            if number in self.segment_numbers and not self.is_shared:
                path = self.segment_path(number)
                raise CorruptLog(path, 0, self.first_offset, self.durable, "the segment is missing") from None
            raise OffsetGone(self.path_of(self.topic), 0, self.first_offset) from None

    def _segment_index(self, segments: list[_Segment], offset: int) -> int:
        """The index of the segment that holds an offset, by reading the heads of a few."""
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            first = self._first_of(segments[middle])
            if first is None or first > offset:
                high = middle
            else:
                low = middle + 1
        return max(0, low - 1)

    def _first_of(self, segment: _Segment) -> int | None:
        if segment.first is None:
            with self._open(segment.number) as (handle, _):
                segment.first = first_offset(self.fs, handle)
        return segment.first

    # -- deleting ----------------------------------------------------------------------------------------------

    def first_offsets(self) -> list[tuple[int, int]]:
        """Number and first offset of each segment that has one, by a line that was checked.

        What is deleted depends on it, so a flipped bit must not move a segment to another place in the log.
        """
        firsts = [(segment.number, self._find(segment.number)) for segment in self._segments]
        return [(number, record.offset) for number, record in firsts if record is not None]

    def drop_before(self, offset: int) -> list[int]:
        """Delete the sealed segments all of whose offsets are below `offset`; the numbers that went.

        The segment with the last record always stays. Both slots of the mark say so first, and durably: a
        single bad slot can then never bring back the belief that the deleted ones should be there.
        """
        offset = min(offset, self.next_offset - 1)  # the active segment may be new, and empty
        firsts = self.first_offsets()
        keep = bisect_right([first for _, first in firsts], offset) - 1
        dropped = self._segments[: max(0, keep)]
        if not dropped:
            return []
        self.sync()  # the last record stays, after a power cut too
        before = self.first_offset, self._segments
        # The offset first: whoever misses a segment in the list must find out that it was deleted.
        self.first_offset, self._segments = firsts[keep][1], self._segments[len(dropped) :]
        try:
            self.write_mark(sync=True)
            self.write_mark(sync=True)
        except OSError:
            self.first_offset, self._segments = before  # nothing was deleted, so it can be tried again
            raise
        for segment in dropped:
            path = self.segment_path(segment.number)
            self._handles.forget(path)
            self.fs.unlink(path)
        self.fs.sync_directory(self.directory)
        return [segment.number for segment in dropped]

    def offset_within(self, max_bytes: int) -> int:
        """The first offset of the newest segments that together have at most `max_bytes`."""
        kept = self.next_offset
        for number, first in reversed(self.first_offsets()):
            max_bytes -= self.segment_size(number)
            if max_bytes < 0:
                break
            kept = first
        return kept

    def segment_size(self, number: int) -> int:
        """The bytes of a segment."""
        with self._handles.pinned(self.segment_path(number)) as handle:
            return self.fs.size(handle)
