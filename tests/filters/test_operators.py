"""What each operator asks of a value, and which values it takes."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from events.errors import InvalidMessage
from events.types import SecurityBand
from filters.budget import Budget, Overrun
from filters.operators import OPERATORS, check_operator, check_value, condition
from filters.values import MISSING


def holds(op: str, value: Any, found: Any, path: str = "") -> bool | None:
    """The verdict of an operator about a found value."""
    operator = check_operator(op)
    return condition(operator, check_value(operator, value), path)(found, None)


@pytest.mark.parametrize(
    ("op", "value", "yes", "no", "mistyped"),
    [
        ("exact", "high", ["high"], ["High", "", "higher"], [75, None, True, ["high"], {}]),
        ("exact", 1, [1, 1.0], [2, 0.5], ["1", True, None, [1]]),
        ("exact", True, [True], [False], [1, "true", None]),
        ("exact", None, [None], [], [0, "", False, []]),
        ("exact", ["a", 1], [["a", 1]], [["a"], [1, "a"], ["a", True]], ["a", {}]),
        ("exact", {"a": [1]}, [{"a": [1]}], [{"a": [2]}, {}], [[1], "a"]),
        ("eq", "high", ["high"], ["low"], [75]),
        ("ne", "high", ["low", ""], ["high"], [75, None]),
        ("ne", 3, [4, 3.5], [3, 3.0], ["3", True]),
        ("in", ["a", "b"], ["a", "b"], ["c", ""], [1, None, ["a"]]),
        ("in", [1, "a", None], [1, 1.0, "a", None], [2, "b"], [True, [1], {}]),
        ("prefix", "ab", ["ab", "abc"], ["a", "xab"], [1, None, ["ab"]]),
        ("suffix", "bc", ["bc", "abc"], ["c", "bcx"], [1, None, ["bc"]]),
        ("contains", "b", ["abc", ["a", "b"], "b"], ["ac", [], ["ab"]], [1, None, {"b": 1}]),
        ("contains", 2, [[1, 2], [2.0]], [[1], ["2"], [True]], ["2", 2, {}]),
        ("regex", "^a.c$", ["abc"], ["abcd", "xabc"], [1, None, ["abc"]]),
        ("regex", "b", ["abc", "b"], ["ac"], [1]),
        ("lt", 10, [9, 9.99, -1], [10, 11], ["9", True, None, []]),
        ("le", 10, [10, 9], [10.5], ["9", None]),
        ("gt", 10, [11, 10.1], [10, 9], ["11", None]),
        ("ge", 10, [10, 11], [9], ["11", None]),
        ("lt", "m", ["a", "Z", ""], ["m", "z"], [1, None]),
        ("ge", "m", ["m", "z"], ["a"], [1, None]),
    ],
)
def test_what_an_operator_asks(op: str, value: Any, yes: list[Any], no: list[Any], mistyped: list[Any]) -> None:
    """W11: a value of a type that the operator cannot judge is neither yes nor no."""
    assert [holds(op, value, found) for found in yes] == [True] * len(yes)
    assert [holds(op, value, found) for found in no] == [False] * len(no)
    assert [holds(op, value, found) for found in mistyped] == [None] * len(mistyped)


@pytest.mark.parametrize(
    ("path", "op", "value", "found", "verdict"),
    [
        ("meta.band", "gt", "GREEN", "BLACK", True),
        ("meta.band", "le", "AMBER", "RED", False),
        ("meta.band", "ge", SecurityBand.RED, "RED", True),
        ("meta.priority", "ge", "high", 80, True),
        ("meta.priority", "ge", "high", "critical", True),
        ("meta.priority", "gt", 60, "normal", False),
        ("meta.priority", "lt", 60, "normal", True),
        ("meta.priority", "exact", "high", 75, None),
        ("meta.ts", "exact", "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z", True),
        ("meta.ts", "ne", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z", True),
        ("meta.ts", "in", ["2026-01-01T00:00:00Z"], "2026-01-01T00:00:00.000000+00:00", True),
        ("meta.ts", "gt", "2026-01-01T00:00:00Z", "2025-12-31T23:30:00-01:00", True),
        ("meta.ts", "lt", datetime(2026, 1, 1, tzinfo=UTC), "2025-12-31T23:59:59Z", True),
        ("meta.ts", "prefix", "2026-01", "2026-01-01T00:00:00Z", True),
    ],
)
def test_fields_with_an_order_of_their_own(path: str, op: str, value: Any, found: Any, verdict: bool | None) -> None:
    """Bands and priorities are ordered by level, and times by the moment, not by how they are spelt."""
    assert holds(op, value, found, path) is verdict


@pytest.mark.parametrize(
    ("path", "op", "value"),
    [
        ("meta.band", "ge", "PURPLE"),
        ("meta.band", "ge", 2),
        ("meta.priority", "gt", "urgent"),
        ("meta.ts", "gt", "yesterday"),
        ("meta.ts", "gt", "2026-01-01T00:00:00"),
        ("meta.ts", "exact", 5),
        ("meta.ts", "in", ["2026-01-01T00:00:00Z", "noon"]),
    ],
)
def test_a_value_that_the_field_cannot_have_is_refused(path: str, op: str, value: Any) -> None:
    """A mistyped band or time would silently match nothing, so it is refused when the filter is built."""
    with pytest.raises(InvalidMessage, match="value"):
        holds(op, value, "", path)


@pytest.mark.parametrize(
    ("op", "value"),
    [
        ("in", "abc"),
        ("in", {"a": 1}),
        ("prefix", 5),
        ("suffix", None),
        ("regex", ["a"]),
        ("lt", True),
        ("gt", None),
        ("ge", [1]),
        ("exists", "yes"),
        ("exists", 1),
        ("exact", MISSING),
        ("exact", object()),
        ("exact", float("nan")),
        ("exact", [float("inf")]),
        ("exact", "\ud800"),
        ("exact", datetime(2026, 1, 1)),  # noqa: DTZ001 - that it has no zone is the point
    ],
)
def test_a_value_that_the_operator_cannot_use_is_refused(op: str, value: Any) -> None:
    """The value fits the operator and is JSON, or the filter is not built."""
    with pytest.raises(InvalidMessage, match="value"):
        check_value(check_operator(op), value)


def test_values_become_plain_json() -> None:
    """Times, enums, tuples and sets print as JSON, and a set always in the same order."""
    assert check_value("gt", datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-01T00:00:00+02:00"
    assert check_value("exact", SecurityBand.RED) == "RED"
    assert check_value("in", ("b", "a")) == ["b", "a"]
    assert check_value("in", {"b", "a", "c"}) == ["a", "b", "c"]
    assert check_value("exists", MISSING) is True


def test_an_unknown_operator_is_refused_with_a_suggestion() -> None:
    """A near miss is named, and without one all operators are."""
    with pytest.raises(InvalidMessage, match="Did you mean 'prefix'"):
        check_operator("prefixed")
    with pytest.raises(InvalidMessage, match="Known: exact, ne, in"):
        check_operator("~=")
    assert all(check_operator(op) == op for op in OPERATORS)


def test_a_bad_pattern_is_refused_with_its_position() -> None:
    """A regular expression is checked when the filter is built."""
    with pytest.raises(InvalidMessage, match=r"invalid escape sequence: \\Z at position 4"):
        holds("regex", r"abc.\Z", "")
    with pytest.raises(InvalidMessage, match=r"at position 3"):
        holds("regex", r"abc(?=d)", "")


@pytest.mark.parametrize(
    ("op", "value", "found"),
    [
        ("contains", 5, [1] * 200),
        ("exact", [1] * 200, [1] * 200),
        ("in", [[1] * 99], [1] * 99),
        ("regex", "a*b", "a" * 9_000),
    ],
)
def test_conditions_pay_from_the_budget_of_a_query(op: str, value: Any, found: Any) -> None:
    """A query may ask a condition of very many values, so the condition is part of what is bounded."""
    operator = check_operator(op)
    with pytest.raises(Overrun):
        condition(operator, check_value(operator, value))(found, Budget(50))
