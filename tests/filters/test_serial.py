"""Filters as plain data."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters import (
    AttributeFilter,
    BaseFilter,
    CompoundFilter,
    JSONPathFilter,
    SimpleFilter,
    exact,
    filter_from,
    prefix,
)
from filters.operators import OPERATORS

texts = st.text(max_size=8)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
values_by_op: dict[str, st.SearchStrategy[Any]] = {
    "in": st.lists(json_values, max_size=3),
    "exists": st.booleans(),
    "regex": st.sampled_from(["a+", "^x", r"\d{3}", "(a|b)*"]),
    **dict.fromkeys(("prefix", "suffix"), texts),
    **dict.fromkeys(("lt", "le", "gt", "ge"), numbers | texts),
}
conditions = st.sampled_from(OPERATORS).flatmap(
    lambda op: st.fixed_dictionaries({"op": st.just(op), "value": values_by_op.get(op, json_values)})
)
simple = st.builds(
    lambda path, condition: SimpleFilter(path, **condition),
    st.sampled_from(["meta.topic", "meta.actor.user_id", "meta.headers.x", "payload", "payload.a.0.b", "payload.ä"]),
    conditions,
)
jsonpath = st.builds(
    lambda expression, condition: JSONPathFilter(*expression, **condition),
    st.sampled_from(
        [
            ("$.meta.topic",),
            ("$..a[?@.b > 1]",),
            ("$['payload']['ä']", "rfc9535"),
            ("$.payload.a[?(@.b =~ 'x')]", "jsonpath-ng"),
        ]
    ),
    st.just({}) | conditions.filter(lambda condition: condition["op"] != "exists"),
)
attributes = st.builds(
    AttributeFilter,
    st.sampled_from(["exact", "prefix", "suffix"]),
    st.dictionaries(
        st.sampled_from(["type", "source", "time", "myextension"]), st.text(min_size=1, max_size=8), min_size=1
    ),
)


def compounds(inner: st.SearchStrategy[BaseFilter]) -> st.SearchStrategy[BaseFilter]:
    """AND, OR and NOT over other filters."""
    some = st.lists(inner, min_size=1, max_size=3)
    joined = st.builds(CompoundFilter, st.sampled_from(["AND", "OR"]), some)
    return joined | st.builds(CompoundFilter, st.just("NOT"), inner.map(lambda one: [one]))


any_filter: st.SearchStrategy[BaseFilter] = st.recursive(simple | jsonpath | attributes, compounds, max_leaves=6)


@settings(deadline=None)
@given(any_filter)
def test_every_filter_prints_and_is_read_back(original: BaseFilter) -> None:
    """A filter, written as JSON text and read back, is the same filter, and prints the same again."""
    text = json.dumps(original.describe())
    again = filter_from(json.loads(text))
    assert again == original
    assert json.dumps(again.describe()) == text
    assert type(again) is type(original)
    assert again.cost == original.cost


@settings(deadline=None)
@given(any_filter, st.dictionaries(st.sampled_from(["a", "ä", "b"]), json_values))
def test_what_is_read_back_decides_the_same(original: BaseFilter, payload: dict[str, Any]) -> None:
    """W3: two filters that describe alike are the same, so they give the same verdict."""
    event = Event(EventMeta(topic="t", type="T", space_id="s", headers={"x": "abc", "y": "a"}), payload)
    assert filter_from(original.describe()).matches(event) == original.matches(event)


def test_a_filter_in_toml() -> None:
    """A policy file can hold a filter; TOML's own times are times."""
    text = """
    [[filter.all]]
    path = "meta.ts"
    op = "ge"
    value = 2026-01-01T00:00:00Z

    [[filter.all]]
    jsonpath = "$.payload.items[?@.price > 100]"

    [[filter.all]]
    not = { any = [{ prefix = { type = "DEBUG_" } }, { path = "meta.band", op = "gt", value = "AMBER" }] }
    """
    given = filter_from(tomllib.loads(text)["filter"])
    assert given == (
        SimpleFilter("meta.ts", "2026-01-01T00:00:00Z", "ge")
        & JSONPathFilter("$.payload.items[?@.price > 100]")
        & ~(prefix({"type": "DEBUG_"}) | SimpleFilter("meta.band", "AMBER", "gt"))
    )


def test_what_may_be_left_out() -> None:
    """`op` is exact, the dialect is RFC 9535, existence needs no value, and a list means all of it."""
    assert filter_from({"path": "meta.topic", "value": "t"}) == SimpleFilter("meta.topic", "t", "exact")
    assert filter_from({"path": "payload.x", "op": "exists"}) == SimpleFilter("payload.x", True, "exists")
    assert filter_from({"jsonpath": "$.payload.x"}) == JSONPathFilter("$.payload.x", "rfc9535")
    assert filter_from([{"exact": {"type": "T"}}]) == CompoundFilter("AND", [exact({"type": "T"})])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "filter: found None; a filter has one of the keys path, jsonpath"),
        ("meta.topic", "filter: found 'meta.topic'; a filter has one of the keys"),
        (None, "a filter has one of the keys"),
        ({"paths": "meta.topic"}, "Did you mean 'path'"),
        ({"jsonPath": "$.payload"}, "Did you mean 'jsonpath'"),
        ({"and": []}, "Did you mean 'any'"),
        ({"path": "meta.topic", "operator": "exact", "value": 1}, "filter.operator: .* Did you mean 'op'"),
        ({"path": "meta.topic", "val": 1}, "filter.val: .* Did you mean 'value'"),
        ({"path": "meta.topic", "value": 1, "dialect": "rfc9535"}, "filter.dialect: .* beside 'path'"),
        ({"all": [], "value": 1}, "filter.value: .* 'all' stands alone"),
        ({"exact": {"type": "T"}, "prefix": {"type": "T"}}, "Join them: {'all'"),
        ({"path": "meta.topic"}, "filter.value: .* needs a value"),
        ({"path": "topic", "value": 1}, "filter.path: found 'topic'"),
        ({"path": "meta.topic", "op": "like", "value": 1}, "filter.op: found 'like'"),
        ({"jsonpath": "$["}, r"filter.jsonpath: .* at position 2"),
        ({"jsonpath": "$", "dialect": "xpath"}, "filter.dialect: found 'xpath'"),
        ({"exact": {"typ": "T"}}, "filter.exact.typ: .* Did you mean 'type'"),
        ({"all": []}, "filter.all: .* joins one filter or more"),
        ([], "filter: .* joins one filter or more"),
        ({"any": {"path": "meta.topic"}}, "filter.any: .* 'any' joins a list"),
        ({"any": "x"}, "filter.any: .* 'any' joins a list"),
        ({"not": [{"path": "meta.key", "value": 1}, {"paht": 1}]}, r"filter.not\[1\]: .* Did you mean 'path'"),
        (
            {"all": [{"exact": {"type": "T"}}, {"not": {"path": "meta", "op": "x"}}]},
            r"filter.all\[1\].not.op: found 'x'",
        ),
        ({5: 1}, "filter: found 5"),
    ],
)
def test_malformed_data_is_refused_with_its_place(data: Any, message: str) -> None:
    """The error says where in the data, what was found, and what was probably meant."""
    with pytest.raises(InvalidMessage, match=message):
        filter_from(data)


def test_errors_use_the_callers_name_for_the_data() -> None:
    """A policy reader can say which file and table the filter came from."""
    with pytest.raises(InvalidMessage, match=r"topics.toml \[orders\] filter.op: found 'x'"):
        filter_from({"path": "meta.topic", "op": "x"}, where="topics.toml [orders] filter")


def test_nested_data_is_bounded() -> None:
    """Data nested without end is refused, and does not exhaust the stack."""
    data: Any = {"path": "meta.topic", "value": "t"}
    for _ in range(10_000):
        data = {"not": data}
    with pytest.raises(InvalidMessage, match="nested"):
        filter_from(data)
