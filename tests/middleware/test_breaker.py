"""The circuit breaker: closed, open, half-open with one probe, and what waits meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from events.contracts import DeadLetter, Hop, HopResult, Skip
from events.types import Event, Nack
from middleware.breaker import CircuitBreakerMiddleware
from middleware.instruments import Registry
from tests.events.bus_support import group_of, settled, until
from tests.middleware.hop_support import Terminal, chained_bus, cross, event, handle_hop, publish_hop


class Circuit:
    """A breaker with a clock that a test moves, and a handler that does as told."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.answer: HopResult | Exception = None
        self.calls = 0
        self.breaker = CircuitBreakerMiddleware(
            **{"max_failures": 3, "reset_s": 10.0, "clock": lambda: self.now, **settings}
        )

    async def handler(self, hop: Hop) -> HopResult:
        """What stands behind the breaker."""
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def deliver(self, answer: HopResult | Exception = None, group: str = "learner") -> HopResult:
        """One delivery; what the handler raises is returned."""
        self.answer = answer
        try:
            return await self.breaker(handle_hop(event(), group=group).unsealed(), self.handler)
        except RuntimeError:
            return Nack("raised")

    async def open(self) -> None:
        """Fail until the circuit is open."""
        for _ in range(3):
            await self.deliver(RuntimeError("no"))
        assert self.breaker.state("learner") == "open"


@pytest.mark.parametrize("failure", [RuntimeError("no"), Nack("no"), DeadLetter("bad")])
async def test_failures_in_a_row_open_it(failure: Any) -> None:
    """Then nothing reaches the handler, and what comes is put off for the rest of the time, at no charge."""
    circuit = Circuit()
    for _ in range(3):
        assert circuit.breaker.state("learner") == "closed"
        await circuit.deliver(failure)
    assert circuit.breaker.state("learner") == "open"
    circuit.now = 4.0
    assert await circuit.deliver() == Nack("the circuit of learner is open", delay=6.0, count=False)
    assert circuit.calls == 3


async def test_a_success_starts_the_count_anew() -> None:
    """Only failures in a row count; a skip and a wait are neither."""
    circuit = Circuit()
    for answer in (Nack("no"), Nack("no"), None, Nack("no"), Nack("no"), Skip("x"), Nack("wait", count=False)):
        await circuit.deliver(answer)
    assert circuit.breaker.state("learner") == "closed"
    await circuit.deliver(Nack("no"))
    assert circuit.breaker.state("learner") == "open"


async def test_half_open_lets_one_probe_through() -> None:
    """While it runs all others wait; its success closes the circuit."""
    circuit, go = Circuit(), anyio.Event()
    await circuit.open()
    circuit.now = 10.0
    assert circuit.breaker.state("learner") == "half-open"

    async def probe(hop: Hop) -> HopResult:
        await go.wait()
        return None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(circuit.breaker, handle_hop(event()).unsealed(), probe)
        await anyio.wait_all_tasks_blocked()
        waiting = await circuit.deliver()
        assert isinstance(waiting, Nack)
        assert not waiting.count
        assert circuit.calls == 3
        go.set()
    assert circuit.breaker.state("learner") == "closed"
    assert await circuit.deliver() is None


async def test_a_failed_probe_opens_it_for_longer() -> None:
    """Twice as long each time, up to a bound; a success forgets all that."""
    circuit = Circuit(max_reset_s=25.0)
    await circuit.open()
    for wait_s in (20.0, 25.0, 25.0):
        circuit.now += 100
        await circuit.deliver(Nack("still no"))
        assert await circuit.deliver() == Nack("the circuit of learner is open", delay=wait_s, count=False)
    circuit.now += 100
    await circuit.deliver()
    await circuit.open()
    assert await circuit.deliver() == Nack("the circuit of learner is open", delay=10.0, count=False)


@pytest.mark.parametrize("neutral", [Skip("filtered"), Nack("wait", count=False)])
async def test_a_probe_that_tells_nothing_is_followed_by_another(neutral: HopResult) -> None:
    """An event that was skipped further inside says nothing about the handler."""
    circuit = Circuit()
    await circuit.open()
    circuit.now = 10.0
    assert await circuit.deliver(neutral) == neutral
    assert circuit.breaker.state("learner") == "half-open"
    assert await circuit.deliver() is None
    assert circuit.breaker.state("learner") == "closed"


async def test_a_cancelled_probe_is_a_failure() -> None:
    """A handler that hangs until its deadline is as bad as one that raises; the next probe is not blocked by it."""
    circuit = Circuit()
    await circuit.open()
    circuit.now = 10.0

    async def hang(hop: Hop) -> HopResult:
        await anyio.sleep_forever()
        return None

    with anyio.move_on_after(0.01):
        await circuit.breaker(handle_hop(event()).unsealed(), hang)
    assert circuit.breaker.state("learner") == "open"
    circuit.now = 100.0
    assert await circuit.deliver() is None


async def test_some_errors_need_not_count() -> None:
    """A bad event is not a broken handler."""
    circuit = Circuit(counts=lambda error: not isinstance(error, RuntimeError))
    for _ in range(5):
        await circuit.deliver(RuntimeError("bad event"))
    assert circuit.breaker.state("learner") == "closed"


async def test_circuits_are_apart() -> None:
    """Per group by default; one that is in order costs nothing to remember."""
    circuit = Circuit()
    await circuit.open()
    assert await circuit.deliver(group="other") is None
    assert list(circuit.breaker._circuits) == ["learner"]


async def test_publishing_passes() -> None:
    """An open circuit is about handling."""
    circuit, terminal = Circuit(), Terminal()
    await circuit.open()
    await cross(circuit.breaker, publish_hop(event()), terminal)
    assert len(terminal.hops) == 1


async def test_an_open_circuit_is_a_metric() -> None:
    """1 for each that is not closed."""
    registry = Registry()
    circuit = Circuit(registry=registry)
    await circuit.open()
    assert 'events_circuit_open{circuit="learner"} 1' in registry.text()


async def test_on_a_bus_nothing_dies_while_it_is_open(tmp_path: Path) -> None:
    """Attempts that were put off are not charged: with one retry allowed, all events outlive the outage."""
    is_down, handled = True, list[int]()
    breaker = CircuitBreakerMiddleware(max_failures=2, reset_s=0.05)

    async def handler(one: Event[Any]) -> None:
        if is_down:
            raise RuntimeError("down")
        handled.append(one.payload["n"])

    async with chained_bus(tmp_path / "w", breaker, max_retries=1) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many([event({"n": n}) for n in range(20)])
        await until(lambda: breaker.state("learner") != "closed")
        is_down = False
        await settled(bus)
        assert "dead" not in group_of(bus, "learner")
    assert sorted(handled) == list(range(20))
