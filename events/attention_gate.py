"""The attention gate: decides for each group what deserves processing now (step 6 of an event's way).

Four hooks, each asked about an event, each free to be overridden. `decide` asks them in a fixed order and the first
that says yes wins: drop, defer, boost, admit. What is not admitted is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from events.types import Event


@dataclass(frozen=True, slots=True)
class GateContext:
    """What a gate may know besides the event. A decision is a pure function of the two (rule W13)."""

    group: str
    space_id: str
    topic: str
    offset: int
    now_ms: int
    appended_ms: int
    inflight: int
    max_inflight: int
    deferrals: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """Process it in its turn."""

    reason: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Look at it again in `seconds`; it keeps its place in its key's order."""

    seconds: float
    reason: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Boost:
    """Process it with another priority, 0 to 100. Never ahead of an earlier event of its key."""

    priority: int
    reason: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Settle it unprocessed, with the reason."""

    reason: str = ""
    score: float | None = None


Decision = Admit | Defer | Boost | Drop
_STRENGTH: Final = {Admit: 0, Boost: 1, Defer: 2, Drop: 3}
_ADMIT: Final = Admit()


class Gate(Protocol):
    """What the bus asks for each event that reaches a group for the first time, or again after a deferral."""

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
    """Several gates as one: the strongest word wins, drop over defer over boost over admit."""

    def __init__(self, gates: Sequence[Gate]) -> None:
        self._gates = tuple(gates)

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """The strongest of the gates' decisions; the first of them among equals."""
        decisions = [gate.decide(event, context) for gate in self._gates]
        return max(decisions, key=lambda decision: _STRENGTH[type(decision)], default=_ADMIT)
