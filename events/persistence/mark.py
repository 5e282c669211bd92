"""The mark of a log: how far it is proven durable, and what retention left of it.

Two slots of one sector each, written in turn and never both at once: a torn write spoils one of them and the
other still holds. The mark is written without a sync while the bus runs, since a lost one is merely older; what
it says was true when it was written. Recovery, close and retention sync it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import orjson

from events.persistence.files import FileSystem, opened, read_file, write_all

SLOT_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`durable` is the last offset known to be on disk; it ends at byte `position` of `segment`.

    `first` is the first offset that retention left, in `first_segment`; `names` the highest offset of another log
    that a dead-letter log names; `repairing` stands while a repair replaces segments.
    """

    log_id: str
    durable: int = 0
    segment: int = 1
    position: int = 0
    first: int = 1
    first_segment: int = 1
    at: int = 0
    names: int = 0
    repairing: bool = False
    generation: int = 0


def _encode(mark: Mark) -> bytes:
    fields = {name: getattr(mark, name) for name in Mark.__slots__}
    body = orjson.dumps(fields)
    line = b'%b,"crc":"%08x"}' % (body[:-1], crc32(body))
    assert len(line) < SLOT_BYTES, "a mark has fixed fields of bounded size"
    return line.ljust(SLOT_BYTES - 1) + b"\n"


def _decode(slot: bytes) -> Mark | None:
    text = slot.rstrip(b" \n")
    body = text[:-18] + b"}"
    if len(text) < 40 or text[-18:] != b',"crc":"%08x"}' % crc32(body):
        return None
    fields = orjson.loads(body)
    return Mark(**{name: fields[name] for name in Mark.__slots__ if name in fields})


def read_mark(fs: FileSystem, path: str) -> tuple[Mark | None, bool]:
    """The newest valid slot, and whether a slot that should be valid is not."""
    data = read_file(fs, path, 2 * SLOT_BYTES)
    if not data:
        return None, data is not None
    slots = [data[:SLOT_BYTES], data[SLOT_BYTES:]]
    marks = [mark for mark in map(_decode, slots) if mark is not None]
    written = [slot for slot in slots if slot.strip(b"\0")]
    newest = max(marks, key=lambda mark: mark.generation, default=None)
    return newest, len(marks) < len(written)


class MarkFile:
    """Writes the marks of one log."""

    def __init__(self, fs: FileSystem, path: str, mark: Mark) -> None:
        self._fs = fs
        self._path = path
        self.mark = mark

    @property
    def exists_on_disk(self) -> bool:
        """Whether this mark was ever written."""
        return self.mark.generation > 0

    def write(self, mark: Mark, *, sync: bool = False) -> None:
        """Put the mark into the slot that does not hold the newest one."""
        mark = replace(mark, generation=self.mark.generation + 1)
        slot = mark.generation % 2
        try:
            handle = self._fs.open(self._path, write=True)
        except FileNotFoundError:
            with opened(self._fs, self._path, create=True) as handle:
                self._put(handle, mark, slot, sync=sync)
            self._fs.sync_directory(os.path.dirname(self._path))
            return
        try:
            self._put(handle, mark, slot, sync=sync)
        finally:
            self._fs.close(handle)

    def _put(self, handle: int, mark: Mark, slot: int, *, sync: bool) -> None:
        write_all(self._fs, handle, _encode(mark), slot * SLOT_BYTES)
        if sync:
            self._fs.sync(handle)
        self.mark = mark
