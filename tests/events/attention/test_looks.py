"""Quick looks: the same as walking the path, for every shape of path and event."""

from typing import Any

import pytest
from pydantic import BaseModel

from events.attention.looks import look_at
from events.types import Actor, Event, EventMeta
from filters.paths import parse_path
from filters.values import MISSING


class Model(BaseModel):
    """A payload with a model."""

    a: Any = None


EVENTS: list[Event[Any]] = [
    Event(EventMeta(topic="t", type="T", space_id="s", key="k", priority=7, headers={"h": "1"}), payload)
    for payload in ({}, {"a": 1}, {"a": {"b": 2.5}}, {"a": [1, {"b": 3}]}, {"a": "text"}, {"a": None}, {"0": "zero"})
]
EVENTS += [
    Event[Model](EventMeta(topic="t", type="T", space_id="s", actor=Actor(user_id="u")), Model(a={"b": 1})),
    Event.from_log(EventMeta.from_json(b'{"topic":"t","type":"T","space_id":"s","newer":"key"}'), b'{"a":{"b":4}}'),
]


@pytest.mark.parametrize(
    "text",
    [
        "meta.key",
        "meta.type",
        "meta.newer",
        "meta.headers.h",
        "meta.actor.user_id",
        "payload.a",
        "payload.a.b",
        "payload.a.1.b",
        "payload.0",
        "payload.a.0",
        "payload",
    ],
)
def test_a_look_finds_what_the_path_leads_to(text: str) -> None:
    """Compiled or walked, the same value is found, and nothing is None."""
    path, look = parse_path(text), look_at(text)
    for event in EVENTS:
        walked = path.find(event)
        assert look(event) == (None if walked is MISSING else walked), event.payload


def test_the_actor_is_seen_as_the_subject_that_policies_name() -> None:
    """`meta.actor` is compared by name, whether it was given as a string or in parts."""
    look = look_at("meta.actor")
    assert look(EVENTS[-2]) == "user:u"
    assert look(EVENTS[0]) == ""
