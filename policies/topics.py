"""How single topics are treated: topics.toml, checked with positions, and asked by topic.

A table is named by a topic or a glob. For each key the most specific table that sets it wins: compared
segment by segment from the left, a name is more specific than `*`, and `*` than `**`; then the longer one;
then the one that stands first in the file. A key that no table sets is None, and BusConfig decides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, Strict

from events.names import topic_matches
from events.types import Priority, SecurityBand
from policies.files import Line, Reloading, Source
from policies.matching import EVERYTHING, topics_overlap
from policies.rules import check_principal, check_topic_glob
from policies.tables import Table, TableReader

_CACHED_TOPICS: Final = 4_096


def _principal(name: str) -> str:
    check_principal(name)
    return name


def _glob(pattern: str) -> str:
    check_topic_glob(pattern)
    return pattern


Seconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(ge=0)]
Principal = Annotated[str, Strict(), AfterValidator(_principal)]
TopicGlob = Annotated[str, Strict(), AfterValidator(_glob)]


class TopicPolicy(Table):
    """The settings of a topic. None: not set here."""

    allow: frozenset[Principal] | None = None
    band: SecurityBand | None = None
    priority: Priority | None = None
    on_expired: Literal["drop", "dlq", "deliver"] | None = None
    ack_deadline_s: Seconds | None = None
    retention_s: Seconds | None = None
    retention_bytes: Annotated[int, Strict(), Field(gt=0)] | None = None
    max_retries: Count | None = None
    backoff_base: Seconds | None = None
    backoff_mult: Annotated[float, Strict(), Field(ge=1, allow_inf_nan=False)] | None = None
    backoff_max: Seconds | None = None
    payload_schema: Literal["off", "lenient", "strict"] | None = None
    redaction: Literal["off", "redact", "refuse"] | None = None
    redaction_bands: frozenset[SecurityBand] | None = None


class Topology(Table):
    """Which topics there may be at all (rule W16)."""

    strict: Annotated[bool, Strict()] = False
    topics: tuple[TopicGlob, ...] = ()

    def permits(self, topic: str) -> bool:
        """Whether the topic may be used."""
        return not self.strict or any(topic_matches(pattern, topic) for pattern in self.topics)


@dataclass(frozen=True, slots=True)
class AllowList:
    """The only subjects and roles that may have to do with a topic, and the line that says so."""

    names: frozenset[str]
    line: Line


class TopicTables:
    """What one topics.toml says. Immutable, and cached per topic."""

    def __init__(self, data: bytes, file: str) -> None:
        self.digest = hashlib.sha256(data).hexdigest()
        reader = _Reader(data, file)
        self.topology = reader.topology()
        tables = sorted(reader.tables(), key=lambda entry: specificity(entry[0]), reverse=True)
        self._tables: Sequence[tuple[str, TopicPolicy]] = tables
        self._allow_lists = [
            (pattern, AllowList(table.allow, reader.line("topics", pattern, "allow")))
            for pattern, table in tables
            if table.allow is not None
        ]
        self.for_topic = lru_cache(_CACHED_TOPICS)(self._for_topic)
        self.allow_lists = lru_cache(_CACHED_TOPICS)(self._find_allow_lists)

    def _for_topic(self, topic: str) -> TopicPolicy:
        settings: dict[str, Any] = {}
        for pattern, table in self._tables:
            if topic_matches(pattern, topic):
                settings = {key: getattr(table, key) for key in table.model_fields_set} | settings
        return TopicPolicy.model_construct(**settings)

    def _find_allow_lists(self, topic: str) -> tuple[AllowList, ...]:
        if "*" in topic:
            return tuple(found for pattern, found in self._allow_lists if topics_overlap(pattern, topic))
        matching = (found for pattern, found in self._allow_lists if topic_matches(pattern, topic))
        return tuple(found for found in [next(matching, None)] if found)


class TopicPolicies(Reloading[TopicTables]):
    """The topic policies in force, from the user's file or the packaged one. Any thread may use it."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._source = Source.of(path, "topics.toml")
        super().__init__([self._source], lambda: TopicTables(self._source.read(), self._source.name))

    @property
    def topology(self) -> Topology:
        """Which topics there may be at all."""
        return self.current.topology

    def for_topic(self, topic: str) -> TopicPolicy:
        """The settings of a topic."""
        return self.current.for_topic(topic)

    def band_of(self, topic: str, band: SecurityBand | None) -> SecurityBand | None:
        """The band of an event on a topic: its own, or the topic's where that is higher."""
        floor = None if "*" in topic else self.current.for_topic(topic).band
        return band if floor is None else max(floor, band or SecurityBand.GREEN)

    def allow_lists(self, topic: str) -> tuple[AllowList, ...]:
        """The allow-lists to be on: the most specific one of a topic, all that a pattern touches."""
        return self.current.allow_lists(topic)


def specificity(pattern: str) -> tuple[int, ...]:
    """Sorts patterns by how specific they are: a name before `*` before `**`, from the left."""
    segments = ["**"] if pattern == EVERYTHING else pattern.split(".")
    ranks = {"*": 1, "**": 0}
    # An exact topic comes before every glob, also before one that is longer.
    return ("*" not in pattern, *(ranks.get(segment, 2) for segment in segments))


class _Reader(TableReader):
    """Reads topics.toml."""

    tops = ("topics", "topology")
    said_better: ClassVar[Mapping[str, str]] = {
        "allow": "a list of subjects and roles",
        "priority": "a whole number from 0 to 100, or low, normal, high or critical",
        "band": "a band is GREEN, AMBER, RED or BLACK",
        "redaction_bands": "a list of GREEN, AMBER, RED, BLACK",
    }

    def topology(self) -> Topology:
        table = self.table(Topology, "topology")
        if table.strict and not table.topics:
            raise self.error(("topology", "strict"), "a strict topology needs 'topics', or nothing can be used")
        return table

    def tables(self) -> Iterator[tuple[str, TopicPolicy]]:
        for pattern in self.values("topics"):
            try:
                check_topic_glob(pattern)
            except ValueError as error:
                raise self.error(("topics", pattern), str(error)) from None
            yield pattern, self.table(TopicPolicy, "topics", pattern)
