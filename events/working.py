"""A group's workers: each takes an event, runs the pipeline under its deadline, and hands the verdict on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from events.contracts import DeadLetter, Skip, Verdict
from events.cursor import Cursor
from events.errors import StorageFull
from events.handlers import Delivered, Pipeline, checked_verdict
from events.lanes import Item
from events.persistence.codec import Record
from events.persistence.store import Attempts
from events.runtime import Loop, current_loop, is_told_to_end
from events.settling import Settler
from events.signals import Signal
from events.types import Ack, Nack

if TYPE_CHECKING:
    from events.group import Group

logger = logging.getLogger("events.working")
_YIELD_EVERY: Final = 64
_LATE: Final = Nack("the ack deadline passed")


_MAX_SPARED: Final = 3


def _after_death(held: Attempts) -> Attempts:
    """What an attempt that a process died during comes to.

    One that ran beside others is not charged, so that no event dies of its neighbour; but not for ever, so that one
    which never gets to run alone cannot go on killing.
    """
    if not held.alone and held.spared < _MAX_SPARED:
        return Attempts(held.count - 1, errors=held.errors, spared=held.spared + 1)
    error = f"the process ended during attempt {held.count}"
    return Attempts(held.count, errors=(*held.errors, error), spared=held.spared)


class _Worker:
    """One worker, whose handler it calls, and what it is doing."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.scope = anyio.CancelScope()
        self.items: list[Item] = []
        self.deadline: float | None = None
        self.is_late = False
        self.is_leaving = False


class Workers:
    """All workers of a group, and the one watch over their deadlines."""

    def __init__(self, group: Group, settler: Settler) -> None:
        self._group = group
        self._settler = settler
        self._workers: list[_Worker] = []
        self._work = Signal()
        self._watched = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._loop: Loop
        self._thread: int

    def start(self, tasks: TaskGroup) -> None:
        """Begin to watch over those who will work."""
        self._tasks = tasks
        self._loop, self._thread = current_loop(), get_ident()
        tasks.start_soon(self._watch)

    def add(self, pipeline: Pipeline, number: int) -> None:
        """Workers for a subscription: the group's first, or another one that joined."""
        assert self._tasks is not None
        for _ in range(number):
            worker = _Worker(pipeline)
            self._workers.append(worker)
            self._tasks.start_soon(self._run, worker)

    def remove(self, pipeline: Pipeline) -> None:
        """A subscription leaves: its workers go, each once it is done with what it has begun."""
        for worker in self._workers:
            if worker.pipeline is pipeline:
                worker.is_leaving = True
        self._work.tell()

    def wake(self) -> None:
        """There may be something to do."""
        self._work.tell()

    def running_items(self) -> list[Item]:
        """What is, or was when the group was stopped, in the hands of a worker."""
        return [item for worker in self._workers for item in worker.items]

    @property
    def late_count(self) -> int:
        """Workers whose handler is past its deadline and has not returned: plain functions cannot be cancelled."""
        return sum(worker.is_late for worker in self._workers)

    async def _run(self, worker: _Worker) -> None:
        """Take and deliver until cancelled. Many deliveries share one cancel scope; a missed deadline ends it."""
        self._group.services.mark_bus_code()
        while not worker.is_leaving:
            with anyio.CancelScope() as worker.scope:
                await self._work_on(worker)
            # Only the watch cancels this scope: the handler was interrupted, and its attempt failed.
            items, worker.items, worker.is_late = worker.items, [], False
            await self._settler.conclude(items, _LATE, {})
        self._workers.remove(worker)
        self.wake()  # what its last delivery made way for is for the others

    async def _work_on(self, worker: _Worker) -> None:
        is_plain = worker.pipeline.is_plain and self._group.options.ack_deadline_s is None
        deliveries = 0
        while not worker.is_leaving:
            worker.items = items = self._group.window.take(self._group.options.batch)
            if not items:
                await self._work.next.wait()
                continue
            try:
                if is_plain and self._is_plain_item(items[0]):
                    await self._deliver_plainly(worker, items[0])
                else:
                    await self._deliver(worker)
            except Exception:
                # The handler is not in here: a disk that failed, or a fault of our own. No event may be lost to it,
                # and no worker.
                logger.exception("a delivery could not be concluded", extra={"group": self._group.name})
                self._settler.postpone(worker.items)
                worker.items = []
            deliveries += 1
            if deliveries % _YIELD_EVERY == 0:
                await anyio.lowlevel.checkpoint()

    async def _deliver(self, worker: _Worker) -> None:
        """One delivery, from the group's window to its settlement."""
        worker.items = [item for item in worker.items if not await self._ends_unheard(item)]
        if not worker.items:
            return
        solo = self._group.services.solo
        wants_alone = any(item.place in item.cursor.solo for item in worker.items)
        alone = await (solo.enter_alone() if wants_alone else solo.enter_shared())
        try:
            await self._write_down(worker.items, alone=alone)
            self._set_deadline(worker)
            verdict, verdicts = await self._attempt(worker)
            if worker.is_late:
                verdict, verdicts = _LATE, {}
            worker.deadline = None
            if worker.scope.cancel_called:
                await anyio.lowlevel.checkpoint()  # the handler ignored its cancellation; `_run` concludes
            await self._settler.conclude(worker.items, verdict, verdicts)
            if wants_alone:
                await self._group.services.checkpointer.save(self._group, worker.items[0].cursor)
            worker.items, worker.is_late = [], False
        finally:
            worker.deadline = None
            solo.leave_alone() if wants_alone else solo.leave()

    def _is_plain_item(self, item: Item) -> bool:
        """Whether nothing but the handler has a say in this event: the common case, and a third of the cost."""
        meta, cursor = item.record.meta, item.cursor
        return (
            meta.ttl_sec is None
            and meta.qos is None
            and not (cursor.attempts or cursor.suspects_through or cursor.solo or item.place.round)
            and not self._group.services.solo.is_taken
        )

    async def _deliver_plainly(self, worker: _Worker, item: Item) -> None:
        """`_deliver` for an event without a past, a deadline or a middleware: the same steps, those that remain."""
        solo = self._group.services.solo
        solo.enter()
        try:
            verdict = await worker.pipeline.call(item.record)
        except anyio.get_cancelled_exc_class() as error:
            verdict = self._verdict_on_cancel(worker, error)
        except Exception as error:
            verdict = self._verdict_on(error)
        finally:
            solo.leave()
        if verdict is None or isinstance(verdict, Ack):
            self._settler.settle_now(item, "acked")
        else:
            await self._settler.conclude(worker.items, checked_verdict(verdict), {})
        worker.items = []

    async def _attempt(self, worker: _Worker) -> tuple[Verdict, Mapping[Item, Verdict]]:
        """Run the pipeline; whatever it raises becomes a verdict. Some events may get one of their own."""
        records = [item.record for item in worker.items]
        deliveries = [self._delivery(worker, item) for item in worker.items]
        try:
            verdict, verdicts = await worker.pipeline.run(records, deliveries)
            if not verdicts:
                return verdict, {}
            items = dict(zip(deliveries, worker.items, strict=True))
            return verdict, {items[delivery]: one for delivery, one in verdicts.items()}
        except anyio.get_cancelled_exc_class() as error:
            return self._verdict_on_cancel(worker, error), {}
        except Exception as error:
            return self._verdict_on(error), {}

    def _verdict_on_cancel(self, worker: _Worker, error: BaseException) -> Nack:
        """A cancellation that is not ours came from inside the handler, and is a failure like any other."""
        if worker.scope.cancel_called or self._group.is_stopping or is_told_to_end():
            raise error
        return Nack(f"{type(error).__name__}: raised inside the handler")

    def _verdict_on(self, error: Exception) -> Nack:
        if isinstance(error, StorageFull):
            # Not the handler's fault, and nothing that trying harder would mend.
            return Nack(str(error), delay=self._group.options.backoff_base, count=False)
        logger.debug("a handler raised", exc_info=error, extra={"group": self._group.name})
        return Nack(f"{type(error).__name__}: {error}")

    def _delivery(self, worker: _Worker, item: Item) -> Delivered:
        held = item.cursor.held_attempts(item.place)
        attempt = 1 if held is None else held.count if held.running else held.count + 1

        def move(deadline: float) -> None:
            # A handler that went on after its time must not move somebody else's deadline.
            if item in worker.items and not worker.is_late:
                worker.deadline = deadline
                self._watched.set()

        def extend(seconds: float) -> None:
            deadline = self._group.services.clock.monotonic() + seconds
            if get_ident() == self._thread:
                move(deadline)
            else:  # a plain function, in a thread of its own
                self._loop.call_soon(move, deadline)

        space_id, topic = item.cursor.name
        return Delivered(space_id, topic, item.place.offset, item.place.round, self._group.name, attempt, extend)

    # -- before a handler starts -------------------------------------------------------------------------------

    async def _ends_unheard(self, item: Item) -> bool:
        """Whether an event ends before its handler would start: too old, or the death of too many processes."""
        cursor, place = item.cursor, item.place
        held = cursor.held_attempts(place)
        if place in cursor.solo and held is not None and held.running:
            held = _after_death(held)
            cursor.hold_attempts(place, held)
            if held.count > self._settler.max_retries(item):
                await self._settler.conclude([item], DeadLetter("the process ended during its attempts"), {})
                return True
        if held is not None or place.round or self._group.options.on_expired == "deliver":
            return False
        ttl = item.record.meta.ttl_sec
        if ttl is None or self._age_s(item.record) <= ttl:
            return False
        verdict = DeadLetter("expired") if self._group.options.on_expired == "dlq" else Skip("expired")
        await self._settler.conclude([item], verdict, {})
        return True

    def _age_s(self, record: Record) -> float:
        """How old an event is: since it was made, by a clock that does not jump (rule W9)."""
        clock, at = self._group.services.clock, record.at
        made = clock.corrected_ms(int(record.meta.ts.timestamp() * 1000), at)
        return (clock.now_ms() - min(made, at)) / 1000

    async def _write_down(self, items: list[Item], *, alone: bool) -> None:
        """After an unclean end each attempt is on disk before its handler starts (rule W6)."""
        noted: dict[Cursor, None] = {}
        for item in items:
            cursor, place = item.cursor, item.place
            if place.offset <= cursor.suspects_through or place in cursor.solo:
                held = cursor.held_attempts(place) or Attempts()
                cursor.hold_attempts(place, replace(held, count=held.count + 1, running=True, alone=alone))
                noted[cursor] = None
        for cursor in noted:
            await self._group.services.checkpointer.save(self._group, cursor)

    # -- deadlines ---------------------------------------------------------------------------------------------

    def _set_deadline(self, worker: _Worker) -> None:
        seconds = self._group.options.ack_deadline_s
        if seconds is None:
            qos = worker.items[0].record.meta.qos
            seconds = qos.ack_deadline_s if qos is not None else None
        if seconds is not None:
            worker.deadline = self._group.services.clock.monotonic() + seconds
            self._watched.set()

    async def _watch(self) -> None:
        """One task for all deadlines of the group: it sleeps until the first of them."""
        clock = self._group.services.clock
        while True:
            self._watched = anyio.Event()
            deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
            if await clock.wait(self._watched, min(deadlines) - clock.monotonic() if deadlines else None):
                continue
            for worker in self._workers:
                if worker.deadline is not None and worker.deadline <= clock.monotonic():
                    self._expire(worker)

    def _expire(self, worker: _Worker) -> None:
        """Too late. A coroutine is cancelled; a thread cannot be, and keeps its worker and lane until it returns."""
        worker.deadline = None
        worker.is_late = True
        self._group.counts["overdue"] += 1
        if worker.pipeline.shape.is_async:
            worker.scope.cancel()
