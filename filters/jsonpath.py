"""`JSONPathFilter`: a JSONPath query over the whole event."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, get_args

from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters.base import BaseFilter, suggestion
from filters.budget import MAX_EXPRESSION_CHARS, Budget, Overrun
from filters.jsonpath_extended import WrongType, compile_extended
from filters.jsonpath_rfc import BadQuery, compile_rfc
from filters.operators import Condition, Operator, check_operator, check_value, condition
from filters.paths import MAX_STEPS, ROOTS, Path, document_of, path_of
from filters.values import MISSING, plain

Dialect = Literal["rfc9535", "jsonpath-ng"]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

_META_COST, _PAYLOAD_COST, _ENGINE_COST, _EXTENDED_COST = 1, 3, 15, 60


class Query(Protocol):
    """A compiled expression of either dialect."""

    @property
    def steps(self) -> tuple[str | int, ...] | None: ...
    @property
    def roots(self) -> Mapping[str, int] | None: ...
    def select(self, document: Any, budget: Budget) -> Iterator[Any]: ...


class JSONPathFilter(BaseFilter):
    """Matches when a query over `{"meta": {..}, "payload": {..}}` selects something.

        JSONPathFilter("$.payload.items[?@.price > 100 && @.tags[0] == 'new']")
        JSONPathFilter("$..temperature", value=90, op="gt")
        JSONPathFilter("$.payload.items[?(@.sku =~ 'A-.*')]", dialect="jsonpath-ng")

    With a value, one of the selected nodes has to fulfil `op` (as in `SimpleFilter`, but on the JSON alone: a time
    is a string). The dialect is RFC 9535 unless `jsonpath-ng` is asked for, which adds arithmetic, sorting, `sub`,
    `split` and `=~`; regular expressions run on RE2 in both. A query that only names members and indices costs as
    little as a dotted path, and one that only looks at `meta` never touches the payload.

    A query that needs more than 100,000 steps on an event does not match it, and is counted in `overruns`.
    """

    __slots__ = ("_condition", "_path", "_query", "_roots", "dialect", "expression", "op", "value")

    expression: str
    dialect: Dialect
    value: Any
    op: Operator
    _condition: Condition | None
    _path: Path | None
    _query: Query
    _roots: Sequence[str]

    def __init__(
        self,
        expression: str,
        dialect: Dialect | str = "rfc9535",
        *,
        value: Any = MISSING,
        op: Operator | str | None = None,
    ) -> None:
        if dialect not in DIALECTS:
            raise InvalidMessage("dialect", dialect, "no such dialect", hint=suggestion(dialect, DIALECTS))
        query = _compiled(expression, dialect)
        path = None if query.steps is None else path_of(query.steps)
        roots = ROOTS if query.roots is None else tuple(query.roots)
        operator = check_operator("exact" if op is None else op)
        if operator == "exists":
            raise InvalidMessage("op", op, "that a query selects something is what it asks without a value")
        if value is MISSING and op is not None:
            raise InvalidMessage("value", None, f"op {op!r} needs a value to compare with")
        checked = value if value is MISSING else check_value(operator, value)
        reading = _PAYLOAD_COST if "payload" in roots else _META_COST
        engine = 0 if path is not None else _ENGINE_COST if dialect == "rfc9535" else _EXTENDED_COST
        super().__init__(
            cost=reading + engine,
            expression=expression,
            dialect=dialect,
            value=checked,
            op=operator,
            _condition=None if checked is MISSING else condition(operator, checked),
            _path=path,
            _query=query,
            _roots=roots,
        )

    def matches(self, event: Event[Any]) -> bool:
        """Whether the query selects something that fulfils the condition. Never raises on what an event holds (W11)."""
        budget = Budget()
        try:
            return self._judge(self._selected(event, budget), budget)
        except (Overrun, RecursionError):
            self._tally.overruns += 1
        except WrongType:
            self._tally.mismatches += 1
        return False

    def _selected(self, event: Event[Any], budget: Budget) -> Iterator[Any]:
        if self._path is None:
            return self._query.select(document_of(event, self._roots), budget)
        found = self._path.find(event)
        return iter(() if found is MISSING else (plain(found),))

    def _judge(self, values: Iterator[Any], budget: Budget) -> bool:
        if self._condition is None:
            return next(values, MISSING) is not MISSING
        mistyped = False
        for value in values:
            verdict = self._condition(value, budget)
            if verdict:
                return True
            mistyped = mistyped or verdict is None
        self._tally.mismatches += mistyped
        return False

    def describe(self) -> Mapping[str, Any]:
        """`{"jsonpath": ..., "dialect": ...}`, and `"op"` and `"value"` where there is a value."""
        described: dict[str, Any] = {"jsonpath": self.expression, "dialect": self.dialect}
        if self.value is not MISSING:
            described |= {"op": self.op, "value": copy.deepcopy(self.value)}
        return described

    def __repr__(self) -> str:
        condition = "" if self.value is MISSING else f", value={self.value!r}, op={self.op!r}"
        return f"JSONPathFilter({self.expression!r}, {self.dialect!r}{condition})"


def _compiled(expression: str, dialect: str) -> Query:
    if not isinstance(expression, str) or not 0 < len(expression) <= MAX_EXPRESSION_CHARS:
        rule = f"an expression is a string of at most {MAX_EXPRESSION_CHARS} characters"
        raise InvalidMessage("expression", expression, rule)
    try:
        query = _cached(expression, dialect)
    except BadQuery as error:
        raise InvalidMessage("expression", expression, f"not {dialect}: {error}") from None
    outside = [(name, position) for name, position in (query.roots or {}).items() if name not in ROOTS]
    if outside:
        name, position = outside[0]
        rule = f"an event has meta and payload, but no {name!r}, at position {position}"
        meant = f"Did you mean $.meta.{name}?" if name in EventMeta.model_fields else suggestion(name, ROOTS)
        raise InvalidMessage("expression", expression, rule, hint=meant)
    if query.steps is not None and len(query.steps) > MAX_STEPS:
        raise InvalidMessage("expression", expression, f"a path has at most {MAX_STEPS} steps")
    return query


@lru_cache(maxsize=512)
def _cached(expression: str, dialect: str) -> Query:
    return compile_rfc(expression) if dialect == "rfc9535" else compile_extended(expression)
