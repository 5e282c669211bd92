"""What all filters have in common."""

import copy
import pickle
from typing import Any

import pytest

from events.contracts import Filter
from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters import (
    AttributeFilter,
    BaseFilter,
    CompoundFilter,
    CustomFunctionFilter,
    JSONPathFilter,
    SimpleFilter,
    exact,
    filter_from,
)


def is_urgent(event: Event[Any]) -> bool:
    """A custom predicate."""
    return event.meta.priority == "high"


EACH_KIND: list[BaseFilter] = [
    SimpleFilter("meta.priority", "high"),
    JSONPathFilter("$..price", value=3, op="gt"),
    exact({"type": "T"}),
    CustomFunctionFilter(is_urgent),
    SimpleFilter("meta.priority", "high") & exact({"type": "T"}),
    ~SimpleFilter("meta.priority", "high"),
]
each_kind = pytest.mark.parametrize("kind", EACH_KIND, ids=lambda kind: type(kind).__name__)


@each_kind
def test_every_filter_keeps_the_contract(kind: BaseFilter) -> None:
    """The bus knows filters by the protocol alone: matches, cost and describe."""
    assert isinstance(kind, Filter)
    assert kind.cost >= 1
    assert isinstance(kind.matches(Event(EventMeta(topic="t", type="T", space_id="s"), {})), bool)


@each_kind
def test_a_filter_cannot_be_changed(kind: BaseFilter) -> None:
    """Filters are shared by subscriptions, so nothing of one can be set or deleted."""
    with pytest.raises(AttributeError, match="immutable"):
        kind.cost = 0
    with pytest.raises(AttributeError, match="immutable"):
        del kind.cost
    with pytest.raises(AttributeError, match="immutable"):
        kind.anything = 1


@each_kind
def test_a_description_is_a_copy(kind: BaseFilter) -> None:
    """Changing what describe returned does not change the filter."""
    before = dict(kind.describe())
    described: Any = kind.describe()
    described.clear()
    assert kind.describe() == before


def test_values_are_copied_in_and_out() -> None:
    """A list given to a filter, or got from it, is not the filter's own."""
    allowed = ["a", "b"]
    kind = SimpleFilter("payload.x", allowed, "in")
    allowed.append("c")
    kind.describe()["value"].append("d")
    assert kind.describe()["value"] == ["a", "b"]


def test_filters_that_describe_alike_are_equal() -> None:
    """W3: the same description is the same filter; 1, 1.0 and true are three."""
    assert SimpleFilter("payload.x", 1) == SimpleFilter("payload.x", 1, "eq")
    assert hash(SimpleFilter("payload.x", 1)) == hash(SimpleFilter("payload.x", 1, "eq"))
    assert len({SimpleFilter("payload.x", value) for value in (1, 1.0, True)}) == 3
    assert SimpleFilter("payload.x", 1) != JSONPathFilter("$.payload.x", value=1)
    assert SimpleFilter("payload.x", 1) != "payload.x"


@each_kind
def test_a_copy_is_the_filter_itself_and_a_pickle_is_its_data(kind: BaseFilter) -> None:
    """What cannot change needs no copy; to another process a filter goes as data, which a custom one cannot."""
    assert copy.copy(kind) is copy.deepcopy(kind) is kind
    sent = pickle.dumps(kind)
    if "custom" in kind.describe():
        with pytest.raises(InvalidMessage, match="a custom filter is a function"):
            pickle.loads(sent)
    else:
        assert pickle.loads(sent) == kind


def test_operators_build_compounds() -> None:
    """`&`, `|` and `~` are AND, OR and NOT, and a chain of one of them is flat."""
    a, b, c = (SimpleFilter("payload.x", number) for number in range(3))
    assert a & b & c == CompoundFilter("AND", [a, b, c])
    assert a | (b | c) == CompoundFilter("OR", [a, b, c])
    assert a & b | c == CompoundFilter("OR", [CompoundFilter("AND", [a, b]), c])
    assert ~~a == CompoundFilter("NOT", [CompoundFilter("NOT", [a])])


@each_kind
def test_repr_shows_how_to_build_it(kind: BaseFilter) -> None:
    """A declarative filter's repr is the expression that builds it."""
    assert repr(kind).startswith(type(kind).__name__)
    if "custom" not in kind.describe():
        names = {cls.__name__: cls for cls in (SimpleFilter, JSONPathFilter, AttributeFilter, CompoundFilter)}
        assert eval(repr(kind), names) == kind == filter_from(kind.describe())
