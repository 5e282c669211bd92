"""What the tests with real processes share: children that start warm, and a journal that outlives them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from events.deadletters import Death, decode_entry
from events.persistence.checkpoints import checkpoint_from
from events.persistence.codec import BadLine, Record, decode_line
from events.persistence.documents import read_document
from events.persistence.files import OsFileSystem, list_or_empty
from events.persistence.reader import WorkspaceReader
from events.persistence.store import Checkpoint, LogName
from events.persistence.workspace import Layout, dlq_naming, wal_naming
from tests.events.persistence.processes import FORKS, received, started

__all__ = [
    "Journal",
    "Note",
    "checkpoint_of",
    "deaths_of",
    "keep_quiet",
    "lines_of",
    "logs_of",
    "read_journal",
    "received",
    "started",
]

# The fork server takes the list that is set last before its first child.
FORKS.set_forkserver_preload(
    ["pytest", "anyio._backends._asyncio", "anyio._backends._trio", "trio", "events.bus", "events.serialization"]
)


class Note(NamedTuple):
    """One thing that a child did: `kind` is a word of the test's own."""

    kind: str
    group: str
    space: str
    topic: str
    offset: int
    attempt: int
    detail: str


class Journal:
    """A file that a child notes things in as they happen. A write reaches the kernel, so no kill can take it."""

    def __init__(self, path: str | Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(
        self,
        kind: str,
        *,
        group: str = "-",
        space: str = "-",
        topic: str = "-",
        offset: int = 0,
        attempt: int = 0,
        detail: str = "-",
    ) -> None:
        """Append a line; one write, so whole or not there."""
        os.write(
            self._handle, "\t".join((kind, group, space, topic, str(offset), str(attempt), detail)).encode() + b"\n"
        )


def read_journal(path: str | Path, position: int = 0) -> tuple[list[Note], int]:
    """The notes from a byte on, and the byte behind them."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    end = data.rfind(b"\n") + 1
    notes = []
    for line in data[:end].decode().splitlines():
        kind, group, space, topic, offset, attempt, detail = line.split("\t")
        notes.append(Note(kind, group, space, topic, int(offset), int(attempt), detail))
    return notes, position + end


def checkpoint_of(workspace: Path, name: LogName, group: str) -> Checkpoint | None:
    """What a group's checkpoint says on disk, as the next process would read it."""
    document, _ = read_document(OsFileSystem(), Layout(workspace).checkpoint(*name, group))
    return None if document is None else checkpoint_from(document.data)


def lines_of(workspace: Path, name: LogName, *, dead_letters: bool = False) -> Iterator[Record]:
    """Every whole line of a log as its bytes stand on disk, proven or not: what a killed process left behind."""
    layout = Layout(workspace)
    naming = dlq_naming(name.topic) if dead_letters else wal_naming(name.topic)
    folder = Path(layout.folder(name.space_id, "dlq" if dead_letters else "wal"))
    numbers = [naming.number(file_name) for file_name in list_or_empty(OsFileSystem(), str(folder))]
    for number in sorted(number for number in numbers if number is not None):
        for line in (folder / naming.segment(number)).read_bytes().splitlines(keepends=True):
            with suppress(BadLine):
                yield decode_line(line)


def deaths_of(workspace: Path, name: LogName) -> list[Death]:
    """Every dead letter of a log, retried or not."""
    entries = [decode_entry(record) for record in lines_of(workspace, name, dead_letters=True)]
    return [entry for entry in entries if isinstance(entry, Death)]


def logs_of(workspace: Path) -> list[LogName]:
    """Every log of a workspace."""
    with WorkspaceReader(workspace) as reader:
        return reader.names()


def keep_quiet() -> None:
    """Have a child that fails on purpose say nothing of it on the terminal."""
    logging.getLogger("events").addHandler(logging.NullHandler())
