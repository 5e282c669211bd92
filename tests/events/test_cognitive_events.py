"""The cognitive event types: that all are there, fit the seed's examples, and travel on the wiring map's topics."""

from typing import Any

import pytest
from pydantic import BaseModel

from events.cognitive_events import KINDS, TOPICS, CognitivePayload, standard
from events.taxonomy import Kind
from events.types import Event, EventMeta, EventType

SEED_EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    (
        "AFFECT_ANNOTATED",
        {"event_id": "...", "valence": 0.12, "arousal": 0.73, "tags": ["urgent"], "confidence": 0.67},
    ),
    ("ACTION_EXECUTED", {"action_id": "a1", "status": "ok"}),
    ("WORKSPACE_BROADCAST", {"summary": "Top 5 salient items"}),
    ("WORKSPACE_BROADCAST", {"message": "Hello world"}),
    ("HIPPO_ENCODE", {"ts": "2025-09-14T08:00:00Z"}),
    ("HIPPO_ENCODE", {"ts": "2025-09-14T08:00:00Z", "tz": "Europe/Berlin", "tags": ["kitchen"]}),
]


def an_event(type: str, payload: dict[str, Any]) -> Event:
    """An event of a type, on its usual topic."""
    kind = standard().kind(type)
    assert kind is not None
    return Event(EventMeta(topic=kind.topic, type=type, space_id="home"), payload)


def test_every_event_type_has_a_kind() -> None:
    """The taxonomy knows each `EventType`: a model with a word about it, a version, a topic, who says it to whom."""
    kinds = standard()
    assert {kind.type for kind in kinds} >= set(EventType)
    for kind in kinds:
        assert issubclass(kind.model, CognitivePayload)
        assert kind.model is not CognitivePayload
        assert kind.summary
        assert kind.version >= 1
        assert kind.producers
        assert kind.consumers


def test_the_wiring_map_is_data() -> None:
    """Seven topics of the map and one for metacognition; every kind travels on one of them."""
    names = [topic.name for topic in TOPICS]
    assert names == ["workspace", "hippo", "affect", "cortex", "actions", "prospective", "temporal", "metacog"]
    assert {kind.topic for kind in KINDS} == set(names)
    assert all(topic.producers and topic.consumers and topic.use for topic in TOPICS)


@pytest.mark.parametrize(("type", "payload"), SEED_EXAMPLES)
def test_the_models_fit_the_seeds_examples(type: str, payload: dict[str, Any]) -> None:
    """Each example payload is valid as it stands, and keeps every field that it has."""
    event = an_event(type, payload)
    assert standard().fault(event) is None
    read = standard().read(event)
    assert read.model_fields_set >= set(payload) - set(read.model_extra or {})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
def test_nothing_is_required_and_everything_else_is_kept(kind: Kind) -> None:
    """A module may say less than a model knows, or more: what is not known is kept."""
    assert standard().fault(an_event(kind.type, {})) is None
    read = standard().read(an_event(kind.type, {"a_field_of_ones_own": [1, {"two": 2}]}))
    assert read.model_extra == {"a_field_of_ones_own": [1, {"two": 2}]}


@pytest.mark.parametrize(
    ("type", "payload", "field"),
    [
        ("AFFECT_ANNOTATED", {"arousal": 1.2}, "payload.arousal"),
        ("AFFECT_ANNOTATED", {"valence": "sad"}, "payload.valence"),
        ("AFFECT_ANNOTATED", {"tags": "urgent"}, "payload.tags"),
        ("WORKING_MEMORY_UPDATE", {"op": "shout"}, "payload.op"),
        ("LEARNING_SIGNAL", {"value": 7}, "payload.value"),
        ("COGNITIVE_LOAD_ALERT", {"inflight": -1}, "payload.inflight"),
    ],
)
def test_known_fields_are_typed(type: str, payload: dict[str, Any], field: str) -> None:
    """What a model knows is checked: type and range."""
    fault = standard().fault(an_event(type, payload))
    assert fault is not None
    assert fault.field.startswith(field)


def test_an_application_adds_its_own_kinds() -> None:
    """Third parties register types of their own, and change nobody else's taxonomy by it."""

    class Smell(BaseModel):
        """Something is in the air."""

        of: str

    kinds = standard()
    kinds.register(Kind(type="SMELL_NOTICED", model=Smell, topic="senses.smell"))
    event = kinds.event("SMELL_NOTICED", {"of": "coffee"}, space_id="home")
    assert kinds.read(event) == Smell(of="coffee")
    assert standard().kind("SMELL_NOTICED") is None
