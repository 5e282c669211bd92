"""The line codec (rule F1): pure, bytes in and records out.

A line is `{"offset":N,<members>,"at":MS,"batch":B,"crc":"8 hex"}` and a newline. The members of an event are
its `"meta"` and `"payload"`; dead letters and journals put others there. A gap, which only a repair writes, is
`{"gap":[a,b],"at":MS,"batch":B,"crc":"8 hex"}`.
"""

from __future__ import annotations

import re
from typing import Any, Final
from zlib import crc32

import orjson

from events.types import Event, EventMeta

TRAILER_BYTES: Final = 19
_HEAD: Final = re.compile(rb'\{"(?:offset":([0-9]{1,19}),|gap":\[([0-9]{1,19}),([0-9]{1,19})\],)')
_TAIL: Final = re.compile(rb',"at":([0-9]{1,19}),"batch":([0-9]{1,19}),"crc":"([0-9a-f]{8})"\}\n\Z')
_TAIL_BYTES: Final = 80  # longer than any match of _TAIL
_META: Final = b'"meta":'
_PAYLOAD: Final = b',"payload":'


class BadLine(Exception):
    """Bytes that are not a line of ours; the message says why, `position` where they begin."""

    def __init__(self, reason: str, position: int = 0) -> None:
        self.position = position
        super().__init__(reason)


def encode_line(offset: int, members: bytes, at: int, batch: int) -> bytes:
    """One line, newline included."""
    body = b'{"offset":%d,%b,"at":%d,"batch":%d' % (offset, members, at, batch)
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def encode_gap(first: int, last: int, at: int, batch: int) -> bytes:
    """The line that an explicit repair leaves in place of what was lost (rule F2)."""
    body = b'{"gap":[%d,%d],"at":%d,"batch":%d' % (first, last, at, batch)
    return b'%b,"crc":"%08x"}\n' % (body, crc32(body))


def event_members(meta: bytes, payload: bytes) -> bytes:
    """The members of an event's line."""
    return b'"meta":%b,"payload":%b' % (meta, payload)


class Record:
    """One line and where it stands. What it says is decoded when somebody asks.

    `offset` is the first and `last` the last offset it counts for: they differ for a gap alone.
    """

    __slots__ = ("_meta", "_payload_start", "last", "line", "offset", "position", "segment")

    def __init__(self, offset: int, line: bytes, segment: int, position: int, last: int | None = None) -> None:
        self.offset = offset
        self.last = offset if last is None else last
        self.line = line
        self.segment = segment
        self.position = position
        self._meta: EventMeta | None = None
        self._payload_start = 0

    @property
    def is_gap(self) -> bool:
        """Whether the line stands for offsets that a repair gave up."""
        return self.line.startswith(b'{"gap"')

    @property
    def at(self) -> int:
        """When the line was appended, in milliseconds since the epoch."""
        return int(self.line[self.line.rindex(b',"at":') + 6 : self.line.rindex(b',"batch":')])

    @property
    def batch(self) -> int:
        """Every offset below this one was durable when the line was written."""
        return int(self.line[self.line.rindex(b',"batch":') + 9 : -TRAILER_BYTES])

    @property
    def meta(self) -> EventMeta:
        """The event's meta, decoded once and shared by all who read this record."""
        if self._meta is None:
            self._split()
            assert self._meta is not None
        return self._meta

    @property
    def raw_payload(self) -> bytes:
        """The payload's bytes, as they were published."""
        if not self._payload_start:
            self._split()
        return self.line[self._payload_start : self.line.rindex(b',"at":')]

    @property
    def event(self) -> Event[Any]:
        """A new event for one delivery: nobody else holds its payload."""
        return Event.from_log(self.meta, self.raw_payload)

    def members(self) -> dict[str, Any]:
        """The whole line as plain data."""
        decoded: dict[str, Any] = orjson.loads(self.line)
        return decoded

    def _split(self) -> None:
        """Find where the meta ends without decoding the payload.

        The first `,"payload":` behind the meta's start may stand inside the meta, as a key of a newer writer;
        but then what lies before it is no complete object, and the decoder says so.
        """
        line = self.line
        start = line.index(_META) + len(_META)
        end = line.find(_PAYLOAD, start)
        while end != -1:
            try:
                self._meta = EventMeta.from_json(line[start:end])
            except ValueError:
                end = line.find(_PAYLOAD, end + 1)
            else:
                self._payload_start = end + len(_PAYLOAD)
                return
        raise BadLine(f"offset {self.offset}: no meta that this version can read", self.position)

    def __repr__(self) -> str:
        return f"Record({self.offset if self.offset == self.last else [self.offset, self.last]})"


def published_record(
    offset: int, line: bytes, segment: int, position: int, meta: EventMeta, payload_start: int
) -> Record:
    """The record of an event that was published here: its meta need not be decoded again."""
    record = Record(offset, line, segment, position)
    record._meta = meta
    record._payload_start = payload_start
    return record


def decode_line(line: bytes, segment: int = 0, position: int = 0) -> Record:
    """The record of one line with its newline; `BadLine` when a byte of it is not what was written.

    Bytes first, meaning second: the CRC is checked before anything is believed.
    """
    if len(line) <= TRAILER_BYTES or line[-1] != 10:
        raise BadLine("cut short", position)
    tail = _TAIL.search(line, max(0, len(line) - _TAIL_BYTES))
    if tail is None:
        raise BadLine("does not end like a line of the log", position)
    if crc32(line[:-TRAILER_BYTES]) != int(tail[3], 16):
        raise BadLine("the CRC does not match", position)
    head = _HEAD.match(line)
    if head is None:
        raise BadLine("does not begin like a line of the log", position)
    if head[1] is not None:
        return Record(int(head[1]), line, segment, position)
    first, last = int(head[2]), int(head[3])
    if last < first:
        raise BadLine(f"a gap from {first} to {last}", position)
    return Record(first, line, segment, position, last)


def decode_block(block: bytes, expected: int, segment: int, position: int) -> tuple[list[Record], int, BadLine | None]:
    """The records of the whole lines in a block, which must continue at offset `expected`.

    Returns them, the bytes that they take, and what is wrong with the line behind them, if anything is. A last
    line without its newline is nobody's fault here: it is not counted, and the caller reads on.
    """
    records: list[Record] = []
    append = records.append
    start = 0
    end = block.find(b"\n") + 1
    while end:
        line = block[start:end]
        # The common line, checked without a pattern: it begins with the offset that must come, and its CRC fits.
        if line.startswith(b'{"offset":%d,' % expected) and _crc_fits(line):
            append(Record(expected, line, segment, position + start))
            expected += 1
        else:
            try:
                record = decode_line(line, segment, position + start)
            except BadLine as bad:
                return records, start, bad
            if record.offset != expected:
                wrong = f"holds offset {record.offset} where {expected} should be"
                return records, start, BadLine(wrong, record.position)
            append(record)
            expected = record.last + 1
        start = end
        end = block.find(b"\n", start) + 1
    return records, start, None


def _crc_fits(line: bytes) -> bool:
    return line[-TRAILER_BYTES:] == b',"crc":"%08x"}\n' % crc32(line[:-TRAILER_BYTES])


def payload_starts(offset: int, meta_bytes: int) -> int:
    """Where the payload begins in the line that `encode_line` makes of `event_members`."""
    return len(b'{"offset":%d,' % offset) + len(_META) + meta_bytes + len(_PAYLOAD)


def first_offset_of(block: bytes) -> int | None:
    """The offset that the first line of a segment begins with, unchecked: for finding, not for serving."""
    head = _HEAD.match(block)
    return None if head is None else int(head[1] or head[2])
