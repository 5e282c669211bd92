"""Reading a workspace from outside its bus: only what is proven durable is handed out (rule F6).

Proof first, then bytes. What a mark covers, what a later line's `batch` vouches for, and every sealed segment is
durable and will never change; only then are its bytes read. What stands behind the proof may still be cut back by
a full disk or lost in a power cut: it is counted, and withheld.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from events.errors import CorruptLog, WorkspaceLocked
from events.names import check_topic
from events.persistence.codec import Record
from events.persistence.files import FileSystem, OsFileSystem, list_or_empty, opened
from events.persistence.handles import Handles
from events.persistence.log import Log, LogLimits
from events.persistence.mark import Mark, read_mark
from events.persistence.segment import Naming, first_offset, read_blocks
from events.persistence.store import LogName
from events.persistence.workspace import (
    Layout,
    dlq_naming,
    journal_naming,
    list_journals,
    list_spaces,
    list_topics,
    take_lock,
    wal_naming,
)

_MAX_OPEN_FILES = 8


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a log is proven: `durable` is the last offset that may be handed out; it ends at `position`."""

    first: int
    durable: int
    withheld_lines: int
    numbers: list[int]
    segment: int
    position: int


class LogReader:
    """One log of a workspace that somebody else may be writing. Keeps no file open between two calls."""

    def __init__(self, fs: FileSystem, directory: str, naming: Naming) -> None:
        self._fs = fs
        self._directory = directory
        self._naming = naming

    def prove(self) -> Proof:
        """Find out how far the log is durable at this moment, reading from the mark on."""
        mark = self._mark()
        while True:
            try:
                return self._prove(mark)
            except FileNotFoundError as missing:
                # A deletion announces itself in the mark first; where the mark did not change, it was none.
                again = self._mark()
                if again == mark:
                    first, last = (mark.first, mark.durable) if mark is not None else (1, 1)
                    path = missing.filename or self._directory
                    raise CorruptLog(path, 0, first, last, "a segment is missing") from None
                mark = again

    def _mark(self) -> Mark | None:
        return read_mark(self._fs, os.path.join(self._directory, self._naming.mark()))[0]

    def _prove(self, mark: Mark | None) -> Proof:
        found = (self._naming.number(name) for name in list_or_empty(self._fs, self._directory))
        numbers = sorted(number for number in found if number is not None)
        if mark is not None and mark.durable:
            numbers = [number for number in numbers if number >= mark.first_segment]
            if mark.first_segment not in numbers:
                raise FileNotFoundError(2, "missing", self._path(mark.first_segment))
        if not numbers:
            return Proof(1, 0, 0, [], 0, 0)
        start, position, durable = self._start(mark, numbers)
        first = mark.first if mark is not None else self._head(numbers[0]) or 1
        last_valid = durable
        ends: list[tuple[int, int, int]] = [(durable, start, position)]
        for number in numbers[numbers.index(start) :]:
            for record in self._lines(number, position, last_valid + 1):
                durable = max(durable, record.batch - 1)
                last_valid = record.last
                ends.append((last_valid, number, record.position + len(record.line)))
            if number != numbers[-1]:
                durable = max(durable, last_valid)  # sealed: synced before its successor was created
            position = 0
        if mark is not None:
            durable = max(durable, mark.durable)  # also where its segment is missing: reading on must say so
        _, segment, position = ends[bisect_right(ends, durable, key=lambda end: end[0]) - 1]
        return Proof(first, durable, max(0, last_valid - durable), numbers, segment, position)

    def _start(self, mark: Mark | None, numbers: list[int]) -> tuple[int, int, int]:
        """A segment, a byte in it, and the last offset before that: all up to there is durable."""
        if mark is not None and mark.segment in numbers:
            return mark.segment, mark.position, mark.durable
        for number in reversed(numbers):
            head = self._head(number)
            if head is not None:
                return number, 0, head - 1
        return numbers[0], 0, 0

    def _head(self, number: int) -> int | None:
        with opened(self._fs, self._path(number)) as handle:
            return first_offset(self._fs, handle)

    def _lines(self, number: int, position: int, expected: int) -> Iterator[Record]:
        """The valid lines from a place on; a torn or growing end is simply where they stop."""
        with opened(self._fs, self._path(number)) as handle:
            for block in read_blocks(self._fs, handle, number, position, self._fs.size(handle), expected):
                yield from block.records

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, self._naming.segment(number))

    def read(self, offset: int | None = None, *, through: int | None = None) -> Iterator[Record]:
        """The proven records from `offset` on, or from the first that is there.

        `OffsetGone` when retention takes, or took, what is still to be read.
        """
        proof = self.prove()
        last = proof.durable if through is None else min(through, proof.durable)
        start = proof.first if offset is None else offset
        with self._snapshot(proof) as log:
            yield from log.records(start, last)

    def offset_at(self, at_ms: int) -> int:
        """The first proven offset that was appended at that time or later; one past the last when none was."""
        with self._snapshot(self.prove()) as log:
            return log.offset_at(at_ms)

    @contextmanager
    def _snapshot(self, proof: Proof) -> Iterator[Log]:
        """The log up to where it was proven, for reading only."""
        handles = Handles(self._fs, _MAX_OPEN_FILES)
        try:
            log = Log(self._fs, handles, self._directory, self._naming, LogLimits())
            numbers = [number for number in proof.numbers if number <= proof.segment]
            log.adopt(numbers, last_offset=proof.durable, last_at=0, active_bytes=proof.position)
            log.first_offset = proof.first
            log.is_shared = True
            yield log
        finally:
            handles.close()


class WorkspaceReader:
    """A workspace opened for reading only. Needs no lock, changes nothing, and never breaks a writer."""

    def __init__(self, workspace: str | Path, *, fs: FileSystem | None = None) -> None:
        self.fs = fs or OsFileSystem()
        self.layout = Layout(workspace)

    def spaces(self) -> list[str]:
        """The spaces that there are."""
        return list_spaces(self.fs, self.layout)

    def topics(self, space_id: str) -> list[str]:
        """The topics of a space."""
        return list_topics(self.fs, self.layout, space_id)

    def log(self, name: LogName) -> LogReader:
        """A log; reading one that does not exist gives nothing."""
        directory = self.layout.folder(name.space_id, "wal")
        return LogReader(self.fs, directory, wal_naming(name.topic))

    def dead_letters(self, name: LogName) -> LogReader:
        """The dead letters of a log."""
        directory = self.layout.folder(name.space_id, "dlq")
        return LogReader(self.fs, directory, dlq_naming(name.topic))

    def journals(self, space_id: str, folder: str) -> list[str]:
        """The names of the journals that the bus keeps in a folder of a space."""
        return list_journals(self.fs, self.layout, space_id, folder)

    def journal(self, space_id: str, folder: str, name: str) -> LogReader:
        """A journal of the bus's own; see `Store.journal`."""
        return LogReader(self.fs, self.layout.folder(space_id, check_topic(folder)), journal_naming(name))

    def names(self) -> list[LogName]:
        """Every log that there is."""
        return [LogName(space, topic) for space in self.spaces() for topic in self.topics(space)]

    def withheld(self) -> dict[LogName, int]:
        """The lines behind the proof, by log. Once no bus runs, opening the workspace recovers them."""
        counts = {name: self.log(name).prove().withheld_lines for name in self.names()}
        return {name: count for name, count in counts.items() if count}

    def is_held(self) -> bool:
        """Whether a bus has the workspace open right now. A bus that opens meanwhile is not kept out."""
        if "lock" not in list_or_empty(self.fs, self.layout.root):
            return False
        try:
            self.fs.close(take_lock(self.fs, self.layout))
        except WorkspaceLocked:
            return True
        return False

    def close(self) -> None:
        """Nothing is kept open between two calls; this is here for `with`."""

    def __enter__(self) -> WorkspaceReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
