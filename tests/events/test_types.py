"""The envelope: what can be built, what is refused, and what a consumer may rely on."""

import copy
import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Json, computed_field
from pydantic import ValidationError as PydanticError

from events.errors import InvalidMessage, InvalidSpace, InvalidTopic
from events.serialization import encode_event
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


def made(**fields: Any) -> EventMeta:
    """A meta with the required fields filled in."""
    return EventMeta(**{"topic": "actions", "type": "TICK", "space_id": "home", **fields})


class Reading(BaseModel):
    """A payload with a type."""

    sensor: str
    value: float


# --- E1: keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "field", "suggestion"),
    [
        (lambda: made(ttl=5), "meta.ttl", "'ttl_sec'"),
        (lambda: made(idempotency_key="x"), "meta.idempotency_key", "'idem_key'"),
        (lambda: made(corelation_id="x"), "meta.corelation_id", "'correlation_id'"),
        (lambda: made(space="x"), "meta.space", "'space_id'"),
        (lambda: made(actor={"user": "x"}), "meta.actor.user", "'user_id'"),
        (lambda: made(actor={"user_id": "x", "role": ["y"]}), "meta.actor.role", "'roles'"),
        (lambda: made(device={"device": "x"}), "meta.device.device", "'device_id'"),
        (lambda: made(qos={"max_retry": 1}), "meta.qos.max_retry", "'max_retries'"),
        (lambda: Actor(userid="x"), "actor.userid", "'user_id'"),  # type: ignore[call-arg]
        (lambda: Device(device_id="x", platfrom="y"), "device.platfrom", "'platform'"),  # type: ignore[call-arg]
        (lambda: QoS(ack_deadline=1), "qos.ack_deadline", "'ack_deadline_s'"),  # type: ignore[call-arg]
    ],
    ids=["ttl", "idem", "typo", "space", "actor", "roles", "device", "qos", "Actor", "Device", "QoS"],
)
def test_a_misspelt_key_is_refused_with_a_suggestion(build: Callable[[], object], field: str, suggestion: str) -> None:
    """E1: building code that misspells a key learns which one it meant, at every level of the envelope."""
    with pytest.raises(InvalidMessage) as caught:
        build()
    assert caught.value.field == field
    assert f"Did you mean {suggestion}?" in str(caught.value)


def test_a_key_like_none_of_ours_is_refused_with_the_list() -> None:
    """E1: where nothing is close, the error lists what there is. `self` is a key like any other."""
    for key in ("zzzzzz", "self"):
        with pytest.raises(InvalidMessage) as caught:
            made(**{key: 1})
        assert caught.value.field == f"meta.{key}"
    assert "topic" in str(caught.value)


plain_json = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
unknown_keys = st.dictionaries(st.text(min_size=1, max_size=8).map(lambda key: f"x_{key}"), plain_json, max_size=4)


@given(unknown_keys, unknown_keys)
def test_unknown_keys_of_a_log_are_kept_and_written_back(newer: dict[str, Any], in_actor: dict[str, Any]) -> None:
    """E1: older code carries newer events: keys it does not know come out as they went in. Null is unset."""
    line = {**json.loads(made().to_json()), **newer, "actor": {"user_id": "ada", **in_actor}}
    meta = EventMeta.from_json(json.dumps(line).encode())
    assert json.loads(meta.to_json()) == line
    assert json.loads(meta.replace(key="k").to_json()) == {**line, "key": "k"}


def test_a_line_without_what_is_required_is_refused() -> None:
    """E1: openness is for unknown keys; a known one must still hold what it should."""
    for line in (b"{}", b'{"topic":"a","type":"T","space_id":"s","priority":101}', b"not json"):
        with pytest.raises(PydanticError):
            EventMeta.from_json(line)


# --- E2: topic and type ---------------------------------------------------------------------------------


def test_a_topic_may_be_an_event_type_and_names_the_type() -> None:
    """E2: the topic stays that member, it is a string too, and the type may then be left out."""
    meta = EventMeta(topic=EventType.HIPPO_ENCODE, space_id="home")
    assert meta.topic is EventType.HIPPO_ENCODE
    assert meta.type is EventType.HIPPO_ENCODE
    assert (meta.topic, f"{meta.topic}", str(meta.topic)) == ("HIPPO_ENCODE",) * 3
    assert json.loads(meta.to_json())["topic"] == "HIPPO_ENCODE"
    other = EventMeta(topic=EventType.HIPPO_ENCODE, type="MY_TYPE", space_id="home")
    assert other.type == "MY_TYPE"


def test_a_type_is_a_member_or_any_upper_snake_string() -> None:
    """E2: a known name becomes the member, another one stays a string, and the way through a log changes neither."""
    assert made(type="ACTION_DECISION").type is EventType.ACTION_DECISION
    assert made(type="MY_OWN_TYPE_2").type == "MY_OWN_TYPE_2"
    for meta in (made(type="ACTION_DECISION"), made(type="MINE")):
        assert EventMeta.from_json(meta.to_json()) == meta


@pytest.mark.parametrize(
    "name", ["", "lower", "Mixed", "_A", "A_", "A__B", "2A", "A-B", "A B", "Ä", "A" * 101, None, 5]
)
def test_other_types_are_refused(name: object) -> None:
    """E2: the error names the field and says what a type is."""
    with pytest.raises(InvalidMessage, match="UPPER_SNAKE") as caught:
        made(type=name)
    assert caught.value.field == "meta.type"


def test_a_type_is_required_when_the_topic_does_not_name_it() -> None:
    """E2: only an EventType says both."""
    with pytest.raises(InvalidMessage, match="type is required") as caught:
        EventMeta(topic="actions", space_id="home")
    assert caught.value.field == "meta.type"


def test_topic_and_space_are_checked_when_a_meta_is_built() -> None:
    """F3: with the error that their names deserve."""
    for topic in ("", "..", "a/b", "a__b", "x" * 101, "ä", None):
        with pytest.raises(InvalidTopic) as wrong_topic:
            made(topic=topic)
        assert wrong_topic.value.field == "meta.topic"
    for space in ("", "\n", "x" * 201, "é" * 34, "\ud800", None, 5):
        with pytest.raises(InvalidSpace) as wrong_space:
            made(space_id=space)
        assert wrong_space.value.field == "meta.space_id"


# --- the other fields -----------------------------------------------------------------------------------


def test_an_event_has_an_id_and_a_time_of_its_own() -> None:
    """Envelope: "ev-" and a UUIDv7 in hex, which sorts by time; the time is UTC."""
    first, second = made(), made()
    assert first.event_id.startswith("ev-")
    assert len(bytes.fromhex(first.event_id[3:])) == 16
    assert first.event_id[15] == "7"
    assert first.event_id < second.event_id
    assert first.ts.utcoffset() == timedelta(0)


def test_times_are_kept_as_utc() -> None:
    """Envelope: another zone is converted, no zone is refused, and so is what UTC has no year for."""
    meta = made(ts=datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))))
    assert (meta.ts.isoformat(), meta.ts.tzinfo) == ("2026-01-01T10:00:00+00:00", UTC)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001  # what is to be refused
    for ts in (naive, "2026-01-01T00:00:00", datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))):
        with pytest.raises(InvalidMessage) as caught:
            made(ts=ts)
        assert caught.value.field == "meta.ts"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", 101),
        ("priority", -1),
        ("priority", 5.0),
        ("priority", True),
        ("priority", "urgent"),
        ("ttl_sec", -1),
        ("ttl_sec", float("nan")),
        ("ttl_sec", float("inf")),
        ("ttl_sec", True),
        ("ttl_sec", "5"),
        ("band", "PURPLE"),
        ("caps", "mic"),
        ("caps", ["no spaces"]),
        ("traceparent", "00-abc"),
        ("key", ""),
        ("key", "x" * 257),
        ("key", "\ud800"),
        ("key", 5),
        ("headers", {"a": 1}),
        ("headers", {"a": "\ud800"}),
        ("headers", {"\ud800": "a"}),
        ("actor", ""),
        ("actor", 5),
        ("actor", {"user_id": 5}),
        ("actor", {"attributes": {"a": "\udfff"}}),
        ("device", {"device_id": ""}),
        ("qos", {"max_retries": True}),
        ("qos", {"ack_deadline_s": float("inf")}),
        ("schema_version", 0),
        ("schema_version", True),
        ("event_id", ""),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_value_outside_its_field_is_refused(name: str, value: object) -> None:
    """W18: the error names the field, shows what was found, and can be printed whatever that was."""
    with pytest.raises(InvalidMessage) as caught:
        made(**{name: value})
    assert caught.value.field.startswith(f"meta.{name}")
    assert str(caught.value).encode()


@pytest.mark.parametrize("priority", [0, 100, "low", "normal", "high", "critical"])
def test_a_priority_is_stored_as_given(priority: int | str) -> None:
    """Envelope: number or word, through the log as well; `priority_level` makes them comparable."""
    meta = made(priority=priority)
    assert EventMeta.from_json(meta.to_json()).priority == meta.priority == priority


def test_priorities_have_an_order() -> None:
    """Envelope: the words are numbers between 0 and 100, and an event without one is normal."""
    levels = [priority_level(name) for name in ("low", None, "high", "critical")]
    assert levels == sorted(levels)
    assert priority_level(None) == priority_level("normal") == 50
    assert priority_level(7) == 7


def test_bands_are_ordered_by_sensitivity() -> None:
    """Envelope: GREEN < AMBER < RED < BLACK, and not by the alphabet, also against their names."""
    green, amber, red, black = SecurityBand
    assert green < amber < red < black
    assert black > red >= amber >= green
    assert sorted([black, green, red, amber]) == [green, amber, red, black]
    assert black > "GREEN"
    assert "RED" < black  # noqa: SIM300  # the reflected comparison is the point
    assert red <= "RED"
    assert not black <= "RED"
    for other in ("PURPLE", 2, None):
        with pytest.raises(TypeError, match="GREEN, AMBER, RED, BLACK"):
            red < other  # noqa: B015  # it raises


def test_a_meta_is_frozen_with_all_that_hangs_on_it() -> None:
    """Envelope: consumers share it, so none can change it, built here or read from a log."""
    built = made(headers={"a": "b"}, actor=Actor(user_id="ada", attributes={"c": "d"}), caps=["mic"])
    for meta in (built, EventMeta.from_json(built.to_json()), copy.deepcopy(built)):
        assert isinstance(meta.actor, Actor)
        assert meta.headers is not None
        assert meta.actor.attributes is not None
        assert meta.caps == ("mic",)
        with pytest.raises(PydanticError):
            meta.key = "other"  # type: ignore[misc]  # mypy knows it too
        with pytest.raises(PydanticError):
            meta.actor.user_id = "eve"  # type: ignore[misc]
        for labels in (meta.headers, meta.actor.attributes):
            for change in (labels.clear, labels.popitem):
                with pytest.raises(TypeError, match="frozen"):
                    change()
            with pytest.raises(TypeError, match="frozen"):
                labels.update(x="y")
            with pytest.raises(TypeError, match="frozen"):
                labels["a"] = "z"


def test_a_meta_copies_the_headers_it_is_given() -> None:
    """Envelope: who built it can go on using the dict."""
    headers = {"a": "b"}
    meta = made(headers=headers)
    headers["a"] = "changed"
    assert meta.headers == {"a": "b"}


def test_replace_gives_a_checked_copy() -> None:
    """Envelope: other values in a new meta, checked like one that is built; None takes a value away."""
    meta = made(key="a", ttl_sec=5)
    changed = meta.replace(key="b", ttl_sec=None)
    assert (changed.key, changed.ttl_sec, changed.event_id) == ("b", None, meta.event_id)
    assert (meta.key, meta.ttl_sec) == ("a", 5)
    with pytest.raises(InvalidMessage, match="Did you mean 'ttl_sec'"):
        meta.replace(ttl=1)
    with pytest.raises(InvalidTopic):
        meta.replace(topic="../x")


def test_metas_and_events_can_be_copied_and_pickled() -> None:
    """Envelope: they cross to worker processes and to Spark."""
    meta = made(headers={"a": "b"}, actor=Actor(user_id="ada", attributes={"c": "d"}))
    event = Event(meta, {"a": [1]})
    assert pickle.loads(pickle.dumps(meta)) == copy.deepcopy(meta) == meta
    assert pickle.loads(pickle.dumps(event)) == copy.deepcopy(event) == event


def test_the_way_through_a_log_changes_no_field() -> None:
    """F1: what `to_json` writes, `from_json` reads; what is unset takes no room."""
    meta = made(
        actor=Actor(user_id="ada", roles=("owner",), attributes={"a": "b"}),
        device=Device(device_id="phone", platform="ios"),
        trace_id="t",
        traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
        idem_key="i",
        ttl_sec=1.5,
        key="k",
        priority="high",
        band="RED",
        caps=["mic", "net:read"],
        qos=QoS(ack_deadline_s=3, max_retries=0),
        correlation_id="c",
        causation_id="d",
        headers={"ä\n": "\u2028"},
        schema_version=2,
    )
    assert EventMeta.from_json(meta.to_json()) == meta
    assert set(json.loads(meta.to_json())) == set(EventMeta.model_fields)
    assert set(json.loads(made().to_json())) == {"topic", "type", "space_id", "event_id", "ts"}
    assert b"\n" not in meta.to_json()


# --- E3: events -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, [], "text", 5, {1}, b"{}", ()], ids=repr)
def test_a_payload_is_an_object(payload: Any) -> None:
    """E3: anything but a mapping or a model is refused when the event is built."""
    with pytest.raises(InvalidMessage, match="JSON object") as caught:
        Event(made(), payload)
    assert caught.value.field == "payload"


def test_an_event_needs_a_meta() -> None:
    """E3: a dict is not one, since nothing would have checked it."""
    with pytest.raises(InvalidMessage, match="EventMeta"):
        Event({"topic": "a"}, {})  # type: ignore[arg-type]


def test_an_event_of_a_model_checks_its_payload() -> None:
    """E3: `Event[Model]` takes a dict or the model, hands out the model, and names the field at fault."""
    event = Event[Reading](made(), {"sensor": "door", "value": 1})
    assert event.payload == Reading(sensor="door", value=1.0)
    assert Event[Reading](made(), event.payload).payload is event.payload
    with pytest.raises(InvalidMessage, match="model Reading") as caught:
        Event[Reading](made(), {"sensor": "door", "value": "high"})
    assert caught.value.field == "payload.value"
    assert Event[Reading] is Event[Reading]
    assert isinstance(event, Event)


def test_an_event_of_a_model_reads_its_payload_from_a_log() -> None:
    """E3: the model is made of the log's bytes when somebody looks, and a misfit is an `InvalidMessage`."""
    assert Event[Reading].from_log(made(), b'{"sensor":"door","value":2}').payload.value == 2.0
    with pytest.raises(InvalidMessage, match=r"payload\.sensor"):
        _ = Event[Reading].from_log(made(), b"{}").payload


class Wire(BaseModel):
    """A model whose JSON differs from its attributes."""

    model_config = ConfigDict(extra="forbid")
    order_id: int = Field(alias="orderId")
    nested: Json[dict[str, int]]

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorators on properties
    @property
    def label(self) -> str:
        """Derived, so a reader derives it again."""
        return f"order {self.order_id}"


def test_what_a_model_writes_the_same_model_reads() -> None:
    """E3: aliases, embedded JSON and computed fields survive; else no consumer could read what was published."""
    event = Event[Wire](made(), Wire(orderId=5, nested='{"a":1}'))  # type: ignore[arg-type]
    meta, payload = encode_event(event, 10_000)
    back = Event[Wire].from_log(EventMeta.from_json(meta), payload)
    assert back == event
    assert back.payload.label == "order 5"
    assert orjson.loads(payload) == {"orderId": 5, "nested": '{"a":1}'}


def test_events_are_equal_by_meta_and_payload() -> None:
    """E3: however the payload came in: a dict, a model, or bytes of a log."""
    meta = made()
    typed = Event[Reading](meta, Reading(sensor="a", value=1))
    assert typed == Event(meta, {"sensor": "a", "value": 1.0})
    assert typed == Event.from_log(meta, b'{"sensor":"a","value":1.0}')
    assert typed != Event(meta, {"sensor": "b", "value": 1.0})
    assert typed != Event(made(), {"sensor": "a", "value": 1.0})
    assert typed != "an event"
    with pytest.raises(TypeError, match="unhashable"):
        hash(typed)


def test_an_event_shows_what_it_is_and_not_what_it_holds() -> None:
    """E3: the text that lands in logs has names and no payload."""
    text = repr(Event(made(event_id="ev-1"), {"secret": "hunter2"}))
    assert text == "Event(TICK ev-1 topic='actions' space='home')"


def test_replace_makes_another_event() -> None:
    """E3: with another payload, which is checked, or other values in the meta; the first stays as it was."""
    event = Event(made(key="a"), {"n": 1})
    assert event.replace(key="b").meta.key == "b"
    assert event.replace(key="b").payload == {"n": 1}
    assert event.replace(payload={"n": 2}).payload == {"n": 2}
    assert event.replace(payload={"n": 2}).meta is event.meta
    assert (event.meta.key, event.payload) == ("a", {"n": 1})
    with pytest.raises(InvalidMessage):
        event.replace(payload="text")  # type: ignore[arg-type]


def test_replacing_the_payload_of_a_typed_event_never_lies_about_the_model() -> None:
    """E3: a model of the type keeps it; anything else, as after a redaction, makes a plain event."""
    event = Event[Reading](made(), {"sensor": "a", "value": 1})
    assert type(event.replace(payload=Reading(sensor="b", value=2))) is Event[Reading]
    redacted = event.replace(payload={"sensor": "***", "value": "***"})
    assert type(redacted) is Event
    assert redacted.payload == {"sensor": "***", "value": "***"}
    assert type(event.replace(key="k")) is Event[Reading]


# --- payload isolation ----------------------------------------------------------------------------------


def test_an_event_from_a_log_is_decoded_when_somebody_looks() -> None:
    """E3: until then it is the log's bytes, even if those are no JSON at all."""
    event = Event.from_log(made(), b"not looked at")
    assert event.raw_payload == b"not looked at"
    assert event.replace(key="k").raw_payload == b"not looked at"
    assert Event.remade(event, made()).raw_payload == b"not looked at"


def test_undecoded_bytes_are_passed_on_as_they_are() -> None:
    """E3: spaces, order and repeated keys included: nothing is encoded anew."""
    raw = b'{ "b":1, "a" : 1.0, "a":2 }'
    assert encode_event(Event.from_log(made(), raw), 10_000)[1] is raw


def test_a_decoded_payload_is_encoded_anew() -> None:
    """E3: who has looked may have changed it, so the bytes no longer count."""
    event = Event.from_log(made(), b'{"a": [1]}')
    event.payload["a"].append(2)
    assert event.raw_payload is None
    assert encode_event(event, 10_000)[1] == b'{"a":[1,2]}'


def test_deliveries_of_one_record_do_not_share_a_payload() -> None:
    """E3: what one consumer does to its payload, the next one, or the next attempt, does not see."""
    meta, raw = made(), b'{"tags":["a"]}'
    first, second = Event.from_log(meta, raw), Event.from_log(meta, raw)
    first.payload["tags"].append("mine")
    assert second.payload == {"tags": ["a"]}
    assert first.meta is second.meta


# --- E4: outcomes ---------------------------------------------------------------------------------------


def test_ack_and_nack_are_plain_frozen_values() -> None:
    """E4: `Ack()` and `Nack(reason=None, delay=None, count=True)`."""
    assert Ack() == Ack()
    assert Nack() == Nack(reason=None, delay=None, count=True)
    assert Nack("busy", 2.5, count=False) == Nack(reason="busy", delay=2.5, count=False)
    for verdict, name in ((Ack(), "x"), (Nack(), "reason"), (Receipt("s", "t", 1, "e"), "offset")):
        with pytest.raises((AttributeError, TypeError)):
            setattr(verdict, name, 1)


# --- strangers ------------------------------------------------------------------------------------------


class Theirs(StrEnum):
    """A user's own enum of topics."""

    ORDERS = "orders.new"


def test_strings_of_other_classes_become_plain_ones() -> None:
    """F3: a user's enum may name a topic or a type; what is kept is the string."""
    meta = made(topic=Theirs.ORDERS, space_id=Theirs.ORDERS)
    assert type(meta.topic) is str
    assert type(meta.space_id) is str
    assert meta.topic == "orders.new"
