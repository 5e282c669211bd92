"""A publisher with a bound envelope: checked once, then payloads alone."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from events.bus import EventBus
from events.errors import InvalidMessage, InvalidSpace, InvalidTopic, QueueFull
from events.testing.clock import FakeClock
from events.types import EventType, SecurityBand
from tests.events.bus_support import Held, history


class Reading(BaseModel):
    """A payload of a user's own."""

    n: int


async def test_payloads_go_out_under_one_envelope(event_bus: EventBus) -> None:
    """Each event has an id and a time of its own, and everything else of the template."""
    publisher = event_bus.publisher(
        topic="actions", type="NOTED", space_id="home", band=SecurityBand.AMBER, headers={"a": "b"}
    )
    receipts = [await publisher.publish({"n": 1}), await publisher.publish(Reading(n=2))]
    receipts += await publisher.publish_many([{"n": 3}, {"n": 4}])
    assert [receipt.offset for receipt in receipts] == [1, 2, 3, 4]
    records = await history(event_bus)
    metas = [record.event.meta for record in records]
    assert [record.event.payload for record in records] == [{"n": number} for number in (1, 2, 3, 4)]
    assert len({meta.event_id for meta in metas}) == 4
    assert publisher.template.event_id not in {meta.event_id for meta in metas}
    assert {(meta.band, meta.type, meta.headers["a"] if meta.headers else "") for meta in metas} == {
        (SecurityBand.AMBER, "NOTED", "b")
    }


async def test_what_differs_from_event_to_event_is_given_with_it(event_bus: EventBus) -> None:
    """`key=`, `idem_key=` and the like; the template stays as it is."""
    publisher = event_bus.publisher("actions", "home", "NOTED", priority="low")
    await publisher.publish({"n": 1}, key="k", idem_key="once", priority="high")
    await publisher.publish_many([{"n": 2}, {"n": 3}], correlation_id="c")
    await publisher.publish({"n": 4})
    metas = [record.event.meta for record in await history(event_bus)]
    assert [(meta.key, meta.idem_key, meta.priority, meta.correlation_id) for meta in metas] == [
        ("k", "once", "high", None),
        (None, None, "low", "c"),
        (None, None, "low", "c"),
        (None, None, "low", None),
    ]


async def test_a_type_may_be_the_topic(event_bus: EventBus) -> None:
    """E2: given an `EventType` as topic, nothing else needs to be said."""
    receipt = await event_bus.publisher(EventType.HIPPO_ENCODE, "home").publish({})
    assert receipt.topic == "HIPPO_ENCODE"


def test_a_bad_envelope_is_refused_when_the_publisher_is_made() -> None:
    """The meta is checked once, and then: not at the first publish."""
    bus = EventBus()
    for arguments, error in (
        ({"topic": "../up", "space_id": "home", "type": "NOTED"}, InvalidTopic),
        ({"topic": "actions", "space_id": "", "type": "NOTED"}, InvalidSpace),
        ({"topic": "actions", "space_id": "home"}, InvalidMessage),
        ({"topic": "actions", "space_id": "home", "type": "NOTED", "ttl": 5}, InvalidMessage),
    ):
        with pytest.raises(error):
            bus.publisher(**arguments)


async def test_a_bad_change_is_refused_with_nothing_written(event_bus: EventBus) -> None:
    """E1: a misspelt keyword is an error with a suggestion; so is a payload that is no object."""
    publisher = event_bus.publisher("actions", "home", "NOTED")
    with pytest.raises(InvalidMessage, match="idem_key"):
        await publisher.publish({"n": 1}, idemkey="x")
    with pytest.raises(InvalidMessage):
        await publisher.publish_many([{"n": 1}, [2]])  # type: ignore[list-item]
    assert await history(event_bus) == []


async def test_a_publisher_waits_no_longer_than_it_is_told(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W12: `timeout_s` reaches the bus."""
    held = Held()
    await timed_bus.subscribe("actions", "slow", held, max_inflight=1)
    await fake_clock.advance(0)
    publisher = timed_bus.publisher("actions", "home", "NOTED")
    await publisher.publish({"n": 1})
    await fake_clock.advance(0)
    with pytest.raises(QueueFull):
        await publisher.publish({"n": 2}, timeout_s=0)
    with pytest.raises(QueueFull):
        await publisher.publish_many([{"n": 2}], timeout_s=0)
    held.let_go()
