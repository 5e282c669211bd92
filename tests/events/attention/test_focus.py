"""The focus: what shifts and requests add up to, when they end, and that hearing them twice changes nothing."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from events.attention.focus import FocusBoard
from events.types import Event, EventMeta
from tests.events.attention.support import NOW_MS, a_policy, an_event

START = datetime.fromtimestamp(NOW_MS / 1000, UTC)


def board(settings: str = "") -> FocusBoard:
    """A board with the usual settings, or some others."""
    return FocusBoard(a_policy(settings).focus)


def request(payload: dict[str, Any], type: str = "ATTENTION_REQUEST", at_s: float = 0.0, space: str = "home") -> Event:
    """A request for attention, made at some second."""
    ts = START + timedelta(seconds=at_s)
    return Event(EventMeta(topic="metacog", type=type, space_id=space, ts=ts), payload)


def shift(payload: dict[str, Any], at_s: float = 0.0) -> Event:
    """A shift of the focus."""
    return request(payload, "FOCUS_SHIFT_REQUEST", at_s)


def matched(heard: FocusBoard, event: Event, at_s: float = 0.0, space: str = "home") -> list[float]:
    """The weights of what is in focus at some second and matches an event."""
    return [one.weight for one in heard.of(space, NOW_MS + int(at_s * 1000)) if one.matches(event)]


@pytest.mark.parametrize(
    "named",
    [
        {"filter": {"path": "payload.room", "value": "kitchen"}},
        {"filter": [{"path": "payload.room", "value": "kitchen"}]},
        {"key": "stove"},
        {"tags": ["smoke", "fire"]},
    ],
    ids=["filter", "filters", "key", "tags"],
)
def test_what_a_request_names_is_in_focus(named: dict[str, Any]) -> None:
    """A filter as plain data, a key, or tags of which one is enough."""
    heard = board()
    heard.hear(request({**named, "weight": 0.5}), NOW_MS)
    assert matched(heard, an_event({"room": "kitchen", "tags": ["fire"]}, key="stove")) == [0.5]
    assert matched(heard, an_event({"room": "hall", "tags": []}, key="door")) == []
    assert matched(heard, an_event({"room": "kitchen"}), space="elsewhere") == []


def test_all_that_a_request_names_must_hold() -> None:
    """A key and a tag together mean both."""
    heard = board()
    heard.hear(request({"key": "stove", "tags": ["fire"]}), NOW_MS)
    assert matched(heard, an_event({"tags": ["fire"]}, key="stove")) == [1.0]
    assert matched(heard, an_event({"tags": ["fire"]}, key="door")) == []


def test_a_shift_replaces_the_one_before_and_ends_with_nothing() -> None:
    """There is one focus that shifts; requests stand beside it, and a shift to nothing leaves them alone."""
    heard = board()
    heard.hear(request({"key": "door"}), NOW_MS)
    heard.hear(shift({"key": "stove"}, 1), NOW_MS)
    heard.hear(shift({"key": "window"}, 2), NOW_MS)
    assert matched(heard, an_event(key="stove")) == []
    assert matched(heard, an_event(key="window")) == matched(heard, an_event(key="door")) == [1.0]
    heard.hear(shift({}, 3), NOW_MS)
    assert matched(heard, an_event(key="window")) == []
    assert matched(heard, an_event(key="door")) == [1.0]


@pytest.mark.parametrize(
    ("name", "payload", "at_s", "lasts"),
    [
        ("short", {"duration_s": 5}, 0, 5),
        ("long", {"duration_s": 10_000}, 0, 60),
        ("usual", {}, 0, 10),
        ("said before", {"duration_s": 30}, -20, 10),
        ("said by a clock that is ahead", {"duration_s": 5}, 9_999, 5),
    ],
)
def test_when_a_focus_ends(name: str, payload: dict[str, Any], at_s: float, lasts: int) -> None:
    """It counts from when it was said, and no clock makes it longer than it was meant to be."""
    heard = board("[focus]\nlasts_s = 10.0\nlongest_s = 60.0\n")
    heard.hear(request({"key": "k", **payload}, at_s=at_s), NOW_MS)
    assert matched(heard, an_event(key="k"), lasts - 0.001), name
    assert not matched(heard, an_event(key="k"), lasts), name


def test_only_so_many_requests_hold_at_once() -> None:
    """M: a flood of requests is bounded; the first to end gives way."""
    heard = board("[focus]\nat_once = 2\n")
    for index, duration in enumerate([30, 10, 20]):
        heard.hear(request({"key": f"k{index}", "duration_s": duration}), NOW_MS)
    assert [bool(matched(heard, an_event(key=f"k{index}"))) for index in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    "payload",
    [{"filter": {"path": "nowhere"}}, {"filter": {"custom": "f"}}, {"weight": 7, "key": "k"}, {"tags": 3}],
)
def test_what_is_not_understood_changes_nothing(payload: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A bad request is logged with what is wrong, and the focus stays."""
    heard = board()
    heard.hear(shift({"key": "stove"}), NOW_MS)
    heard.hear(shift(payload, 1), NOW_MS)
    assert matched(heard, an_event(key="stove")) == [1.0]
    assert "not understood" in caplog.text


def test_other_events_are_not_heard() -> None:
    """Only shifts and requests move attention."""
    heard = board()
    heard.hear(request({"key": "k"}, "METACOG_REPORT"), NOW_MS)
    assert heard.of("home", NOW_MS) == ()


def test_the_focus_is_the_same_object_until_it_changes() -> None:
    """Looking costs nothing, and a journal can tell by identity that nothing changed."""
    heard = board()
    heard.hear(shift({"key": "stove", "duration_s": 10}), NOW_MS)
    first = heard.of("home", NOW_MS)
    assert heard.of("home", NOW_MS + 9_000) is first
    assert heard.of("home", NOW_MS + 10_000) == ()


def test_hearing_twice_and_in_any_order_adds_up_to_the_same() -> None:
    """What a restart reads from the log and then hears again live gives the same focus as before."""
    events = [request({"key": f"k{index}", "duration_s": 10 + index}, at_s=index / 10) for index in range(8)]
    events += [shift({"key": f"s{index}", "duration_s": 60}, at_s=index) for index in range(4)]
    expected = None
    for seed in range(20):
        heard = board("[focus]\nat_once = 5\n")
        for event in random.Random(seed).sample([*events, *events], k=24):
            heard.hear(event, NOW_MS)
        found = {(one.id, one.weight, one.until_ms) for one in heard.of("home", NOW_MS + 5_000)}
        expected = expected or found
        assert found == expected
    assert expected is not None
    assert len(expected) == 6
