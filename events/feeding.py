"""Reading for a group: logs that it has fallen behind on, and parked events whose time has come."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from events.attention_gate import Boost, Defer, Drop
from events.cursor import Cursor, open_cursor, read_dead_letters
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
        self._wanted: dict[LogName, bool] = {}
        self._opening: dict[LogName, bool] = {}
        self._behind: dict[Cursor, None] = {}
        self._wake = anyio.Event()
        self._is_starved = False
        self._is_due_first = False
        self._troubles: dict[LogName, str] = {}
        self._rests_until: dict[LogName, float] = {}

    def want(self, name: LogName, *, careful: bool = False) -> None:
        """Open a log, and read on from where the group left it; `careful` where that was no clean end."""
        self._wanted[name] = careful or self._wanted.get(name, False)
        self._wake.set()

    def fall_behind(self, cursor: Cursor) -> None:
        """Read a log on from its cursor when there is room."""
        if cursor.is_behind:
            return  # whatever it waits for will wake us; we must not, or we would never sleep
        cursor.is_behind = True
        self._behind[cursor] = None
        self._wake.set()

    def wake(self) -> None:
        """Look again whether there is something to read."""
        self._wake.set()

    def room_freed(self) -> None:
        """Look again, if the want of room was what it waited for."""
        if self._is_starved:
            self._wake.set()

    @property
    def has_wanted(self) -> bool:
        """Whether logs wait to be opened."""
        return bool(self._wanted or self._opening)

    @property
    def is_behind(self) -> bool:
        """Whether logs wait to be read."""
        return any(cursor.is_behind for cursor in self._behind)

    @property
    def troubles(self) -> dict[LogName, str]:
        """The logs that could not be read, and why."""
        return dict(self._troubles)

    async def run(self) -> None:
        """Read until cancelled."""
        clock = self._group.services.clock
        while True:
            self._wake = anyio.Event()
            self._is_starved = True  # room that is freed while this round waits for a read is seen by the next one
            if not await self._read_some():
                await clock.wait(self._wake, self._patience())

    def _patience(self) -> float | None:
        """How long to sleep when nothing could be read: until something falls due that there is room for.

        What fell due since the round began is not slept on: nobody would wake us for it.
        """
        group, due = self._group, self._group.window.next_due
        has_room = group.window.room > 0
        self._is_starved = bool(self._behind) or (due is not None and not has_room)
        if group.is_draining:
            return None
        times = [*self._rests_until.values(), *([due] if due is not None and has_room else ())]
        return max(0.0, min(times) - group.services.clock.monotonic()) if times else None

    async def _read_some(self) -> bool:
        """One round; False when there was nothing to read, or no room for it."""
        group = self._group
        if group.is_draining:
            return False
        progressed, now = False, group.services.clock.monotonic()
        self._rests_until = {name: until for name, until in self._rests_until.items() if until > now}
        for name in [name for name in self._wanted if name not in self._rests_until]:
            progressed = await self._open(name) or progressed
        # Each goes first every other time: what is due again and again must not keep the rest from its turn.
        self._is_due_first = not self._is_due_first
        for step in (self._take_due, self._take_behind) if self._is_due_first else (self._take_behind, self._take_due):
            progressed = await step() or progressed
        return progressed

    async def _take_due(self) -> bool:
        """Bring parked events whose time has come back into the window."""
        window, clock = self._group.window, self._group.services.clock
        for taken in range(_REFILL):
            if window.room <= 0 or (lane := window.pop_due(clock.monotonic())) is None:
                return taken > 0
            await self._refill(lane)
        return True

    async def _take_behind(self) -> bool:
        """Read on in the logs that the group is behind on."""
        progressed, window = False, self._group.window
        for cursor in list(self._behind):
            if not cursor.is_behind:
                del self._behind[cursor]
            elif window.room > 0 and not window.is_parked_full and cursor.name not in self._rests_until:
                self._behind[cursor] = self._behind.pop(cursor)  # the next round begins with another log
                progressed = await self._catch_up(cursor) or progressed
        return progressed

    async def _open(self, name: LogName) -> bool:
        """Take a log up, or look again for dead letters of one that is open: a retry may have come meanwhile."""
        group, store, clock = self._group, self._group.services.store, self._group.services.clock
        cursor = group.cursors.get(name)
        self._opening[name] = careful = self._wanted.pop(name)
        known = set(cursor.retries) if cursor is not None else set()
        try:
            if cursor is None:
                span = group.services.config.settle_span
                cursor = await open_cursor(store, name, group.record, careful=careful, span=span)
                group.cursors[name] = cursor
            else:
                await read_dead_letters(store, cursor, group.name)
        except (OSError, BusError) as error:
            self._wanted[name] = careful
            self._report(name, error)
            return False
        finally:
            del self._opening[name]
        for place in set(cursor.retries) - known:
            held = cursor.retries[place]
            left_ms = max(0, min(held.due_ms - clock.now_ms(), held.delay_ms))
            group.window.park_retry(cursor, place, clock.monotonic() + left_ms / 1000)
        self._troubles.pop(name, None)
        if cursor.is_stale:
            cursor.is_stale = False
            group.services.checkpointer.touch(group, cursor)
        if cursor.next < cursor.log.next_offset:
            self.fall_behind(cursor)
        else:
            cursor.is_behind, cursor.is_live = False, True
            group.let_go(cursor)
        group.services.changed()
        return True

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
            self._report(cursor.name, error)
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

    def _report(self, name: LogName, error: Exception) -> None:
        """Say it once, then try again now and then: a repair, or room on the disk, may have helped."""
        if self._troubles.get(name) != str(error):
            level = logging.ERROR if isinstance(error, CorruptLog) else logging.WARNING
            where = {"group": self._group.name, "space": name.space_id, "topic": name.topic}
            logger.log(level, "a group cannot read: %s", error, extra={**where, "code": error_code_of(error)})
            self._troubles[name] = str(error)
        self._rests_until[name] = self._group.services.clock.monotonic() + _TRY_AGAIN_S

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
            self._report(cursor.name, error)
            return
        self._troubles.pop(cursor.name, None)
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
        read_bytes = services.config.read_bytes if len(places) > 1 else 1
        records: list[Record] = []
        while len(records) < len(places):
            place = places[len(records)]
            if place.round:
                dead_letters = await services.store.dead_letters(cursor.name)
                records.append((await dead_letters.read(place.entry, 1))[0])
                continue
            if place.offset < cursor.log.first_offset:
                raise OffsetGone(cursor.name.topic, place.offset, cursor.log.first_offset)
            for record in await cursor.log.read(place.offset, read_bytes):
                if len(records) < len(places) and record.offset == places[len(records)].offset:
                    records.append(record)
        return records
