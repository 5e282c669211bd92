"""Paths into an event."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from events.errors import InvalidMessage
from events.types import Actor, Event, EventMeta
from filters.paths import document_of, parse_path, path_of
from filters.values import MISSING, plain

META = EventMeta(
    topic="sensors.kitchen",
    type="TEMPERATURE",
    space_id="home",
    actor=Actor(user_id="alice", roles=("cook", "owner"), attributes={"floor": "2"}),
    band="AMBER",
    caps=("read",),
    headers={"x": "y"},
)
PAYLOAD: dict[str, Any] = {"items": [{"name": "pan"}, {"name": "pot"}], "0": "zero", "null": None, "n": {"a": {"b": 1}}}


def find(path: str, event: Event[Any] | None = None) -> Any:
    """What a path finds in the sample event."""
    return parse_path(path).find(event or Event(META, PAYLOAD))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("meta.topic", "sensors.kitchen"),
        ("meta.actor.user_id", "alice"),
        ("meta.actor.roles.1", "owner"),
        ("meta.actor.attributes.floor", "2"),
        ("meta.headers.x", "y"),
        ("meta.caps.0", "read"),
        ("payload.items.0.name", "pan"),
        ("payload.items.1.name", "pot"),
        ("payload.0", "zero"),
        ("payload.null", None),
        ("payload.n.a.b", 1),
    ],
)
def test_a_path_reaches_its_value(path: str, value: object) -> None:
    """Names lead into models and objects, numbers into arrays; null is a value."""
    assert find(path) == value


@pytest.mark.parametrize(
    "path",
    [
        "meta.key",
        "meta.actor.agent_id",
        "meta.device.device_id",
        "meta.topic.length",
        "meta.to_json",
        "meta.model_fields",
        "meta.__dict__",
        "meta.caps.1",
        "meta.caps.read",
        "payload.items.2",
        "payload.items.name",
        "payload.items.-1",
        "payload.n.a.b.c",
        "payload.null.x",
        "payload.nothing",
    ],
)
def test_a_path_that_leads_nowhere_finds_nothing(path: str) -> None:
    """An unset field, a step below a scalar, an index past the end and a method are all missing."""
    assert find(path) is MISSING


def test_keys_of_newer_writers_are_reached() -> None:
    """E1: keys that this code does not know are kept, so a path reaches them, in the meta and in its parts."""
    line = (
        b'{"topic":"t","type":"T","space_id":"s","mood":{"calm":null,"score":7},"gone":null,"actor":{"shift":"late"}}'
    )
    event = Event(EventMeta.from_json(line), {})
    assert find("meta.mood.score", event) == 7
    assert find("meta.actor.shift", event) == "late"
    assert find("meta.mood.calm", event) is None
    assert find("meta.gone", event) is MISSING


def test_a_path_on_meta_does_not_decode_the_payload() -> None:
    """The payload stays bytes, here bytes that could not even be decoded."""
    event = Event.from_log(META, b"not json")
    assert find("meta.actor.user_id", event) == "alice"
    assert event.raw_payload == b"not json"


def test_a_typed_payload_is_seen_as_its_json() -> None:
    """A payload that is a pydantic model looks as it does in the log."""

    class Reading(BaseModel):
        celsius: float
        note: str | None = None

    event = Event[Reading](META, Reading(celsius=21.5))
    assert find("payload.celsius", event) == 21.5
    assert find("payload.note", event) is None


@pytest.mark.parametrize(
    "path", ["", "topic", "metadata.topic", "meta..topic", "meta.", ".meta", "payload.a..b", 5, None]
)
def test_a_malformed_path_is_refused(path: Any) -> None:
    """A path starts at meta or payload and has no empty name."""
    with pytest.raises(InvalidMessage, match="a path is 'meta' or 'payload'"):
        parse_path(path)


@pytest.mark.parametrize(
    ("path", "meant"), [("meta.prioritty", "priority"), ("meta.space", "space_id"), ("meta.actor.userid", "user_id")]
)
def test_a_misspelt_name_of_the_envelope_is_refused(path: str, meant: str) -> None:
    """A name that is nearly one of the envelope's would silently match nothing, so it is refused with a suggestion."""
    with pytest.raises(InvalidMessage, match=f"Did you mean '{meant}'"):
        parse_path(path)


def test_an_unknown_name_that_resembles_none_is_allowed() -> None:
    """E1: the envelope may have keys that only newer writers know, and inside open objects every name is allowed."""
    assert parse_path("meta.mood.score")
    assert parse_path("meta.headers.topik")


def test_a_path_of_steps_keeps_names_and_indices_apart() -> None:
    """In JSONPath `['0']` is a name and `[0]` an index; a dotted 0 is either."""
    event = Event(META, {"0": "name", "a": ["first", "last"]})
    by_name, by_index = path_of(("payload", "0")), path_of(("payload", "a", -1))
    assert by_name is not None
    assert by_name.find(event) == "name"
    assert by_index is not None
    assert by_index.find(event) == "last"
    misplaced = path_of(("payload", 0))
    assert misplaced is not None
    assert misplaced.find(event) is MISSING
    assert path_of(("other", "x")) is None
    assert path_of(()) is None


def test_the_document_has_only_the_halves_that_are_asked_for() -> None:
    """A query that looks at one half of the event does not make the other be dumped or decoded."""
    event = Event.from_log(META, b"not json")
    assert document_of(event, ["meta"]) == {"meta": orjson.loads(META.to_json())}
    assert document_of(Event(META, {"a": 1}), ["payload"]) == {"payload": {"a": 1}}


def leaves(value: Any, *steps: str | int) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every path in a JSON value, with what stands there."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(steps, value), *(leaf for name, inner in members for leaf in leaves(inner, *steps, name))]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    payload=st.dictionaries(st.text(max_size=4), json_values, max_size=4),
    unknown=st.dictionaries(
        st.sampled_from(["mood", "score", "w"]), json_values.filter(lambda value: value is not None)
    ),
)
def test_paths_see_what_the_log_holds(payload: dict[str, Any], unknown: dict[str, Any]) -> None:
    """Walking attributes finds, at every path of the event's JSON, the value that the JSON has there."""
    meta = EventMeta.from_json(orjson.dumps({**orjson.loads(META.to_json()), **unknown}))
    event = Event(meta, payload)
    for steps, value in leaves(document_of(event, ["meta", "payload"])):
        path = path_of(steps)
        assert path is None or plain(path.find(event)) == value
