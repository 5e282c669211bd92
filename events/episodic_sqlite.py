"""Episodic memories in SQLite: one file for each space, beside its logs.

    spaces/<space>/memories/episodic.sqlite3

A memory is on disk when `remember` returns (`synchronous=FULL` over a write-ahead log). Its source is unique, so what
is offered twice is stored once, whoever died in between. Full text is searched with FTS5.
"""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import orjson

from events.episodic import Memory, Recall, Stored, Waiting
from events.errors import ReadOnly, StorageFull
from events.names import check_space
from events.persistence.files import OsFileSystem
from events.persistence.workspace import Layout, list_spaces
from events.types import SecurityBand

T = TypeVar("T")
FOLDER: Final = "memories"
_FILE: Final = "episodic.sqlite3"
_VERSION: Final = 1
_MAX_OPEN: Final = 16
_THREADS: Final = 4
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SCHEMA: Final = """
CREATE TABLE memories (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    memory_id TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL UNIQUE,
    event_id TEXT NOT NULL,
    ts_us INTEGER NOT NULL,
    stored_ms INTEGER NOT NULL,
    text TEXT NOT NULL,
    actor TEXT, key TEXT, tags TEXT NOT NULL,
    valence REAL, arousal REAL, salience REAL,
    band TEXT, caps TEXT NOT NULL, correlation_id TEXT,
    content TEXT NOT NULL,
    announced INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX memories_by_time ON memories (ts_us);
CREATE INDEX memories_by_actor ON memories (actor, ts_us);
CREATE INDEX memories_by_key ON memories (key, ts_us);
CREATE INDEX memories_unannounced ON memories (sequence) WHERE announced = 0;
CREATE TABLE tags (tag TEXT NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (tag, sequence)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (text, content='memories', content_rowid='sequence', tokenize='unicode61');
CREATE TRIGGER memories_words AFTER INSERT ON memories BEGIN
    INSERT INTO words (rowid, text) VALUES (new.sequence, new.text);
END;
CREATE TABLE progress (consolidating_through INTEGER NOT NULL);
INSERT INTO progress VALUES (0);
"""
_GIVEN: Final = (
    "memory_id, source, event_id, ts_us, text, actor, key, tags, valence, arousal, salience, band, caps,"
    " correlation_id, content"
)
_COLUMNS: Final = f"sequence, {_GIVEN}"


class _Space:
    """The file of one space. One thread at a time; it stays open while somebody uses it, or waits to."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.lock = Lock()
        self.users = 0


class SqliteEpisodicStore:
    """Memories under a workspace; without one, in memory, for as long as the store lives."""

    def __init__(self, workspace: str | os.PathLike[str] | None) -> None:
        self._layout = None if workspace is None else Layout(Path(workspace))
        self._spaces: OrderedDict[str, _Space] = OrderedDict()
        self._opening = Lock()
        self._threads: anyio.CapacityLimiter | None = None

    # -- the contract ------------------------------------------------------------------------------------------

    async def remember(self, memory: Memory, now_ms: int) -> Stored:
        return await self._with(memory.space_id, lambda connection: _remember(connection, memory, now_ms))

    async def mark_announced(self, memory: Memory) -> None:
        def mark(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE memories SET announced = 1 WHERE memory_id = ?", (memory.memory_id,))

        await self._with(memory.space_id, mark)

    async def unannounced(self, space_id: str, limit: int = 100) -> Sequence[Memory]:
        query = f"SELECT {_COLUMNS} FROM memories WHERE announced = 0 ORDER BY sequence LIMIT ?"
        return await self._with(space_id, lambda connection: _memories(connection, space_id, query, (limit,)))

    async def get(self, space_id: str, memory_id: str) -> Memory | None:
        query = f"SELECT {_COLUMNS} FROM memories WHERE memory_id = ?"
        found = await self._with(space_id, lambda connection: _memories(connection, space_id, query, (memory_id,)))
        return found[0] if found else None

    async def find(self, wanted: Recall) -> Sequence[Memory]:
        query, arguments = _query(wanted)
        return await self._with(
            wanted.space_id, lambda connection: _memories(connection, wanted.space_id, query, arguments)
        )

    async def waiting(self, space_id: str) -> Waiting:
        def look(connection: sqlite3.Connection) -> Waiting:
            after = connection.execute("SELECT consolidating_through FROM progress").fetchone()[0]
            query = "SELECT count(*), max(sequence), min(stored_ms), max(stored_ms) FROM memories WHERE sequence > ?"
            count, through, oldest, newest = connection.execute(query, (after,)).fetchone()
            return Waiting(count, after, through or after, oldest or 0, newest or 0)

        return await self._with(space_id, look)

    async def mark_consolidating(self, space_id: str, through: int) -> None:
        def mark(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE progress SET consolidating_through = max(consolidating_through, ?)", (through,))

        await self._with(space_id, mark)

    async def spaces(self) -> Sequence[str]:
        return await self._in_thread(self._list_spaces)

    async def close(self) -> None:
        await self._in_thread(self._close)

    # -- files and threads -------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def _with(self, space_id: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction in a thread: all of the work, durably, or none of it."""
        check_space(space_id)

        def run() -> T:
            with self._used(space_id) as space, space.lock:
                try:
                    with space.connection:
                        return work(space.connection)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                        raise StorageFull(FOLDER, 0.0) from error
                    raise

        return await self._in_thread(run)

    @contextmanager
    def _used(self, space_id: str) -> Iterator[_Space]:
        with self._opening:
            space = self._spaces.get(space_id)
            if space is None:
                space = self._spaces[space_id] = _Space(self._open(space_id))
            self._spaces.move_to_end(space_id)
            space.users += 1
        try:
            yield space
        finally:
            with self._opening:
                space.users -= 1
                if self._layout is not None:
                    self._let_go()

    def _let_go(self) -> None:
        """Close what was not used lately, and is not used right now."""
        for space_id, space in list(self._spaces.items()):
            if len(self._spaces) <= _MAX_OPEN:
                return
            if not space.users:
                del self._spaces[space_id]
                space.connection.close()

    def _open(self, space_id: str) -> sqlite3.Connection:
        if self._layout is None:
            return _prepared(":memory:")
        folder = self._layout.folder(space_id, FOLDER)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        connection = _prepared(os.path.join(folder, _FILE))
        # What SQLite makes durable is the file; that it has a name is up to us.
        for path in (folder, os.path.dirname(folder)):
            OsFileSystem().sync_directory(path)
        return connection

    def _list_spaces(self) -> list[str]:
        if self._layout is None:
            return sorted(self._spaces)
        layout = self._layout
        return [
            space
            for space in list_spaces(OsFileSystem(), layout)
            if os.path.exists(os.path.join(layout.folder(space, FOLDER), _FILE))
        ]

    def _close(self) -> None:
        with self._opening:
            spaces, self._spaces = self._spaces, OrderedDict()
        for space in spaces.values():
            with space.lock:
                space.connection.close()


def _prepared(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level="IMMEDIATE")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            # The lock first: two processes that find an empty file must not both fill it.
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise ReadOnly(path, f"it was written by a newer release (schema {version}, known is {_VERSION})")
            if version == 0:
                for statement in _statements(_SCHEMA):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _statements(script: str) -> list[str]:
    """One by one: `executescript` would commit first, and leave half a schema after a crash."""
    found, text = [], ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found


def _remember(connection: sqlite3.Connection, memory: Memory, now_ms: int) -> Stored:
    known = connection.execute(f"SELECT announced, {_COLUMNS} FROM memories WHERE source = ?", (memory.source,))
    row = known.fetchone()
    if row is not None:
        return Stored(_memory(memory.space_id, row[1:]), False, bool(row[0]))
    with closing(connection.cursor()) as cursor:
        values = _row(memory)
        marks = ", ".join("?" * (len(values) + 1))
        cursor.execute(f"INSERT INTO memories ({_GIVEN}, stored_ms) VALUES ({marks})", (*values, now_ms))
        sequence = cursor.lastrowid
        cursor.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", [(tag, sequence) for tag in memory.tags])
        row = cursor.execute(f"SELECT {_COLUMNS} FROM memories WHERE sequence = ?", (sequence,)).fetchone()
    return Stored(_memory(memory.space_id, row), True, False)


def _query(wanted: Recall) -> tuple[str, tuple[Any, ...]]:
    conditions: list[tuple[str, Any]] = []
    if wanted.since is not None:
        conditions.append(("ts_us >= ?", _microseconds(wanted.since)))
    if wanted.until is not None:
        conditions.append(("ts_us < ?", _microseconds(wanted.until)))
    if wanted.actor is not None:
        conditions.append(("actor = ?", wanted.actor))
    if wanted.key is not None:
        conditions.append(("key = ?", wanted.key))
    conditions += [("sequence IN (SELECT sequence FROM tags WHERE tag = ?)", tag) for tag in wanted.tags]
    if wanted.text is not None:
        conditions.append(("sequence IN (SELECT rowid FROM words WHERE words MATCH ?)", _words(wanted.text)))
    where = " AND ".join(condition for condition, _ in conditions) or "1"
    order = "DESC" if wanted.newest_first else "ASC"
    query = f"SELECT {_COLUMNS} FROM memories WHERE {where} ORDER BY ts_us {order}, sequence {order} LIMIT ?"
    return query, (*(argument for _, argument in conditions), wanted.limit)


def _words(text: str) -> str:
    """Words that must all occur, each quoted: what people type is never an expression of the query language."""
    words = ['"' + word.replace('"', '""') + '"' for word in text.split() if any(map(str.isalnum, word))]
    return " ".join(words) or '""'


def _memories(connection: sqlite3.Connection, space_id: str, query: str, arguments: tuple[Any, ...]) -> list[Memory]:
    return [_memory(space_id, row) for row in connection.execute(query, arguments)]


def _row(memory: Memory) -> tuple[Any, ...]:
    """The values of the columns that the store is given, in their order."""
    return (
        memory.memory_id,
        memory.source,
        memory.event_id,
        _microseconds(memory.ts),
        memory.text,
        memory.actor,
        memory.key,
        orjson.dumps(memory.tags).decode(),
        memory.valence,
        memory.arousal,
        memory.salience,
        None if memory.band is None else memory.band.value,
        orjson.dumps(memory.caps).decode(),
        memory.correlation_id,
        orjson.dumps(dict(memory.content)).decode(),
    )


def _memory(space_id: str, row: tuple[Any, ...]) -> Memory:
    sequence, memory_id, source, event_id, ts_us, text, actor, key, tags, valence, arousal, salience, *rest = row
    band, caps, correlation_id, content = rest
    return Memory(
        memory_id=memory_id,
        space_id=space_id,
        source=source,
        event_id=event_id,
        ts=_EPOCH + ts_us * _MICROSECOND,
        text=text,
        actor=actor,
        key=key,
        tags=tuple(orjson.loads(tags)),
        valence=valence,
        arousal=arousal,
        salience=salience,
        band=None if band is None else SecurityBand(band),
        caps=tuple(orjson.loads(caps)),
        correlation_id=correlation_id,
        content=orjson.loads(content),
        sequence=sequence,
    )


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND
