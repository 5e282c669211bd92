"""Simple filters on events."""

from typing import Any

import pytest

from events.errors import InvalidMessage
from events.types import Actor, Event, EventMeta, EventType
from filters import SimpleFilter

META = EventMeta(
    topic=EventType.ACTION_EXECUTED,
    space_id="home",
    actor=Actor(user_id="alice", roles=("cook", "owner")),
    priority="high",
    band="AMBER",
    ts="2026-03-01T12:00:00Z",
)
EVENT = Event(META, {"items": [{"name": "pan", "price": 12}], "note": None, "text": "one two"})


@pytest.mark.parametrize(
    "given",
    [
        SimpleFilter("meta.priority", "high", "exact"),
        SimpleFilter("meta.actor.user_id", "alice", "exact"),
        SimpleFilter("meta.type", "ACTION_EXECUTED"),
        SimpleFilter("meta.topic", EventType.ACTION_EXECUTED),
        SimpleFilter("meta.topic", "ACTION", "prefix"),
        SimpleFilter("meta.actor.roles", "owner", "contains"),
        SimpleFilter("meta.actor.roles", ["cook", "owner"]),
        SimpleFilter("meta.actor", {"user_id": "alice", "roles": ["cook", "owner"]}),
        SimpleFilter("meta.band", "GREEN", "gt"),
        SimpleFilter("meta.band", ["AMBER", "RED"], "in"),
        SimpleFilter("meta.ts", "2026-03-01T13:00:00+01:00"),
        SimpleFilter("meta.ts", "2026-03-01", "prefix"),
        SimpleFilter("meta.ts", "2026-03-01T11:59:59Z", "gt"),
        SimpleFilter("payload.items.0.price", 12),
        SimpleFilter("payload.items.0.price", 10, "gt"),
        SimpleFilter("payload.text", r"\btwo\b", "regex"),
        SimpleFilter("payload.note", None),
        SimpleFilter("payload.note", op="exists"),
        SimpleFilter("payload.gone", False, "exists"),
        SimpleFilter("meta.key", False, "exists"),
    ],
    ids=repr,
)
def test_matches(given: SimpleFilter) -> None:
    """The value at the path fulfils the condition; the envelope's enums, tuples and times are seen as JSON."""
    assert given.matches(EVENT) is True
    assert given.mismatches == 0


@pytest.mark.parametrize("op", ["exact", "ne", "prefix", "suffix", "contains", "regex", "lt", "ge"])
def test_a_missing_value_does_not_match_and_is_no_mismatch(op: str) -> None:
    """Where the path leads nowhere there is no type to be wrong."""
    given = SimpleFilter("payload.gone", "x", op)
    assert given.matches(EVENT) is False
    assert given.mismatches == 0
    assert SimpleFilter("payload.gone", op="exists").matches(EVENT) is False
    assert SimpleFilter("payload.note", False, "exists").matches(EVENT) is False


def test_a_wrong_type_does_not_match_and_is_counted() -> None:
    """W11: a declarative filter never raises on what an event holds; it does not match, and counts."""
    given = SimpleFilter("payload.text", 5, "gt")
    assert [given.matches(EVENT) for _ in range(3)] == [False] * 3
    assert given.mismatches == 3
    assert given.overruns == 0


def test_a_text_too_long_for_its_pattern_is_counted() -> None:
    """A regular expression has a bound on the text; past it the event does not match and is counted as an overrun."""
    given = SimpleFilter("payload.text", "(a|b)*a(a|b){200}c", "regex")
    assert given.matches(Event(META, {"text": "ab" * 200_000})) is False
    assert given.overruns == 1
    assert given.matches(Event(META, {"text": "\ud800"})) is False
    assert given.mismatches == 1


def test_a_filter_on_meta_never_touches_the_payload() -> None:
    """The payload is decoded when somebody looks, and a filter on meta does not."""
    event = Event.from_log(META, b"not json")
    assert SimpleFilter("meta.actor.user_id", "alice").matches(event) is True
    assert event.raw_payload == b"not json"


def test_cost_tells_meta_from_payload_and_regex() -> None:
    """The costs order the filters of a compound: meta before payload, regular expressions last."""
    costs = [
        SimpleFilter("meta.topic", "t").cost,
        SimpleFilter("payload.x", "t").cost,
        SimpleFilter("payload.x", "t", "regex").cost,
    ]
    assert costs == sorted(set(costs))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topic", "x"), "path: found 'topic'"),
        (("meta.topic", "x", "is"), "op: found 'is'"),
        (("meta.topic",), "needs a value"),
        (("meta.topic", "(", "regex"), "position 0"),
        (("meta.band", "PINK", "ge"), "GREEN, AMBER, RED, BLACK"),
    ],
)
def test_a_bad_filter_is_refused_when_it_is_built(arguments: tuple[Any, ...], message: str) -> None:
    """The error names the argument and says what is allowed."""
    with pytest.raises(InvalidMessage, match=message.replace("(", r"\(")):
        SimpleFilter(*arguments)
