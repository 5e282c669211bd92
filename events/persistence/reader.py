"""Reading a workspace from outside its bus: only what is proven durable is handed out (rule F6).

Proof first, then bytes. What a mark covers, what a later line's `batch` vouches for, and every sealed segment is
durable and will never change; only then are its bytes read. What stands behind the proof may still be cut back by
a full disk or lost in a power cut: it is counted, and withheld.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from events.errors import OffsetGone, WorkspaceLocked
from events.persistence.codec import Record
from events.persistence.files import FileSystem, OsFileSystem, list_or_empty, opened
from events.persistence.handles import Handles
from events.persistence.log import Log, LogLimits
from events.persistence.mark import Mark, read_mark
from events.persistence.segment import Naming, first_offset, read_blocks
from events.persistence.store import LogName
from events.persistence.workspace import Layout, dlq_naming, list_spaces, list_topics, take_lock, wal_naming

_MAX_OPEN_FILES = 32


@dataclass(frozen=True, slots=True)
class Proof:
    """How far a log is proven: `durable` is the last offset that may be handed out."""

    first: int
    durable: int
    withheld_lines: int
    segment: int
    position: int


class LogReader:
    """One log of a workspace that somebody else may be writing."""

    def __init__(self, fs: FileSystem, handles: Handles, directory: str, naming: Naming) -> None:
        self._fs = fs
        self._handles = handles
        self._directory = directory
        self._naming = naming

    def prove(self) -> Proof:
        """Find out how far the log is durable at this moment, reading from the mark on."""
        mark, _ = read_mark(self._fs, os.path.join(self._directory, self._naming.mark()))
        found = (self._naming.number(name) for name in list_or_empty(self._fs, self._directory))
        numbers = sorted(number for number in found if number is not None)
        if mark is not None:
            numbers = [number for number in numbers if number >= mark.first_segment]
        if not numbers:
            return Proof(1, 0, 0, 0, 0)
        start, position, durable = self._start(mark, numbers)
        first = mark.first if mark is not None else durable + 1
        last_valid = durable
        for number in numbers:
            if number < start:
                continue
            records, position = self._tail(number, position if number == start else 0, last_valid + 1)
            for record in records:
                durable = max(durable, record.batch - 1)
            if records:
                last_valid = records[-1].last
            if number != numbers[-1]:
                durable = max(durable, last_valid)  # sealed: synced before its successor was created
        return Proof(first, durable, last_valid - durable, numbers[-1], position)

    def _start(self, mark: Mark | None, numbers: list[int]) -> tuple[int, int, int]:
        if mark is not None and mark.segment in numbers:
            return mark.segment, mark.position, mark.durable
        with opened(self._fs, self._path(numbers[0])) as handle:
            head = first_offset(self._fs, handle)
        return numbers[0], 0, (mark.first if mark is not None else head or 1) - 1

    def _tail(self, number: int, position: int, expected: int) -> tuple[list[Record], int]:
        """The valid lines from a place on; a torn or growing end is simply where they stop."""
        records: list[Record] = []
        with opened(self._fs, self._path(number)) as handle:
            size = self._fs.size(handle)
            for block in read_blocks(self._fs, handle, number, position, size, expected):
                records.extend(block.records)
                position = block.end
        return records, position

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, self._naming.segment(number))

    def read(self, offset: int | None = None, *, through: int | None = None) -> Iterator[Record]:
        """The proven records from `offset` on, or from the first that is there."""
        proof = self.prove()
        last = proof.durable if through is None else min(through, proof.durable)
        start = proof.first if offset is None else offset
        if start < proof.first:
            raise OffsetGone(self._path(1), start, proof.first)
        yield from self._snapshot(proof).records(start, last)

    def offset_at(self, at_ms: int) -> int:
        """The first proven offset that was appended at that time or later; one past the last when none was."""
        proof = self.prove()
        return min(self._snapshot(proof).offset_at(at_ms), proof.durable + 1)

    def _snapshot(self, proof: Proof) -> Log:
        """The log as it stood when it was proven, for reading only."""
        log = Log(self._fs, self._handles, self._directory, self._naming, LogLimits())
        found = (self._naming.number(name) for name in list_or_empty(self._fs, self._directory))
        numbers = sorted(number for number in found if number is not None and number <= proof.segment)
        log.adopt(numbers, last_offset=proof.durable, last_at=0, active_bytes=proof.position)
        log.first_offset = proof.first
        return log


class WorkspaceReader:
    """A workspace opened for reading only. Needs no lock, changes nothing, and never breaks a writer."""

    def __init__(self, workspace: str | Path, *, fs: FileSystem | None = None) -> None:
        self.fs = fs or OsFileSystem()
        self.layout = Layout(workspace)
        self._handles = Handles(self.fs, _MAX_OPEN_FILES)

    def spaces(self) -> list[str]:
        """The spaces that there are."""
        return list_spaces(self.fs, self.layout)

    def topics(self, space_id: str) -> list[str]:
        """The topics of a space."""
        return list_topics(self.fs, self.layout, space_id)

    def log(self, name: LogName) -> LogReader:
        """A log; reading one that does not exist gives nothing."""
        directory = self.layout.folder(name.space_id, "wal")
        return LogReader(self.fs, self._handles, directory, wal_naming(name.topic))

    def dead_letters(self, name: LogName) -> LogReader:
        """The dead letters of a log."""
        directory = self.layout.folder(name.space_id, "dlq")
        return LogReader(self.fs, self._handles, directory, dlq_naming(name.topic))

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
        """Close the files."""
        self._handles.close()

    def __enter__(self) -> WorkspaceReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
