"""The attention gate: decides for each group what deserves processing now (step 6 of an event's way).

Four hooks, each asked about an event, each free to be overridden. `decide` asks them in a fixed order and the first
that says yes wins: drop, defer, boost, admit. What is not admitted is dropped.

A decision is a pure function of the event and its context, so that it can be asked again of the recorded past (rule
W13). What a gate learns as it goes stays outside of `decide`: `sense` puts it into the context, from where it is
journaled with the decision, and `learn` is told how the event was treated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import anyio

from events.contracts import Filter
from events.errors import InvalidMessage
from events.types import Event


@dataclass(frozen=True, slots=True)
class Focus:
    """Something that attention is turned to: what matches the filter counts for `weight`, until `until_ms`.

    `id` is the event that asked for it.
    """

    id: str
    filter: Filter
    weight: float
    until_ms: int

    def matches(self, event: Event[Any]) -> bool:
        """Whether an event is in focus. Only declarative filters can be; see `filters.filter_from`."""
        return self.filter.matches(event) is True


@dataclass(frozen=True, slots=True)
class Situation:
    """What changes now and then, and for many events at once: the load of the group, the focus in the space.

    `load` is what it was when the level was entered; what decides is the level.
    """

    level: str = "calm"
    load: float = 0.0
    focus: tuple[Focus, ...] = ()


CALM: Final = Situation()


class GateContext(NamedTuple):
    """What a gate may know besides the event. A decision is a pure function of the two (rule W13).

    `deferrals` is how often the event was put off already, and `may_defer` whether it may be once more: at the bound
    of patience or of memory a defer counts as an admit (rule W7). `backlog` is how many events of the log the group
    has not come to, and `is_fresh` whether it just came to this one, rather than looking at it again. What follows
    is filled in by a gate's `sense`: how familiar the event is, what its budgets have spent, and the situation.
    """

    group: str
    space_id: str
    topic: str
    offset: int
    now_ms: int
    appended_ms: int
    inflight: int
    max_inflight: int
    deferrals: int = 0
    backlog: int = 0
    priority: int = 50
    may_defer: bool = True
    is_fresh: bool = True
    familiarity: float = 0.0
    spent: tuple[tuple[str, int], ...] = ()
    situation: Situation = CALM


Parts = tuple[tuple[str, float], ...]
"""What a score is made of: names and what each adds to it."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Process it in its turn."""

    reason: str = ""
    score: float | None = None
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Defer:
    """Look at it again in `seconds`; it keeps its place in its key's order."""

    seconds: float
    reason: str = ""
    score: float | None = None
    parts: Parts = ()

    @classmethod
    def until(
        cls,
        when: datetime,
        context: GateContext,
        reason: str = "",
        score: float | None = None,
        parts: Parts = (),
    ) -> Defer:
        """Look at it again at a time, which has a zone; at once if that has passed."""
        if when.tzinfo is None:
            raise InvalidMessage("until", when, "a time to defer to has a time zone")
        return cls(max(0.0, when.timestamp() - context.now_ms / 1000), reason, score, parts)


@dataclass(frozen=True, slots=True)
class Boost:
    """Process it with another priority, 0 to 100. Never ahead of an earlier event of its key."""

    priority: int
    reason: str = ""
    score: float | None = None
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Settle it unprocessed, with the reason."""

    reason: str = ""
    score: float | None = None
    parts: Parts = ()


Decision = Admit | Defer | Boost | Drop
_STRENGTH: Final = {Admit: 0, Boost: 1, Defer: 2, Drop: 3}
_ADMIT: Final = Admit()


def treatment(decision: Decision, context: GateContext) -> Decision:
    """What becomes of the event: what was decided, or an admit where it may not be deferred any more (rule W7)."""
    if isinstance(decision, Defer) and not context.may_defer:
        reason = f"deferred {context.deferrals} times, or no room to park: {decision.reason}"
        return Admit(reason, decision.score, decision.parts)
    return decision


class Gate(Protocol):
    """What the bus asks for each event that reaches a group for the first time, or again after a deferral.

    Optional attributes that the bus looks for: `version` (a string that names the policy, for the journal), `sense`
    (called with event and context before `decide`; returns the context with what the gate knows), `learn` (called
    with event, context and treatment afterwards), `forget_group` (called with the name of a group that was deleted),
    `run` (async: what it does on the bus itself), and of those of a middleware `attach`, `start` and `close`. All of
    them run on the event loop and must not block.
    """

    def decide(self, event: Event[Any], context: GateContext) -> Decision: ...


class AttentionGate:
    """A gate of four hooks. As it stands it admits everything; override what you need."""

    defer_s: float = 1.0
    boost_to: int = 75

    def drop(self, event: Event[Any]) -> bool:
        """Whether the event is irrelevant."""
        return False

    def defer(self, event: Event[Any]) -> bool:
        """Whether the event should wait `defer_s` seconds."""
        return False

    def boost(self, event: Event[Any]) -> bool:
        """Whether the event should go first, at priority `boost_to`."""
        return False

    def admit(self, event: Event[Any]) -> bool:
        """Whether the event may enter at all."""
        return True

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """Ask drop, defer, boost, admit, in this order."""
        if self.drop(event):
            return Drop("drop hook")
        if self.defer(event):
            return Defer(self.defer_s, "defer hook")
        if self.boost(event):
            return Boost(self.boost_to, "boost hook")
        return _ADMIT if self.admit(event) else Drop("not admitted")


class CompositeGate:
    """Several gates as one: the strongest word wins, drop over defer over boost over admit.

    One of them may have a `sense` of its own. Two would each put their own into a context that has room for one.
    """

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = tuple(gates)
        sensing = [gate for gate in self._gates if hasattr(gate, "sense")]
        if len(sensing) > 1:
            names = ", ".join(type(gate).__name__ for gate in sensing)
            raise InvalidMessage("gates", names, "one of the gates that are composed may sense its context")
        self._sensing: Any = sensing[0] if sensing else None

    @property
    def version(self) -> str:
        """What all of them are, for the journal."""
        return "+".join(version_of(gate) for gate in self._gates)

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """The strongest of the gates' decisions; the first of them among equals."""
        decisions = [gate.decide(event, context) for gate in self._gates]
        return max(decisions, key=lambda decision: _STRENGTH[type(decision)], default=_ADMIT)

    def sense(self, event: Event[Any], context: GateContext) -> GateContext:
        """The context as the one gate that senses sees it."""
        sensed: GateContext = context if self._sensing is None else self._sensing.sense(event, context)
        return sensed

    def learn(self, event: Event[Any], context: GateContext, treated: Decision) -> None:
        """Tell every gate that wants to know."""
        for gate in self._gates:
            tell = getattr(gate, "learn", None)
            if tell is not None:
                tell(event, context, treated)

    def attach(self, bus: Any) -> None:
        """Hand the bus to every gate that wants it."""
        for gate in self._gates:
            take = getattr(gate, "attach", None)
            if take is not None:
                take(bus)

    def forget_group(self, group: str) -> None:
        """Tell every gate that remembers groups."""
        for gate in self._gates:
            forget = getattr(gate, "forget_group", None)
            if forget is not None:
                forget(group)

    async def start(self) -> None:
        """Start every gate that has something to start."""
        await self._each("start")

    async def close(self) -> None:
        """Close them, in the same order."""
        await self._each("close")

    async def run(self) -> None:
        """What the gates themselves do on the bus, all at once."""
        async with anyio.create_task_group() as tasks:
            for gate in self._gates:
                going = getattr(gate, "run", None)
                if going is not None:
                    tasks.start_soon(going)

    async def _each(self, name: str) -> None:
        for gate in self._gates:
            call = getattr(gate, name, None)
            if call is not None:
                await call()


def version_of(gate: Gate) -> str:
    """What the journal calls a gate: its own word, or its class."""
    version = getattr(gate, "version", None)
    return version if isinstance(version, str) else type(gate).__qualname__
