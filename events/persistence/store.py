"""The contract of a store: logs, group records, checkpoints. The bus knows this and nothing below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from events.errors import LogPoisoned
from events.persistence.codec import Record
from events.persistence.recovery import Examination
from events.types import EventMeta


class LogName(NamedTuple):
    """A log is one topic in one space."""

    space_id: str
    topic: str


class Entry(NamedTuple):
    """What is to be appended: the members of its line, and what saves decoding them again.

    A dead letter `names` the offset that it is about, which is evidence for recovery.
    """

    members: bytes
    meta: EventMeta | None = None
    meta_bytes: int = 0
    names: int = 0


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts at one event: how many count, what they said, and when the next is due.

    `delay_ms` is what was waited for from the failure on: after a restart no clock can make it longer. `running`
    was written before the handler started, so that the next process knows what this one died of (rule W6), and
    `alone` that nothing else ran with it. `spared` counts the deaths beside others that it was not charged for.
    """

    count: int = 0
    due_ms: int = 0
    delay_ms: int = 0
    errors: tuple[str, ...] = ()
    running: bool = False
    alone: bool = False
    spared: int = 0


@dataclass(frozen=True, slots=True)
class Deferral:
    """An event that the gate put off, and how often it did so."""

    due_ms: int
    delay_ms: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a group has settled of one log, and what it holds of it.

    All offsets up to `committed` are settled, and those in `ranges` (inclusive, above it, apart). `dead_letters`
    is the last line of the topic's dead-letter log that is reflected here; `retries` are the dead letters being
    tried again, by (offset, round, line of the dead-letter log that holds the event).
    """

    log_id: str
    committed: int
    ranges: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[int, Attempts] = field(default_factory=dict)
    deferrals: Mapping[int, Deferral] = field(default_factory=dict)
    retries: Mapping[tuple[int, int, int], Attempts] = field(default_factory=dict)
    dead_letters: int = 0

    @property
    def highest(self) -> int:
        """The highest offset that it names (recovery's rule 3)."""
        ends = [end for _, end in self.ranges[-1:]]
        return max([self.committed, *ends, *self.attempts, *self.deferrals, *(offset for offset, _, _ in self.retries)])


StartKind = Literal["earliest", "latest", "timestamp", "offset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """That a group exists (rule W3). `held` is true while somebody consumes, so a crash leaves it true."""

    name: str
    topic: str
    space: str
    filters: tuple[Mapping[str, Any], ...] = ()
    start: StartKind = "earliest"
    start_value: int = 0
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held: bool = False
    created_ms: int = 0


class StoreLog(Protocol):
    """One log. Every call is made on the event loop; waiting happens off it."""

    @property
    def name(self) -> LogName: ...
    @property
    def log_id(self) -> str: ...
    @property
    def first_offset(self) -> int:
        """The first offset that is still there."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset that the next event will get. Everything below it may be read."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why nothing can be appended, if so: damage or a poisoned file."""
        ...

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        """Append and return the offsets once they are durable, by the store's own promise.

        Cancelled before a line was taken, it is never written; later, or on `OutcomeUnknown`, it may be. Whole
        or not at all holds for each entry.
        """
        ...

    async def read(self, offset: int, max_bytes: int) -> list[Record]:
        """Records in order from `offset`, at least one where there is one; empty at the end."""
        ...

    def recent(self, offset: int) -> Sequence[Record]:
        """What memory holds from `offset` on without waiting; often nothing."""
        ...

    async def offset_at(self, at_ms: int) -> int:
        """The first offset appended at that time or later."""
        ...

    async def offset_within(self, max_bytes: int) -> int:
        """The first offset from which on the log has at most that many bytes, by whole segments."""
        ...

    async def sync(self) -> None:
        """Return when everything below `next_offset` is durable (rule F7)."""
        ...

    async def drop_before(self, offset: int) -> int:
        """Delete what lies wholly below an offset, segment by segment; the first offset that is left."""
        ...


Durable = Callable[[StoreLog, Sequence[Record]], None]
"""Told on the event loop of every batch, in offset order, before its publishers are."""


class Store(Protocol):
    """Keeps logs, and for each group what it has settled.

    `open` comes first and once; `run` is the store's housekeeping, which the bus keeps going until `close`.
    """

    async def open(self, durable: Durable) -> None: ...
    async def run(self) -> None: ...
    async def close(self) -> None:
        """Make everything durable and let go. Safe to call twice."""
        ...

    async def log_names(self) -> list[LogName]:
        """Every log that there is."""
        ...

    async def log(self, name: LogName) -> StoreLog:
        """The log, made if need be. The same object every time."""
        ...

    async def dead_letters(self, name: LogName) -> StoreLog:
        """The dead-letter log of a log; its offsets are its own."""
        ...

    async def has_dead_letters(self, name: LogName) -> bool:
        """Whether anything was ever written there, without making it."""
        ...

    async def journal(self, space_id: str, folder: str, name: str) -> StoreLog:
        """A log of the bus's own, in a folder beside the others."""
        ...

    async def journals(self, space_id: str, folder: str) -> list[str]:
        """The names of the journals that there are in a folder."""
        ...

    async def groups(self) -> list[GroupRecord]: ...
    async def save_group(self, record: GroupRecord) -> None: ...
    async def delete_group(self, group: str) -> None:
        """Forget a group, its checkpoints first."""
        ...

    async def load_checkpoint(self, name: LogName, group: str) -> Checkpoint | None:
        """The newest good copy; None where there is none, or where it means another log of the same name."""
        ...

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        """Return when it is durable. The caller has synced the log through what it names."""
        ...

    async def settled_by(self, name: LogName, group: str) -> int:
        """How far a group has settled a log by the lower of its two checkpoints (rule F5)."""
        ...

    @property
    def storage_full(self) -> bool: ...
    @property
    def reports(self) -> Sequence[tuple[LogName, Examination]]:
        """What recovery found that was not clean, newest last; a bounded number of them."""
        ...

    @property
    def poisoned(self) -> Sequence[LogPoisoned]:
        """The logs that take no more, because the disk failed while they were written."""
        ...

    def statistics(self) -> Mapping[str, int]: ...
