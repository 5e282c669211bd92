"""Asks the gate on behalf of the groups: with what context, how its answer is checked, and what is written down."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

from events.attention.journal import GATE_FAILED, GateJournal
from events.attention_gate import Admit, Boost, Decision, Defer, Drop, Gate, GateContext, treatment, version_of
from events.cursor import Cursor
from events.persistence.codec import Record

if TYPE_CHECKING:
    from events.bus import EventBus
    from events.group import Group
    from events.services import Services

logger = logging.getLogger("events.attention")
_ADMIT: Final = Admit()
_FAILED: Final = Admit(GATE_FAILED)
_LONGEST_S: Final = 10 * 366 * 86_400.0


class Gatekeeper:
    """One per bus with a gate. All of it runs on the event loop."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._sense = getattr(gate, "sense", None)
        self._learn = getattr(gate, "learn", None)
        self._name = None if hasattr(gate, "version") else version_of(gate)
        self._journal: GateJournal

    def attach(self, bus: EventBus) -> None:
        """The store is open: journals can be written from now on."""
        config = bus.config
        self._journal = GateJournal(bus.store, max_bytes=config.gate_journal_bytes, timeout_s=config.publish_timeout_s)
        self._clock = bus.clock
        self._hook("attach", bus)

    async def start(self) -> None:
        """Before any group consumes."""
        begun = self._hook("start")
        if begun is not None:
            await begun

    async def close(self) -> None:
        """After the last group has stopped."""
        ended = self._hook("close")
        if ended is not None:
            await ended

    async def forget_group(self, group: str) -> None:
        """A group was deleted. Its journals stay, as its dead letters do; what was learnt of it goes."""
        self._hook("forget_group", group)

    async def run(self, services: Services) -> None:
        """What the gate itself does on the bus, as code that the bus runs. Its end, or its failure, stops nothing."""
        services.mark_bus_code()
        try:
            running = self._hook("run")
            if running is not None:
                await running
        except Exception:
            logger.exception("the attention gate stopped following the bus; it goes on deciding")

    def _hook(self, name: str, *arguments: Any) -> Any:
        call = getattr(self.gate, name, None)
        return None if call is None else call(*arguments)

    def ask(self, group: Group, cursor: Cursor, record: Record, deferrals: int, *, may_defer: bool) -> Decision:
        """How an event is treated. Journaled before the checkpoint that settles it.

        A gate that breaks must neither lose events nor stop the log: what it cannot judge is processed.
        """
        offset, window, name = record.offset, group.window, cursor.name
        context = GateContext(
            group.name,
            name.space_id,
            name.topic,
            offset,
            self._clock.now_ms(),
            record.at,
            window.inflight,
            window.max_inflight,
            deferrals,
            max(0, cursor.log.next_offset - max(cursor.next, offset + 1)),
            group.priority_of(record),
            may_defer,
            offset >= cursor.next,
        )
        event = record.event
        try:
            if self._sense is not None:
                context = self._sense(event, context)
            decision = self.gate.decide(event, context)
            if type(decision) is not Admit:
                decision = treatment(_checked(decision), context)
            if self._learn is not None:
                self._learn(event, context, decision)
        except Exception:
            where = group.where(cursor, offset)
            logger.exception("the attention gate failed; the event is admitted", extra=where)
            decision = _FAILED
        meta = record.meta
        policy = version_of(self.gate) if self._name is None else self._name
        self._journal.note(cursor, context, decision, policy, meta.event_id, meta.type)
        return decision

    async def flush(self, cursor: Cursor, group: str) -> None:
        """Return when the decisions about a log that were made so far are durable."""
        await self._journal.flush(cursor, group)


def _checked(decision: Decision) -> Decision:
    """A decision that the group can act on: a gate's slip must not become a wait without end."""
    match decision:
        case Defer(seconds=seconds) if not 0 <= seconds < math.inf:
            raise ValueError(f"a gate deferred for {seconds!r} seconds")
        case Defer(seconds=seconds) if seconds > _LONGEST_S:
            return Defer(_LONGEST_S, decision.reason, decision.score, decision.parts)
        case Boost(priority=priority) if not 0 <= priority <= 100:
            bounded = min(100, max(0, priority))
            return Boost(bounded, decision.reason, decision.score, decision.parts)
        case Admit() | Defer() | Boost() | Drop():
            return decision
    raise TypeError(f"a gate decided {type(decision).__name__}; it decides Admit, Defer, Boost or Drop")
