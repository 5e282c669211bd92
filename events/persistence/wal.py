"""The default store: a write-ahead log of JSON lines per space and topic, under one workspace."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio

from events.clock import AnchoredClock, Clock
from events.errors import CorruptLog, LogPoisoned, StorageError
from events.names import check_space
from events.persistence.ballast import Ballast
from events.persistence.checkpoints import (
    checkpoint_from,
    checkpoint_to,
    group_from,
    group_to,
)
from events.persistence.committer import CommittedLog
from events.persistence.documents import Document, read_document, read_previous, remove_document, write_document
from events.persistence.files import FileSystem, OsFileSystem, list_or_empty
from events.persistence.handles import Handles
from events.persistence.io import Io, IoThreads
from events.persistence.log import Log, LogLimits, Sync
from events.persistence.named import named_offsets
from events.persistence.recovery import Examination, open_log
from events.persistence.segment import Naming
from events.persistence.store import Checkpoint, Durable, GroupRecord, LogName, StoreLog
from events.persistence.tail import Tail
from events.persistence.workspace import (
    Layout,
    Workspace,
    check_journal_folder,
    dlq_naming,
    journal_naming,
    list_groups,
    list_journals,
    list_spaces,
    list_topics,
    wal_naming,
)

T = TypeVar("T")
logger = logging.getLogger("events.store")
_TICK_S: Final = 0.05
_MAX_REPORTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """The limits of a workspace. `sync` is when an event counts as published:

    `always`: when it is on disk. `interval`: when it was handed to the kernel; a power cut may take the last
    `sync_interval_s`, a killed process nothing. `never`: the kernel decides, often after 30 s; segments are synced
    when they are sealed. In every mode nothing that a checkpoint names can be lost.
    """

    segment_bytes: int = 16 * 1024 * 1024
    segment_lines: int | None = None
    sync: Sync = "always"
    sync_interval_s: float = 0.1
    max_open_files: int = 256
    tail_bytes: int = 2 * 1024 * 1024
    io_threads: int = 8
    ballast_bytes: int = 1024 * 1024

    @property
    def limits(self) -> LogLimits:
        """What one log keeps to."""
        return LogLimits(segment_bytes=self.segment_bytes, segment_lines=self.segment_lines, sync=self.sync)


@dataclass(slots=True)
class _Opening:
    """A log that somebody is opening; others wait for the same one."""

    finished: anyio.Event = field(default_factory=anyio.Event)


class WalStore:
    """A workspace on disk, opened for writing. One process at a time; see `events.persistence`."""

    def __init__(
        self,
        workspace: str | Path,
        settings: WalSettings | None = None,
        *,
        fs: FileSystem | None = None,
        io: Io | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings or WalSettings()
        self.fs = fs or OsFileSystem()
        self.io = io or IoThreads(self.settings.io_threads)
        self.clock = clock or AnchoredClock()
        self.layout = Layout(workspace)
        self.ballast = Ballast(self.fs, self.layout.ballast, self.settings.ballast_bytes)
        self.tail = Tail(self.settings.tail_bytes)
        self.durable: Durable = lambda log, records: None
        self._storage_full = False
        self._workspace = Workspace(self.fs, self.layout)
        self._handles = Handles(self.fs, self.settings.max_open_files)
        self._logs: dict[tuple[str, str], CommittedLog | _Opening] = {}
        self._attended: dict[CommittedLog, None] = {}  # in order, so that a simulation repeats itself
        self._unsynced: dict[CommittedLog, None] = {}
        self._wake = anyio.Event()
        self._generations: dict[str, int] = {}
        self._damaged: set[str] = set()
        self._replacing: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._groups: dict[str, GroupRecord] = {}
        self._reports: deque[tuple[LogName, Examination]] = deque(maxlen=_MAX_REPORTS)
        self._is_open = False

    # -- life --------------------------------------------------------------------------------------------------

    async def open(self, durable: Durable) -> None:
        self.io.start()
        self.durable = durable
        try:
            await self.io.run(self._open)
        except BaseException:
            self.io.stop()
            raise
        self._is_open = True

    def _open(self) -> None:
        self._workspace.acquire()
        try:
            self._load_groups()
            self.ballast.restore()
        except BaseException:
            self._workspace.release()
            raise

    def check_writable(self) -> None:
        """Raise when this process may not write (any more)."""
        self._workspace.check_writable()

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run file work in a thread. Refused after close, and after a fork: the child has no such thread."""
        self.check_writable()
        return await self.io.run(work)

    async def run(self) -> None:
        """Marks, interval syncs, deadlines, a full disk: looked after while there is anything to look after."""
        last_sync = self.clock.monotonic()
        while True:
            if not self._attended:
                self._wake = anyio.Event()
                await self._wake.wait()
            await self.clock.sleep(_TICK_S)
            now = self.clock.monotonic()
            sync_due = now - last_sync >= self.settings.sync_interval_s
            if sync_due or len(self._handles) > self.settings.max_open_files:
                last_sync, sync_due = now, True
            for log in list(self._attended):
                if not log.keep(now, sync_due=sync_due):
                    self._attended.pop(log, None)

    def attend(self, log: CommittedLog) -> None:
        """Have `run` look after a log until it says that nothing is left to do."""
        if log not in self._attended:
            self._attended[log] = None
            self._wake.set()

    def wrote_unsynced(self, log: CommittedLog) -> None:
        """A log holds its file open until that is synced; when too many do, the one written to longest ago is."""
        self._unsynced.pop(log, None)
        self._unsynced[log] = None
        if len(self._unsynced) > self.settings.max_open_files:
            oldest = next(iter(self._unsynced))
            del self._unsynced[oldest]
            oldest.sync_soon()

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._workspace.is_forked:
            return  # all of it is the parent's
        for log in list(self._logs.values()):
            if isinstance(log, CommittedLog):
                with suppress(OSError, StorageError):  # recovery will see to it; the lock must be given back
                    await log.close()
        await self.io.run(self._close)
        self.io.stop()

    def _close(self) -> None:
        self._handles.close()
        self._workspace.release()

    # -- logs --------------------------------------------------------------------------------------------------

    async def log_names(self) -> list[LogName]:
        return await self.run_blocking(self._log_names)

    def _log_names(self) -> list[LogName]:
        spaces = list_spaces(self.fs, self.layout)
        return [LogName(space, topic) for space in spaces for topic in list_topics(self.fs, self.layout, space)]

    async def log(self, name: LogName) -> StoreLog:
        opened_log = self._logs.get((name.space_id, name.topic))
        if isinstance(opened_log, CommittedLog):
            return opened_log
        check_space(name.space_id)
        naming = wal_naming(name.topic)
        return await self._opened((name.space_id, name.topic), name, "wal", naming)

    async def dead_letters(self, name: LogName) -> StoreLog:
        check_space(name.space_id)
        naming = dlq_naming(name.topic)
        return await self._opened((name.space_id, "dlq/" + naming.stem), name, "dlq", naming)

    async def has_dead_letters(self, name: LogName) -> bool:
        naming = dlq_naming(name.topic)
        folder = self.layout.folder(name.space_id, "dlq")
        names = await self.run_blocking(lambda: list_or_empty(self.fs, folder))
        return any(naming.number(file_name) for file_name in names)

    async def journal(self, space_id: str, folder: str, name: str) -> StoreLog:
        check_space(space_id)
        log_name, naming = LogName(space_id, name), journal_naming(name)
        return await self._opened((space_id, f"{check_journal_folder(folder)}/{name}"), log_name, folder, naming)

    async def journals(self, space_id: str, folder: str) -> list[str]:
        return await self.run_blocking(lambda: list_journals(self.fs, self.layout, space_id, folder))

    async def _opened(self, key: tuple[str, str], name: LogName, folder: str, naming: Naming) -> CommittedLog:
        while True:
            known = self._logs.get(key)
            if isinstance(known, CommittedLog):
                return known
            if known is None:
                break
            await known.finished.wait()
        opening = self._logs[key] = _Opening()
        try:
            open_log = partial(self._open_log, name, folder, naming)
            log, found = await self.run_blocking(lambda: self.ballast.spent_on(open_log))
            committed = CommittedLog(self, name, log)
            committed.tells_durable = folder == "wal"
            self._logs[key] = committed
        except BaseException:
            del self._logs[key]
            raise
        finally:
            opening.finished.set()
        if found.condition not in ("clean", "whole") or found.mark_damaged:
            self._reports.append((name, found))
            self._say(name, found)
        return committed

    def _open_log(self, name: LogName, folder: str, naming: Naming) -> tuple[Log, Examination]:
        self.check_writable()
        if folder == "wal":
            self._workspace.refuse_twin_topic(name.space_id, name.topic)
        directory = self._workspace.ensure_folder(name.space_id, folder)
        named, log_id, limits = 0, None, self.settings.limits
        if folder == "wal":
            named, log_id = named_offsets(self.fs, self.layout, name, self._groups)
        elif folder == "dlq":
            limits = replace(limits, sync="always")  # a dead letter is on disk before its event settles (rule W10)
        aside = self._workspace.ensure(self.layout.aside)
        return open_log(
            self.fs,
            self._handles,
            directory,
            naming,
            limits,
            named=named,
            log_id=log_id,
            aside=aside,
        )

    def _say(self, name: LogName, found: Examination) -> None:
        where = {"space": name.space_id, "topic": name.topic, "condition": found.condition, "byte": found.end}
        if found.damage is not None:
            logger.error("log is corrupt and opened read-only: %s", found.damage, extra=where)
        elif found.condition == "torn":
            message = "healed a torn tail of %d bytes; they are kept in %s"
            logger.warning(message, found.surplus, found.kept_aside, extra=where)
        else:
            logger.warning("a copy of the log's mark was unreadable; the other files stood in", extra=where)

    # -- groups and checkpoints --------------------------------------------------------------------------------

    def _load_groups(self) -> None:
        self.fs.sync_directory(self.layout.groups)  # who wrote them may have been killed before its own sync
        for path in list_groups(self.fs, self.layout):
            document, damaged = read_document(self.fs, path)
            if document is None:
                if damaged:
                    reason = "neither the record of the group nor its previous copy can be read"
                    raise CorruptLog(path, 0, 0, 0, reason)
                continue
            record = group_from(document.data)
            self._groups[record.name] = record
            self._remember(path, document, damaged=damaged)

    async def groups(self) -> list[GroupRecord]:
        return list(self._groups.values())

    async def save_group(self, record: GroupRecord) -> None:
        self._workspace.refuse_twin_group(record.name, self._groups)
        await self._replace(self.layout.group(record.name), group_to(record))
        self._groups[record.name] = record

    async def delete_group(self, group: str) -> None:
        await self.run_blocking(lambda: self._delete_group(group))
        self._groups.pop(group, None)

    def _delete_group(self, group: str) -> None:
        for name in self._log_names():
            path = self.layout.checkpoint(*name, group)
            self._workspace.ensure(os.path.dirname(path))
            remove_document(self.fs, path)
            self._generations.pop(path, None)
        path = self.layout.group(group)
        remove_document(self.fs, path)
        self._generations.pop(path, None)

    async def load_checkpoint(self, name: LogName, group: str) -> Checkpoint | None:
        path = self.layout.checkpoint(*name, group)
        document, damaged = await self.run_blocking(lambda: read_document(self.fs, path))
        if damaged:  # a current copy that is merely missing is what a crash between two renames leaves
            logger.warning("a checkpoint was unreadable; resuming from %s", path + ".prev" if document else "the start")
        if document is None:
            return None
        self._remember(path, document, damaged=damaged)
        checkpoint = checkpoint_from(document.data)
        log = await self.log(name)
        return checkpoint if checkpoint.log_id == log.log_id else None

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        path = self.layout.checkpoint(*name, group)
        if path not in self._generations:
            folder = os.path.dirname(path)
            await self.run_blocking(lambda: self.ballast.spent_on(lambda: self._workspace.ensure(folder)))
        await self._replace(path, checkpoint_to(checkpoint, self.clock.now_ms()))

    async def settled_by(self, name: LogName, group: str) -> int:
        path = self.layout.checkpoint(*name, group)
        log_id = (await self.log(name)).log_id
        return await self.run_blocking(lambda: self._settled_by(path, log_id))

    def _settled_by(self, path: str, log_id: str) -> int:
        current, previous = read_document(self.fs, path)[0], read_previous(self.fs, path)
        if current is None or (previous is None and current.generation > 1):
            return 0
        copies = [checkpoint_from(document.data) for document in (current, previous) if document is not None]
        return min(checkpoint.committed if checkpoint.log_id == log_id else 0 for checkpoint in copies)

    async def _replace(self, path: str, data: Mapping[str, Any]) -> None:
        self.check_writable()
        async with self._replacing.setdefault(path, anyio.Lock()):  # two at once would share the temporary file
            generation = self._generations.get(path, 0) + 1
            self._generations[path] = generation

            def replace() -> None:
                write_document(self.fs, path, data, generation, keep_current=path not in self._damaged)

            await self.run_blocking(lambda: self.ballast.spent_on(replace))
            self._damaged.discard(path)

    def _remember(self, path: str, document: Document, *, damaged: bool) -> None:
        """Go on from a document's generation; a damaged one must not push out the copy that stood in for it."""
        self._generations[path] = document.generation
        if damaged:
            self._damaged.add(path)

    # -- a full disk -------------------------------------------------------------------------------------------

    @property
    def storage_full(self) -> bool:
        return self._storage_full

    @storage_full.setter
    def storage_full(self, full: bool) -> None:
        if full != self._storage_full:
            self._storage_full = full
            logger.log(
                logging.ERROR if full else logging.INFO,
                "no space left on the device: publishers wait" if full else "there is room on the device again",
            )

    # -- what is going on --------------------------------------------------------------------------------------

    def note_failure(self, name: LogName, error: BaseException) -> None:
        """Housekeeping failed. The next append will meet the same trouble and say so to somebody."""
        logger.warning("housekeeping failed: %s", error, extra={"space": name.space_id, "topic": name.topic})

    @property
    def reports(self) -> Sequence[tuple[LogName, Examination]]:
        return list(self._reports)

    @property
    def poisoned(self) -> Sequence[LogPoisoned]:
        errors = (log.error for log in list(self._logs.values()) if isinstance(log, CommittedLog))
        return [error for error in errors if isinstance(error, LogPoisoned)]

    def statistics(self) -> Mapping[str, int]:
        return {
            "logs": len(self._logs),
            "open_files": len(self._handles),
            "open_files_peak": self._handles.peak,
            "tail_bytes": self.tail.size_bytes,
            "groups": len(self._groups),
        }
