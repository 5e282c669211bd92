"""What the parts of a running bus share: the store, the clock, the settings, and who saves checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from events.checkpointer import Checkpointer
from events.clock import Clock
from events.config import BusConfig
from events.contracts import Settlement
from events.persistence.store import Store
from events.solo import Solo

if TYPE_CHECKING:
    from events.attention.keeper import Gatekeeper

runs_bus_code: ContextVar[bool] = ContextVar("events_runs_bus_code", default=False)
"""True in code that a bus runs: handlers, middleware, filters, gates. It never waits when it publishes (W12)."""
_running: ContextVar[tuple[object, ...]] = ContextVar("events_running", default=())


@dataclass(slots=True)
class Services:
    """One per bus, handed to every group."""

    store: Store
    clock: Clock
    config: BusConfig
    checkpointer: Checkpointer
    solo: Solo
    threads: anyio.CapacityLimiter
    keeper: Gatekeeper | None
    changed: Callable[[], None]
    observers: Sequence[Callable[[Sequence[Settlement]], None]] = ()

    _mark: object = field(default_factory=object)

    def mark_bus_code(self) -> None:
        """Everything that this task goes on to call is code that this bus runs."""
        runs_bus_code.set(True)
        _running.set((*_running.get(), self._mark))

    @property
    def runs_caller(self) -> bool:
        """Whether the caller is code that this bus runs, so that it cannot wait for the end of what runs it."""
        return self._mark in _running.get()
