"""The dead-letter log: what its lines say, how they are written and read.

A death carries the whole event. A retry, the end of one, and a purge are lines of the same log, so that its state can
always be read off the file alone. A death is identified by (group, offset, round); a retry of it is the next round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from events.persistence.codec import Record, event_members
from events.persistence.store import Entry, StoreLog
from events.types import Event

_READ_BYTES: Final = 1024 * 1024
_DEAD: Final = b'"dead":'
_NOTE: Final = b'"dlq":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """An event that a group gave up on. `line` is its place in the dead-letter log."""

    line: int
    group: str
    offset: int
    round: int
    event_id: str
    reason: str
    errors: tuple[str, ...]
    attempts: int
    died_ms: int
    appended_ms: int
    record: Record

    @property
    def event(self) -> Event[Any]:
        """The event as it was published."""
        return self.record.event


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Round `round` of an event began; its copy stands in line `entry`."""

    line: int
    group: str
    offset: int
    round: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Round `round` of an event succeeded, or was skipped."""

    line: int
    group: str
    offset: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Every dead letter that died by then was forgotten; of one group, or of all."""

    line: int
    group: str
    died_by_ms: int

    def covers(self, death: Death) -> bool:
        """Whether a death is forgotten by this."""
        return self.group in ("*", death.group) and death.died_ms <= self.died_by_ms


DlqEntry = Death | Retry | Ended | Purge


def death_entry(
    record: Record,
    *,
    group: str,
    offset: int,
    round: int,
    reason: str,
    errors: Sequence[str],
    attempts: int,
    died_ms: int,
    appended_ms: int,
) -> Entry:
    """The line of a death: why and when, then the event byte for byte."""
    dead = {
        "group": group,
        "offset": offset,
        "round": round,
        "event_id": record.meta.event_id,
        "reason": reason,
        "errors": list(errors),
        "attempts": attempts,
        "died_ms": died_ms,
        "appended_ms": appended_ms,
    }
    event = event_members(record.meta.to_json(), record.raw_payload)
    return Entry(_DEAD + orjson.dumps(dead) + b"," + event, names=offset)


def retry_entry(death: Death) -> Entry:
    """The line that begins another round."""
    return _note({"op": "retry", **_identity(death, death.round + 1), "entry": death.line})


def ended_entry(*, group: str, offset: int, round: int) -> Entry:
    """The line that ends a round well."""
    return _note({"op": "ended", "group": group, "offset": offset, "round": round})


def purge_entry(*, group: str, died_by_ms: int) -> Entry:
    """The line that forgets; `group` may be `*`."""
    return _note({"op": "purge", "group": group, "died_by_ms": died_by_ms})


def _identity(death: Death, round: int) -> dict[str, Any]:
    return {"group": death.group, "offset": death.offset, "round": round}


def _note(data: dict[str, Any]) -> Entry:
    return Entry(_NOTE + orjson.dumps(data), names=data.get("offset", 0))


def decode_entry(record: Record) -> DlqEntry | None:
    """What a line says; None for a gap. The event in it is not decoded."""
    if record.is_gap:
        return None
    line = record.line
    begin = line.index(b",") + 1
    if line.startswith(_NOTE, begin):
        data = orjson.loads(line[begin + len(_NOTE) : line.rindex(b',"at":')])
        match data.pop("op"):
            case "retry":
                return Retry(line=record.offset, **data)
            case "ended":
                return Ended(line=record.offset, **data)
            case _:
                return Purge(line=record.offset, **data)
    end = line.index(b',"meta":', begin)
    data = orjson.loads(line[begin + len(_DEAD) : end])
    return Death(line=record.offset, record=record, **{**data, "errors": tuple(data["errors"])})


def appended_ms(record: Record, round: int) -> int:
    """When an event was appended to its log; the record of a later round is its dead letter, which knows."""
    death = decode_entry(record) if round else None
    return death.appended_ms if isinstance(death, Death) else record.at


async def read_entries(log: StoreLog, start: int = 1) -> AsyncIterator[DlqEntry]:
    """All lines of a dead-letter log from one on, oldest first."""
    position = max(start, log.first_offset)
    while records := await log.read(position, _READ_BYTES):
        for record in records:
            entry = decode_entry(record)
            if entry is not None:
                yield entry
        position = records[-1].last + 1


class OpenDeaths:
    """The dead letters that still need somebody, by (group, offset), as the lines of their log add up."""

    def __init__(self) -> None:
        self.deaths: dict[tuple[str, int], Death] = {}
        self.retrying: set[tuple[str, int]] = set()

    def add(self, entry: DlqEntry) -> None:
        """Take the next line into account."""
        if isinstance(entry, Purge):
            for key in [key for key, death in self.deaths.items() if entry.covers(death) and key not in self.retrying]:
                del self.deaths[key]
            return
        key = (entry.group, entry.offset)
        match entry:
            case Death():
                self.deaths[key] = entry
                self.retrying.discard(key)
            case Retry() if key in self.deaths:
                self.retrying.add(key)
            case Ended():
                self.deaths.pop(key, None)
                self.retrying.discard(key)

    def idle(self, group: str | None = None) -> list[Death]:
        """Those that nobody is retrying."""
        return [
            death for key, death in self.deaths.items() if key not in self.retrying and group in (None, death.group)
        ]


async def open_deaths(log: StoreLog) -> OpenDeaths:
    """What a dead-letter log adds up to."""
    found = OpenDeaths()
    async for entry in read_entries(log):
        found.add(entry)
    return found
