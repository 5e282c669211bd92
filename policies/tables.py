"""TOML policy files as checked tables: each problem is told with the line and column where it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from events.errors import shown
from policies.files import Line, PolicyError, whole_text
from policies.rules import did_you_mean

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_KEY: Final = rf"({_PART}(?:[ \t]*\.[ \t]*{_PART})*)[ \t]*"
_header = re.compile(rf"[ \t]*\[[ \t]*{_KEY}\][ \t]*(?:#.*)?$").match
_assignment = re.compile(rf"[ \t]*{_KEY}=").match


class Table(BaseModel):
    """Settings that stand together. A key that is not known is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


TableT = TypeVar("TableT", bound=Table)
Keys = tuple[str, ...]


class TableReader:
    """Reads the tables of a file, and says of each problem where it stands. `tops` are the tables there may be."""

    tops: ClassVar[tuple[str, ...]] = ()
    said_better: ClassVar[Mapping[str, str]] = {}
    """What a setting may be, where pydantic's own words would not help a person."""

    def __init__(self, data: bytes, file: str) -> None:
        self._text, self._file = whole_text(data, file), file
        try:
            self._data = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            # Positions became attributes of the error only in Python 3.14.
            problem, line, column = _toml_problem(str(error))
            raise PolicyError(file, line, problem, column=column) from None
        self._positions = _positions(self._text)
        self._check_keys((), self._data, self.tops)

    def line(self, *path: str) -> Line:
        """The line that a setting stands in."""
        number, _ = self._position(path)
        return Line(self._file, number, self._text.split("\n")[number - 1].strip())

    def values(self, *path: str) -> Mapping[str, Any]:
        """What a table holds, unchecked; nothing where it is not there."""
        found: Any = self._data
        for key in path:
            found = found.get(key, {})
            if not isinstance(found, dict):
                raise self.error(path, f"found {shown(found)}; this is a table of settings")
        return dict(found)

    def table(self, model: type[TableT], *path: str) -> TableT:
        """A table as its model; the first problem in it is raised."""
        values = self.values(*path)
        self._check_keys(path, values, model.model_fields)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            key = str(first["loc"][0])
            ours, said = first["type"] == "value_error", first["msg"].removeprefix("Value error, ")
            rule = said if ours else self.said_better.get(key) or said[:1].lower() + said[1:]
            raise self.error((*path, key), f"{key}: found {shown(values.get(key))}; {rule}") from None

    def error(self, path: Keys, problem: str) -> PolicyError:
        """A problem with what stands at a path."""
        line, column = self._position(path)
        return PolicyError(self._file, line, problem, column=column)

    def _check_keys(self, path: Keys, values: Mapping[str, Any], known: Iterable[str]) -> None:
        names = list(known)
        for key in values:
            if key not in names:
                hint = did_you_mean(key, names) or f". There are {', '.join(names)}"
                raise self.error((*path, key), f"no such setting {shown(key)}{hint}")

    def _position(self, path: Keys) -> tuple[int, int]:
        while path and path not in self._positions:
            path = path[:-1]
        return self._positions.get(path, (1, 1))


def _positions(text: str) -> dict[Keys, tuple[int, int]]:
    """Line and column of each key, since tomllib does not tell; of an inline table, where it begins."""
    positions: dict[Keys, tuple[int, int]] = {}
    table: Keys = ()
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
