"""What a module of an agent calls: on the bus itself, and on a bus bound to an identity."""

from __future__ import annotations

from typing import Any

import pytest

from events.bus import EventBus
from events.contracts import Hop, HopResult, Next, Stage
from events.errors import Denied
from events.persistence.memory import MemoryStore
from events.surface import BoundBus, Identity
from events.testing.recording import Recorder
from events.types import Actor, Nack
from tests.events.bus_support import Collector, an_event, history, settled, some_events


class _Watch:
    """A middleware that notes on whose behalf everything is done."""

    stage = Stage.AUTHORISE

    def __init__(self) -> None:
        self.hops: list[tuple[str, str | None, frozenset[str]]] = []
        self.actions: list[tuple[str | None, str, frozenset[str]]] = []

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        self.hops.append((hop.kind, hop.subject, hop.capabilities))
        return await call_next(hop)

    def authorise(
        self,
        subject: str | None,
        action: str,
        topic: str,
        space: str,
        meta: Any = None,
        capabilities: frozenset[str] = frozenset(),
    ) -> None:
        self.actions.append((subject, action, capabilities))
        if subject == "mallory":
            raise Denied(subject, action, topic, space)


async def test_a_bound_bus_acts_as_its_subject() -> None:
    """`bind`: what it publishes is signed, and every hop and every action carries subject and capabilities."""
    watch, collector = _Watch(), Collector()
    async with EventBus([watch], store=MemoryStore()) as bus:
        planner = bus.bind("agent:planner", ["mic"])
        assert isinstance(planner, BoundBus)
        assert "agent:planner" in repr(planner)
        subscription = await planner.subscribe("actions", "learner", collector)
        await planner.publish(an_event(1))
        await planner.publish_many(some_events([2], actor="user:ada"))
        await settled(bus)
        caps = frozenset({"mic"})
        assert watch.hops[0] == ("publish", "agent:planner", caps)
        assert ("handle", "agent:planner", caps) in watch.hops
        assert watch.actions[:2] == [("agent:planner", "consume", caps), ("agent:planner", "ack", caps)]
        assert [record.event.meta.actor for record in await history(bus)] == ["agent:planner", "user:ada"]
        await planner.unsubscribe(subscription)
        assert not subscription.is_active
    assert collector.numbers == [1, 2]


async def test_subscribing_may_name_a_subject_and_more_capabilities() -> None:
    """`subscribe(subject=, capabilities=)`: for that group alone; capabilities add up."""
    watch = _Watch()
    async with EventBus([watch], store=MemoryStore()) as bus:
        await bus.bind("agent:a", ["mic"]).subscribe("actions", "first", Collector(), capabilities=["camera"])
        await bus.subscribe("actions", "second", Collector(), subject="agent:b")
        await bus.publish(an_event(1))
        await settled(bus)
    handled = {(subject, caps) for kind, subject, caps in watch.hops if kind == "handle"}
    assert handled == {("agent:a", frozenset({"mic", "camera"})), ("agent:b", frozenset())}


async def test_binding_a_bound_bus_starts_afresh() -> None:
    """`bind`: nobody gets the capabilities of whoever bound before."""
    async with EventBus(store=MemoryStore()) as bus:
        first = bus.bind("agent:a", ["mic"])
        second = first.bind("agent:b")
        receipt = await second.publish(an_event(1))
        assert receipt.offset == 1
        assert second._identity == Identity("agent:b", frozenset())


async def test_dead_letters_are_seen_as_the_subject_may() -> None:
    """W10: reading and retrying dead letters is an action of its own."""
    watch = _Watch()
    recorder = Recorder(lambda recorded: Nack())
    async with EventBus([watch], store=MemoryStore()) as bus:
        await bus.subscribe("actions", "learner", recorder, max_retries=0)
        await bus.publish(an_event(1))
        await settled(bus)
        assert len(await bus.bind("agent:a").dlq.list()) == 1
        mallory = bus.bind("mallory")
        for call in (mallory.dlq.list, mallory.dlq.retry, lambda: mallory.dlq.purge(older_than_s=0)):
            with pytest.raises(Denied):
                await call()
        assert ("agent:a", "dlq", frozenset()) in watch.actions
        assert len(await bus.dlq.list()) == 1


async def test_a_publisher_of_a_bound_bus_signs_too(event_bus: EventBus) -> None:
    """`bind(...).publisher(...)`: the actor is in the envelope from the start, unless it is given."""
    planner = event_bus.bind("agent:planner")
    await planner.publisher("actions", "home", "NOTED").publish({"n": 1})
    await planner.publisher("actions", "home", "NOTED", actor=Actor(user_id="ada")).publish({"n": 2})
    actors = [record.event.meta.actor for record in await history(event_bus)]
    assert actors == ["agent:planner", Actor(user_id="ada")]
