"""A store that keeps everything in memory: the same contract, for tests and for throw-away buses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import anyio
import anyio.lowlevel

from events.clock import AnchoredClock, Clock
from events.errors import LogPoisoned, OffsetGone
from events.names import check_group, check_space, check_topic
from events.persistence.codec import Record, encode_line, payload_starts, published_record
from events.persistence.recovery import Examination
from events.persistence.store import Checkpoint, Durable, Entry, GroupRecord, LogName, StoreLog
from events.persistence.workspace import check_journal_folder, journal_naming


class MemoryLog:
    """A log in a list. What was appended is "durable" for as long as the store lives."""

    def __init__(self, store: MemoryStore, name: LogName, *, tells_durable: bool) -> None:
        self.name = name
        self.log_id = uuid.uuid4().hex
        self.first_offset = 1
        self._store = store
        self._tells_durable = tells_durable
        self._records: list[Record] = []
        self._last_at = 0

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self._records)

    @property
    def error(self) -> Exception | None:
        return None

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        await anyio.lowlevel.checkpoint_if_cancelled()
        offset = first = self.next_offset
        self._last_at = max(self._last_at, self._store.clock.now_ms())
        batch: list[Record] = []
        for entry in entries:
            line = encode_line(offset, entry.members, self._last_at, first)
            if entry.meta is not None:
                start = payload_starts(offset, entry.meta_bytes)
                batch.append(published_record(offset, line, 1, 0, entry.meta, start))
            else:
                batch.append(Record(offset, line, 1, 0))
            offset += 1
        self._records.extend(batch)
        if batch and self._tells_durable:
            self._store.durable(self, batch)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return list(range(first, offset))

    async def read(self, offset: int, max_bytes: int) -> list[Record]:
        await anyio.lowlevel.checkpoint()
        found: list[Record] = []
        for record in self.recent(offset):
            found.append(record)
            max_bytes -= len(record.line)
            if max_bytes <= 0:
                break
        return found

    def recent(self, offset: int) -> Sequence[Record]:
        if offset < self.first_offset:
            raise OffsetGone(self.name.topic, offset, self.first_offset)
        return self._records[offset - self.first_offset :]

    async def offset_at(self, at_ms: int) -> int:
        return next((record.offset for record in self._records if record.at >= at_ms), self.next_offset)

    async def offset_within(self, max_bytes: int) -> int:
        kept = self.next_offset
        for record in reversed(self._records):
            max_bytes -= len(record.line)
            if max_bytes < 0:
                break
            kept = record.offset
        return kept

    async def sync(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def drop_before(self, offset: int) -> int:
        offset = min(offset, self.next_offset - 1)  # the last record always stays
        if offset > self.first_offset:
            del self._records[: offset - self.first_offset]
            self.first_offset = offset
        return self.first_offset


class MemoryStore:
    """Everything in dictionaries. Closing keeps it, so that a test can open a second bus on the same store."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock = clock or AnchoredClock()
        self.durable: Durable = lambda log, records: None
        self._logs: dict[tuple[str, str, str], MemoryLog] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._checkpoints: dict[tuple[LogName, str], list[Checkpoint]] = {}

    async def open(self, durable: Durable) -> None:
        self.durable = durable

    async def run(self) -> None:
        await anyio.sleep_forever()

    async def close(self) -> None:
        self.durable = lambda log, records: None

    async def log_names(self) -> list[LogName]:
        return [log.name for (kind, _, _), log in self._logs.items() if kind == "wal"]

    async def log(self, name: LogName) -> StoreLog:
        return self._log("wal", LogName(check_space(name.space_id), check_topic(name.topic)))

    async def dead_letters(self, name: LogName) -> StoreLog:
        return self._log("dlq", LogName(check_space(name.space_id), check_topic(name.topic)))

    async def has_dead_letters(self, name: LogName) -> bool:
        return ("dlq", *name) in self._logs

    async def journal(self, space_id: str, folder: str, name: str) -> StoreLog:
        return self._log(check_journal_folder(folder), LogName(check_space(space_id), journal_naming(name).stem))

    async def journals(self, space_id: str, folder: str) -> list[str]:
        return sorted(name for kind, space, name in self._logs if (kind, space) == (folder, space_id))

    def _log(self, kind: str, name: LogName) -> MemoryLog:
        key = (kind, name.space_id, name.topic)
        if key not in self._logs:
            self._logs[key] = MemoryLog(self, name, tells_durable=kind == "wal")
        return self._logs[key]

    async def groups(self) -> list[GroupRecord]:
        return list(self._groups.values())

    async def save_group(self, record: GroupRecord) -> None:
        await anyio.lowlevel.checkpoint()
        self._groups[check_group(record.name)] = record

    async def delete_group(self, group: str) -> None:
        self._checkpoints = {key: copies for key, copies in self._checkpoints.items() if key[1] != group}
        self._groups.pop(group, None)

    async def load_checkpoint(self, name: LogName, group: str) -> Checkpoint | None:
        copies = self._checkpoints.get((name, group), [])
        return copies[-1] if copies and copies[-1].log_id == self._log("wal", name).log_id else None

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        await anyio.lowlevel.checkpoint()
        copies = self._checkpoints.setdefault((name, group), [])
        copies.append(checkpoint)
        del copies[:-2]

    async def settled_by(self, name: LogName, group: str) -> int:
        copies = self._checkpoints.get((name, group), [])
        log_id = self._log("wal", name).log_id
        return min((copy.committed if copy.log_id == log_id else 0 for copy in copies), default=0)

    @property
    def storage_full(self) -> bool:
        return False

    @property
    def reports(self) -> Sequence[tuple[LogName, Examination]]:
        return ()

    @property
    def poisoned(self) -> Sequence[LogPoisoned]:
        return ()

    def statistics(self) -> Mapping[str, int]:
        return {"logs": len(self._logs), "open_files": 0, "open_files_peak": 0, "groups": len(self._groups)}
