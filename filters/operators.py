"""What a filter asks of one value: equal to, starts with, greater than, matches, and so on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from events.errors import InvalidMessage
from events.types import PRIORITY_LEVELS, SecurityBand, priority_level
from filters.base import suggestion
from filters.budget import Budget
from filters.regex import BadRegex, compile_regex
from filters.values import MISSING, kind_of, pay_for, precedes, same

Operator = Literal["exact", "ne", "in", "prefix", "suffix", "contains", "regex", "exists", "lt", "le", "gt", "ge"]
OPERATORS: Final[tuple[Operator, ...]] = get_args(Operator)

Condition = Callable[[Any, Budget | None], bool | None]
"""Asked of a plain JSON value. None: the value is not of a type that can be asked, so it does not match.

A query that may ask it of many values gives the budget to pay from.
"""

_ORDERED: Final = frozenset({"lt", "le", "gt", "ge"})
_EQUATED: Final = frozenset({"exact", "ne", "in"})


def check_operator(op: object) -> Operator:
    """The operator's one spelling (`eq` is `exact`), or `InvalidMessage`."""
    op = "exact" if op == "eq" else op
    if op not in OPERATORS:
        raise InvalidMessage("op", op, "no such operator", hint=suggestion(op, OPERATORS))
    return op


def check_value(op: Operator, value: Any) -> Any:
    """A copy of the value that is plain JSON and that the operator can use, or `InvalidMessage`."""
    if op == "exists":
        value = True if value is MISSING else value
        if not isinstance(value, bool):
            raise InvalidMessage("value", value, "for op 'exists' the value is true or false, and true if left out")
        return value
    if value is MISSING:
        raise InvalidMessage("value", None, f"op {op!r} needs a value to compare with")
    value = _as_json(value)
    kind = kind_of(value)
    if op == "in" and kind != "array":
        raise InvalidMessage("value", value, "for op 'in' the value is the list of what is allowed")
    if op in ("prefix", "suffix", "regex") and kind != "string":
        raise InvalidMessage("value", value, f"for op {op!r} the value is a string")
    if op in _ORDERED and kind not in ("number", "string"):
        raise InvalidMessage("value", value, f"for op {op!r} the value is a number, a string or a time")
    return value


def condition(op: Operator, value: Any, path: str = "") -> Condition:
    """The condition for a checked value. On some fields of the meta, order is not that of their text."""
    scale = _SCALES.get(path)
    if scale is not None and op in scale.operators:
        return _on_scale(scale, op, value)
    if op in _ORDERED:
        return _ordered(op, value)
    if op == "regex":
        return _regex(value)
    return _PLAIN[op](value)


def _exact(value: Any) -> Condition:
    if isinstance(value, str):
        return lambda found, _budget: found == value if isinstance(found, str) else None
    kind = kind_of(value)
    return lambda found, budget: same(found, value, budget) if kind_of(found) == kind else None


def _ne(value: Any) -> Condition:
    equal = _exact(value)

    def differs(found: Any, budget: Budget | None) -> bool | None:
        verdict = equal(found, budget)
        return None if verdict is None else not verdict

    return differs


def _in(allowed: list[Any]) -> Condition:
    if all(isinstance(value, str) for value in allowed):
        names = frozenset(allowed)
        return lambda found, _budget: found in names if isinstance(found, str) else None
    kinds = frozenset(map(kind_of, allowed))

    def among(found: Any, budget: Budget | None) -> bool | None:
        return any(same(found, value, budget) for value in allowed) if kind_of(found) in kinds else None

    return among


def _contains(value: Any) -> Condition:
    def holds(found: Any, budget: Budget | None) -> bool | None:
        if budget is not None:
            pay_for(found, budget)
        if isinstance(found, list):
            return any(same(item, value, budget) for item in found)
        return value in found if isinstance(found, str) and isinstance(value, str) else None

    return holds


def _prefix(value: str) -> Condition:
    return lambda found, _budget: found.startswith(value) if isinstance(found, str) else None


def _suffix(value: str) -> Condition:
    return lambda found, _budget: found.endswith(value) if isinstance(found, str) else None


def _exists(value: bool) -> Condition:
    return lambda _found, _budget: value


_PLAIN: Final[dict[str, Callable[[Any], Condition]]] = {
    "exact": _exact,
    "ne": _ne,
    "in": _in,
    "contains": _contains,
    "prefix": _prefix,
    "suffix": _suffix,
    "exists": _exists,
}


def _ordered(op: Operator, value: Any) -> Condition:
    # `le` is "not after", so each of the four is one question and its answer, perhaps turned round.
    value_first, negated = op in ("gt", "le"), op in ("le", "ge")

    def holds(found: Any, budget: Budget | None) -> bool | None:
        before = precedes(value, found, budget) if value_first else precedes(found, value, budget)
        return None if before is None else before is not negated

    return holds


def _regex(pattern: str) -> Condition:
    try:
        regex = compile_regex(pattern)
    except BadRegex as error:
        raise InvalidMessage("value", pattern, str(error), hint="The syntax is RE2's") from None

    def holds(found: Any, budget: Budget | None) -> bool | None:
        if not isinstance(found, str):
            return None
        if budget is not None:
            budget.spend(regex.steps(found))
        return regex.search(found)

    return holds


class _Scale(NamedTuple):
    """A field of the meta whose values have an order of their own."""

    place: Callable[[Any], float | None]
    operators: frozenset[str]
    rule: str


def _on_scale(scale: _Scale, op: Operator, value: Any) -> Condition:
    places = [scale.place(item) for item in (value if op == "in" else [value])]
    if None in places:
        raise InvalidMessage("value", value, scale.rule)
    measured: Any = places if op == "in" else places[0]
    judge = _ordered(op, measured) if op in _ORDERED else _PLAIN[op](measured)

    def holds(found: Any, budget: Budget | None) -> bool | None:
        place = scale.place(found)
        return None if place is None else judge(place, budget)

    return holds


def _instant(value: object) -> float | None:
    """A moment as seconds since 1970, so that two spellings of it are equal."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else None


def _band(value: object) -> int | None:
    return SecurityBand(value).level if isinstance(value, str) and value in SecurityBand.__members__ else None


def _priority(value: Any) -> int | None:
    return priority_level(value) if kind_of(value) == "number" or value in PRIORITY_LEVELS else None


_SCALES: Final = {
    "meta.ts": _Scale(_instant, _ORDERED | _EQUATED, "a time is ISO 8601 with its offset: 2026-01-31T12:00:00Z"),
    "meta.band": _Scale(_band, _ORDERED, f"a band is one of {', '.join(SecurityBand.__members__)}"),
    "meta.priority": _Scale(_priority, _ORDERED, f"a priority is a number or one of {', '.join(PRIORITY_LEVELS)}"),
}


def _as_json(value: Any) -> Any:
    """A copy in JSON's types. TOML brings times; Python brings enums, tuples and sets."""
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidMessage("value", value, "a time without its offset can mean many moments", hint="Add Z or +02:00")
    if isinstance(value, set | frozenset):
        # A set's own order changes from process to process, and a group is known by what its filters print (W3).
        value = sorted(value, key=str)
    try:
        return orjson.loads(json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError, PydanticSerializationError):
        raise InvalidMessage("value", value, "a value to compare with is plain JSON, without NaN") from None
