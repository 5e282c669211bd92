"""What the tests of attention share: contexts, events that score as wanted, policies of a few lines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from events.attention_gate import GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.persistence.memory import MemoryStore
from events.types import Event, EventMeta
from policies.attention import AttentionPolicy

NOW_MS = 1_700_000_000_000

PRIORITY_ONLY = """
[score]
priority = 1.0
arousal = 0.0
valence = 0.0
novelty = 0.0
habituation = 0.0
recency = 0.0
relevance = 0.0
distraction = 0.0
source = 0.0
[always]
admit = []
"""
"""The score is the priority / 100 and nothing else, and nothing is admitted unseen."""


def a_policy(text: str = "", *, base: str = PRIORITY_ONLY) -> AttentionPolicy:
    """A policy of a few lines over one in which only priority counts."""
    return AttentionPolicy.parse(f"{base}\n{text}")


def a_context(**changes: Any) -> GateContext:
    """A context in which nothing is remarkable."""
    usual = {
        "group": "learner",
        "space_id": "home",
        "topic": "actions",
        "offset": 1,
        "now_ms": NOW_MS,
        "appended_ms": NOW_MS,
        "inflight": 0,
        "max_inflight": 100,
    }
    return GateContext(**{**usual, **changes})


def an_event(payload: dict[str, Any] | None = None, *, topic: str = "actions", **meta: Any) -> Event:
    """An event in the space `home`."""
    return Event(EventMeta(**{"topic": topic, "type": "NOTED", "space_id": "home", **meta}), payload or {})


class Scripted:
    """A gate that says what it is told to, by a function of event and context, and remembers what it was asked."""

    def __init__(self, script: Callable[[Event, GateContext], Any]) -> None:
        self._script = script
        self.asked: list[GateContext] = []

    def decide(self, event: Event, context: GateContext) -> Any:
        self.asked.append(context)
        return self._script(event, context)


@asynccontextmanager
async def gated(gate: Any, *, store: Any = None, **config: Any) -> AsyncIterator[EventBus]:
    """A bus with a gate, in memory unless there is a store; closed without waiting for what is deferred."""
    bus = EventBus(store=store or MemoryStore(), gate=gate, config=BusConfig(**config))
    await bus.start()
    try:
        yield bus
    finally:
        with anyio.CancelScope(shield=True):
            await bus.close(timeout_s=0)
