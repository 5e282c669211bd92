"""A handler that remembers what it was given, and fails when told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio

from events.contracts import Delivery, Verdict
from events.types import Event


@dataclass(frozen=True, slots=True)
class Recorded:
    """One delivery, as it was when it began."""

    space_id: str
    topic: str
    group: str
    offset: int
    attempt: int
    event: Event[Any]


class Recorder:
    """Subscribe it like any handler: `await bus.subscribe("actions", "learner", recorder)`.

    `verdict` decides how each delivery ends: it is given the record and returns what a handler may return, or raises.
    """

    def __init__(self, verdict: Callable[[Recorded], Verdict] | None = None) -> None:
        self._verdict = verdict
        self._arrived = anyio.Event()
        self.deliveries: list[Recorded] = []

    async def __call__(self, event: Event[Any], delivery: Delivery) -> Verdict:
        recorded = Recorded(delivery.space_id, delivery.topic, delivery.group, delivery.offset, delivery.attempt, event)
        self.deliveries.append(recorded)
        self._arrived.set()
        self._arrived = anyio.Event()
        return None if self._verdict is None else self._verdict(recorded)

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """The payloads in order of delivery, repeats included."""
        return [recorded.event.payload for recorded in self.deliveries]

    @property
    def offsets(self) -> list[int]:
        """The offsets in order of delivery, repeats included."""
        return [recorded.offset for recorded in self.deliveries]

    def of_group(self, group: str) -> list[Recorded]:
        """The deliveries of one group, where several share this recorder."""
        return [recorded for recorded in self.deliveries if recorded.group == group]

    async def wait_for(self, number: int, timeout_s: float = 10.0) -> None:
        """Wait until so many deliveries have begun; `TimeoutError` says how many did."""
        with anyio.move_on_after(timeout_s):
            while len(self.deliveries) < number:
                await self._arrived.wait()
        if len(self.deliveries) < number:
            raise TimeoutError(f"{len(self.deliveries)} of {number} deliveries within {timeout_s} s")
