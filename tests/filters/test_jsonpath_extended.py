"""The jsonpath-ng dialect: its extensions, the same as in the library, and within bounds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonpath_ng.ext.parser import parse

from filters.budget import Budget, Overrun
from filters.jsonpath_extended import WrongType, compile_extended
from filters.jsonpath_rfc import BadQuery

DOCUMENT: dict[str, Any] = {
    "payload": {
        "items": [
            {"name": "pan", "price": 12, "count": 2},
            {"name": "pot", "price": 30, "count": 1, "lid": {"price": 4}},
            {"name": "fork", "price": 3, "count": 6},
        ],
        "words": "one two three",
        "numbers": [3, 1, 2],
        "zero": 0,
    },
    "meta": {"topic": "kitchen", "limit": 12},
}

SAME_AS_LIBRARY = [
    "$.payload.items[*].name",
    "$.payload.items[0].price",
    "payload.items[1].name",
    "$..price",
    "$.payload..name",
    "$.payload.items[1:]",
    "$.payload.items[?(@.price > 10)].name",
    "$.payload.items[?(@.price > 10 && @.count < 2)].name",
    "$.payload.items[?(@.price > $.meta.limit)].name",
    "$.payload.items[?(@.price == $.meta.limit)].name",
    "$.payload.items[?(@.lid)].name",
    "$.payload.items[?(@.name =~ '^p')].name",
    "$.payload.items[?(@.name =~ 'o[rt]')].name",
    "$.payload.items[?(@.missing =~ 'x')]",
    "$.payload.items[?(@.price =~ '1')]",
    "$.payload.items[0].price + 5",
    "$.payload.items[0].price * $.payload.items[0].count",
    "$.payload.items[*].price * 2",
    "$.payload.items[0].name + $.payload.items[1].name",
    "$.payload.items[0].price - $.meta.limit",
    "$.payload.items[/price][0].name",
    "$.payload.items[\\count,/price][*].name",
    "$.payload.numbers.`sorted`",
    "$.payload.numbers.`len`",
    "$.payload.items[0].`keys`",
    "$.payload.words.`split( , 1, -1)`",
    "$.payload.words.`split(' ', *, -1)`",
    "$.payload.words.`sub(/two/, 2)`",
    "$.payload.words.`sub(/(\\\\w+) (\\\\w+)/, \\\\2 \\\\1)`",
    "$.payload.words.`sub(/nothing/, x)`",
    "$.payload.items[0].price.`str()`",
    "$.payload.items[*].lid.price.`parent`.`parent`.name",
    "$.payload.items[0] where price",
    "$.payload.items[0] wherenot lid",
    "$.payload.*.`path`",
    "$",
]


def select(expression: str, document: Any = None, steps: int = 100_000) -> list[Any]:
    """The values that an expression selects."""
    return list(compile_extended(expression).select(document or DOCUMENT, Budget(steps)))


@pytest.mark.parametrize("expression", SAME_AS_LIBRARY)
def test_the_same_as_the_library(expression: str) -> None:
    """Bounding changes nothing about what an expression selects."""
    assert select(expression) == [datum.value for datum in parse(expression).find(DOCUMENT)]


def test_the_librarys_own_trees_stay_as_they_were() -> None:
    """Only the trees compiled here are bounded; anybody else's use of jsonpath-ng is untouched."""
    compile_extended("$.payload.items[*].price * 2")
    theirs = parse("$.payload.words.`len` * 'ab'")
    assert "find" not in vars(theirs)
    assert [datum.value for datum in theirs.find(DOCUMENT)] == ["ab" * 13]


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("$.payload[", 10),
        ("$.payload..", 11),
        ("$.payload[?(@.a ==)]", 18),
        ("$.payload.%", 10),
        ("$.payload.'a", 12),
        ("$.payload.`unknown`", 18),
        ("$.payload.`sub(x)`", 0),
        ("$.payload.`split()`", 0),
        ("$.payload.a.`sub(/(/, x)`", 18),
        ("$.payload.a.`sub(/a(?=b)/, x)`", 19),
        ("$.payload.a.`sub(/a/, b\\\\4)`", 1),
        ("$.payload[?(@.a =~ '(')]", 20),
        ("$.payload.a.`sub(/a{99999999999}/, x)`", 0),
        ("$.payload[?(@.a =~ 'ab(?!c)')]", 22),
        ("$" + ".a" * 60, 0),
    ],
)
def test_a_bad_expression_is_refused_with_its_position(expression: str, position: int) -> None:
    """Refused when the filter is built; of patterns, what RE2 does not have."""
    with pytest.raises(BadQuery) as refused:
        compile_extended(expression)
    assert refused.value.position == position


@pytest.mark.parametrize(
    "expression",
    ["$.payload.items.`sorted`", "$.payload.zero.`sub(/a/, b)`", "$.payload.numbers[/a].`parent`", "$.`parent`"],
)
def test_what_the_library_cannot_do_with_a_type_is_one_error(expression: str) -> None:
    """The library raises whatever happens to be raised; here it is `WrongType`."""
    with pytest.raises(WrongType):
        select(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "$.payload.words * 3",
        "$.payload.items.`len` * $.payload.words",
        "$.payload.numbers * 2",
        "$.payload.long + $.meta.long",
    ],
)
def test_arithmetic_neither_repeats_nor_joins_long_strings(expression: str) -> None:
    """What could fill the memory from a short expression selects nothing."""
    document = {
        "payload": {**DOCUMENT["payload"], "long": "x" * 60_000},
        "meta": {**DOCUMENT["meta"], "long": "y" * 60_000},
    }
    assert select(expression, document) == []


def test_every_step_is_paid_for() -> None:
    """An expression that needs more than its budget is given up, wherever in the tree that is."""
    for expression in (
        "$..price",
        "$.payload.items[?(@.price > 1)]",
        "$.payload.numbers.`sorted`",
        "$.payload.words.`str()`",
    ):
        with pytest.raises(Overrun):
            select(expression, steps=3)


def test_what_an_expression_looks_at_is_known() -> None:
    """The members of the document it can reach; None where that cannot be told."""
    assert compile_extended("$.payload.a[0]").steps == ("payload", "a", 0)
    assert compile_extended("meta.topic").steps == ("meta", "topic")
    assert compile_extended("$.payload.$").steps is None
    assert compile_extended("$.payload.items[?(@.a > $.meta.b)]").roots == {"payload": 2, "meta": 26}
    assert compile_extended("$.meta.headers.*").roots == {"meta": 2}
    for anything in (
        "$",
        "$..a",
        "$.*",
        "$.meta.`parent`",
        "$.meta.a + $.payload.b",
        "$.meta[?(@.a == $)]",
        "`this`.meta",
    ):
        assert compile_extended(anything).roots is None


def test_syntax_that_the_library_will_drop_is_announced() -> None:
    """Who writes the expression gets the library's own warning."""
    with pytest.warns(DeprecationWarning, match="Use `&&` instead"):
        compile_extended("$.payload.items[?(@.price > 10 & @.count < 2)].name")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of syntax that is going, which the text may hold
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of patterns that Python's own engine may read otherwise
@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="$@.[]()*?!'\"=<>&|:,-+019ae \\`~/", max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    """Whatever is written, the answer is an expression or `BadQuery` with a position inside the text."""
    position = 0
    try:
        compile_extended("$" + text)
    except BadQuery as error:
        position = error.position
    assert 0 <= position <= len(text) + 1
