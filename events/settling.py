"""How a delivery ends: settled, tried again later, or dead. Exactly one of them, in this order of durability."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from events.contracts import DeadLetter, Settlement, Skip, Verdict
from events.deadletters import appended_ms, death_entry, ended_entry
from events.errors import BusError
from events.fingerprints import ErrorText
from events.lanes import Item
from events.persistence.store import Attempts
from events.types import Ack, Nack

if TYPE_CHECKING:
    from events.group import Group, GroupOptions

logger = logging.getLogger("events.settling")
_MAX_EXPONENT: Final = 64
_TRY_AGAIN_S: Final = 1.0


def _ceiling(options: GroupOptions, failure: int) -> float:
    """The longest wait after a failure, counted from 0 (rule W6)."""
    try:
        grown = options.backoff_base * options.backoff_mult ** min(max(failure, 0), _MAX_EXPONENT)
    except OverflowError:
        return options.backoff_max
    return min(grown, options.backoff_max)


class Settler:
    """Turns verdicts into state: in memory at once, on disk by the next checkpoint; a death on disk at once."""

    def __init__(self, group: Group) -> None:
        self._group = group

    async def conclude(self, items: Sequence[Item], verdict: Verdict, verdicts: Mapping[Item, Verdict]) -> None:
        """Give every event of a delivery its end: the good ones first, so that a failed one parks only what is left.

        A dead letter that cannot be written parks its lane, and with it what else of the delivery is left in there.
        """
        observed = bool(self._group.services.observers)
        started_ns = time.time_ns() if observed else 0
        ends: list[tuple[Item, str, str | None]] = []
        dead: list[tuple[Item, str]] = []
        failed: list[tuple[Item, Nack]] = []
        for item in items:
            one = verdicts.get(item, verdict) if verdicts else verdict
            match one:
                case None | Ack():
                    await self.settle(item, "acked")
                    ends.append((item, "acked", None))
                case Skip(reason=reason):
                    await self.settle(item, reason)
                    ends.append((item, reason, None))
                case DeadLetter(reason=reason):
                    dead.append((item, reason))
                case Nack():
                    failed.append((item, one))
        for item, reason in dead:
            ends.append((item, "retry" if item.is_concluded else await self.bury(item, reason), reason))
        for item, nack in failed:
            ends.append((item, await self._fail(item, nack), nack.reason))
        if len(items) > 1:
            self._group.workers.wake()  # several lanes may go on now, and this worker takes only one of them
        if observed and ends:
            self._tell(ends, started_ns)

    def _tell(self, ends: Sequence[tuple[Item, str, str | None]], started_ns: int) -> None:
        """Let the middlewares that asked for it know; what they make of it changes nothing here."""
        group, ended_ns = self._group.name, time.time_ns()
        settlements = [
            Settlement(
                group, *item.cursor.name, item.place.offset, item.record.meta, outcome, reason, started_ns, ended_ns
            )
            for item, outcome, reason in ends
        ]
        for observer in self._group.services.observers:
            try:
                observer(settlements)
            except Exception:
                logger.exception("a middleware failed when it was told how events ended", extra={"group": group})

    async def settle(self, item: Item, outcome: str) -> None:
        """The event is done with. A retried dead letter says so in its own log first."""
        group, cursor = self._group, item.cursor
        if item.place.round:
            dead_letters = await group.services.store.dead_letters(cursor.name)
            entry = ended_entry(group=group.name, offset=item.place.offset, round=item.place.round)
            await dead_letters.append([entry], timeout_s=group.services.config.publish_timeout_s)
        self.settle_now(item, outcome)

    def settle_now(self, item: Item, outcome: str) -> None:
        """The event is done with, in memory; the next checkpoint makes it durable."""
        group, cursor = self._group, item.cursor
        cursor.settle(item.place)
        cursor.solo.discard(item.place)
        group.counts[outcome] += 1
        group.window.finish(item)
        group.progressed(cursor)

    def postpone(self, items: Sequence[Item]) -> None:
        """What became of a delivery could not be written down: try it again shortly, at no charge."""
        group = self._group
        for item in items:
            if item.is_concluded:
                continue
            held = item.cursor.held_attempts(item.place)
            if held is not None and held.running:
                item.cursor.hold_attempts(item.place, replace(held, count=held.count - 1, running=False))
            group.window.park(item, group.services.clock.monotonic() + _TRY_AGAIN_S)
            group.progressed(item.cursor)

    async def _fail(self, item: Item, nack: Nack) -> str:
        """An attempt failed: wait and try again, or give up (rule W6). What became of the event."""
        group, options, cursor = self._group, self._group.options, item.cursor
        held = cursor.held_attempts(item.place) or Attempts()
        limit = self.max_retries(item)
        reason = (nack.reason or "nack")[: group.services.config.max_error_chars]
        charged = held.count if held.running else held.count + 1
        count = charged if nack.count else charged - 1
        errors = (*held.errors, reason)[-(limit + 1) :]
        group.counts["failed"] += 1
        self._log_failure(item, charged, reason)
        if nack.count and count > limit and not item.is_concluded:
            cursor.hold_attempts(item.place, Attempts(count, 0, 0, errors, running=held.running))
            return await self.bury(item, "retries exhausted")
        delay = random.uniform(0, _ceiling(options, count - 1)) if nack.delay is None else nack.delay
        due_ms = group.services.clock.now_ms() + int(delay * 1000)
        cursor.hold_attempts(item.place, Attempts(count, due_ms, int(delay * 1000), errors))
        cursor.solo.discard(item.place)
        group.window.park(item, group.services.clock.monotonic() + delay)
        group.progressed(cursor)
        return "retry"

    def max_retries(self, item: Item) -> int:
        """The subscription's limit, or the producer's wish where that is lower."""
        qos = item.record.meta.qos
        wished = qos.max_retries if qos is not None else None
        limit = self._group.options.max_retries
        return limit if wished is None else min(wished, limit)

    def _log_failure(self, item: Item, attempt: int, reason: str) -> None:
        """Every failed attempt, the last one too: who, what, where, how often, why. Never the payload."""
        where = self._group.where(item.cursor, item.place.offset)
        error = ErrorText(reason)
        logger.warning(
            "attempt %d at offset %d of %s failed in group %s: %s",
            attempt,
            item.place.offset,
            item.cursor.name.topic,
            self._group.name,
            error,
            extra={
                **where,
                "event_id": item.record.meta.event_id,
                "attempt": attempt,
                "max_retries": self.max_retries(item),
                "error": error,
            },
        )

    async def bury(self, item: Item, reason: str) -> str:
        """Into the dead-letter log, durably, and only then settled (rule W10). What became of the event."""
        group, cursor, place = self._group, item.cursor, item.place
        held = cursor.held_attempts(place) or Attempts()
        entry = death_entry(
            item.record,
            group=group.name,
            offset=place.offset,
            round=place.round,
            reason=reason,
            errors=held.errors,
            attempts=held.count,
            died_ms=group.services.clock.now_ms(),
            appended_ms=appended_ms(item.record, place.round),
        )
        where = group.where(cursor, place.offset)
        try:
            await cursor.log.sync()
            dead_letters = await group.services.store.dead_letters(cursor.name)
            await dead_letters.append([entry], timeout_s=group.services.config.publish_timeout_s)
        except (OSError, BusError) as error:
            logger.error("a dead letter could not be written, so the event stays: %s", error, extra=where)
            group.window.park(item, group.services.clock.monotonic() + _TRY_AGAIN_S)
            group.progressed(cursor)
            return "retry"
        cursor.settle(place)
        cursor.solo.discard(place)
        group.counts["dead"] += 1
        text = ErrorText(reason)
        logger.error("gave up on an event: %s", text, extra={**where, "attempts": held.count, "reason": text})
        group.window.finish(item)
        group.progressed(cursor)
        return "dead"
