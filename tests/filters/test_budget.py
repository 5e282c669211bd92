"""No expression and no pattern can stall the bus: each hostile one here is refused or given up in time."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters import BaseFilter, JSONPathFilter, SimpleFilter
from filters.budget import Budget, Overrun

META = EventMeta(topic="t", type="T", space_id="s")
# Ten times what the worst of them takes on a slow machine; unbounded, most would take minutes to years.
LIMIT_S = 1.5


def deep(levels: int) -> Any:
    """Objects in objects."""
    value: Any = {"a": 1}
    for _ in range(levels):
        value = {"a": value}
    return value


def bushy(levels: int, branches: int) -> Any:
    """A tree of objects."""
    return {f"k{n}" if n else "a": bushy(levels - 1, branches) for n in range(branches)} if levels else 1


LONG = "ab" * 150_000
HOSTILE_PAYLOADS: dict[str, dict[str, Any]] = {
    "deep": deep(240),
    "bushy": bushy(9, 3),
    "wide": {"many": list(range(60_000)), "a": {f"k{n}": n for n in range(20_000)}},
    "long": {
        "a": LONG,
        "b": LONG[:-1] + "c",
        "many": list(range(30_000)),
        "texts": [LONG[:5_000]] * 50,
        "twins": [[{"a": [1, 2, 3] * 50}] * 50] * 2,
        "patterns": [f"(a|b)*a(a|b){{{n}}}c" for n in range(100, 400)],
    },
}
EVENTS = [Event(META, payload) for payload in HOSTILE_PAYLOADS.values()]

HOSTILE_RFC = [
    "$..a..a..a..a..a",
    "$..*..*..*..*..none",
    "$" + "..*" * 50,
    "$" + ".*" * 99,
    "$..[*,*,*,*]..[*,*,*].none",
    "$..[" + ",".join(["*"] * 400) + "].none",
    "$..[::-1]..[::-1]..[::-1]..none",
    "$..[?@..a..a..none]",
    "$..[?@..[?@..[?@..none]]]",
    "$..[?count($..*) > 1000000]",
    "$..[?count(@..*) > count($..*)]",
    "$..[?value($..none) == 1]",
    "$..[?!@..a || !$..b]..[?!$..*].none",
    "$..[?$.payload == $.payload && 1 == 2]",
    "$.payload.many[?$.payload.a == $.payload.b]",
    "$.payload.many[?$.payload.a < $.payload.b && $.payload.a > $.payload.b]",
    "$.payload.many[?$.payload.twins[0] == $.payload.twins[1] && @ < 0]",
    "$.payload.many[" + ",".join(["?@ < 0"] * 100) + "]",
    "$.payload.texts[?search(@, '(a|b)*a(a|b){900}c')]",
    "$.payload.texts[?match(@, '((a*)*b*)*c')]",
    "$.payload.many[?search($.payload.a, '(a|b)*a(a|b){90}c')]",
    "$.payload.patterns[?search($.payload.texts[0], @)]",
    "$" + "[?@" * 240 + "]" * 240,
    "$[?" + "(" * 490 + "@" + ")" * 490 + "]",
    "$[?" + "!" * 900 + "@]",
    "$[?@ == " + "9" * 900 + "]",
]
HOSTILE_EXTENDED = [
    "$..a..a..a..a..a",
    "$..*..*..*..none",
    "$..*.`parent`..*.`parent`..*.`parent`.none",
    "$..[?(@..a)]..none",
    "$..[?(@..[?(@..[?(@..none)])])]",
    "$..[?($..a)]..none",
    "$..* where $..none",
    "$.payload.many[?($.payload.twins == $.payload.twins)].none",
    "$.payload.many[?($.payload.a == $.payload.b)]",
    "$.payload.a * 1000000000",
    "$.payload.many.`len` * $.payload.a",
    "$.payload.a + $.payload.a + $.payload.a + $.payload.a",
    "$.payload.a" + ".`sub(/a/, aaaaaaaaaaaaaaaaaaaaaaaaa)`" * 20,
    "$.payload.a.`sub(/a(.*z)?/, b)`",
    "$.payload.texts[?(@ =~ '(a|b)*a(a|b){900}c')]",
    "$..[?(@ =~ '(a+)+$')]",
    "$..*.`str()`.none",
    "$..*.`sorted`.none",
    "$.payload.many[\\a,/b,\\c].none",
    "$.payload.a.`split(a, *, -1)`..none",
    "(" * 900,
    "$.payload.`split(" + "' " * 400 + "`",
]
HOSTILE_PATTERNS = [
    "(a+)+$",
    "(a|a)*$",
    "(a|ab)*c$",
    "([ab]+)*c",
    "(.*a){50}c",
    "^(a?){500}a{500}c",
    "(a|b)*a(a|b){900}c",
    "(((a{1,10}){1,10}){1,10})c",
    "((a{1,1000}){1,1000}){1,1000}",
    r"(\pL|\pN){1,1000}c",
    "(?i)" + "(a|b|ab)*" * 100,
    "(" * 1_000,
]


def on_every_event(build: Callable[[], BaseFilter]) -> None:
    """Build the filter, unless it is refused, and ask it about every hostile event, each within the limit."""
    started = time.process_time()
    try:
        given = build()
    except InvalidMessage:
        assert time.process_time() - started < LIMIT_S
        return
    for event in EVENTS:
        assert given.matches(event) in (True, False)
        assert time.process_time() - started < LIMIT_S
        started = time.process_time()


def test_there_are_more_than_fifty() -> None:
    """The number of hostile expressions and patterns that are tried."""
    assert len(HOSTILE_RFC) + len(HOSTILE_EXTENDED) + len(HOSTILE_PATTERNS) >= 50


@pytest.mark.parametrize("expression", HOSTILE_RFC, ids=lambda expression: expression[:60])
def test_a_hostile_query_is_bounded(expression: str) -> None:
    """RFC 9535: descendants of descendants, filters in filters, comparisons of large values, patterns in data."""
    on_every_event(lambda: JSONPathFilter(expression))


@pytest.mark.parametrize("expression", HOSTILE_EXTENDED, ids=lambda expression: expression[:60])
def test_a_hostile_extended_expression_is_bounded(expression: str) -> None:
    """jsonpath-ng: the same, and arithmetic on strings, chains of substitutions, sorting."""
    on_every_event(lambda: JSONPathFilter(expression, "jsonpath-ng"))


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS, ids=lambda pattern: pattern[:60])
def test_a_hostile_pattern_is_bounded(pattern: str) -> None:
    """Regular expressions, on their own and as the condition of a query."""
    on_every_event(lambda: SimpleFilter("payload.a", pattern, "regex"))
    on_every_event(lambda: JSONPathFilter("$..*", value=pattern, op="regex"))


@pytest.mark.parametrize("op", ["contains", "exact", "in", "lt"])
def test_a_hostile_mixture_of_query_and_condition_is_bounded(op: str) -> None:
    """A condition asked of the same large value thousands of times is part of the work that counts."""
    value: Any = {"contains": -1, "exact": [{"a": [1, 2, 3] * 50}] * 49, "in": [["x"]], "lt": LONG}[op]
    on_every_event(lambda: JSONPathFilter("$..*..*..*", value=value, op=op))


def test_a_budget_ends() -> None:
    """Spending what is left is allowed, one step more is an overrun."""
    budget = Budget(3)
    budget.spend(2)
    budget.spend(1)
    with pytest.raises(Overrun):
        budget.spend(1)
