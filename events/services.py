"""What the parts of a running bus share: the store, the clock, the settings, and who saves checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import anyio

from events.attention_gate import Gate
from events.checkpointer import Checkpointer
from events.clock import Clock
from events.config import BusConfig
from events.contracts import Settlement
from events.persistence.store import Store
from events.solo import Solo

runs_bus_code: ContextVar[bool] = ContextVar("events_runs_bus_code", default=False)
"""True in code that the bus runs: handlers, middleware, filters, gates. It never waits when it publishes (W12)."""


@dataclass(slots=True)
class Services:
    """One per bus, handed to every group."""

    store: Store
    clock: Clock
    config: BusConfig
    checkpointer: Checkpointer
    solo: Solo
    threads: anyio.CapacityLimiter
    gate: Gate | None
    changed: Callable[[], None]
    observers: Sequence[Callable[[Sequence[Settlement]], None]] = ()

    @staticmethod
    def mark_bus_code() -> None:
        """Everything that this task goes on to call is code that the bus runs."""
        runs_bus_code.set(True)
