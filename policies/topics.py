"""How single topics are treated: topics.toml, checked with positions, and asked by topic.

A table is named by a topic or a glob. For each key the most specific table that sets it wins: compared
segment by segment from the left, a name is more specific than `*`, and `*` than `**`; then the longer one;
then the one that stands first in the file. A key that no table sets is None, and BusConfig decides.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from events.errors import shown
from events.names import topic_matches
from events.types import Priority, SecurityBand
from policies.files import Line, PolicyError, Reloading, Source, whole_text
from policies.matching import EVERYTHING, topics_overlap
from policies.rules import check_principal, check_topic_glob, did_you_mean

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


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicPolicy(_Table):
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


class Topology(_Table):
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
        reader = _Reader(whole_text(data, file), file)
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


TableT = TypeVar("TableT", bound=_Table)


class _Reader:
    """Reads the tables of a file, and says of each problem where it stands."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        try:
            self._data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            # Positions became attributes of the error only in Python 3.14.
            problem, line, column = _toml_problem(str(error))
            raise PolicyError(file, line, problem, column=column) from None
        self._positions = _positions(text)
        self._check_keys((), self._data, ["topics", "topology"])

    def topology(self) -> Topology:
        table = self._table(Topology, self._data.get("topology", {}), ("topology",))
        if table.strict and not table.topics:
            raise self._error(("topology", "strict"), "a strict topology needs 'topics', or nothing can be used")
        return table

    def tables(self) -> Iterator[tuple[str, TopicPolicy]]:
        for pattern, values in self._expect_table(("topics",), self._data.get("topics", {})).items():
            path = ("topics", pattern)
            try:
                check_topic_glob(pattern)
            except ValueError as error:
                raise self._error(path, str(error)) from None
            yield pattern, self._table(TopicPolicy, values, path)

    def line(self, *path: str) -> Line:
        number, _ = self._position(path)
        return Line(self._file, number, self._text.split("\n")[number - 1].strip())

    def _table(self, model: type[TableT], found: object, path: tuple[str, ...]) -> TableT:
        values = self._expect_table(path, found)
        self._check_keys(path, values, model.model_fields)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            key = str(first["loc"][0])
            ours, said = first["type"] == "value_error", first["msg"].removeprefix("Value error, ")
            rule = said if ours else _SAID_BETTER.get(key) or said[:1].lower() + said[1:]
            raise self._error((*path, key), f"{key}: found {shown(values[key])}; {rule}") from None

    def _expect_table(self, path: tuple[str, ...], found: object) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise self._error(path, f"found {shown(found)}; this is a table of settings")
        return found

    def _check_keys(self, path: tuple[str, ...], values: Mapping[str, Any], known: Iterable[str]) -> None:
        names = list(known)
        for key in values:
            if key not in names:
                hint = did_you_mean(key, names) or f". There are {', '.join(names)}"
                raise self._error((*path, key), f"no such setting {shown(key)}{hint}")

    def _position(self, path: tuple[str, ...]) -> tuple[int, int]:
        while path and path not in self._positions:
            path = path[:-1]
        return self._positions.get(path, (1, 1))

    def _error(self, path: tuple[str, ...], problem: str) -> PolicyError:
        line, column = self._position(path)
        return PolicyError(self._file, line, problem, column=column)


_SAID_BETTER: Final = {
    "allow": "a list of subjects and roles",
    "priority": "a whole number from 0 to 100, or low, normal, high or critical",
    "band": "a band is GREEN, AMBER, RED or BLACK",
    "redaction_bands": "a list of GREEN, AMBER, RED, BLACK",
}
_PART: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY: Final = rf"({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*"
_header = re.compile(rf"[ \t]*\[[ \t]*{_KEY}\][ \t]*(?:#.*)?$").match
_assignment = re.compile(rf"[ \t]*{_KEY}=").match


def _positions(text: str) -> dict[tuple[str, ...], tuple[int, int]]:
    """Line and column of each key, since tomllib does not tell; of an inline table, where it begins."""
    positions: dict[tuple[str, ...], tuple[int, int]] = {}
    table: tuple[str, ...] = ()
    for number, content in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        header = _header(content)
        found = header or _assignment(content)
        if found is None:
            continue
        parts = tuple(part.strip("\"'") for part in re.findall(_PART, found[1]))
        path = parts if header else (*table, *parts)
        table = parts if header else table
        for length in range(1, len(path) + 1):
            positions.setdefault(path[:length], (number, found.start(1) + 1))
    return positions


def _toml_problem(message: str) -> tuple[str, int | None, int | None]:
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    return (found[1], int(found[2]), int(found[3])) if found else (message, None, None)
