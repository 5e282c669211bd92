"""Reading a gate's journals: the decisions that were made, and what each of them knew.

From a store, which is a running bus's, or from the files of a workspace beside whoever writes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import anyio.to_thread
import orjson

from events.attention.journal import FOLDER, FRESH, GATE_FAILED, MAY_DEFER, journal_name
from events.attention_gate import Admit, Boost, Decision, Defer, Drop, Focus, GateContext, Situation
from events.errors import OffsetGone
from events.persistence.codec import Record
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName, Store
from filters.serial import filter_from

_READ_BYTES: Final = 256 * 1024
_SPAN: Final = 64


class JournalKey(NamedTuple):
    """A journal is a group's on a topic in a space."""

    space_id: str
    topic: str
    group: str

    @property
    def log(self) -> LogName:
        """The log that it is about."""
        return LogName(self.space_id, self.topic)


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision on record. `context` lacks only when the event was appended: that stands in the log.

    `event_id` and `type` are None for a plain admit, which leaves no more than its context. `failed` says that the
    gate could not judge, so the event was processed.
    """

    context: GateContext
    treated: Decision
    policy: str
    event_id: str | None = None
    type: str | None = None
    failed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the event was simply admitted."""
        return self.event_id is None


def decode_run(record: Record, key: JournalKey) -> list[Ask]:
    """The decisions of one line of a journal, plain admits first."""
    if record.is_gap:
        return []
    return list(_asks(record.members()["gate"], key))


def _asks(data: Mapping[str, Any], key: JournalKey) -> Iterator[Ask]:
    situation = _situation(orjson.dumps(data["situation"]))
    policy, began_ms, max_inflight = data["policy"], data["now_ms"], data["max_inflight"]
    for offset, after_ms, priority, inflight, backlog, flags, familiarity, *spent in data["admitted"]:
        context = GateContext(
            *(key.group, key.space_id, key.topic, offset, began_ms + after_ms, 0, inflight, max_inflight),
            backlog=backlog,
            priority=priority,
            may_defer=bool(flags & MAY_DEFER),
            is_fresh=bool(flags & FRESH),
            familiarity=familiarity,
            spent=tuple(spent[0].items()) if spent else (),
            situation=situation,
        )
        yield Ask(context, Admit(), policy)
    for said in data["decided"]:
        context = GateContext(
            *(key.group, key.space_id, key.topic, said["offset"], said["now_ms"], 0, said["inflight"], max_inflight),
            deferrals=said["deferrals"],
            backlog=said["backlog"],
            priority=said["priority"],
            may_defer=said["may_defer"],
            is_fresh=said["is_fresh"],
            familiarity=said["familiarity"],
            spent=tuple(said["spent"].items()),
            situation=situation,
        )
        yield Ask(
            context, _decision(said), policy, said["event_id"], said["type"], failed=said["reason"] == GATE_FAILED
        )


def _decision(said: Mapping[str, Any]) -> Decision:
    about = (said["reason"], said["score"], tuple(said["parts"].items()))
    match said["decision"]:
        case "defer":
            return Defer(said["seconds"], *about)
        case "boost":
            return Boost(said["to"], *about)
        case "drop":
            return Drop(*about)
        case _:
            return Admit(*about)


@lru_cache(maxsize=256)
def _situation(data: bytes) -> Situation:
    said = orjson.loads(data)
    focus = tuple(Focus(one["id"], filter_from(one["filter"]), one["weight"], one["until_ms"]) for one in said["focus"])
    return Situation(said["level"], said["load"], focus)


class History(Protocol):
    """Where journals and the events that they are about can be read."""

    async def keys(self) -> list[JournalKey]:
        """Every journal that there is."""
        ...

    def lines(self, key: JournalKey) -> AsyncIterator[Record]:
        """The lines of a journal, oldest first."""
        ...

    async def events(self, name: LogName, offsets: Sequence[int]) -> dict[int, Record]:
        """The records of a log at these offsets, which rise; without those that are gone."""
        ...


def spans(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Offsets that rise, as stretches that are worth one read each."""
    first = last = 0
    for offset in offsets:
        if first and offset - last > _SPAN:
            yield first, last
            first = offset
        first, last = first or offset, offset
    if first:
        yield first, last


class StoreHistory:
    """The history in a store that is open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keys(self) -> list[JournalKey]:
        spaces = sorted({name.space_id for name in await self._store.log_names()})
        return [_key(space, name) for space in spaces for name in await self._store.journals(space, FOLDER)]

    async def lines(self, key: JournalKey) -> AsyncIterator[Record]:
        journal = await self._store.journal(key.space_id, FOLDER, journal_name(key.topic, key.group))
        position = journal.first_offset
        while True:
            try:
                records = await journal.read(position, _READ_BYTES)
            except OffsetGone as gone:  # the bound of the journal moved on while it was read
                position = gone.first_retained
                continue
            if not records:
                return
            for record in records:
                yield record
            position = records[-1].last + 1

    async def events(self, name: LogName, offsets: Sequence[int]) -> dict[int, Record]:
        log = await self._store.log(name)
        wanted, found = set(offsets), {}
        for first, last in spans(offset for offset in offsets if offset >= log.first_offset):
            position = first
            while position <= last:
                try:
                    records = await log.read(position, _READ_BYTES)
                except OffsetGone:
                    break
                if not records:
                    break
                found.update({one.offset: one for one in records if one.offset in wanted and not one.is_gap})
                position = records[-1].last + 1
        return found


class OutsideHistory:
    """The history in the files of a workspace: needs no lock, changes nothing, sees what is proven durable."""

    def __init__(self, workspace: str | Path) -> None:
        self._reader = WorkspaceReader(workspace)

    async def keys(self) -> list[JournalKey]:
        def look() -> list[JournalKey]:
            reader = self._reader
            return [_key(space, name) for space in reader.spaces() for name in reader.journals(space, FOLDER)]

        return await anyio.to_thread.run_sync(look)

    async def lines(self, key: JournalKey) -> AsyncIterator[Record]:
        journal = self._reader.journal(key.space_id, FOLDER, journal_name(key.topic, key.group))
        lines = iter(journal.read())

        def some() -> list[Record]:
            return [record for record, _ in zip(lines, range(_SPAN), strict=False)]

        while records := await anyio.to_thread.run_sync(some):
            for record in records:
                yield record

    async def events(self, name: LogName, offsets: Sequence[int]) -> dict[int, Record]:
        def look() -> dict[int, Record]:
            log, wanted = self._reader.log(name), set(offsets)
            found: dict[int, Record] = {}
            first_retained = log.prove().first
            for first, last in spans(offset for offset in offsets if offset >= first_retained):
                found |= {one.offset: one for one in log.read(first, through=last) if one.offset in wanted}
            return {offset: record for offset, record in found.items() if not record.is_gap}

        return await anyio.to_thread.run_sync(look)


def _key(space_id: str, name: str) -> JournalKey:
    topic, _, group = name.partition("__")
    return JournalKey(space_id, topic, group)
