"""Reading history without a group: several logs merged by the time of their append, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from events.contracts import Filter
from events.persistence.codec import Record
from events.persistence.store import StoreLog
from events.subscription import Start
from events.types import Event, EventMeta

_BUFFER_BYTES: Final = 4 * 1024 * 1024
_MIN_BUFFER_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """An event of the past and where it stands."""

    space_id: str
    topic: str
    offset: int
    at_ms: int
    event: Event[Any]


async def _from(log: StoreLog, start: Start) -> int:
    if isinstance(start, datetime):
        return await log.offset_at(int(start.timestamp() * 1000))
    if isinstance(start, int):
        return max(start, log.first_offset)
    return log.first_offset if start == "earliest" else log.next_offset


async def _until(log: StoreLog, stop: datetime | int | None) -> int:
    if isinstance(stop, datetime):
        return await log.offset_at(int(stop.timestamp() * 1000))
    return log.next_offset if stop is None else min(stop, log.next_offset)


async def _records(log: StoreLog, start: int, stop: int, read_bytes: int) -> AsyncIterator[Record]:
    position = start
    while position < stop:
        records = await log.read(position, read_bytes)
        for record in records:
            if record.offset >= stop:
                return
            if not record.is_gap:
                yield record
        if not records:
            return
        position = records[-1].last + 1


async def replay(
    logs: Sequence[StoreLog],
    start: Start,
    stop: datetime | int | None,
    filters: Sequence[Filter],
    allowed: Callable[[StoreLog, EventMeta], bool],
) -> AsyncIterator[ReplayRecord]:
    """The records of all logs that are allowed and match, oldest first."""
    read_bytes = max(_MIN_BUFFER_BYTES, _BUFFER_BYTES // max(1, len(logs)))
    streams: list[tuple[int, int, Record, StoreLog, AsyncIterator[Record]]] = []
    for index, log in enumerate(logs):
        stream = _records(log, await _from(log, start), await _until(log, stop), read_bytes)
        first = await anext(stream, None)
        if first is not None:
            streams.append((first.at, index, first, log, stream))
    heapq.heapify(streams)
    while streams:
        at, index, record, log, stream = streams[0]
        if allowed(log, record.meta):
            event = record.event
            if await _matches(filters, event):
                yield ReplayRecord(log.name.space_id, log.name.topic, record.offset, at, event)
        following = await anext(stream, None)
        if following is None:
            heapq.heappop(streams)
        else:
            heapq.heapreplace(streams, (following.at, index, following, log, stream))


async def _matches(filters: Sequence[Filter], event: Event[Any]) -> bool:
    for one in filters:
        matched = one.matches(event)
        if not (matched if isinstance(matched, bool) else await matched):
            return False
    return True
