"""The examples that the bus was promised with run with the calls shown there, in the order shown there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from events.bus import EventBus
from events.filters import CompoundFilter, SimpleFilter
from events.middleware import MetricsMiddleware, TracingMiddleware
from events.subscription import SubscriptionRegistry
from events.types import Ack, Event, EventMeta, EventType, Nack
from tests.events.bus_support import settled


async def test_basic_event_publishing(workspace: Path) -> None:
    """Usage examples, first: a bus without arguments, `start`, an EventType as topic, actor and device as dicts."""
    bus = EventBus()
    await bus.start()
    meta = EventMeta(
        topic=EventType.WORKSPACE_BROADCAST,
        space_id="family-001",
        actor={"user_id": "alice"},
        device={"device_id": "phone-1"},
    )
    event = Event(meta=meta, payload={"message": "Hello world"})
    assert isinstance(meta.topic, EventType)
    await bus.publish(event, meta.topic.value)
    [record] = [record async for record in bus.replay("WORKSPACE_BROADCAST")]
    assert record.event.payload == {"message": "Hello world"}
    assert record.event.meta.type is EventType.WORKSPACE_BROADCAST
    await bus.close()
    assert (workspace / ".bus").is_dir()


async def test_advanced_subscription_with_filters(workspace: Path) -> None:
    """Usage examples, second: a registry, simple filters in a compound one, and who gets what then."""
    registry = SubscriptionRegistry()
    priority_filter = SimpleFilter("meta.priority", "high", "exact")
    user_filter = SimpleFilter("meta.actor.user_id", "alice", "exact")
    compound_filter = CompoundFilter("AND", [priority_filter, user_filter])
    seen: list[Any] = []

    async def handle_high_priority_alice_events(event: Event) -> None:
        seen.append(event.payload)

    sub_id, subscription = registry.register_subscription(
        topic="WORKSPACE_BROADCAST", handler=handle_high_priority_alice_events, advanced_filters=[compound_filter]
    )
    assert subscription.id == sub_id
    async with EventBus(registry=registry) as bus:
        for number, (priority, user) in enumerate([("high", "alice"), ("low", "alice"), ("high", "bob")]):
            meta = EventMeta(
                topic=EventType.WORKSPACE_BROADCAST, space_id="family-001", actor={"user_id": user}, priority=priority
            )
            await bus.publish(Event(meta=meta, payload={"number": number}))
        await settled(bus)
    assert seen == [{"number": 0}]


async def test_a_bus_with_middleware_a_durable_subscriber_and_a_publish(workspace: Path) -> None:
    """Section 5: `middlewares=`, every keyword of `subscribe`, and the envelope of an executed action."""
    bus = EventBus(middlewares=[TracingMiddleware(), MetricsMiddleware()])
    executed: list[str | None] = []

    async def on_action_executed(ev: Event) -> Ack:
        executed.append(ev.meta.idem_key)
        return Ack()

    await bus.subscribe(
        topic="actions",
        group="learner",
        handler=on_action_executed,
        max_inflight=128,
        workers=2,
        backoff_base=0.5,
        backoff_mult=2.0,
        backoff_max=30.0,
        max_retries=5,
    )
    ev = Event(
        meta=EventMeta(
            topic="actions",
            type=EventType.ACTION_EXECUTED,
            space_id="shared:household",
            trace_id="trace-123",
            idem_key="act:a1|ok",
        ),
        payload={"action_id": "a1", "status": "ok"},
    )
    await bus.publish(ev)
    await settled(bus)
    await bus.close()
    assert executed == ["act:a1|ok"]


async def test_the_playbook_publish_and_idempotent_consumer(workspace: Path) -> None:
    """Section 12: publishing with the defaults, and a consumer that remembers what it has seen."""
    bus = EventBus()
    seen: set[str] = set()
    processed: list[dict[str, Any]] = []

    async def on_ws(ev: Event) -> Ack:
        key = ev.meta.idem_key or ev.meta.event_id
        if key in seen:
            return Ack()
        seen.add(key)
        processed.append(ev.payload)
        return Ack()

    await bus.publish(
        Event(
            meta=EventMeta(topic="workspace", type=EventType.WORKSPACE_BROADCAST, space_id="shared:household"),
            payload={"summary": "Top 5 salient items"},
        )
    )
    await bus.subscribe(topic="workspace", group="arbiter", handler=on_ws)
    for _ in range(2):
        meta = EventMeta(
            topic="workspace", type=EventType.WORKSPACE_BROADCAST, space_id="shared:household", idem_key="same"
        )
        await bus.publish(Event(meta=meta, payload={"summary": "twice"}))
    await settled(bus)
    await bus.close()
    assert processed == [{"summary": "Top 5 salient items"}, {"summary": "twice"}]


@pytest.mark.parametrize(
    ("topic", "type", "group", "payload"),
    [
        (
            "affect",
            EventType.AFFECT_ANNOTATED,
            "arbiter",
            {"event_id": "ev-1", "valence": 0.12, "arousal": 0.73, "tags": ["urgent"], "confidence": 0.67},
        ),
        ("temporal", EventType.HIPPO_ENCODE, "temporal-indexer", {"ts": "2025-09-14T08:00:00Z", "tags": ["kitchen"]}),
    ],
)
async def test_envelopes_between_modules(
    workspace: Path, topic: str, type: EventType, group: str, payload: dict[str, Any]
) -> None:
    """Section 14: affect to arbiter, ingest to temporal; the payload arrives as it was sent."""
    received: list[tuple[Any, Any]] = []

    async def consumer(ev: Event) -> Ack:
        received.append((ev.meta.type, ev.payload))
        return Ack()

    async with EventBus() as bus:
        await bus.subscribe(topic=topic, group=group, handler=consumer)
        made = datetime(2025, 9, 14, 8, tzinfo=UTC)
        meta = EventMeta(topic=topic, type=type, space_id="shared:household", actor="device:phone1", ts=made)
        await bus.publish(Event(meta=meta, payload=payload))
        await settled(bus)
    assert received == [(type, payload)]


def test_the_end_to_end_example(workspace: Path) -> None:
    """Appendix B: publish, durable subscribe, close, under `asyncio.run`; a second run finds nothing left to do."""
    handled: list[str | None] = []

    async def main(publishes: bool) -> None:
        bus = EventBus([TracingMiddleware(), MetricsMiddleware()])

        async def learner(ev: Event) -> Ack:
            handled.append(ev.meta.idem_key)
            return Ack()

        await bus.subscribe(
            topic="actions",
            group="learner",
            handler=learner,
            max_inflight=100,
            workers=2,
            backoff_base=0.5,
            backoff_mult=2.0,
            backoff_max=30.0,
            max_retries=5,
        )
        if publishes:
            ev = Event(
                meta=EventMeta(
                    topic="actions",
                    type=EventType.ACTION_EXECUTED,
                    space_id="shared:household",
                    idem_key="act:a1|ok",
                ),
                payload={"action_id": "a1", "status": "ok"},
            )
            await bus.publish(ev)
        await asyncio.sleep(0.2)
        await bus.close()

    asyncio.run(main(publishes=True))
    asyncio.run(main(publishes=False))
    assert handled == ["act:a1|ok"]


async def test_the_cheat_sheet(workspace: Path) -> None:
    """Section 18: positional topic, group and handler; ack by returning, retry by raising or by `Nack()`."""
    attempts: list[int] = []

    async def handler(ev: Event) -> Ack | Nack:
        attempts.append(ev.payload["n"])
        if len(attempts) == 1:
            raise RuntimeError("retry")
        return Nack() if len(attempts) == 2 else Ack()

    async with EventBus() as bus:
        await bus.subscribe("actions", "learner", handler, workers=2, max_inflight=8, backoff_base=0.001)
        meta = EventMeta(topic="actions", type=EventType.ACTION_DECISION, space_id="shared:household")
        await bus.publish(Event(meta, {"n": 1}))
        await settled(bus)
    assert attempts == [1, 1, 1]
    [offsets] = (workspace / ".bus").rglob("offsets/actions__learner.json")
    assert '"committed": 1' in offsets.read_text() or '"committed":1' in offsets.read_text()
