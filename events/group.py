"""A durable consumer group: what it holds of each log, and what becomes of the events that reach it.

A live batch is taken at once where the group stands at the head of the log and has room; otherwise `feeding` reads
the log when there is room again. `working` takes events from the window, most urgent first, and `settling` gives each
exactly one end: settled, parked for a retry, or dead.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from events.attention_gate import Admit, Boost, Decision, Defer, Drop
from events.config import OnExpired, Ordering, Overflow
from events.cursor import Cursor
from events.deadletters import Death
from events.errors import InvalidMessage
from events.feeding import Feeder
from events.handlers import Pipeline
from events.lanes import Place
from events.persistence.codec import BadLine, Record
from events.persistence.store import Attempts, Deferral, GroupRecord, LogName, StoreLog
from events.settling import Settler
from events.signals import Signal
from events.types import priority_level
from events.window import Window
from events.working import Workers

if TYPE_CHECKING:
    from events.services import Services

logger = logging.getLogger("events.group")
_MAX_IDLE_CURSORS: Final = 1024
_ADMIT: Final = Admit()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a group consumes: what `subscribe` was told, over the topic's policy, over the bus's defaults."""

    workers: int
    max_inflight: int
    max_parked: int
    batch: int
    ordering: Ordering
    overflow: Overflow
    backoff_base: float
    backoff_mult: float
    backoff_max: float
    max_retries: int
    ack_deadline_s: float | None
    on_expired: OnExpired


_WHOLE: Final = {"workers": 1, "max_inflight": 1, "max_parked": 1, "batch": 1, "max_retries": 0}
_SPANS: Final = ("backoff_base", "backoff_mult", "backoff_max", "ack_deadline_s")
_CHOICES: Final = {"ordering": get_args(Ordering), "overflow": get_args(Overflow), "on_expired": get_args(OnExpired)}


def checked_options(values: Mapping[str, Any]) -> GroupOptions:
    """The settings of a subscription, or `InvalidMessage` with the first one that makes no sense."""
    for name, least in _WHOLE.items():
        if not isinstance(values[name], int) or values[name] < least:
            raise InvalidMessage(name, values[name], f"{name} is a whole number of at least {least}")
    for name in _SPANS:
        number = values[name]
        if number is not None and not (isinstance(number, int | float) and 0 <= number < math.inf):
            raise InvalidMessage(name, number, f"{name} is a finite number, and not negative")
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            raise InvalidMessage(name, values[name], f"{name} is one of {', '.join(choices)}")
    return GroupOptions(**values)


class Group:
    """One group in this process. Everything here runs on the event loop; nothing is shared with other threads."""

    def __init__(
        self, services: Services, record: GroupRecord, options: GroupOptions, pipeline: Pipeline, *, careful: bool
    ) -> None:
        self.name = record.name
        self.record = record
        self.options = options
        self.services = services
        self.careful = careful
        self.counts: Counter[str] = Counter()
        self.cursors: dict[LogName, Cursor] = {}
        self._feeder = Feeder(self)
        self.window = Window(
            max_inflight=options.max_inflight,
            max_parked=options.max_parked,
            ordering=options.ordering,
            scheduled=self._feeder.wake,
        )
        self.is_draining = False
        self._settler = Settler(self)
        self.workers = Workers(self, self._settler)
        self._pipeline = pipeline
        self._room = Signal()
        self._scope = anyio.CancelScope()
        self._stopped = anyio.Event()

    # -- what the dispatcher brings ----------------------------------------------------------------------------

    def offer(self, log: StoreLog, records: Sequence[Record]) -> None:
        """A batch is durable. Take it if it is what comes next here and there is room; else it waits in the log."""
        cursor = self.cursors.get(log.name)
        if cursor is None:
            self._feeder.want(log.name)
        elif cursor.next == records[0].offset and not cursor.is_reading and not self.is_draining:
            self.take(cursor, records)
        else:
            self._feeder.fall_behind(cursor)

    def want(self, name: LogName) -> None:
        """Take up a log that was there before the group ran, as soon as the feeder gets to it."""
        self._feeder.want(name, careful=self.careful)

    def take(self, cursor: Cursor, records: Sequence[Record]) -> None:
        """Move the cursor over records in order, as far as there is room for them."""
        window, limit = self.window, cursor.saved_highest + self.services.config.settle_span
        if records:
            cursor.appended.note(records[0], cursor.settled.committed)
        for record in records:
            if record.last < cursor.next:
                continue
            if window.inflight >= window.max_inflight or window.is_parked_full:
                break
            if record.offset > limit or cursor.settled.range_count >= window.max_parked:
                if cursor.settled.highest > cursor.saved_highest:
                    self.services.checkpointer.touch(self, cursor)
                    self.services.checkpointer.hurry()
                break
            self._admit(cursor, record)
            cursor.next = record.last + 1
        if cursor.next >= cursor.log.next_offset:
            if cursor.is_behind:
                self.services.changed()  # nothing may have been left to settle
            cursor.is_behind, cursor.is_live = False, True
            self.tell_room()
        else:
            self._feeder.fall_behind(cursor)
        self.workers.wake()

    def _admit(self, cursor: Cursor, record: Record) -> None:
        """Decide what becomes of one event that the cursor has come to: step 6, and the door to step 7."""
        place = Place(record.offset)
        if record.is_gap:
            self.skip(cursor, place, "lost", record.last)
        elif place.offset in cursor.settled:
            return
        elif not self._is_readable(cursor, record):
            self.skip(cursor, place, "unreadable")
        elif self.window.blocks(cursor, record):
            self.window.park_new(cursor, record, place, 0.0)
        elif (wait_s := self._still_waits(cursor, place)) > 0:
            self.window.park_new(cursor, record, place, self.services.clock.monotonic() + wait_s)
        else:
            match self.judge(cursor, record, place):
                case Drop():
                    self.skip(cursor, place, "dropped")
                case Defer(seconds=seconds):
                    self.window.park_new(cursor, record, place, self.services.clock.monotonic() + seconds)
                case Boost(priority=priority):
                    self.window.enter(cursor, record, place, priority)
                case Admit():
                    self.window.enter(cursor, record, place, self.priority_of(record))

    def _is_readable(self, cursor: Cursor, record: Record) -> bool:
        """Whether this version understands the event's meta. One that it does not must not stop the log."""
        try:
            return record.meta is not None
        except BadLine as error:
            logger.error("skipped an event that cannot be read: %s", error, extra=self.where(cursor, record.offset))
            return False

    def priority_of(self, record: Record) -> int:
        """The event's own priority, or its topic's."""
        priority = record.meta.priority
        if priority is None and self.services.config.topics is not None:
            priority = self.services.config.topic(str(record.meta.topic))("priority")
        return priority_level(priority)

    def _still_waits(self, cursor: Cursor, place: Place) -> float:
        """What is left of a wait that began before a restart; no clock can make it longer than it was."""
        held: Attempts | Deferral | None = cursor.attempts.get(place) or cursor.deferrals.get(place.offset)
        if held is None:
            return 0.0
        return min(held.due_ms - self.services.clock.now_ms(), held.delay_ms) / 1000

    # -- the gate ----------------------------------------------------------------------------------------------

    def judge(self, cursor: Cursor, record: Record, place: Place) -> Decision:
        """Ask the gate about an event that was never attempted (rule W13); a deferral is remembered."""
        keeper = self.services.keeper
        if keeper is None or place.round:
            return _ADMIT
        if (admitted := cursor.admitted.get(place.offset)) is not None:
            return admitted
        if place in cursor.attempts:
            return _ADMIT
        deferral = cursor.deferrals.get(place.offset)
        times = 0 if deferral is None else deferral.times
        # At the bound of patience, or of memory, a defer counts as an admit (rule W7).
        may_defer = times < self.services.config.max_deferrals and not self.window.is_parked_full
        decision = keeper.ask(self, cursor, record, times, may_defer=may_defer)
        if isinstance(decision, Defer):
            delay_ms = int(decision.seconds * 1000)
            cursor.deferrals[place.offset] = Deferral(self.services.clock.now_ms() + delay_ms, delay_ms, times + 1)
            self.counts["deferred"] += 1
            self.services.checkpointer.touch(self, cursor)
        elif not isinstance(decision, Drop):
            cursor.admitted[place.offset] = Boost(decision.priority) if isinstance(decision, Boost) else _ADMIT
        return decision

    # -- room --------------------------------------------------------------------------------------------------

    def holds_back(self, name: LogName) -> bool:
        """Whether publishers to a log must wait: the group keeps up with it, blocks, and has no room (rule W12)."""
        cursor = self.cursors.get(name)
        if cursor is None or not cursor.is_live or self.options.overflow != "block" or self.is_draining:
            return False
        return self.window.room <= 0 or cursor.is_behind

    async def wait_room(self, timeout_s: float) -> bool:
        """Wait until there may be room; whether that came in time."""
        return await self.services.clock.wait(self._room.next, timeout_s)

    def tell_room(self) -> None:
        """Wake the publishers that wait, if they have something to hope for."""
        if self.window.room > 0 or self.is_draining:
            self._room.tell()

    # -- bookkeeping that feeding, working and settling share --------------------------------------------------

    def skip(self, cursor: Cursor, place: Place, reason: str, last: int | None = None) -> None:
        """Settle what never ran, and count why (rule W11)."""
        cursor.settle(place, last)
        self.counts[reason] += 1 if last is None else last - place.offset + 1
        logger.debug("skipped", extra={**self.where(cursor, place.offset), "reason": reason})
        self.progressed(cursor)

    def progressed(self, cursor: Cursor) -> None:
        """Something left the window, or was settled: whoever waits for that may look again."""
        if cursor.suspects_through and cursor.settled.committed >= cursor.suspects_through:
            cursor.suspects_through = 0
        self.services.checkpointer.touch(self, cursor)
        self._feeder.room_freed()
        if cursor.is_live and not cursor.is_behind:
            self.tell_room()
        self.services.changed()

    def saved(self, cursor: Cursor) -> None:
        """A checkpoint is durable: a cursor that had to wait for it may go on."""
        if cursor.is_behind:
            self._feeder.wake()
        self.let_go(cursor)

    def let_go(self, cursor: Cursor) -> None:
        """Forget one of too many cursors, if its checkpoint says all that it would."""
        if len(self.cursors) <= _MAX_IDLE_CURSORS or cursor.is_behind or self.services.checkpointer.is_due(cursor):
            return
        if cursor.is_idle and cursor.saved_highest == cursor.settled.highest:
            self.cursors.pop(cursor.name, None)

    def where(self, cursor: Cursor, offset: int) -> dict[str, Any]:
        """An event's whereabouts, for a log line."""
        return {"group": self.name, "space": cursor.name.space_id, "topic": cursor.name.topic, "offset": offset}

    def retry(self, name: LogName, death: Death) -> None:
        """Begin a new round of a dead letter; the round stands in the dead-letter log already."""
        cursor = self.cursors.get(name)
        if cursor is None:
            self._feeder.want(name)  # opening the log finds it
            return
        place = Place(death.offset, death.round + 1, death.line)
        if place in cursor.retries:
            return  # opening the log has found it already
        cursor.hold_attempts(place, Attempts())
        self.window.park_retry(cursor, place, 0.0)
        self.progressed(cursor)

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Consume until stopped."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    self._start(tasks)
                    task_status.started()
        finally:
            self._stopped.set()

    def _start(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._feeder.run)
        self.workers.start(tasks)
        self.workers.add(self._pipeline, self.options.workers)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is queued or running, and nothing more is to be read right now."""
        return self.window.inflight == 0 and not self._feeder.is_behind and not self._feeder.has_wanted

    @property
    def is_settled(self) -> bool:
        """Whether every event of every log of this group is settled."""
        if not self.is_at_rest or self.window.parked:
            return False  # asked after every change, so the many cursors come last
        cursors = self.cursors.values()
        return all(cursor.settled.committed >= cursor.log.next_offset - 1 and not cursor.retries for cursor in cursors)

    @property
    def is_stopping(self) -> bool:
        """Whether the group's tasks are being cancelled."""
        return self._scope.cancel_called

    @property
    def troubles(self) -> dict[LogName, str]:
        """Logs that the group cannot read, and why."""
        return self._feeder.troubles

    def drain(self) -> None:
        """Take nothing more; what is in the window is still worked off."""
        self.is_draining = True
        self.tell_room()

    async def stop(self) -> None:
        """End now. What was running is released without charging it an attempt. Safe to call twice."""
        self.drain()
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._stopped.wait()
        for item in self.workers.running_items():
            held = item.cursor.held_attempts(item.place)
            if held is not None and held.running:
                released = replace(held, count=held.count - 1, running=False)
                item.cursor.hold_attempts(item.place, released)
                self.services.checkpointer.touch(self, item.cursor)

    def statistics(self) -> Mapping[str, Any]:
        """Numbers for `bus.statistics()` and the metrics.

        `lag` counts what is not settled; `lag_s` is how old the first event is that comes after everything settled,
        `oldest_s` the oldest that is not settled: they differ while an event waits for its next attempt.
        """
        cursors, now_ms = list(self.cursors.values()), self.services.clock.now_ms()
        return {
            "inflight": self.window.inflight,
            "parked": self.window.parked,
            "lag": sum(cursor.lag for cursor in cursors),
            "lag_s": max((cursor.age_s(cursor.settled.highest + 1, now_ms) for cursor in cursors), default=0.0),
            "oldest_s": max((cursor.age_s(cursor.settled.committed + 1, now_ms) for cursor in cursors), default=0.0),
            "late": self.workers.late_count,
            **self.counts,
        }
