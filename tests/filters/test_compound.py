"""Compound filters: logic, order of asking, and async children."""

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters import BaseFilter, CompoundFilter, CustomFunctionFilter, JSONPathFilter, SimpleFilter
from filters.compound import MAX_DEPTH, MAX_FILTERS

EVENT = Event(EventMeta(topic="t", type="T", space_id="s", priority=75), {"n": 3, "word": "three"})

Ask = Callable[..., CustomFunctionFilter]


@pytest.fixture
def asked() -> list[str]:
    """The names of the filters that were asked, in order."""
    return []


@pytest.fixture
def ask(asked: list[str]) -> Ask:
    """Builds filters that say what they are told to, at once or later, and note that they were asked."""

    def build(name: str, verdict: bool, *, cost: int = 10, later: bool = False) -> CustomFunctionFilter:
        def at_once(event: Event[Any]) -> bool:
            asked.append(name)
            return verdict

        async def in_time(event: Event[Any]) -> bool:
            await anyio.lowlevel.checkpoint()
            return at_once(event)

        return CustomFunctionFilter(in_time if later else at_once, name=name, cost=cost)

    return build


@pytest.mark.parametrize("verdicts", list(product([True, False], repeat=3)))
async def test_truth_tables(ask: Ask, verdicts: tuple[bool, ...]) -> None:
    """AND, OR and NOT mean what they mean, with sync and async children in any mixture."""
    for laters in product([True, False], repeat=3):
        children = [ask("", verdict, later=later) for verdict, later in zip(verdicts, laters, strict=True)]
        for operator, expected in (("AND", all(verdicts)), ("OR", any(verdicts))):
            verdict = CompoundFilter(operator, children).matches(EVENT)
            assert (verdict if isinstance(verdict, bool) else await verdict) is expected
        verdict = CompoundFilter("NOT", children[:1]).matches(EVENT)
        assert (verdict if isinstance(verdict, bool) else await verdict) is not verdicts[0]


@pytest.mark.parametrize(("operator", "stops"), [("AND", False), ("OR", True)])
async def test_asking_stops_when_the_answer_is_known(ask: Ask, asked: list[str], operator: str, stops: bool) -> None:
    """Short circuit: one false decides AND and one true decides OR, also behind an async filter."""
    CompoundFilter(operator, [ask("a", not stops), ask("b", stops), ask("c", stops)]).matches(EVENT)
    assert asked == ["a", "b"]
    asked.clear()
    rest = [ask("b", stops, later=True), ask("c", stops, later=True)]
    verdict = CompoundFilter(operator, [ask("a", not stops, later=True), *rest]).matches(EVENT)
    assert isinstance(verdict, Awaitable)
    await verdict
    assert asked == ["a", "b"]


def test_cheap_filters_are_asked_first(ask: Ask, asked: list[str]) -> None:
    """The order of asking is that of the costs, whatever the order in which they were given."""
    compound = CompoundFilter(
        "AND", [ask("dear", True, cost=90), ask("cheap", True, cost=1), ask("fair", True, cost=5)]
    )
    assert compound.matches(EVENT) is True
    assert asked == ["cheap", "fair", "dear"]
    assert compound.cost == 96


def test_filters_on_meta_are_asked_before_the_payload_is_decoded() -> None:
    """A meta filter that says no saves the payload from being decoded."""
    event = Event.from_log(EVENT.meta, b'{"n": 3}')
    compound = JSONPathFilter("$.payload[?@ == 3]") & SimpleFilter("payload.n", 3) & SimpleFilter("meta.topic", "u")
    assert compound.matches(event) is False
    assert event.raw_payload == b'{"n": 3}'


def test_only_an_async_child_that_is_asked_makes_it_async(ask: Ask) -> None:
    """A sync child that decides first gives a plain bool; the async one is never started."""
    compound = ask("later", True, cost=50, later=True) & SimpleFilter("meta.topic", "another")
    assert compound.matches(EVENT) is False


def test_not_is_the_complement_also_of_what_cannot_be_judged() -> None:
    """W11: of a filter and its NOT exactly one matches; a wrong type is counted and goes to the NOT."""
    for inner in (
        SimpleFilter("payload.word", 5, "gt"),
        SimpleFilter("payload.missing", 5),
        SimpleFilter("meta.priority", "high"),
        JSONPathFilter("$..n", value="x"),
    ):
        assert inner.matches(EVENT) is False
        assert (~inner).matches(EVENT) is True
        assert (~inner).mismatches == inner.mismatches
    # `ne` asks for a value of the type that differs, so here neither it nor `exact` matches.
    assert SimpleFilter("payload.word", 5, "ne").matches(EVENT) is False


def test_counters_are_summed() -> None:
    """A compound counts what its children could not judge."""
    compound = SimpleFilter("payload.word", 5, "gt") | SimpleFilter("payload.n", "x", "prefix")
    compound.matches(EVENT)
    compound.matches(EVENT)
    assert compound.mismatches == 4
    assert compound.overruns == 0


@pytest.mark.parametrize(
    ("operator", "children"),
    [
        ("AND", []),
        ("OR", []),
        ("NOT", []),
        ("NOT", [SimpleFilter("payload.n", 1), SimpleFilter("payload.n", 2)]),
        ("NAND", [SimpleFilter("payload.n", 1)]),
        ("and", [SimpleFilter("payload.n", 1)]),
        ("AND", ["meta.priority"]),
        ("AND", [lambda event: True]),
    ],
)
def test_a_malformed_compound_is_refused(operator: str, children: list[Any]) -> None:
    """AND and OR need a child, NOT exactly one, and every child is a filter."""
    with pytest.raises(InvalidMessage):
        CompoundFilter(operator, children)


def test_compounds_are_bounded() -> None:
    """What a loop builds is refused before it could exhaust the stack or hold up the bus."""
    deep: BaseFilter = SimpleFilter("payload.n", 1)
    for _ in range(MAX_DEPTH):
        deep = ~deep
    with pytest.raises(InvalidMessage, match="33 deep"):
        deep.__invert__()
    assert deep.matches(EVENT) is False
    wide = CompoundFilter("OR", [SimpleFilter("payload.n", number) for number in range(MAX_FILTERS)])
    with pytest.raises(InvalidMessage, match="257 filters"):
        wide.__or__(SimpleFilter("payload.n", 1))


def test_any_object_with_the_contract_can_be_a_child() -> None:
    """A user's own filter class needs no base class of ours."""

    class Odd:
        cost = 1

        def matches(self, event: Event[Any]) -> bool:
            return bool(event.payload["n"] % 2)

        def describe(self) -> dict[str, Any]:
            return {"custom": "odd"}

    compound = CompoundFilter("AND", [Odd(), SimpleFilter("payload.n", 3)])
    assert compound.matches(EVENT) is True
    assert compound.describe() == {"all": [{"custom": "odd"}, {"path": "payload.n", "op": "exact", "value": 3}]}
    assert compound.mismatches == 0
