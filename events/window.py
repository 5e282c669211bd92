"""A group's window: what is queued or running, what is parked, and what may run next."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from events.config import Ordering
from events.cursor import Cursor
from events.lanes import Item, Lane, Place, ReadyQueue
from events.persistence.codec import Record

_WHOLE_LOG = ""


class Window:
    """Pure bookkeeping, no waiting: what goes in, what comes out, and in which order.

    `inflight` counts events that are queued or running, `parked` those that are kept as offsets. `scheduled` is
    called when a parked lane got a time at which it is due.
    """

    def __init__(
        self,
        *,
        max_inflight: int,
        max_parked: int,
        ordering: Ordering,
        scheduled: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_inflight = max_inflight
        self.max_parked = max_parked
        self.inflight = 0
        self.parked = 0
        self._ordering = ordering
        self._scheduled = scheduled
        self._ready = ReadyQueue()
        self._timers: list[tuple[float, int, Lane]] = []
        self._tick = count()

    @property
    def room(self) -> int:
        """How many more events may enter."""
        return self.max_inflight - self.inflight

    @property
    def is_parked_full(self) -> bool:
        """Whether no more may be parked, so that the cursors must stop."""
        return self.parked >= self.max_parked

    def _key(self, record: Record) -> str | None:
        if self._ordering == "key":
            return record.meta.key
        return _WHOLE_LOG if self._ordering == "topic" else None

    # -- in ----------------------------------------------------------------------------------------------------

    def blocks(self, cursor: Cursor, record: Record) -> Lane | None:
        """The lane that an event would have to be parked behind, if there is one."""
        key = self._key(record)
        lane = cursor.lanes.get(key) if key is not None else None
        return lane if lane is not None and lane.is_blocked else None

    def enter(self, cursor: Cursor, record: Record, place: Place, priority: int) -> None:
        """Queue an event that nothing stands in front of but the rest of its lane's queue."""
        key = self._key(record)
        lane = None
        if key is not None:
            lane = cursor.lanes.get(key)
            if lane is None:
                lane = cursor.lanes[key] = Lane(cursor, key)
        item = Item(record, place, cursor, lane, priority)
        # After a crash each attempt is written down for itself, and one that killed the process runs by itself; so
        # does one that failed before a restart.
        item.runs_singly = place.offset <= cursor.suspects_through or (
            bool(cursor.attempts or cursor.retries) and cursor.held_attempts(place) is not None
        )
        if lane is not None:
            self._enter_lane(lane, item)
        else:
            self.inflight += 1
            self._ready.push(item, priority)

    def _enter_lane(self, lane: Lane, item: Item) -> None:
        self.inflight += 1
        lane.queue.append(item)
        head = lane.queue[0]
        if head is item:
            if not lane.is_busy:
                self._ready.push(item, item.priority)
        elif not head.is_taken and item.priority > head.priority:
            self._ready.push(head, item.priority)

    def park_new(self, cursor: Cursor, record: Record, place: Place, due: float) -> None:
        """Park an event that has not entered: deferred, backing off since before a restart, or behind one that is."""
        key = self._key(record)
        lane = cursor.lanes.get(key) if key is not None else None
        if lane is None:
            lane = Lane(cursor, key)
            if key is not None:
                cursor.lanes[key] = lane
        self.parked += 1
        lane.parked.append(place)
        if len(lane.parked) == 1:
            lane.due = due
            if not lane.queue:
                self._schedule(lane)

    # -- out ---------------------------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Item]:
        """The next events to run together, most urgent first; a lane's events only in order, one lane at a time."""
        items: list[Item] = []
        while len(items) < limit:
            item = self._ready.pop()
            if item is None:
                break
            if items and item.runs_singly:
                self._ready.put_back(item, item.priority if item.lane is None else item.lane.urgency)
                break
            items.append(item)
            lane = item.lane
            if lane is not None:
                lane.is_busy = True
                if limit > 1 and not item.runs_singly:
                    for follower in list(lane.queue)[1 : 1 + limit - len(items)]:
                        if follower.runs_singly:
                            break
                        follower.is_taken = True
                        items.append(follower)
            if item.runs_singly:
                break
        return items

    def finish(self, item: Item) -> None:
        """An event is done with; whatever waited behind it in its lane may go."""
        item.is_concluded = True
        self.inflight -= 1
        lane = item.lane
        if lane is None:
            return
        lane.queue.remove(item)  # at or near the front
        if not any(other.is_taken for other in lane.queue):
            self._advance(lane)

    def _advance(self, lane: Lane) -> None:
        lane.is_busy = False
        if lane.queue:
            self._ready.push(lane.queue[0], lane.urgency)
        elif lane.parked:
            self._schedule(lane)
        elif lane.key is not None:
            lane.cursor.lanes.pop(lane.key, None)

    def park(self, item: Item, due: float) -> None:
        """An attempt failed: the event, and all that stands behind it in its lane, leave the window until it is due."""
        lane = item.lane
        if lane is None:
            lane = Lane(item.cursor, None)
            lane.queue.append(item)
        elif item not in lane.queue:
            return  # parked already, with the head of its batch
        places = [queued.place for queued in lane.queue]
        for queued in lane.queue:
            queued.is_taken = queued.is_concluded = True  # what the ready queue still holds of them is void
        lane.queue.clear()
        lane.parked.extendleft(reversed(places))
        self.inflight -= len(places)
        self.parked += len(places)
        lane.is_busy = False
        lane.due = due
        self._schedule(lane)

    # -- parked lanes ------------------------------------------------------------------------------------------

    def _schedule(self, lane: Lane) -> None:
        heappush(self._timers, (lane.due, next(self._tick), lane))
        self._scheduled()

    @property
    def next_due(self) -> float | None:
        """When the next parked lane may go on, by the monotonic clock."""
        return self._timers[0][0] if self._timers else None

    def pop_due(self, now: float) -> Lane | None:
        """A lane whose head is due and has nothing of its own in the window; its reader calls `unpark`."""
        while self._timers and self._timers[0][0] <= now:
            _, _, lane = heappop(self._timers)
            if lane.parked and not lane.queue and not lane.is_busy and not lane.is_reading:
                lane.is_reading = True
                return lane
        return None

    def unpark(self, lane: Lane, record: Record, priority: int, *, singly: bool = False) -> None:
        """Bring the first parked event of a lane back into the window."""
        place = lane.parked.popleft()
        self.parked -= 1
        item = Item(record, place, lane.cursor, lane, priority)
        item.runs_singly = singly
        self._enter_lane(lane, item)

    def discard(self, lane: Lane, place: Place) -> None:
        """Forget a parked event that was settled without entering."""
        lane.parked.remove(place)
        self.parked -= 1

    def put_down(self, lane: Lane, due: float) -> None:
        """The reader is done with a lane: whatever is still parked is looked at again when it is due."""
        lane.is_reading = False
        lane.due = due
        if lane.parked and not lane.queue:
            self._schedule(lane)
        elif lane.is_empty and lane.key is not None:
            lane.cursor.lanes.pop(lane.key, None)

    def join(self, lane: Lane, record: Record, priority: int) -> None:
        """A dead letter's round was read, so its key is known: it goes to the end of that key's lane (rule W10)."""
        place = lane.parked.popleft()
        self.parked -= 1
        if self.blocks(lane.cursor, record):
            self.park_new(lane.cursor, record, place, 0.0)
        else:
            self.enter(lane.cursor, record, place, priority)

    def park_retry(self, cursor: Cursor, place: Place, due: float) -> None:
        """Park a dead letter's new round: its key is not known before it is read, so it gets a lane of its own."""
        lane = Lane(cursor, None)
        lane.parked.append(place)
        self.parked += 1
        self.put_down(lane, due)
