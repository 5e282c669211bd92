"""Deliberately wrong variants of the bus, each a small patch of the real code: what the state machine must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from events import cursor as cursors
from events import feeding
from events.contracts import Verdict
from events.cursor import Cursor
from events.group import Group
from events.lanes import Item, Place
from events.persistence import documents, recovery, retention, wal
from events.persistence.codec import Record
from events.persistence.committer import CommittedLog
from events.persistence.files import FileSystem
from events.persistence.log import Log
from events.persistence.store import Attempts, Checkpoint, GroupRecord, LogName, Store, StoreLog
from events.persistence.wal import WalStore
from events.settling import Settler
from events.types import Nack
from events.window import Window


@dataclass(frozen=True, slots=True)
class Variant:
    """A bug: what it is called, the rules of which it breaks at least one, and the patch that plants it."""

    name: str
    breaks: Sequence[str]
    planted: Callable[[], AbstractContextManager[None]]


VARIANTS: list[Variant] = []


def variant(name: str, *breaks: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    """Enter a bug into the list."""

    def enter(patches: Callable[[], Iterator[None]]) -> None:
        VARIANTS.append(Variant(name, breaks, contextmanager(patches)))

    return enter


class _Forgetful:
    """A file system as code sees it that forgets to sync directories."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def sync_directory(self, path: str) -> None:
        """Forgotten."""


# -- the log ---------------------------------------------------------------------------------------------------


@variant("ack before fsync", "S1")
def _ack_before_fsync() -> Iterator[None]:
    with patch.object(Log, "_sync_handle", lambda self, handle: None):
        yield


@variant("directory not synced", "S1")
def _directory_not_synced() -> Iterator[None]:
    original = Log._start_segment

    def start_segment(self: Log, number: int) -> None:
        fs, self.fs = self.fs, _Forgetful(self.fs)
        try:
            original(self, number)
        finally:
            self.fs = fs

    with patch.object(Log, "_start_segment", start_segment):
        yield


@variant("offset reuse after recovery", "S1", "S4")
def _offset_reuse() -> Iterator[None]:
    original = Log.adopt

    def adopt(self: Log, numbers: list[int], *, last_offset: int, last_at: int, active_bytes: int) -> None:
        """What the mark covers is all there is."""
        original(self, numbers, last_offset=last_offset, last_at=last_at, active_bytes=active_bytes)
        self.next_offset = min(self.next_offset, self.mark_file.mark.durable + 1)

    with patch.object(Log, "adopt", adopt):
        yield


@variant("recovered tail served before it is synced", "S1", "S4")
def _tail_not_synced() -> Iterator[None]:
    with patch.object(recovery, "_settle_tail", lambda log, found: None):
        yield


@variant("segment deleted that one group had not settled", "S1", "S3", "F5", "L")
def _robbed() -> Iterator[None]:
    original = retention.groups_of

    def groups_of(name: LogName, groups: Sequence[GroupRecord]) -> list[GroupRecord]:
        return original(name, groups)[:1]

    with patch.object(retention, "groups_of", groups_of):
        yield


# -- groups and checkpoints ------------------------------------------------------------------------------------


@variant("resume at latest", "S2", "S3", "L")
def _resume_at_latest() -> Iterator[None]:
    async def start_of(log: StoreLog, group: GroupRecord) -> int:
        return log.next_offset

    with patch.object(cursors, "_start_of", start_of):
        yield


@variant("attempts forgotten at restart", "W6")
def _attempts_forgotten() -> Iterator[None]:
    original = Cursor.__init__

    def begin(self: Cursor, log: StoreLog, start: int, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            retries = dict.fromkeys(checkpoint.retries, Attempts())
            checkpoint = replace(checkpoint, attempts={}, retries=retries)
        original(self, log, start, checkpoint)

    with patch.object(Cursor, "__init__", begin):
        yield


@variant("checkpoint before log sync", "F7")
def _checkpoint_first() -> Iterator[None]:
    async def sync(self: CommittedLog) -> None:
        """Later."""

    with patch.object(CommittedLog, "sync", sync):
        yield


@variant("checkpoint's directory not synced", "W1", "W3", "W6")
def _checkpoint_not_durable() -> Iterator[None]:
    original = documents.write_document

    def write_document(fs: FileSystem, path: str, data: Mapping[str, Any], generation: int) -> None:
        original(_Forgetful(fs), path, data, generation)

    with patch.object(wal, "write_document", write_document):
        yield


@variant("subscribe returns before the group is on disk", "W3")
def _group_not_durable() -> Iterator[None]:
    async def save_group(self: WalStore, record: GroupRecord) -> None:
        self._groups[record.name] = record

    with patch.object(WalStore, "save_group", save_group):
        yield


@variant("a live batch taken out of turn", "S2", "S3", "W5", "L")
def _out_of_turn() -> Iterator[None]:
    original = Group.offer

    def offer(self: Group, log: StoreLog, records: Sequence[Record]) -> None:
        cursor = self.cursors.get(log.name)
        if cursor is not None and self.window.room > 0:
            cursor.next = records[0].offset
        original(self, log, records)

    with patch.object(Group, "offer", offer):
        yield


@variant("keys ignored", "W5")
def _keys_ignored() -> Iterator[None]:
    with patch.object(Window, "_key", lambda self, record: None):
        yield


# -- settling --------------------------------------------------------------------------------------------------


@variant("settle before dead letter", "W10")
def _settle_first() -> Iterator[None]:
    original = Settler.bury

    async def bury(self: Settler, item: Item, reason: str) -> str:
        held = item.cursor.held_attempts(item.place)
        item.cursor.settle(item.place)
        await self._group.services.checkpointer.save(self._group, item.cursor)
        if held is not None:
            item.cursor.hold_attempts(item.place, held)
        return await original(self, item, reason)

    with patch.object(Settler, "bury", bury):
        yield


@variant("dead letters not settled on open", "S3", "W10", "L")
def _dead_not_settled() -> Iterator[None]:
    async def read_dead_letters(store: Store, cursor: Cursor, group: str) -> None:
        """Nobody looks."""

    with (
        patch.object(cursors, "read_dead_letters", read_dead_letters),
        patch.object(feeding, "read_dead_letters", read_dead_letters),
    ):
        yield


@variant("a failed attempt settles", "S2", "L", "W1", "W6", "W10")
def _nack_is_ack() -> Iterator[None]:
    original = Settler.conclude

    async def conclude(
        self: Settler, items: Sequence[Item], verdict: Verdict, verdicts: Mapping[Item, Verdict]
    ) -> None:
        await original(self, items, None if isinstance(verdict, Nack) else verdict, verdicts)

    with patch.object(Settler, "conclude", conclude):
        yield


@variant("a release charges an attempt", "W6")
def _release_charges() -> Iterator[None]:
    original = Cursor.hold_attempts

    def hold_attempts(self: Cursor, place: Place, attempts: Attempts) -> None:
        held = self.held_attempts(place)
        if held is not None and held.running and not attempts.running and attempts.count < held.count:
            attempts = replace(attempts, count=held.count)
        original(self, place, attempts)

    with patch.object(Cursor, "hold_attempts", hold_attempts):
        yield
