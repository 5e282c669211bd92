"""JSON values as filters see them: their types, their equality and their order."""

from __future__ import annotations

import enum
from typing import Any, Final, Literal

from pydantic_core import to_jsonable_python

from filters.budget import Budget


class Missing(enum.Enum):
    """The type of `MISSING`, which is no JSON value: null is one."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

Kind = Literal["null", "boolean", "number", "string", "array", "object"]

# Tuples, because on the way of every event isinstance is twice as fast with them as with a union.
ARRAYS: Final = (list, tuple)
_NUMBERS: Final = (int, float)
_PLAIN: Final = (str, int, float, dict, list)

_CHARS_BITS_OF_A_STEP: Final = 10


def kind_of(value: object) -> Kind | None:
    """The JSON type of a value, or None when it is not JSON."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):  # before number: to Python a bool is an int
        return "boolean"
    if isinstance(value, _NUMBERS):
        return "number"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, ARRAYS) else None


def plain(value: Any) -> Any:
    """A value of the envelope as it stands in the log's JSON: text for a time, an object for a model."""
    if value is None or isinstance(value, _PLAIN):
        return value
    return to_jsonable_python(value, exclude_none=True, serialize_unknown=True)


def pay_for(value: object, budget: Budget) -> None:
    """What reading through a string, an array or the names of an object takes from the budget of a query."""
    if isinstance(value, str):
        budget.spend(len(value) >> _CHARS_BITS_OF_A_STEP)
    elif isinstance(value, list | tuple | dict):
        budget.spend(len(value))


def same(left: object, right: object, budget: Budget | None = None) -> bool:
    """JSON equality: true is not 1, 1 is 1.0, and members of an object have no order."""
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    if budget is not None:
        pay_for(left, budget)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[name], budget) for name, value in left.items())
    if isinstance(left, ARRAYS) and isinstance(right, ARRAYS):
        return len(left) == len(right) and all(same(a, b, budget) for a, b in zip(left, right, strict=True))
    return left == right


def precedes(left: Any, right: Any, budget: Budget | None = None) -> bool | None:
    """Whether `left` comes before `right`; None unless both are numbers, or both are strings."""
    if isinstance(left, str) and isinstance(right, str):
        if budget is not None:
            pay_for(left, budget)
        # str's own comparison, also where a subclass (SecurityBand) orders itself differently.
        return str.__lt__(left, right)
    return left < right if kind_of(left) == kind_of(right) == "number" else None
