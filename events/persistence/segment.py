"""One segment of a log: its name, reading it in order, and finding a place in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from events.persistence.codec import BadLine, Record, decode_block, decode_line, first_offset_of
from events.persistence.files import FileSystem, read_all

BLOCK_BYTES: Final = 256 * 1024
_FIRST_BLOCK_BYTES: Final = 16 * 1024
_PROBE_BYTES: Final = 4096
_HEAD_BYTES: Final = 64
_SUFFIX: Final = ".jsonl"


class Naming(NamedTuple):
    """How the files of one log are called.

    Segments are `<stem>.00000001.jsonl` and on. A dead-letter log leaves the number off its first segment, so
    that the one file that most people ever see is `<topic>.dlq.jsonl`.
    """

    stem: str
    first_is_bare: bool = False

    def segment(self, number: int) -> str:
        """The file name of a segment."""
        if number == 1 and self.first_is_bare:
            return f"{self.stem}{_SUFFIX}"
        return f"{self.stem}.{number:08d}{_SUFFIX}"

    def mark(self) -> str:
        """The file name of the log's mark."""
        return f".{self.stem}.mark.json"

    def number(self, file_name: str) -> int | None:
        """The number of a segment of this log; None for any other file."""
        if self.first_is_bare and file_name == f"{self.stem}{_SUFFIX}":
            return 1
        if not file_name.startswith(f"{self.stem}.") or not file_name.endswith(_SUFFIX):
            return None
        digits = file_name[len(self.stem) + 1 : -len(_SUFFIX)]
        is_number = len(digits) >= 8 and digits.isascii() and digits.isdigit() and int(digits) > 0
        return int(digits) if is_number and self.segment(int(digits)) == file_name else None


_SEGMENT_NAME: Final = re.compile(r"(?P<stem>.+)\.\d{8,}\.jsonl", re.ASCII)


def stem_of(file_name: str) -> str | None:
    """The stem of the log that a numbered segment belongs to; None for any other file."""
    match = _SEGMENT_NAME.fullmatch(file_name)
    return match["stem"] if match and not file_name.startswith(".") else None


class Block(NamedTuple):
    """Some records in order, where they end, and what is wrong with the bytes behind them, if anything."""

    records: list[Record]
    end: int
    bad: BadLine | None


def read_blocks(fs: FileSystem, handle: int, number: int, position: int, end: int, expected: int) -> Iterator[Block]:
    """The records of `[position, end)`, block by block, from offset `expected` on.

    The one way in which a log is read: serving, recovery, verify, repair and replay all come through here. It
    stops behind the first block that is bad; a last line without a newline is bad too ("cut short").
    """
    rest, size = b"", _FIRST_BLOCK_BYTES
    while position + len(rest) < end:
        read_from = position + len(rest)
        data = read_all(fs, handle, min(size, end - read_from), read_from)
        if not data:
            break
        size = min(BLOCK_BYTES, 4 * size)  # whoever wants a single record does not pay for a thousand
        block = rest + data if rest else data
        records, taken, bad = decode_block(block, expected, number, position)
        position += taken
        rest = block[taken:]
        if records:
            expected = records[-1].last + 1
        if records or bad:
            yield Block(records, position, bad)
        if bad:
            return
    if rest:
        yield Block([], position, BadLine("cut short", position))


def line_at(fs: FileSystem, handle: int, number: int, position: int, end: int) -> Record | None:
    """The record whose line begins at `position`; None where the segment ends. `BadLine` if it is damaged."""
    size = _PROBE_BYTES
    while position < end:
        data = read_all(fs, handle, min(size, end - position), position)
        newline = data.find(b"\n")
        if newline >= 0:
            return decode_line(data[: newline + 1], number, position)
        if len(data) >= end - position or not data:
            raise BadLine("cut short", position)
        size *= 8
    return None


def first_offset(fs: FileSystem, handle: int) -> int | None:
    """The offset that a segment begins with; None for an empty or unreadable one."""
    return first_offset_of(read_all(fs, handle, _HEAD_BYTES, 0))


def find_first(fs: FileSystem, handle: int, number: int, end: int, wanted: Callable[[Record], bool]) -> Record | None:
    """The first record for which `wanted` holds; it must hold for all that follow one for which it does.

    Halves the segment with one small read a step, so a seek costs the logarithm of its length.
    """
    low, high = 0, end  # only lines that begin in [low, high) are still in question; one begins at low
    found: Record | None = None
    while low < high:
        middle = low + (high - low) // 2
        begins = _next_line(fs, handle, middle, high) if middle > low else low
        record = line_at(fs, handle, number, begins, end) if begins < high else None
        if record is None:
            high = middle  # no line begins in the upper half
        elif wanted(record):
            found, high = record, middle
        else:
            low = begins + len(record.line)
    return found


def _next_line(fs: FileSystem, handle: int, position: int, end: int) -> int:
    """Where the first line behind the byte before `position` begins."""
    at = position - 1  # a line that begins exactly at position counts
    size = _PROBE_BYTES
    while at < end:
        data = read_all(fs, handle, min(size, end - at), at)
        newline = data.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        if not data:
            break
        at += len(data)
        size *= 8
    return end
