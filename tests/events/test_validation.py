"""What is checked before anything else looks at an event, and strict topology."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from events.bus import EventBus
from events.config import BusConfig
from events.errors import (
    GroupConflict,
    InvalidMessage,
    InvalidSpace,
    InvalidTopic,
    NoSubscriber,
    PayloadTooLarge,
    TopicAlreadyHandled,
    TopicFrozen,
)
from events.persistence.memory import MemoryStore
from events.types import Event, EventMeta, EventType
from events.validation import checked, payload_of
from tests.events.bus_support import Collector, an_event, settled


class Reading(BaseModel):
    """A payload of a user's own."""

    value: float


def test_the_topic_beside_the_event_wins() -> None:
    """E2: as a name, or as an `EventType` that stays one; the event's own is untouched."""
    event = an_event()
    assert checked(event, "notes", None, 1000).meta.topic == "notes"
    as_type = checked(event, EventType.HIPPO_ENCODE, None, 1000).meta
    assert isinstance(as_type.topic, EventType)
    assert event.meta.topic == "actions"
    assert checked(event, "actions", None, 1000).meta is event.meta


def test_an_identity_signs_what_is_unsigned() -> None:
    """`bind`: the subject becomes the actor, unless the event names one itself."""
    assert checked(an_event(), None, "agent:planner", 1000).meta.actor == "agent:planner"
    assert checked(an_event(actor="user:ada"), None, "agent:planner", 1000).meta.actor == "user:ada"


@pytest.mark.parametrize(
    ("event", "topic", "error"),
    [
        ({"meta": {}, "payload": {}}, None, InvalidMessage),
        (None, None, InvalidMessage),
        (an_event(), "", InvalidTopic),
        (an_event(), "a..b", InvalidTopic),
        (an_event(), "x" * 101, InvalidTopic),
        (Event(EventMeta.model_construct(topic="../a", type="T", space_id="s"), {}), None, InvalidTopic),
        (Event(EventMeta.model_construct(topic="a", type="T", space_id="a\nb"), {}), None, InvalidSpace),
        (Event(an_event().meta, {"big": "x" * 2000}), None, PayloadTooLarge),
        (Event(an_event().meta, {"nan": float("nan")}), None, InvalidMessage),
        (Event(an_event().meta, {"set": {1}}), None, InvalidMessage),
    ],
)
def test_what_is_no_event_is_refused(event: Any, topic: str | None, error: type[Exception]) -> None:
    """Step 2: names and shape, before any middleware sees them."""
    with pytest.raises(error):
        checked(event, topic, None, 1000)


def test_a_payload_is_encoded_once() -> None:
    """Step 2: bytes from a log pass as they are; what somebody looked at is encoded again."""
    raw = b'{"n":1, "spaced": true}'
    event: Event = Event.from_log(an_event().meta, raw)
    assert payload_of(event, 1000) is raw
    event.payload["n"] = 2
    assert payload_of(event, 1000) == b'{"n":2,"spaced":true}'
    assert payload_of(Event(an_event().meta, Reading(value=1.5)), 1000) == b'{"value":1.5}'


# -- W16: strict topology --------------------------------------------------------------------------------------


def _strict(*topics: str) -> EventBus:
    return EventBus(store=MemoryStore(), config=BusConfig(strict_topics=topics))


async def test_a_strict_bus_knows_its_topics() -> None:
    """INVALID_TOPIC (W16): topics outside the allow-list are refused, for publishing and for subscribing."""
    async with _strict("actions") as bus:
        for call in (
            lambda: bus.publish(an_event(topic="notes")),
            lambda: bus.subscribe("notes", "learner", Collector()),
            lambda: bus.subscribe("*", "learner", Collector()),
        ):
            with pytest.raises(InvalidTopic) as refused:
                await call()
            assert "actions" in str(refused.value)


async def test_a_strict_bus_has_one_handler_a_topic() -> None:
    """TOPIC_ALREADY_HANDLED (W16): by name of the group that has it; more workers of that group may join."""
    async with _strict("actions", "notes") as bus:
        subscription = await bus.subscribe("actions", "learner", Collector())
        with pytest.raises(TopicAlreadyHandled) as refused:
            await bus.subscribe("actions", "other", Collector())
        assert (refused.value.code, refused.value.group) == ("TOPIC_ALREADY_HANDLED", "learner")
        await bus.subscribe("actions", "learner", Collector())
        await bus.subscribe("notes", "other", Collector())
        assert subscription.is_active


async def test_a_topic_is_free_again_when_its_group_leaves() -> None:
    """W16: as the error says, unsubscribing that group first makes room for another."""
    async with _strict("actions") as bus:
        subscription = await bus.subscribe("actions", "learner", Collector())
        await bus.unsubscribe(subscription)
        await bus.subscribe("actions", "other", Collector())


async def test_a_refused_subscription_leaves_its_topic_free() -> None:
    """W16: a conflict or a bad setting takes no topic."""
    async with _strict("actions", "notes") as bus:
        await bus.unsubscribe(await bus.subscribe("actions", "learner", Collector()))
        with pytest.raises(GroupConflict):
            await bus.subscribe("notes", "learner", Collector())
        with pytest.raises(InvalidMessage):
            await bus.subscribe("notes", "other", Collector(), workers=0)
        await bus.subscribe("notes", "third", Collector())


async def test_a_strict_bus_refuses_what_nobody_would_get() -> None:
    """NO_SUBSCRIBER (W16): with the topic and the space; the refusal freezes nothing, so one may subscribe then."""
    collector = Collector()
    async with _strict("actions") as bus:
        with pytest.raises(NoSubscriber) as refused:
            await bus.publish(an_event(1))
        assert (refused.value.code, refused.value.topic, refused.value.space_id) == ("NO_SUBSCRIBER", "actions", "home")
        await bus.subscribe("actions", "learner", collector, space="home")
        with pytest.raises(NoSubscriber):
            await bus.publish(an_event(2, space="work"))
        await bus.publish(an_event(3))
        await settled(bus)
    assert collector.numbers == [3]


async def test_a_strict_topology_is_frozen_at_the_first_publish() -> None:
    """TOPIC_FROZEN (W16): after that nobody new is let in."""
    async with _strict("actions", "notes") as bus:
        await bus.subscribe("actions", "learner", Collector())
        await bus.publish(an_event(1))
        with pytest.raises(TopicFrozen) as refused:
            await bus.subscribe("notes", "other", Collector())
        assert (refused.value.code, refused.value.topic) == ("TOPIC_FROZEN", "notes")


async def test_without_the_option_anything_goes(event_bus: EventBus) -> None:
    """W16: strictness is an option: by default events wait in the log for whoever comes."""
    await event_bus.publish(an_event(1))
    collector = Collector()
    await event_bus.subscribe("actions", "first", collector)
    await event_bus.subscribe("actions", "second", collector)
    await settled(event_bus)
    assert collector.numbers == [1, 1]


def test_the_allow_list_itself_is_checked() -> None:
    """W16: a name that could never match is a mistake when the bus is made."""
    with pytest.raises(InvalidTopic):
        EventBus(store=MemoryStore(), config=BusConfig(strict_topics=("a b",)))


async def test_two_groups_cannot_race_for_a_topic() -> None:
    """W16: of many that subscribe at one moment one gets the topic."""
    outcomes: list[str] = []
    async with _strict("actions") as bus:

        async def subscribe(group: str) -> None:
            try:
                await bus.subscribe("actions", group, Collector())
            except TopicAlreadyHandled:
                outcomes.append("refused")
            else:
                outcomes.append("taken")

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(subscribe, f"group-{number}")
    assert sorted(outcomes) == ["refused"] * 4 + ["taken"]
