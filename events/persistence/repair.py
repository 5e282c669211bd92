"""Verifying logs byte by byte, and giving up what is lost: only when asked, and never silently."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from events.persistence.codec import BadLine, Record, encode_gap
from events.persistence.files import FileSystem, OsFileSystem, opened, read_all, write_all
from events.persistence.mark import Mark, MarkFile, read_mark
from events.persistence.named import Named, named_offsets
from events.persistence.recovery import Examination, examine, salvage
from events.persistence.segment import BLOCK_BYTES, Naming, line_at, read_blocks
from events.persistence.store import LogName
from events.persistence.workspace import (
    Layout,
    Workspace,
    dlq_naming,
    journal_naming,
    list_dead_letters,
    list_journal_folders,
    list_journals,
    list_spaces,
    list_topics,
    wal_naming,
)

_TEMPORARY = ".repair"
_LOOKS = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """A log and what a full read of it found. `kind` is its folder: `wal`, `dlq`, or that of a journal."""

    name: LogName
    kind: str
    naming: Naming
    found: Examination

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged; a torn tail is not damage, and heals when the bus opens."""
        return self.found.damage is None


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair gave up: inclusive ranges of offsets, each a gap line now, and where the old bytes went."""

    name: LogName
    kind: str
    lost: tuple[tuple[int, int], ...]
    kept_aside: tuple[str, ...]


def verify(workspace: str | Path, *, fs: FileSystem | None = None) -> Iterator[Verified]:
    """Read every byte of every log. Needs no lock; beside a running bus a tail in flight shows as torn."""
    fs = fs or OsFileSystem()
    layout = Layout(workspace)
    for name, kind, naming in _logs(fs, layout):
        yield Verified(name, kind, naming, _examined(fs, layout, name, kind, naming))


def repair(workspace: str | Path, *, accept_loss: bool = False, fs: FileSystem | None = None) -> list[Repaired]:
    """Replace each damaged segment by one that holds what can be saved, and gap lines for the rest.

    Without `accept_loss` the first damage is raised and nothing is changed. Takes the workspace's lock. The
    damaged files are kept in `aside` whole. Interrupted anywhere, it can be run again.
    """
    fs = fs or OsFileSystem()
    held = Workspace(fs, Layout(workspace))
    held.acquire()
    try:
        repaired: list[Repaired] = []
        for verified in list(verify(workspace, fs=fs)):
            if verified.found.damage is None:
                continue
            if not accept_loss:
                raise verified.found.damage
            repaired.append(_repair_log(fs, held, verified))
        return repaired
    finally:
        held.release()


def _logs(fs: FileSystem, layout: Layout) -> Iterator[tuple[LogName, str, Naming]]:
    for space_id in list_spaces(fs, layout):
        for topic in list_topics(fs, layout, space_id):
            yield LogName(space_id, topic), "wal", wal_naming(topic)
        for topic in list_dead_letters(fs, layout, space_id):
            yield LogName(space_id, topic), "dlq", dlq_naming(topic)
        for folder in list_journal_folders(fs, layout, space_id):
            for journal in list_journals(fs, layout, space_id, folder):
                yield LogName(space_id, journal), folder, journal_naming(journal)


def _examined(fs: FileSystem, layout: Layout, name: LogName, kind: str, naming: Naming) -> Examination:
    """Read a log whole. What a bus creates or deletes meanwhile is no damage: the mark tells, so look again."""
    directory = layout.folder(name.space_id, kind)
    mark_path = os.path.join(directory, naming.mark())
    for _ in range(_LOOKS):
        mark, _ = read_mark(fs, mark_path)
        try:
            found = examine(fs, directory, naming, named=_named(fs, layout, name, kind).highest, whole=True)
        except FileNotFoundError:
            if read_mark(fs, mark_path)[0] == mark:
                raise
            continue
        if found.damage is None or read_mark(fs, mark_path)[0] == mark:
            return found
    return examine(fs, directory, naming, named=_named(fs, layout, name, kind).highest, whole=True)


def _named(fs: FileSystem, layout: Layout, name: LogName, kind: str) -> Named:
    return named_offsets(fs, layout, name) if kind == "wal" else Named(0, None)


def _repair_log(fs: FileSystem, held: Workspace, verified: Verified) -> Repaired:
    name, kind, naming, present = verified.name, verified.kind, verified.naming, verified.found.numbers
    directory = held.layout.folder(name.space_id, kind)
    named = _named(fs, held.layout, name, kind)
    mark, _ = read_mark(fs, os.path.join(directory, naming.mark()))
    job = _Rebuild(fs, directory, naming, held.ensure(held.layout.aside))
    if mark is None:
        # Checkpoints must still mean this log, and a second run of this repair must begin where the first did.
        first, first_number = job.first_in(present) or 1, present[0] if present else 1
        mark = Mark(log_id=named.log_id or os.urandom(16).hex(), first=first, first_segment=first_number)
    mark_file = MarkFile(fs, os.path.join(directory, naming.mark()), mark)
    for _ in range(2):  # both slots: no single bad one may hide that a repair is under way
        mark_file.write(replace(mark_file.mark, repairing=True), sync=True)
    job.expected = mark.first
    last = max([mark.first_segment, *present])
    for number in range(mark.first_segment, last + 1):
        following = [later for later in present if later > number]
        through = max(named.highest, mark.durable) if number == last else job.end_before(following, number)
        job.segment(number, exists=number in present, through=through)
    done = replace(
        mark_file.mark,
        durable=job.expected - 1,
        segment=last,
        position=job.size,
        at=job.last_at,
        repairing=False,
    )
    mark_file.write(done, sync=True)
    mark_file.write(done, sync=True)
    return Repaired(name, kind, tuple(job.lost), tuple(job.kept_aside))


class _Rebuild:
    """Walks the segments of a damaged log; sound ones are left alone, the others written anew and renamed."""

    def __init__(self, fs: FileSystem, directory: str, naming: Naming, aside: str) -> None:
        self._fs, self._directory, self._naming, self._aside = fs, directory, naming, aside
        self.expected = 1
        self.last_at = 0
        self.size = 0
        self.lost: list[tuple[int, int]] = []
        self.kept_aside: list[str] = []

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, self._naming.segment(number))

    def first_in(self, numbers: list[int]) -> int | None:
        """The first offset that can be read in any of these segments."""
        for number in numbers:
            with opened(self._fs, self._path(number)) as handle:
                for record in salvage(self._fs, handle, number, 0, self._fs.size(handle)):
                    return record.offset
        return None

    def end_before(self, following: list[int], number: int) -> int:
        """The offset that a segment must reach, by the segments that follow it; 0 where they do not tell."""
        if following[0] == number + 1:
            with opened(self._fs, self._path(number + 1)) as handle:
                try:
                    record = line_at(self._fs, handle, number + 1, 0, self._fs.size(handle))
                except BadLine:
                    record = None  # its own gap will say what is lost in between
            return record.offset - 1 if record is not None else 0
        return (self.first_in(following) or 1) - 1

    def segment(self, number: int, *, exists: bool, through: int) -> None:
        """Check or rebuild one segment; `through` is the offset that it must reach."""
        if exists and self._passes(number, through):
            return
        path, temporary = self._path(number), self._path(number) + _TEMPORARY
        if os.path.basename(temporary) in self._fs.listdir(self._directory):
            self._fs.unlink(temporary)
        with opened(self._fs, temporary, create=True) as target:
            self.size = 0
            if exists:
                with opened(self._fs, path) as source:
                    for record in salvage(self._fs, source, number, 0, self._fs.size(source)):
                        if record.offset >= self.expected:
                            self._gap(target, record.offset - 1)
                            self._put(target, record)
            self._gap(target, through)
            self._fs.sync(target)
        if exists:
            self.kept_aside.append(self._copy_aside(path))
        self._fs.rename(temporary, path)
        self._fs.sync_directory(self._directory)

    def _passes(self, number: int, through: int) -> bool:
        """Whether every byte of a segment is a record that comes next, and enough of them. Moves on past it if so."""
        expected, last_at = self.expected, self.last_at
        with opened(self._fs, self._path(number)) as handle:
            size = self._fs.size(handle)
            for block in read_blocks(self._fs, handle, number, 0, size, expected):
                if block.bad is not None:
                    return False
                expected, last_at = block.records[-1].last + 1, block.records[-1].at
        if expected <= through:
            return False
        self.expected, self.last_at, self.size = expected, last_at, size
        return True

    def _gap(self, target: int, through: int) -> None:
        if through >= self.expected:
            line = encode_gap(self.expected, through, self.last_at, self.expected)
            write_all(self._fs, target, line, self.size)
            self.lost.append((self.expected, through))
            self.size += len(line)
            self.expected = through + 1

    def _put(self, target: int, record: Record) -> None:
        write_all(self._fs, target, record.line, self.size)
        self.size += len(record.line)
        self.expected, self.last_at = record.last + 1, record.at

    def _copy_aside(self, path: str) -> str:
        taken = set(self._fs.listdir(self._aside))
        name = os.path.basename(path) + ".damaged"
        copies = 0
        while name in taken:
            copies += 1
            name = f"{os.path.basename(path)}.damaged.{copies}"
        copy = os.path.join(self._aside, name)
        with opened(self._fs, path) as source, opened(self._fs, copy, create=True) as target:
            position = 0
            while data := read_all(self._fs, source, BLOCK_BYTES, position):
                write_all(self._fs, target, data, position)
                position += len(data)
            self._fs.sync(target)
        self._fs.sync_directory(self._aside)
        return copy
