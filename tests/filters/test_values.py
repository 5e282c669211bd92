"""JSON values: kinds, equality and order."""

from typing import Any

import pytest

from events.types import EventType, SecurityBand
from filters.budget import Budget, Overrun
from filters.values import kind_of, plain, precedes, same


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ("a", "a", True),
        ([1, [2]], [1, [2]], True),
        ([1], [True], False),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        (("a", "b"), ["a", "b"], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"b": 1}, False),
        ({}, [], False),
    ],
)
def test_equality_is_json_equality(left: Any, right: Any, equal: bool) -> None:
    """True is not 1, 1 is 1.0, order counts in arrays and not in objects."""
    assert same(left, right) is equal
    assert same(right, left) is equal


@pytest.mark.parametrize(
    ("left", "right", "before"),
    [
        (1, 2, True),
        (2, 1.5, False),
        ("a", "b", True),
        ("Z", "a", True),
        (1, "2", None),
        (True, 2, None),
        (None, None, None),
        ([1], [2], None),
        # A band's own order is that of its levels; as text it is text.
        (SecurityBand.BLACK, SecurityBand.GREEN, True),
    ],
)
def test_only_numbers_and_strings_have_an_order(left: Any, right: Any, before: bool | None) -> None:
    """None says that two values cannot be compared."""
    assert precedes(left, right) is before


def test_comparing_is_paid_for() -> None:
    """A comparison of large values takes from the budget, and stops where it ends."""
    with pytest.raises(Overrun):
        same([[1] * 600] * 2, [[1] * 600] * 2, Budget(1_000))
    with pytest.raises(Overrun):
        precedes("a" * 5_000, "a" * 5_000, Budget(3))
    assert same([1, 2], [1, 2], Budget(10))


def test_kinds_and_plain_values() -> None:
    """What is JSON already stays as it is; enums are strings, and a tuple becomes an array."""
    assert [kind_of(value) for value in (None, True, 1, 1.5, "a", [], (), {}, object())] == [
        *("null", "boolean", "number", "number", "string", "array", "array", "object"),
        None,
    ]
    assert plain(EventType.HIPPO_ENCODE) == "HIPPO_ENCODE"
    assert plain(("a", "b")) == ["a", "b"]
