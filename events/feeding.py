"""Reading for a group: logs that it has fallen behind on, and parked events whose time has come."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from events.attention_gate import Boost, Defer, Drop
from events.cursor import Cursor, open_cursor
from events.errors import BusError, CorruptLog, OffsetGone, error_code_of
from events.lanes import Lane, Place
from events.persistence.codec import Record
from events.persistence.store import LogName

if TYPE_CHECKING:
    from events.group import Group

logger = logging.getLogger("events.feeding")
_REFILL: Final = 64
_TRY_AGAIN_S: Final = 1.0


class Feeder:
    """One task a group. It reads when there is room, and sleeps until there is or something falls due."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._wanted: dict[LogName, None] = {}
        self._wake = anyio.Event()
        self._troubles: dict[LogName, str] = {}

    def want(self, name: LogName) -> None:
        """Open a log, and read on from where the group left it."""
        self._wanted[name] = None
        self._wake.set()

    def wake(self) -> None:
        """Look again whether there is something to read."""
        self._wake.set()

    @property
    def has_wanted(self) -> bool:
        """Whether logs wait to be opened."""
        return bool(self._wanted)

    @property
    def has_more(self) -> bool:
        """Whether freed room would be of use."""
        return bool(self._wanted) or self._group.window.next_due is not None

    async def run(self) -> None:
        """Read until cancelled."""
        clock, window = self._group.services.clock, self._group.window
        while True:
            self._wake = anyio.Event()
            if not await self._read_some():
                due = window.next_due if window.room > 0 else None
                await clock.wait(self._wake, None if due is None else due - clock.monotonic())

    async def _read_some(self) -> bool:
        """One round; False when there was nothing to read, or no room for it."""
        group, window = self._group, self._group.window
        if group.is_draining:
            return False
        progressed = False
        while self._wanted:
            name = next(iter(self._wanted))
            await self._open(name)
            progressed = True
        while window.room > 0 and (lane := window.pop_due(group.services.clock.monotonic())) is not None:
            await self._refill(lane)
            progressed = True
        for cursor in list(group.cursors.values()):
            if cursor.is_behind and window.room > 0 and not window.is_parked_full:
                progressed = await self._catch_up(cursor) or progressed
        return progressed

    async def _open(self, name: LogName) -> None:
        group = self._group
        if name not in group.cursors:
            span = group.services.config.settle_span
            try:
                cursor = await open_cursor(group.services.store, name, group.record, careful=group.careful, span=span)
            except (OSError, BusError) as error:
                await self._report(name, error)
                return
            group.cursors[name] = cursor
            clock = group.services.clock
            for place, held in cursor.retries.items():
                left_ms = max(0, min(held.due_ms - clock.now_ms(), held.delay_ms))
                group.window.park_retry(cursor, place, clock.monotonic() + left_ms / 1000)
        self._wanted.pop(name, None)
        self._troubles.pop(name, None)
        cursor = group.cursors[name]
        cursor.is_behind = cursor.next < cursor.log.next_offset
        cursor.is_live = cursor.is_live or not cursor.is_behind
        group.services.changed()

    async def _catch_up(self, cursor: Cursor) -> bool:
        """Read on from the cursor: from memory where it can be had, else from the segments."""
        group, before = self._group, cursor.next
        try:
            records = await self._next_records(cursor)
        except OffsetGone as gone:
            group.skip(cursor, Place(cursor.next), "lost", gone.first_retained - 1)
            cursor.next = max(cursor.next, gone.first_retained)
            return True
        except (OSError, BusError) as error:
            await self._report(cursor.name, error)
            return False
        self._troubles.pop(cursor.name, None)
        group.take(cursor, records)
        await anyio.lowlevel.checkpoint()
        return cursor.next > before

    async def _next_records(self, cursor: Cursor) -> Sequence[Record]:
        log = cursor.log
        if cursor.next < log.first_offset:
            raise OffsetGone(log.name.topic, cursor.next, log.first_offset)
        records = log.recent(cursor.next)
        if records:
            return records
        cursor.is_reading = True
        try:
            return await log.read(cursor.next, self._group.services.config.read_bytes)
        finally:
            cursor.is_reading = False

    async def _report(self, name: LogName, error: Exception) -> None:
        """Say it once, then try again now and then: a repair, or room on the disk, may have helped."""
        if self._troubles.get(name) != str(error):
            level = logging.ERROR if isinstance(error, CorruptLog) else logging.WARNING
            where = {"group": self._group.name, "space": name.space_id, "topic": name.topic}
            logger.log(level, "a group cannot read: %s", error, extra={**where, "code": error_code_of(error)})
            self._troubles[name] = str(error)
        await self._group.services.clock.sleep(_TRY_AGAIN_S)

    @property
    def troubles(self) -> dict[LogName, str]:
        """The logs that could not be read, and why."""
        return dict(self._troubles)

    # -- parked events -----------------------------------------------------------------------------------------

    async def _refill(self, lane: Lane) -> None:
        """Read a parked lane's next events again: one that is retried, or a run of those that stood behind it."""
        window, clock, cursor = self._group.window, self._group.services.clock, lane.cursor
        is_retried = cursor.held_attempts(lane.parked[0]) is not None
        wanted = 1 if is_retried else min(_REFILL, window.room, len(lane.parked))
        places = [lane.parked[index] for index in range(wanted)]
        try:
            records = await self._read_places(cursor, places)
        except OffsetGone as gone:
            for place in [place for place in lane.parked if not place.round and place.offset < gone.first_retained]:
                self._group.skip(cursor, place, "lost")
                window.discard(lane, place)
            window.put_down(lane, 0.0)
            return
        except (OSError, BusError) as error:
            window.put_down(lane, clock.monotonic() + _TRY_AGAIN_S)
            await self._report(cursor.name, error)
            return
        due = 0.0
        for place, record in zip(places, records, strict=True):
            decision = self._group.judge(cursor, record, place)
            if isinstance(decision, Defer):
                due = clock.monotonic() + decision.seconds
                break
            if isinstance(decision, Drop):
                window.discard(lane, place)
                self._group.skip(cursor, place, "dropped")
                continue
            level = decision.priority if isinstance(decision, Boost) else self._group.priority_of(record)
            if place.round and lane.key is None:
                window.join(lane, record, level)
            else:
                window.unpark(lane, record, level, singly=is_retried)
        window.put_down(lane, due)
        self._group.workers.wake()

    async def _read_places(self, cursor: Cursor, places: Sequence[Place]) -> list[Record]:
        """The records of parked events, in order; a run of neighbours costs one read."""
        services = self._group.services
        records: list[Record] = []
        while len(records) < len(places):
            place = places[len(records)]
            if place.round:
                dead_letters = await services.store.dead_letters(cursor.name)
                records.append((await dead_letters.read(place.entry, 1))[0])
                continue
            if place.offset < cursor.log.first_offset:
                raise OffsetGone(cursor.name.topic, place.offset, cursor.log.first_offset)
            for record in await cursor.log.read(place.offset, services.config.read_bytes):
                if len(records) < len(places) and record.offset == places[len(records)].offset:
                    records.append(record)
        return records
