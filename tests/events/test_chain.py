"""The middleware chain: its order is checked, then it is composed once, outermost first."""

from __future__ import annotations

from typing import Any

import pytest

from events.bus import EventBus
from events.chain import check_order, compose, name_of, stage_of
from events.contracts import Hop, HopResult, Next, Stage
from events.errors import InvalidMessage
from events.persistence.memory import MemoryStore
from events.types import Ack, Event, Receipt
from tests.events.bus_support import Collector, an_event, settled


class _Noting:
    """A middleware that notes when it is passed, and whether it may look at payloads."""

    def __init__(self, name: str, stage: Stage, notes: list[str]) -> None:
        self.name, self.stage, self._notes = name, stage, notes

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        try:
            sees = f"sees {hop.events[0].payload['n']}"
        except PermissionError:
            sees = "sees nothing"
        self._notes.append(f"{self.name} {sees}")
        result = await call_next(hop)
        self._notes.append(f"{self.name} ends")
        return result


def _hop(event: Event) -> Hop:
    return Hop(kind="publish", metas=[event.meta], sizes=[1], _events=[event])


async def test_the_outermost_comes_first_and_payloads_are_opened_behind_authorisation() -> None:
    """Step 3: tracing, metrics and RBAC see names and sizes; what comes behind them sees the events."""
    notes: list[str] = []
    stages = [Stage.TRACE, Stage.MEASURE, Stage.AUTHORISE, Stage.CONTENT]
    chain = [_Noting(stage.name, stage, notes) for stage in stages]

    async def terminal(hop: Hop) -> HopResult:
        notes.append(f"terminal sees {hop.events[0].payload['n']}")
        return Ack()

    assert await compose(chain, terminal)(_hop(an_event(7))) == Ack()
    assert notes == [
        "TRACE sees nothing",
        "MEASURE sees nothing",
        "AUTHORISE sees nothing",
        "CONTENT sees 7",
        "terminal sees 7",
        "CONTENT ends",
        "AUTHORISE ends",
        "MEASURE ends",
        "TRACE ends",
    ]


async def test_an_empty_chain_is_its_end() -> None:
    """Step 3: without middleware the terminal gets the hop, opened."""

    async def terminal(hop: Hop) -> HopResult:
        return [Receipt("s", "t", len(hop.events), "e")]

    assert await compose([], terminal)(_hop(an_event())) == [Receipt("s", "t", 1, "e")]


def test_an_order_that_would_leak_is_refused() -> None:
    """Step 3: a chain in which something sees payloads before authorisation does not come into being."""
    notes: list[str] = []
    content, rbac = _Noting("redact", Stage.CONTENT, notes), _Noting("rbac", Stage.AUTHORISE, notes)
    check_order([rbac, content, content])
    with pytest.raises(InvalidMessage) as refused:
        check_order([content, rbac])
    assert "put it before" in str(refused.value)
    with pytest.raises(InvalidMessage):
        EventBus([content, rbac], store=MemoryStore())


def test_a_middleware_that_does_not_say_stands_behind_authorisation() -> None:
    """Contracts: without a stage it is CONTENT; a function goes by its own name."""

    async def mine(hop: Hop, call_next: Next) -> HopResult:
        return await call_next(hop)

    assert stage_of(mine) is Stage.CONTENT
    assert (name_of(mine), name_of(_Noting("x", Stage.TRACE, []))) == ("mine", "_Noting")


async def test_a_plain_function_is_a_middleware_whatever_it_calls_its_arguments() -> None:
    """Contracts: an async function of two arguments will do."""
    kinds: list[str] = []

    async def mine(crossing: Hop, onward: Next) -> HopResult:
        kinds.append(crossing.kind)
        return await onward(crossing)

    collector = Collector()
    middlewares: list[Any] = [mine]
    async with EventBus(middlewares, store=MemoryStore()) as bus:
        await bus.subscribe("actions", "learner", collector)
        await bus.publish(an_event(1))
        await settled(bus)
    assert (kinds, collector.numbers) == (["publish", "handle"], [1])


async def test_a_middleware_may_change_a_payload_on_its_way() -> None:
    """Step 3: what redaction makes of an event is what is written, and what a group sees."""

    async def redact(hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            hop = hop.with_events([event.replace(payload={"n": 0}) for event in hop.events])
        return await call_next(hop)

    collector = Collector()
    async with EventBus([redact], store=MemoryStore()) as bus:
        await bus.subscribe("actions", "learner", collector)
        await bus.publish(an_event(42))
        await settled(bus)
        assert [record.event.payload async for record in bus.replay("actions")] == [{"n": 0}]
    assert collector.numbers == [0]


async def test_a_middleware_that_swallows_the_receipts_is_found_out() -> None:
    """Contracts: around a publish it returns what `call_next` returned."""

    async def forgetful(hop: Hop, call_next: Next) -> HopResult:
        await call_next(hop)
        return None

    async with EventBus([forgetful], store=MemoryStore()) as bus:
        with pytest.raises(InvalidMessage, match="call_next"):
            await bus.publish(an_event(1))


async def test_a_middleware_may_end_a_delivery_by_itself() -> None:
    """Contracts: what returns without `call_next` settles; the handler hears nothing of it."""

    async def ack_all(hop: Hop, call_next: Next) -> HopResult:
        return await call_next(hop) if hop.kind == "publish" else Ack()

    collector = Collector()
    async with EventBus([ack_all], store=MemoryStore()) as bus:
        await bus.subscribe("actions", "learner", collector)
        await bus.publish(an_event(1))
        await settled(bus)
    assert collector.numbers == []
