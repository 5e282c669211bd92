"""What a group works through: lanes that keep a key's order, and a queue that lets the urgent go first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from events.persistence.codec import Record

if TYPE_CHECKING:
    from events.cursor import Cursor

_FAIR_EVERY: Final = 16


class Place(NamedTuple):
    """An event as a group keeps track of it: its offset, and for a retry the round and the dead letter's line."""

    offset: int
    round: int = 0
    entry: int = 0


class Item:
    """An event in a group's window."""

    __slots__ = ("cursor", "is_concluded", "is_taken", "lane", "place", "priority", "record", "runs_singly", "sequence")

    def __init__(self, record: Record, place: Place, cursor: Cursor, lane: Lane | None, priority: int) -> None:
        self.record = record
        self.place = place
        self.cursor = cursor
        self.lane = lane
        self.priority = priority
        self.is_taken = False
        self.is_concluded = False
        self.runs_singly = False
        self.sequence = 0


class Lane:
    """The events of one key that a group holds, in order: first those in the window, then the parked ones.

    One delivery of a lane runs at a time. While its head backs off, or is deferred, all of it is parked and takes no
    room in the window. An event without a key gets a lane of its own when it has to be parked.
    """

    __slots__ = ("cursor", "due", "is_busy", "is_reading", "key", "parked", "queue")

    def __init__(self, cursor: Cursor, key: str | None) -> None:
        self.cursor = cursor
        self.key = key
        self.queue: deque[Item] = deque()
        self.parked: deque[Place] = deque()
        self.due = 0.0
        self.is_busy = False
        self.is_reading = False

    @property
    def is_blocked(self) -> bool:
        """Whether what arrives must be parked behind what is parked already."""
        return bool(self.parked)

    @property
    def is_empty(self) -> bool:
        """Whether the lane may be forgotten."""
        return not (self.queue or self.parked or self.is_busy)

    @property
    def urgency(self) -> int:
        """The priority of its most urgent event in the window."""
        return max(item.priority for item in self.queue)


class ReadyQueue:
    """Items that may run now, the most urgent first, in order of arrival among equals.

    Every sixteenth goes to whoever has waited longest, so nothing starves. An item may be entered again at a higher
    level when its lane becomes more urgent; the entry that is reached second is passed over.
    """

    def __init__(self) -> None:
        self._levels: dict[int, deque[Item]] = {}
        self._order: list[int] = []
        self._sequence = 0
        self._pops = 0

    def push(self, item: Item, level: int) -> None:
        """Enter an item at a level."""
        self._sequence += 1
        item.sequence = self._sequence
        queue = self._levels.get(level)
        if queue is None:
            queue = self._levels[level] = deque()
            self._order = sorted(self._levels, reverse=True)
        queue.append(item)

    def pop(self) -> Item | None:
        """The item that should run next, or None."""
        while self._order:
            level = self._order[0]
            if len(self._order) > 1:
                self._pops += 1
                if self._pops % _FAIR_EVERY == 0:
                    level = min(self._order, key=lambda one: self._levels[one][0].sequence)
            queue = self._levels[level]
            item = queue.popleft()
            if not queue:
                del self._levels[level]
                self._order.remove(level)
            if not item.is_taken:
                item.is_taken = True
                return item
        return None

    def put_back(self, item: Item, level: int) -> None:
        """Enter an item that was popped in vain, so that it comes first among its equals."""
        item.is_taken = False
        self.push(item, level)
        self._levels[level].rotate(1)

    def clear(self) -> None:
        """Forget everything."""
        self._levels.clear()
        self._order.clear()
