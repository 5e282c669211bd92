"""Stops calling a handler that keeps failing, and tries it again with one event at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from events.contracts import Hop, HopResult, Next, Stage
from events.types import Ack, Nack
from middleware.conventions import failure_of, verdict_of
from middleware.instruments import Registry, Sample

State = Literal["closed", "open", "half-open"]


@dataclass(slots=True)
class _Circuit:
    """One circuit that has seen failures. `open_until` is None while it is closed."""

    failures: int = 0
    openings: int = 0
    open_until: float | None = None
    is_probing: bool = False


class CircuitBreakerMiddleware:
    """Closed, open, half-open: per group, or per whatever `key` makes of a delivery.

    After `max_failures` in a row the circuit opens: for `reset_s` deliveries are put off at no charge, and wait on
    disk. Then one of them is let through to probe. If it succeeds the circuit closes; if not, it opens for twice as
    long, up to `max_reset_s`. A failure is an exception, or a verdict that charges an attempt; a batch counts as one.
    """

    stage = Stage.CONTENT

    def __init__(
        self,
        *,
        max_failures: int = 5,
        reset_s: float = 30.0,
        max_reset_s: float = 600.0,
        key: Callable[[Hop], str] = lambda hop: hop.group or "",
        counts: Callable[[BaseException], bool] = lambda error: True,
        clock: Callable[[], float] = time.monotonic,
        registry: Registry | None = None,
    ) -> None:
        if max_failures < 1 or reset_s <= 0:
            raise ValueError("a circuit opens after at least one failure, for some time")
        self._max_failures, self._reset_s, self._max_reset_s = max_failures, reset_s, max_reset_s
        self._key, self._counts, self._clock = key, counts, clock
        # Only circuits that have failed since their last success: a key that is in order costs nothing.
        self._circuits: dict[str, _Circuit] = {}
        if registry is not None:
            registry.gauge("events_circuit_open", "1 while a circuit is not closed.", ("circuit",), self._open_now)

    def state(self, key: str) -> State:
        """How a circuit stands now."""
        circuit = self._circuits.get(key)
        if circuit is None or circuit.open_until is None:
            return "closed"
        return "open" if self._clock() < circuit.open_until else "half-open"

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            return await call_next(hop)
        key = self._key(hop)
        circuit = self._circuits.get(key)
        is_probe = False
        if circuit is not None and circuit.open_until is not None:
            left = circuit.open_until - self._clock()
            if left > 0 or circuit.is_probing:
                delay = left if left > 0 else self._reset_s / 10
                return Nack(f"the circuit of {key} is open", delay=delay, count=False)
            circuit.is_probing = is_probe = True
        try:
            result = await call_next(hop)
        except BaseException as error:
            self._conclude(key, is_probe, False if self._counts(error) else None)
            raise
        self._conclude(key, is_probe, _success_of(hop, result))
        return result

    def _conclude(self, key: str, is_probe: bool, success: bool | None) -> None:
        """Take an outcome into account; None is neither, as of an event that was skipped or told to wait."""
        circuit = self._circuits.get(key)
        if is_probe and circuit is not None:
            circuit.is_probing = False
        if success is False:
            self._failed(self._circuits.setdefault(key, _Circuit()), is_probe)
        elif success and circuit is not None and (is_probe or circuit.open_until is None):
            del self._circuits[key]

    def _failed(self, circuit: _Circuit, is_probe: bool) -> None:
        circuit.failures += 1
        # What was still running when the circuit opened tells nothing new.
        if is_probe or (circuit.open_until is None and circuit.failures >= self._max_failures):
            wait_s = min(self._reset_s * 2**circuit.openings, self._max_reset_s)
            circuit.openings = min(circuit.openings + 1, 32)
            circuit.open_until = self._clock() + wait_s

    def _open_now(self) -> Iterable[Sample]:
        return [((key,), int(self.state(key) != "closed")) for key in list(self._circuits)]


def _success_of(hop: Hop, result: HopResult) -> bool | None:
    verdicts = [verdict_of(hop, index, result) for index in range(len(hop.deliveries))]
    if any(map(failure_of, verdicts)):
        return False
    return True if any(verdict is None or isinstance(verdict, Ack) for verdict in verdicts) else None
