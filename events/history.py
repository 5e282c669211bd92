"""Reading history from outside the bus: several logs merged by the time of their append, beside whoever writes them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Final

from events.contracts import Filter
from events.errors import InvalidMessage, OffsetGone
from events.persistence.codec import Record
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName
from events.replay import ReplayRecord
from events.subscription import Start
from events.types import Event

_FIRST_LOOK: Final = 64
_GROWTH: Final = 8
_CHUNK: Final = 2048
_MIN_CHUNK: Final = 16

Wanted = Callable[[ReplayRecord], bool]


def wanted_by(filters: Sequence[Filter]) -> Wanted:
    """Whether all filters match, as one question. Filters that need an event loop are refused."""

    def wanted(record: ReplayRecord) -> bool:
        return all(_matches(one, record.event) for one in filters)

    return wanted


def _matches(one: Filter, event: Event) -> bool:
    matched = one.matches(event)
    if not isinstance(matched, bool):
        if isinstance(matched, Coroutine):
            matched.close()
        raise InvalidMessage("filter", one, "an asynchronous filter needs a bus; use a declarative one here")
    return matched


def read_history(
    reader: WorkspaceReader,
    names: Sequence[LogName],
    *,
    start: Start = "earliest",
    stop: datetime | int | None = None,
    wanted: Wanted = lambda record: True,
) -> Iterator[ReplayRecord]:
    """What is proven durable and wanted, oldest first, from `start` up to and not including `stop`."""
    chunk = max(_MIN_CHUNK, _CHUNK // max(1, len(names)))
    streams = (
        _records(reader, name, _first(reader, name, start), _last(reader, name, stop), chunk=chunk) for name in names
    )
    merged = heapq.merge(*streams, key=lambda record: record.at_ms)
    return (record for record in merged if wanted(record))


def read_latest(
    reader: WorkspaceReader, names: Sequence[LogName], count: int, *, wanted: Wanted = lambda record: True
) -> list[ReplayRecord]:
    """The last `count` wanted records of all logs together, oldest first."""
    latest: list[ReplayRecord] = []
    for name in names:
        latest += _latest_of(reader, name, count, wanted)
    latest.sort(key=lambda record: record.at_ms)
    return latest[-count:] if count else []


def _latest_of(reader: WorkspaceReader, name: LogName, count: int, wanted: Wanted) -> list[ReplayRecord]:
    """Looks back in growing steps, so that a filter that matches seldom does not read the log twice."""
    proof = reader.log(name).prove()
    found: list[ReplayRecord] = []
    end, step = proof.durable, max(count, _FIRST_LOOK)
    while end >= proof.first and len(found) < count:
        begin = max(proof.first, end - step + 1)
        found = [record for record in _records(reader, name, begin, end) if wanted(record)] + found
        end, step = begin - 1, step * _GROWTH
    return found[-count:] if count else []


class Follower:
    """Reads on where it stopped, in the logs that there are and those that appear. Not for two threads at once."""

    def __init__(self, reader: WorkspaceReader, names: Callable[[], Sequence[LogName]]) -> None:
        self._reader = reader
        self._names = names
        self._next: dict[LogName, int] = {}
        self.lost = 0

    def skip_to_end(self) -> None:
        """Begin behind what is proven durable now; a log that appears later is read from its first event."""
        for name in self._names():
            self._next[name] = self._reader.log(name).prove().durable + 1

    def read(self, wanted: Wanted = lambda record: True) -> list[ReplayRecord]:
        """What became durable since the last call, merged; `lost` counts what retention took before it was read."""
        found: list[ReplayRecord] = []
        for name in self._names():
            begin = self._next.get(name, 1)
            proof = self._reader.log(name).prove()
            if proof.durable < begin:
                continue
            if begin < proof.first:
                self.lost += proof.first - begin if name in self._next else 0
                begin = proof.first
            try:
                found += _records(self._reader, name, begin, proof.durable)
            except OffsetGone as gone:
                self.lost += gone.first_retained - gone.offset
                found += _records(self._reader, name, gone.first_retained, proof.durable)
            self._next[name] = proof.durable + 1
        found.sort(key=lambda record: record.at_ms)
        return [record for record in found if wanted(record)]


def _records(
    reader: WorkspaceReader, name: LogName, first: int, last: int, *, chunk: int = _CHUNK
) -> Iterator[ReplayRecord]:
    """A chunk at a time, so that no file stays open while other logs are read: there may be thousands."""
    while first <= last:
        records = list(reader.log(name).read(first, through=min(last, first + chunk - 1)))
        if not records:
            return
        yield from (as_replayed(name, record) for record in records if not record.is_gap)
        first = records[-1].last + 1


def as_replayed(name: LogName, record: Record) -> ReplayRecord:
    """A record of a log as replay hands it out."""
    return ReplayRecord(name.space_id, name.topic, record.offset, record.at, record.event)


def _first(reader: WorkspaceReader, name: LogName, start: Start) -> int:
    log = reader.log(name)
    if isinstance(start, datetime):
        return log.offset_at(int(start.timestamp() * 1000))
    proof = log.prove()
    if isinstance(start, int):
        return max(start, proof.first)
    return proof.first if start == "earliest" else proof.durable + 1


def _last(reader: WorkspaceReader, name: LogName, stop: datetime | int | None) -> int:
    log = reader.log(name)
    if isinstance(stop, datetime):
        return log.offset_at(int(stop.timestamp() * 1000)) - 1
    durable = log.prove().durable
    return durable if stop is None else min(stop - 1, durable)
