"""The CloudEvents Subscriptions dialects."""

from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.cloudevents import from_cloudevent, to_cloudevent
from events.errors import InvalidMessage
from events.types import Actor, Event, EventMeta, EventType, SecurityBand
from filters import AttributeFilter, SimpleFilter, all_of, any_of, exact, none_of, prefix, suffix
from filters.dialects import _ATTRIBUTES

META = EventMeta(
    topic="sensors.kitchen",
    type="TEMPERATURE_READ",
    space_id="home",
    event_id="ev-1",
    ts="2026-03-01T12:00:00Z",
    ttl_sec=60,
    key="oven",
    actor=Actor(user_id="alice", agent_id="cook"),
    band="AMBER",
    priority=80,
    correlation_id="c-1",
    causation_id="ev-0",
    idem_key="once",
    traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    headers={"tracestate": "x=1", "mood": "calm"},
)
EVENT = Event.from_log(META, b"never decoded")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("specversion", "1.0"),
        ("id", "ev-1"),
        ("source", "alice"),
        ("type", "TEMPERATURE_READ"),
        ("subject", "oven"),
        ("time", "2026-03-01T12:00:00Z"),
        ("datacontenttype", "application/json"),
        ("spaceid", "home"),
        ("topic", "sensors.kitchen"),
        ("correlationid", "c-1"),
        ("causationid", "ev-0"),
        ("partitionkey", "oven"),
        ("expirytime", "2026-03-01T12:01:00Z"),
        ("authtype", "app_user"),
        ("authid", "alice"),
        ("authclaims", '{"agent_id":"cook","user_id":"alice"}'),
        ("dataclassification", "internal"),
        ("priority", "80"),
        ("idemkey", "once"),
        ("traceparent", META.traceparent),
        ("tracestate", "x=1"),
    ],
)
def test_attributes_of_the_envelope(attribute: str, value: str) -> None:
    """E5: an attribute is what the event's CloudEvent has under that name, compared as text."""
    assert exact({attribute: value}).matches(EVENT) is True
    assert prefix({attribute: value[:3]}).matches(EVENT) is True
    assert suffix({attribute: value[-3:]}).matches(EVENT) is True
    assert exact({attribute: value + "x"}).matches(EVENT) is False


def test_all_named_attributes_have_to_fit() -> None:
    """One filter may name several attributes, and one that is not there does not fit; headers are no attributes."""
    assert exact({"type": "TEMPERATURE_READ", "spaceid": "home"}).matches(EVENT) is True
    assert exact({"type": "TEMPERATURE_READ", "spaceid": "away"}).matches(EVENT) is False
    assert exact({"type": "TEMPERATURE_READ", "mood": "calm"}).matches(EVENT) is False


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), min_size=1, max_size=8)
actors = (
    texts
    | st.sampled_from(["agent:planner", "user:ada"])
    | st.builds(Actor, user_id=st.none() | texts, agent_id=st.none() | texts)
)
metas = st.builds(
    EventMeta,
    topic=st.sampled_from(["a.b", EventType.HIPPO_ENCODE]),
    type=st.just("T"),
    space_id=st.sampled_from(["home", "ä/ö"]),
    ts=st.datetimes(timezones=st.just(UTC)),
    actor=st.none() | actors,
    ttl_sec=st.none() | st.integers(0, 10**9) | st.floats(0, 1e9),
    key=st.none() | texts,
    priority=st.none() | st.integers(0, 100) | st.sampled_from(["low", "high"]),
    band=st.none() | st.sampled_from(SecurityBand),
    correlation_id=st.none() | texts,
    idem_key=st.none() | texts,
    trace_id=st.none() | texts,
    schema_version=st.none() | st.integers(1, 1000),
    headers=st.none() | st.just({"tracestate": "x=1"}),
)
imported = st.builds(
    lambda attributes: (
        from_cloudevent(
            {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.example.made", **attributes},
            default_space="home",
            default_topic="shop",
        ).meta
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "subject": texts,
            "time": st.just("2026-03-01T12:00:00.123456789Z"),
            "dataschema": texts,
            "myextension": texts | st.booleans() | st.integers(0, 9),
            "dataclassification": st.sampled_from(["public", "unheardof"]),
            "authid": texts,
        },
    ),
)


@settings(deadline=None)
@given(metas | imported)
def test_attributes_are_those_of_the_codec(meta: EventMeta) -> None:
    """E5: each attribute that the codec writes is found by its value, and each that it leaves out is not there."""
    event = Event.from_log(meta, b"never decoded")
    written = to_cloudevent(Event(meta, {}))
    for name in {*_ATTRIBUTES, "dataschema", "myextension"}:
        value = written.get(name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is None:
            assert not any(prefix({name: start}).matches(event) for start in ("a", "0", "1", "/"))
        elif text:
            assert exact({name: text}).matches(event) is True


def test_an_event_from_elsewhere_is_known_by_its_own_attributes() -> None:
    """A CloudEvent that was imported matches by the type and source it came with, and by its extensions."""
    made = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.example.made", "flag": True}
    event = from_cloudevent(made, default_space="home", default_topic="shop")
    assert exact({"type": "com.example.made", "source": "/shop", "flag": "true"}).matches(event) is True
    assert exact({"type": "COM_EXAMPLE_MADE"}).matches(event) is False
    assert SimpleFilter("meta.type", "COM_EXAMPLE_MADE").matches(event) is True
    assert SimpleFilter("meta.cloudevent.flag", True).matches(event) is True


def test_all_any_and_not() -> None:
    """The compound dialects join filters; `not` of several means that none matches."""
    warm, home, away = prefix({"type": "TEMP"}), exact({"spaceid": "home"}), exact({"spaceid": "away"})
    assert all_of(warm, home).matches(EVENT) is True
    assert all_of(warm, away).matches(EVENT) is False
    assert any_of(away, home).matches(EVENT) is True
    assert none_of(away).matches(EVENT) is True
    assert none_of(away, home).matches(EVENT) is False
    assert none_of(away).describe() == {"not": {"exact": {"spaceid": "away"}}}


@pytest.mark.parametrize(
    ("dialect", "attributes", "message"),
    [
        ("exact", {}, "one or more attributes"),
        ("exact", ["type"], "one or more attributes"),
        ("exact", {"type": ""}, "not empty"),
        ("exact", {"priority": 5}, "a string"),
        ("exact", {"space_id": "home"}, "lower-case letters and digits"),
        ("exact", {"Type": "x"}, "lower-case letters and digits"),
        ("exact", {5: "x"}, "lower-case letters and digits"),
        ("exact", {"typ": "x"}, "Did you mean 'type'"),
        ("exact", {"sequence": "7"}, "the offset is the log's"),
        ("exact", {"recordedtime": "x"}, "the log's to say"),
        ("exact", {"data": "x"}, "no attribute"),
        ("like", {"type": "x"}, "Known: exact, prefix, suffix"),
    ],
)
def test_a_malformed_dialect_filter_is_refused(dialect: str, attributes: Any, message: str) -> None:
    """What could never match is refused when the filter is built, with the reason."""
    with pytest.raises(InvalidMessage, match=message):
        AttributeFilter(dialect, attributes)
