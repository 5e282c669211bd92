"""The load of a group: what it is made of, and the level that follows with hysteresis."""

from typing import Any

import pytest

from events.attention.load import Crossing, LoadMeter
from tests.events.attention.support import NOW_MS, a_context, a_policy

POLICY = a_policy("[load]\nbacklog = 1_000\nlatency_s = 5.0\nhold_s = 2.0\n")


class Watched:
    """A meter and the time at which it is looked at."""

    def __init__(self) -> None:
        self.meter = LoadMeter(NOW_MS)
        self.now_ms = NOW_MS

    def look(self, inflight: int = 0, *, after_s: float = 0.0, **context: Any) -> str:
        """The level after one more look."""
        self.crossing(inflight, after_s=after_s, **context)
        return self.meter.level

    def crossing(self, inflight: int = 0, *, after_s: float = 0.0, **context: Any) -> Crossing | None:
        """What one more look tells."""
        self.now_ms += int(after_s * 1000)
        seen = {"appended_ms": self.now_ms, **context}
        return self.meter.observe(POLICY, a_context(inflight=inflight, now_ms=self.now_ms, **seen))


@pytest.mark.parametrize(
    "context",
    [{"inflight": 70}, {"backlog": 700}, {"after_s": 3.5, "appended_ms": NOW_MS}],
    ids=["window", "backlog", "latency"],
)
def test_each_part_alone_makes_the_load(context: dict[str, Any]) -> None:
    """A window that is full, a log that is far ahead and events that wait long are load, each by itself."""
    watched = Watched()
    crossing = watched.crossing(**context)
    assert crossing is not None
    assert (crossing.before, crossing.level, crossing.load) == ("calm", "strained", 0.7)


def test_history_from_before_is_no_latency() -> None:
    """A group that begins with a log of last year is not late: what it could not have taken does not count."""
    watched = Watched()
    assert watched.look(appended_ms=NOW_MS - 365 * 86_400_000, after_s=1.0) == "calm"


def test_a_second_look_is_no_latency() -> None:
    """An event that was deferred waited because it was told to."""
    assert Watched().look(after_s=60.0, appended_ms=NOW_MS, is_fresh=False) == "calm"


def test_the_level_rises_at_once_and_over_a_step() -> None:
    """From calm to overloaded in one look, if the load is there."""
    assert Watched().look(90) == "overloaded"


def test_the_level_holds_between_its_bounds() -> None:
    """Hysteresis: what entered at 0.6 stays strained down to 0.4, however often it is looked at."""
    watched = Watched()
    assert [watched.look(load, after_s=1.0) for load in (59, 60, 41, 55, 40, 59)] == ["calm"] + ["strained"] * 5


def test_the_level_falls_when_the_load_stayed_down() -> None:
    """Below `leave` for hold_s it falls; one look above begins the wait anew."""
    watched = Watched()
    watched.look(60)
    assert watched.look(10, after_s=1.9) == "strained"
    assert watched.look(45, after_s=0.05) == "strained"
    assert watched.look(10, after_s=1.9) == "strained"
    assert watched.look(10, after_s=0.1) == "calm"


def test_silence_is_no_load() -> None:
    """Nothing entered while nobody asked: after a long silence the level falls at the first look, all the way."""
    watched = Watched()
    assert watched.look(100) == "overloaded"
    assert watched.look(1, after_s=15.0) == "calm"


def test_it_falls_no_further_than_the_load_did() -> None:
    """Out of overload into strain, while the load is still above where strain ends."""
    watched = Watched()
    watched.look(100)
    assert [watched.look(50, after_s=1.0) for _ in range(3)] == ["overloaded", "strained", "strained"]


def test_worse_is_told_at_once_and_better_now_and_then() -> None:
    """A level that comes and goes is no flood of alerts: each says how things stand against what was last told."""
    watched = Watched()
    told: list[tuple[str, str]] = []
    for load, after_s in [(60, 0), (90, 0), (0, 2.5), (60, 0), (0, 2.5), (0, 0.1), (0, 60), (0, 60), (90, 0)]:
        crossing = watched.crossing(load, after_s=after_s)
        told += [(crossing.before, crossing.level)] if crossing is not None else []
    assert told == [("calm", "strained"), ("strained", "overloaded"), ("overloaded", "calm"), ("calm", "overloaded")]


def test_a_crossing_says_what_was_seen() -> None:
    """Whoever is alerted learns which group, from where to where, and why."""
    crossing = Watched().crossing(86, backlog=12, after_s=1.0, appended_ms=NOW_MS)
    assert crossing == Crossing("learner", "home", "calm", "overloaded", 0.86, 86, 100, 12, 1.0)
