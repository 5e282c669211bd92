"""Logs and stores on the simulated file system, for the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import pairwise
from typing import Any

import anyio

from events.clock import Clock
from events.persistence.codec import Record, encode_line, event_members
from events.persistence.files import FileSystem
from events.persistence.handles import Handles
from events.persistence.io import InlineIo
from events.persistence.log import Log, LogLimits
from events.persistence.recovery import Examination, open_log
from events.persistence.segment import Naming
from events.persistence.store import Entry, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from events.testing.clock import FakeClock
from events.testing.simulated import SimulatedFileSystem
from events.types import EventMeta

WORKSPACE = "/workspace"
DIRECTORY = "/log"
ASIDE = "/aside"
NAMING = Naming("t")
NAME = LogName("home", "t")
AT = 1_700_000_000_000


def members(offset: int, size: int = 40) -> bytes:
    """The members of a line, which follow from its offset: so a wrong one cannot pass for the right one."""
    body = sha256(b"%d" % offset).hexdigest()
    return b'"n":%d,"body":"%b"' % (offset, (body * (size // 64 + 1))[:size].encode())


def entries(*numbers: int, size: int = 40) -> list[Entry]:
    """What to append, by number; append them in this order and the number is the offset."""
    return [Entry(members(number, size)) for number in numbers]


def event_entry(topic: str = "t", space: str = "home", **payload: Any) -> Entry:
    """An event as the bus would append it."""
    import orjson

    meta = EventMeta(topic=topic, type="NOTED", space_id=space)
    raw = meta.to_json()
    return Entry(event_members(raw, orjson.dumps(payload)), meta, len(raw))


def new_fs() -> SimulatedFileSystem:
    """A file system with the directories that a single log needs."""
    fs = SimulatedFileSystem()
    for path in (DIRECTORY, ASIDE):
        fs.mkdir(path)
    fs.sync_directory("/")
    return fs


def opened_log(
    fs: FileSystem, limits: LogLimits | None = None, *, named: int = 0, naming: Naming = NAMING
) -> tuple[Log, Examination]:
    """Recover the log in `DIRECTORY` and open it."""
    return open_log(fs, Handles(fs, 16), DIRECTORY, naming, limits or LogLimits(), named=named, aside=ASIDE)


def append(log: Log, count: int = 1, *, size: int = 40, at: int = AT) -> list[int]:
    """Append one batch, as the committer would."""
    first = log.next_offset
    offsets = list(range(first, first + count))
    lines = [encode_line(offset, members(offset, size), at, log.durable + 1) for offset in offsets]
    log.write(b"".join(lines), count, at)
    return offsets


def append_batches(log: Log, counts: Iterable[int], *, size: int = 40) -> list[int]:
    """Append several batches; all their offsets."""
    return [offset for count in counts for offset in append(log, count, size=size)]


def segment(number: int = 1) -> str:
    """The path of a segment of the log in `DIRECTORY`."""
    return f"{DIRECTORY}/{NAMING.segment(number)}"


MARK = f"{DIRECTORY}/{NAMING.mark()}"


def offsets_of(records: Iterable[Record]) -> list[int]:
    """Every offset that the records stand for."""
    return [offset for record in records for offset in range(record.offset, record.last + 1)]


def is_genuine(record: Record) -> bool:
    """Whether a record says what was appended at its offset."""
    return record.is_gap or record.members()["n"] == record.offset


@asynccontextmanager
async def store_on(
    fs: FileSystem, *, clock: Clock | None = None, running: bool = False, **settings: Any
) -> AsyncIterator[WalStore]:
    """A store on a simulated file system, without threads; `running` keeps its housekeeping going."""
    store = WalStore(
        WORKSPACE,
        WalSettings(**{"ballast_bytes": 0, **settings}),
        fs=fs,
        io=InlineIo(),
        clock=clock or FakeClock(AT),
    )
    await store.open(lambda log, records: None)
    async with anyio.create_task_group() as tasks:
        if running:
            tasks.start_soon(store.run)
        try:
            yield store
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await store.close()


async def read_all(log: StoreLog, start: int | None = None) -> list[Record]:
    """Every record from an offset on."""
    found: list[Record] = []
    offset = log.first_offset if start is None else start
    while offset < log.next_offset:
        some = await log.read(offset, 4096)
        assert some, f"nothing at {offset}, though the log goes to {log.next_offset}"
        found += some
        offset = some[-1].last + 1
    return found


def wal_files(fs: SimulatedFileSystem, folder: str = "wal") -> dict[str, bytes]:
    """The files of the one log that most tests have, by name."""
    prefix = f"{WORKSPACE}/.bus/spaces/{NAME.space_id}/{folder}/"
    return {path.removeprefix(prefix): data for path, data in fs.files().items() if path.startswith(prefix)}


def wal_path(file_name: str, folder: str = "wal") -> str:
    """The path of a file of that log."""
    return f"{WORKSPACE}/.bus/spaces/{NAME.space_id}/{folder}/{file_name}"


def settled(records: Sequence[Record]) -> None:
    """Fail unless the records follow each other and say what was appended."""
    for before, record in pairwise(records):
        assert record.offset == before.last + 1
    assert all(map(is_genuine, records))
