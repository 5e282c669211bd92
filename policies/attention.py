"""What deserves processing now: attention.toml, checked with positions.

Every table may be left out, and every setting in it; what is not set has the value of the packaged file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, Strict

from events.errors import InvalidMessage
from events.names import check_topic
from filters.base import BaseFilter
from filters.paths import parse_path
from filters.serial import filter_from
from policies.files import END, Reloading, Source
from policies.rules import check_topic_glob
from policies.tables import Table, TableReader

LevelName = Literal["calm", "strained", "overloaded"]
LEVELS: Final[tuple[LevelName, ...]] = ("calm", "strained", "overloaded")
"""From the lowest to the highest."""


def _topic(name: str) -> str:
    try:
        return check_topic(name)
    except InvalidMessage as error:
        raise ValueError(error.allowed) from None


def _glob(pattern: str) -> str:
    check_topic_glob(pattern)
    return pattern


def _path(text: str) -> str:
    try:
        parse_path(text)
    except InvalidMessage as error:
        raise ValueError(f"{error.allowed}{f'. {error.hint}' if error.hint else ''}") from None
    return text


Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Unit = Annotated[Number, Field(ge=0, le=1)]
Count = Annotated[int, Strict(), Field(ge=1)]
PathText = Annotated[str, Strict(), AfterValidator(_path)]
TopicName = Annotated[str, Strict(), AfterValidator(_topic)]
TopicGlob = Annotated[str, Strict(), AfterValidator(_glob)]


class Weights(Table):
    """What each part of the score is worth."""

    priority: Number = 0.5
    arousal: Number = 0.2
    valence: Number = 0.1
    novelty: Number = 0.1
    habituation: Number = -0.2
    recency: Number = 0.1
    relevance: Number = 0.25
    distraction: Number = -0.1
    source: Number = 0.1


class Level(Table):
    """What a level of load asks of an event. A threshold that is None asks nothing."""

    enter: Positive | None = None
    leave: Positive | None = None
    drop_below: Number | None = None
    defer_below: Number | None = None
    defer_s: Positive = 5.0
    boost_from: Number | None = None


class Boost(Table):
    """Where what is boosted goes."""

    to: Annotated[int, Strict(), Field(ge=0, le=100)] = 90


class Load(Table):
    """What makes up the load of a group, and who is told of it."""

    window: Positive = 1.0
    backlog: Count = 10_000
    latency_s: Positive = 5.0
    hold_s: Annotated[Number, Field(ge=0)] = 0.1
    topic: TopicName = "metacog"
    alert_every_s: Annotated[Number, Field(ge=0)] = 5.0


class Affect(Table):
    """Where feeling is found in an event."""

    valence: tuple[PathText, ...] = ("payload.valence", "payload.affect.valence")
    arousal: tuple[PathText, ...] = ("payload.arousal", "payload.affect.arousal")


class Novelty(Table):
    """When something is met again, and how soon that wears off."""

    of: tuple[PathText, ...] = ("meta.type", "meta.actor", "meta.key")
    half_life_s: Positive = 600.0
    habituate_after: Positive = 10.0
    remember: Count = 10_000


class Recency(Table):
    """How soon an event loses its freshness."""

    half_life_s: Positive = 60.0


class FocusTable(Table):
    """Where the focus is heard of, and how long it lasts."""

    topic: TopicName = "metacog"
    lasts_s: Positive = 300.0
    longest_s: Positive = 3_600.0
    at_once: Count = 16


class Budget(Table):
    """How many events are admitted in each stretch of time."""

    topics: TopicGlob = "*"
    per: Literal["actor", "topic"]
    events: Count
    each_s: Positive
    over: Literal["defer", "drop"] = "defer"


@dataclass(frozen=True, kw_only=True)
class AttentionPolicy:
    """One attention.toml. Immutable; `version` tells one text from another.

    Below `lowest_bound` no load is of any interest.
    """

    version: str
    score: Weights
    levels: Mapping[LevelName, Level]
    boost: Boost
    load: Load
    affect: Affect
    novelty: Novelty
    recency: Recency
    focus: FocusTable
    sources: Mapping[str, float]
    budgets: Mapping[str, Budget]
    always_admit: tuple[BaseFilter, ...]
    lowest_bound: float = 0.0
    text: str = field(repr=False, default="")

    @classmethod
    def parse(cls, data: bytes | str, file: str = "attention.toml") -> AttentionPolicy:
        """The policy that a text says, or `PolicyError`. A `str` may leave out the last line of a policy file."""
        if isinstance(data, str):
            text = data if data.endswith(f"{END}\n") else f"{data.rstrip()}\n{END}\n"
            data = text.encode()
        reader = _Reader(data, file)
        levels = reader.levels()
        bounds = [bound for level in levels.values() for bound in (level.enter, level.leave) if bound is not None]
        return cls(
            version=hashlib.sha256(data).hexdigest()[:12],
            score=reader.table(Weights, "score"),
            levels=levels,
            lowest_bound=min(bounds),
            boost=reader.table(Boost, "boost"),
            load=reader.table(Load, "load"),
            affect=reader.table(Affect, "affect"),
            novelty=reader.table(Novelty, "novelty"),
            recency=reader.table(Recency, "recency"),
            focus=reader.table(FocusTable, "focus"),
            sources=reader.sources(),
            budgets={name: reader.table(Budget, "budgets", name) for name in reader.values("budgets")},
            always_admit=reader.always_admit(),
            text=data.decode(),
        )

    @classmethod
    def load_file(cls, path: str | os.PathLike[str] | None = None) -> AttentionPolicy:
        """The policy in a file, or the packaged one."""
        source = Source.of(path, "attention.toml")
        return cls.parse(source.read(), source.name)


class AttentionPolicies(Reloading[AttentionPolicy]):
    """The attention policy in force, from the user's file or the packaged one. Any thread may use it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._source = Source.of(path, "attention.toml")
        super().__init__([self._source], lambda: AttentionPolicy.parse(self._source.read(), self._source.name))


_USUAL_LEVELS: Final[Mapping[LevelName, Level]] = {
    "calm": Level(boost_from=0.7),
    "strained": Level(enter=0.6, leave=0.4, drop_below=0.05, defer_below=0.3, defer_s=5.0, boost_from=0.65),
    "overloaded": Level(enter=0.85, leave=0.65, drop_below=0.2, defer_below=0.45, defer_s=15.0, boost_from=0.6),
}
_USUALLY_ADMITTED: Final[list[Any]] = [
    {
        "path": "meta.type",
        "op": "in",
        "value": [
            "FOCUS_SHIFT_REQUEST",
            "ATTENTION_REQUEST",
            "COGNITIVE_LOAD_ALERT",
            "WORKING_MEMORY_UPDATE",
            "WRITE_ACCEPTED",
        ],
    },
    {"path": "meta.priority", "op": "ge", "value": "critical"},
]


class _Reader(TableReader):
    """Reads attention.toml."""

    tops = (
        "score",
        "levels",
        "boost",
        "load",
        "affect",
        "novelty",
        "recency",
        "focus",
        "sources",
        "budgets",
        "always",
    )
    said_better: ClassVar[Mapping[str, str]] = {
        "per": "'actor' or 'topic'",
        "over": "'defer' or 'drop'",
        "of": 'a list of paths into an event, as in "meta.type"',
    }

    def levels(self) -> Mapping[LevelName, Level]:
        given = self.values("levels")
        self._check_keys(("levels",), given, LEVELS)
        levels = {name: self.table(Level, "levels", name) if name in given else _USUAL_LEVELS[name] for name in LEVELS}
        for name, level in levels.items():
            self._check_thresholds(name, level)
        calm, strained, overloaded = (levels[name] for name in LEVELS)
        if calm.enter is not None or calm.leave is not None:
            raise self.error(("levels", "calm", "enter"), "calm is below every other level and has no bounds")
        for name, level in (("strained", strained), ("overloaded", overloaded)):
            if level.enter is None or level.leave is None or level.leave >= level.enter:
                rule = "a level has 'enter' and a smaller 'leave', so that it does not flutter"
                raise self.error(("levels", name, "leave"), rule)
        assert strained.enter is not None
        assert overloaded.enter is not None
        if strained.enter >= overloaded.enter:
            raise self.error(("levels", "overloaded", "enter"), "overloaded begins above strained")
        return levels

    def _check_thresholds(self, name: str, level: Level) -> None:
        asked = [level.drop_below, level.defer_below, level.boost_from]
        set_ones = [threshold for threshold in asked if threshold is not None]
        if set_ones != sorted(set_ones):
            rule = "drop_below <= defer_below <= boost_from, or one of them could never apply"
            raise self.error(("levels", name), rule)

    def sources(self) -> Mapping[str, float]:
        sources = self.values("sources") or {"user:*": 1.0, "*": 0.5}
        for pattern, weight in sources.items():
            if "*" in pattern[:-1]:
                raise self.error(("sources", pattern), "'*' stands alone or at the end of an actor's name")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
                raise self.error(("sources", pattern), "a source counts for a number from 0 to 1")
        return {pattern: float(weight) for pattern, weight in sources.items()}

    def always_admit(self) -> tuple[BaseFilter, ...]:
        given = self.values("always")
        self._check_keys(("always",), given, ["admit"])
        filters: Any = given.get("admit", _USUALLY_ADMITTED)
        if not isinstance(filters, list):
            raise self.error(("always", "admit"), "a list of filters")
        try:
            return tuple(filter_from(data, where=f"admit[{index}]") for index, data in enumerate(filters))
        except InvalidMessage as error:
            raise self.error(("always", "admit"), str(error)) from None
