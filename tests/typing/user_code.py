"""What a user writes against the envelope, with the types that a checker must see there.

Never imported by the library. A test runs mypy over it as a user would, and runs it. An unused `type: ignore` is an
error in strict mode, so each one here says that mypy must object to its line.
"""

from datetime import UTC, datetime
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from events.cloudevents import from_cloudevent, to_cloudevent
from events.errors import BusError, InvalidMessage, InvalidTopic, PayloadTooLarge, QueueFull, error_code_of
from events.names import check_group, check_space, check_topic, topic_matches
from events.serialization import encode_event, encode_payload
from events.types import (
    Ack,
    Actor,
    Device,
    Event,
    EventMeta,
    EventType,
    Nack,
    QoS,
    Receipt,
    SecurityBand,
    priority_level,
)


class Reading(BaseModel):
    """A payload of the user's own."""

    sensor: str
    value: float


def build_a_meta() -> EventMeta:
    """Every field, as literals of the seed's kind."""
    meta = EventMeta(
        topic="sensors.door",
        type="DOOR_OPENED",
        space_id="home",
        ts=datetime(2026, 11, 18, tzinfo=UTC),
        actor=Actor(user_id="ada", roles=("owner",)),
        device=Device(device_id="phone-1", platform="ios"),
        priority="high",
        band=SecurityBand.AMBER,
        caps=["mic"],
        qos=QoS(ack_deadline_s=30, max_retries=2),
        headers={"a": "b"},
        ttl_sec=60,
    )
    assert_type(meta.topic, EventType | str)
    assert_type(meta.type, EventType | str)
    assert_type(meta.space_id, str)
    assert_type(meta.event_id, str)
    assert_type(meta.ts, datetime)
    assert_type(meta.actor, str | Actor | None)
    assert_type(meta.device, Device | None)
    assert_type(meta.key, str | None)
    assert_type(meta.ttl_sec, int | float | None)
    assert_type(meta.priority, int | Literal["low", "normal", "high", "critical"] | None)
    assert_type(meta.band, SecurityBand | None)
    assert_type(meta.caps, tuple[str, ...] | None)
    assert_type(meta.qos, QoS | None)
    assert_type(meta.headers, dict[str, str] | None)
    assert_type(meta.schema_version, int | None)
    assert_type(meta.replace(key="k"), EventMeta)
    assert_type(meta.to_json(), bytes)
    assert_type(EventMeta.from_json(meta.to_json()), EventMeta)
    assert_type(priority_level(meta.priority), int)
    assert_type(SecurityBand.RED > SecurityBand.GREEN, bool)
    return meta


def publish_plain(meta: EventMeta) -> Event:
    """An event whose payload is a dict."""
    event = Event(meta, {"open": True})
    short = Event(EventMeta(topic=EventType.HIPPO_ENCODE, space_id="home"), {})
    assert_type(event.meta, EventMeta)
    assert_type(short.meta.topic, EventType | str)
    assert_type(event.raw_payload, bytes | None)
    assert_type(encode_event(event, 1000), tuple[bytes, bytes])
    assert_type(encode_payload({"a": 1}, 1000), bytes)
    return Event.from_log(meta, b'{"open":true}')


def publish_typed(meta: EventMeta) -> Event[Reading]:
    """An event whose payload is a model, given as a dict and as itself."""
    event = Event[Reading](meta, {"sensor": "door", "value": 1})
    assert_type(event, Event[Reading])
    assert_type(event.payload, Reading)
    assert_type(event.payload.value, float)
    assert_type(event.replace(key="k"), Event[Any])
    assert_type(Event(meta, Reading(sensor="door", value=1)), Event[Reading])
    return event


def on_plain(event: Event) -> Ack | Nack | None:
    """A handler of plain events."""
    assert_type(event.payload, dict[str, Any])
    return Ack() if event.payload else Nack(reason="empty", delay=1.5, count=False)


async def on_typed(event: Event[Reading]) -> None:
    """A handler of typed events."""
    assert_type(event.payload.sensor, str)
    event.payload.nothing  # type: ignore[attr-defined]  # noqa: B018


def mistakes_that_mypy_finds(meta: EventMeta, event: Event) -> None:
    """Never called: each line would raise."""
    Actor(userid="ada")  # type: ignore[call-arg]
    Device(platform="ios")  # type: ignore[call-arg]
    Nack(delay="soon")  # type: ignore[arg-type]
    Event("meta", {})  # type: ignore[arg-type]
    Event(meta)  # type: ignore[call-arg]
    event.payload = {}  # type: ignore[misc]
    event.meta = meta  # type: ignore[misc]
    from_cloudevent(5)  # type: ignore[arg-type]


def across_to_cloudevents(event: Event[Reading]) -> Event:
    """Out and in again."""
    written = to_cloudevent(event, offset=7, at_ms=1_700_000_000_000)
    assert_type(written, dict[str, Any])
    back = from_cloudevent(written, default_space="home", default_topic="inbox")
    assert_type(back, Event[dict[str, Any]])
    return back


def errors_carry_their_fields(error: BusError) -> str | None:
    """What code can act on."""
    if isinstance(error, PayloadTooLarge):
        assert_type(error.size_bytes, int)
    if isinstance(error, InvalidMessage):
        assert_type(error.field, str)
        assert_type(error.found, object)
    if isinstance(error, QueueFull):
        assert_type(error.waited_s, float)
    assert_type(error.code, str)
    return assert_type(error_code_of(error), str | None)


def main() -> None:
    """Everything above that can run."""
    meta = build_a_meta()
    assert on_plain(publish_plain(meta)) == Ack()
    typed = publish_typed(meta)
    assert across_to_cloudevents(typed) == typed
    assert_type(Receipt("home", "sensors", 1, meta.event_id).offset, int)
    assert topic_matches("sensors.*", check_topic("sensors.door"))
    assert (check_group("lights"), check_space("home")) == ("lights", "home")
    try:
        EventMeta(topic="../up", type="T", space_id="home")
    except InvalidTopic as error:
        print(errors_carry_their_fields(error))


if __name__ == "__main__":
    main()
