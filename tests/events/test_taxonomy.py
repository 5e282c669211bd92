"""Kinds of events: registering them, checking payloads against their models, lifting older versions."""

from typing import Any

import pytest
from pydantic import BaseModel

from events.errors import InvalidMessage
from events.taxonomy import Kind, Taxonomy
from events.types import Event, EventMeta


class Weather(BaseModel):
    """How it is outside.

    Only the first line is the summary.
    """

    celsius: float
    sky: str = "clear"


def weather(version: int = 1, **settings: Any) -> Kind:
    """The kind of the tests, in some version."""
    return Kind(type="WEATHER", model=Weather, topic="sensors", version=version, **settings)


def an_event(payload: dict[str, Any], **meta: Any) -> Event:
    """An event of that kind."""
    return Event(EventMeta(topic="sensors", type="WEATHER", space_id="home", **meta), payload)


@pytest.fixture
def three_versions() -> Taxonomy:
    """Version 1 had Fahrenheit, version 2 no sky."""
    taxonomy = Taxonomy([weather(version=3)])

    @taxonomy.upcaster("WEATHER", 1)
    def to_celsius(payload: dict[str, Any]) -> dict[str, Any]:
        return {"celsius": (payload.pop("fahrenheit") - 32) / 1.8}

    @taxonomy.upcaster("WEATHER", 2)
    def with_sky(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "sky": "unknown"}

    return taxonomy


def test_a_kind_is_found_by_its_type() -> None:
    """A registered kind says what it is, where it travels and between whom."""
    taxonomy = Taxonomy()
    kind = taxonomy.register(weather(producers=("thermometer",), consumers=("arbiter",)))
    assert taxonomy.kind("WEATHER") is kind
    assert taxonomy.kind("OTHER") is None
    assert [*taxonomy] == [kind]
    assert len(taxonomy) == 1
    assert kind.summary == "How it is outside."


def test_a_newer_version_takes_the_place_of_the_older() -> None:
    """The same type may be registered again with a higher version, and with no other."""
    taxonomy = Taxonomy([weather()])
    with pytest.raises(InvalidMessage, match="Raise its version"):
        taxonomy.register(weather())
    assert taxonomy.register(weather(version=2)).version == 2


@pytest.mark.parametrize(
    "kind",
    [
        Kind(type="weather", model=Weather, topic="sensors"),
        Kind(type="WEATHER", model=Weather, topic="not a topic"),
        Kind(type="WEATHER", model=Weather, topic="sensors", version=0),
    ],
    ids=["type", "topic", "version"],
)
def test_a_kind_with_bad_names_is_refused(kind: Kind) -> None:
    """What could never be published is not registered."""
    with pytest.raises(InvalidMessage):
        Taxonomy().register(kind)


def test_an_event_is_made_with_topic_and_version() -> None:
    """The usual topic and the current version are filled in; a payload that does not fit is refused."""
    taxonomy = Taxonomy([weather(version=2)])
    event = taxonomy.event("WEATHER", Weather(celsius=3.5), space_id="home", key="garden")
    assert (event.meta.topic, event.meta.schema_version, event.meta.key) == ("sensors", 2, "garden")
    with pytest.raises(InvalidMessage, match=r"payload\.celsius"):
        taxonomy.event("WEATHER", {"celsius": "warm"}, space_id="home")
    with pytest.raises(InvalidMessage, match="no such kind"):
        taxonomy.event("OTHER", {}, space_id="home")


def test_a_fault_names_field_and_rule() -> None:
    """What does not fit its model is told with the path, and by which kind and version."""
    taxonomy = Taxonomy([weather()])
    assert taxonomy.fault(an_event({"celsius": 20})) is None
    fault = taxonomy.fault(an_event({"sky": "grey"}))
    assert fault is not None
    assert fault.field == "payload.celsius"
    assert "WEATHER version 1" in str(fault)


def test_what_is_not_known_has_no_fault() -> None:
    """A type that nobody registered, and a version newer than ours, are let through."""
    taxonomy = Taxonomy([weather()])
    assert Taxonomy().fault(an_event({"anything": 1})) is None
    assert taxonomy.fault(an_event({"kelvin": 293}, schema_version=2)) is None


def test_checking_leaves_the_bytes_alone() -> None:
    """An event whose payload is still the log's bytes is checked without being decoded for its consumer."""
    taxonomy = Taxonomy([weather()])
    event = Event.from_log(an_event({}).meta, b'{"celsius":1.5}')
    assert taxonomy.fault(event) is None
    assert event.raw_payload == b'{"celsius":1.5}'


def test_older_versions_are_lifted_step_by_step(three_versions: Taxonomy) -> None:
    """Each upcaster lifts by one version, and what is read is always the newest."""
    assert three_versions.read(an_event({"fahrenheit": 212})) == Weather(celsius=100, sky="unknown")
    assert three_versions.read(an_event({"celsius": 5}, schema_version=2)) == Weather(celsius=5, sky="unknown")
    newest = an_event({"celsius": 5, "sky": "blue"}, schema_version=3)
    assert three_versions.read(newest) == Weather(celsius=5, sky="blue")


def test_a_lifted_event_has_the_new_version_and_the_old_identity(three_versions: Taxonomy) -> None:
    """Payload and version are new, everything else is the event's own; one that is new already is left alone."""
    old = Event.from_log(an_event({}).meta, b'{"fahrenheit":32}')
    lifted = three_versions.lifted(old)
    assert (lifted.payload, lifted.meta.schema_version) == ({"celsius": 0.0, "sky": "unknown"}, 3)
    assert lifted.meta.event_id == old.meta.event_id
    assert old.raw_payload == b'{"fahrenheit":32}'
    assert three_versions.lifted(lifted) is lifted
    newer = an_event({}, schema_version=9)
    assert three_versions.lifted(newer) is newer


def test_a_typed_event_is_lifted_to_its_model(three_versions: Taxonomy) -> None:
    """Who asked for `Event[Model]` gets the model, made of the newest version."""
    old = Event[Weather].from_log(an_event({}).meta, b'{"fahrenheit":32}')
    assert three_versions.lifted(old).payload == Weather(celsius=0, sky="unknown")


def test_a_missing_upcaster_is_told(three_versions: Taxonomy) -> None:
    """A gap between two versions is an error that says which one."""
    three_versions.register(weather(version=4))
    with pytest.raises(InvalidMessage, match="nothing lifts version 3"):
        three_versions.read(an_event({"celsius": 1}, schema_version=3))
    fault = three_versions.fault(an_event({"celsius": 1}, schema_version=3))
    assert fault is not None
    assert fault.field == "meta.schema_version"


def test_reading_an_unknown_kind_is_refused() -> None:
    """A payload can be read as a model only where there is one."""
    with pytest.raises(InvalidMessage, match="no such kind"):
        Taxonomy().read(an_event({}))
    with pytest.raises(InvalidMessage, match=r"payload\.celsius"):
        Taxonomy([weather()]).read(an_event({}))
