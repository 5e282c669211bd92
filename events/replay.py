"""Reading history without a group: several logs merged by the time of their append, in bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
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


class _Stream:
    """The records of one log between two offsets, read as they are asked for."""

    def __init__(self, log: StoreLog, start: int, stop: int, read_bytes: int) -> None:
        self.log = log
        self._position = start
        self._stop = stop
        self._read_bytes = read_bytes
        self._records: Iterator[Record] = iter(())

    async def next(self) -> Record | None:
        """The record that comes next; None at the end."""
        while True:
            for record in self._records:
                if record.offset >= self._stop:
                    return None
                if not record.is_gap:
                    return record
            records = await self.log.read(self._position, self._read_bytes) if self._position < self._stop else []
            if not records:
                return None
            self._position = records[-1].last + 1
            self._records = iter(records)


class Replay(AsyncIterator[ReplayRecord]):
    """The records of all logs that are allowed and match, oldest first.

    Not a generator: whoever leaves the loop early has nothing to close, on either event loop.
    """

    def __init__(
        self,
        logs: Callable[[], Awaitable[Sequence[StoreLog]]],
        start: Start,
        stop: datetime | int | None,
        filters: Sequence[Filter],
        allowed: Callable[[StoreLog, EventMeta], bool],
    ) -> None:
        self._logs = logs
        self._start = start
        self._stop = stop
        self._filters = filters
        self._allowed = allowed
        self._streams: list[tuple[int, int, Record, _Stream]] | None = None

    async def __anext__(self) -> ReplayRecord:
        streams = self._streams
        if streams is None:
            streams = self._streams = await self._opened()
        while streams:
            at, index, record, stream = streams[0]
            following = await stream.next()
            if following is None:
                heapq.heappop(streams)
            else:
                heapq.heapreplace(streams, (following.at, index, following, stream))
            log = stream.log
            if self._allowed(log, record.meta):
                event = record.event
                if await _matches(self._filters, event):
                    return ReplayRecord(log.name.space_id, log.name.topic, record.offset, at, event)
        raise StopAsyncIteration

    async def _opened(self) -> list[tuple[int, int, Record, _Stream]]:
        logs = await self._logs()
        read_bytes = max(_MIN_BUFFER_BYTES, _BUFFER_BYTES // max(1, len(logs)))
        streams: list[tuple[int, int, Record, _Stream]] = []
        for index, log in enumerate(logs):
            stream = _Stream(log, await _from(log, self._start), await _until(log, self._stop), read_bytes)
            first = await stream.next()
            if first is not None:
                streams.append((first.at, index, first, stream))
        heapq.heapify(streams)
        return streams


async def _matches(filters: Sequence[Filter], event: Event[Any]) -> bool:
    for one in filters:
        matched = one.matches(event)
        if not (matched if isinstance(matched, bool) else await matched):
            return False
    return True
