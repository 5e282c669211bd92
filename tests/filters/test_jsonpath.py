"""JSONPath filters on events."""

from typing import Any

import pytest

import filters.jsonpath
from events.errors import InvalidMessage, error_code_of
from events.types import Actor, Event, EventMeta
from filters import JSONPathFilter

META = EventMeta(
    topic="shop.orders",
    type="ORDER_PLACED",
    space_id="home",
    actor=Actor(user_id="alice", roles=("buyer",)),
    ts="2026-03-01T12:00:00Z",
)
PAYLOAD: dict[str, Any] = {
    "items": [{"name": "pan", "price": 120, "tags": ["new"]}, {"name": "pot", "price": 30}],
    "total": 150,
    "note": None,
}
EVENT = Event(META, PAYLOAD)


@pytest.mark.parametrize(
    "given",
    [
        JSONPathFilter("$"),
        JSONPathFilter("$.meta.actor.user_id"),
        JSONPathFilter("$.meta.actor.roles[-1]"),
        JSONPathFilter("$['meta']['topic']"),
        JSONPathFilter("$.payload.note"),
        JSONPathFilter("$.payload.items[?@.price > 100 && @.tags[0] == 'new']"),
        JSONPathFilter("$.payload.items[?@.price < $.payload.total]"),
        JSONPathFilter("$..tags[?@ == 'new']"),
        JSONPathFilter("$.meta[?search(@, 'shop')]"),
        JSONPathFilter("$.meta.actor.*"),
        JSONPathFilter("$..price", value=100, op="gt"),
        JSONPathFilter("$.payload.items[*].name", value=["pot", "lid"], op="in"),
        JSONPathFilter("$.payload.total", value=150),
        JSONPathFilter("$.payload.note", value=None),
        JSONPathFilter("$.meta.ts", value="2026-03-01T12:00:00Z"),
        JSONPathFilter("$.meta.actor", value={"user_id": "alice", "roles": ["buyer"]}),
        JSONPathFilter("$.payload.items[?(@.name =~ '^p')]", "jsonpath-ng"),
        JSONPathFilter("$.payload.items[*].price", "jsonpath-ng", value=30),
        JSONPathFilter("$.payload.items[0].price + $.payload.items[1].price", dialect="jsonpath-ng", value=150),
        JSONPathFilter("$.payload.items[/price][0].name", "jsonpath-ng", value="pot"),
        JSONPathFilter("meta.topic", "jsonpath-ng", value="shop", op="prefix"),
    ],
    ids=repr,
)
def test_matches(given: JSONPathFilter) -> None:
    """A query matches when it selects something that fulfils the condition, if there is one."""
    assert given.matches(EVENT) is True
    assert (given.mismatches, given.overruns) == (0, 0)


@pytest.mark.parametrize(
    "given",
    [
        JSONPathFilter("$.meta.key"),
        JSONPathFilter("$.meta.actor.agent_id"),
        JSONPathFilter("$.payload.items[2]"),
        JSONPathFilter("$.payload.items[?@.price > 200]"),
        JSONPathFilter("$..price", value=500, op="gt"),
        JSONPathFilter("$.payload.items[?(@.price > 200)]", "jsonpath-ng"),
    ],
    ids=repr,
)
def test_does_not_match(given: JSONPathFilter) -> None:
    """Nothing selected, or nothing that fulfils the condition: an unset field of the meta is not in its JSON."""
    assert given.matches(EVENT) is False
    assert given.mismatches == 0


def test_a_wrong_type_does_not_match_and_is_counted() -> None:
    """W11: counted once an event, however many nodes are of the wrong type, and not when another node matches."""
    given = JSONPathFilter("$.payload.*", value=100, op="gt")
    assert given.matches(EVENT) is True
    assert given.mismatches == 0
    given = JSONPathFilter("$.payload.items[*].name", value=100, op="gt")
    assert [given.matches(EVENT) for _ in range(2)] == [False, False]
    assert given.mismatches == 2
    given = JSONPathFilter("$.payload.items.`sorted`", "jsonpath-ng")
    assert given.matches(EVENT) is False
    assert given.mismatches == 1


def test_too_much_work_does_not_match_and_is_counted() -> None:
    """A query that reaches its bound on an event is given up, and that is not a mismatch."""
    given = JSONPathFilter("$..*..*..*..none")
    assert given.matches(Event(META, {"a": [[[[0] * 10] * 10] * 10] * 10})) is False
    assert (given.mismatches, given.overruns) == (0, 1)
    assert given.matches(EVENT) is False
    assert given.overruns == 1


@pytest.mark.parametrize(
    ("expression", "dialect"),
    [
        ("$.meta.actor.user_id", "rfc9535"),
        ("$.meta.*", "rfc9535"),
        ("$.meta.actor.roles[?@ == $.meta.type]", "rfc9535"),
        ("$.meta.actor.user_id", "jsonpath-ng"),
        ("$.meta.actor.*", "jsonpath-ng"),
        ("$.meta[?(@.user_id == $.meta.topic)]", "jsonpath-ng"),
    ],
)
def test_a_query_on_meta_never_touches_the_payload(expression: str, dialect: str) -> None:
    """Which half of the event a query can reach is known from its text."""
    event = Event.from_log(META, b"not json")
    JSONPathFilter(expression, dialect).matches(event)
    assert event.raw_payload == b"not json"


def test_a_plain_path_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and indices alone are walked as a dotted path is, in both dialects, and cost as little."""
    monkeypatch.setattr(filters.jsonpath, "document_of", None)
    for dialect in ("rfc9535", "jsonpath-ng"):
        for expression in ("$.meta.actor.roles[0]", "$.payload.items[1]['name']"):
            given = JSONPathFilter(expression, dialect)
            assert given.matches(EVENT) is True
            assert given.cost <= 3


def test_an_expression_is_compiled_once() -> None:
    """Filters with the same expression share what was compiled; the cache is bounded."""
    cache = filters.jsonpath._cached
    JSONPathFilter("$.payload.unique[?@ == 1]")
    before = cache.cache_info()
    JSONPathFilter("$.payload.unique[?@ == 1]", value=1)
    assert (cache.cache_info().hits, cache.cache_info().misses) == (before.hits + 1, before.misses)
    assert before.maxsize == 512


@pytest.mark.parametrize(
    ("expression", "dialect", "message"),
    [
        ("$.payload[", "rfc9535", "not rfc9535: unbalanced brackets at position 10"),
        ("$.payload.items[?(@.name =~ 'p')]", "rfc9535", "at position 25"),
        ("$.payload.items[?match(@.name, 'p\\\\d')]", "rfc9535", "not an I-Regexp .* at position 33"),
        ("$.payload[", "jsonpath-ng", "not jsonpath-ng: Parse error near the end of string at position 10"),
        ("$.payload[?(@.a =~ '(?=b)')]", "jsonpath-ng", "at position 20"),
        ("$.topic", "rfc9535", r"no 'topic', at position 2. Did you mean \$.meta.topic"),
        ("$.metta.topic", "rfc9535", "no 'metta', at position 2. Did you mean 'meta'"),
        ("topic", "jsonpath-ng", r"no 'topic', at position 0. Did you mean \$.meta.topic"),
        ("$.payload[?@.a == $.limit]", "rfc9535", "no 'limit', at position 20"),
        ("$.payload" + ".a" * 70, "rfc9535", "at most 64 steps"),
        ("$.payload." + "a" * 1_000, "rfc9535", "at most 1000 characters"),
        ("", "rfc9535", "at most 1000 characters"),
        (None, "rfc9535", "at most 1000 characters"),
        ("$.payload", "jsonpath", "Did you mean 'jsonpath-ng'"),
    ],
)
def test_a_bad_expression_is_refused_when_it_is_built(expression: Any, dialect: str, message: str) -> None:
    """The error has the position, and a query that leads out of the event is bad too: it could never match."""
    with pytest.raises(InvalidMessage, match=message) as refused:
        JSONPathFilter(expression, dialect)
    assert error_code_of(refused.value) == "INVALID_MESSAGE"


@pytest.mark.parametrize(
    "arguments",
    [
        {"op": "gt"},
        {"op": "exists"},
        {"op": "exists", "value": True},
        {"op": "in", "value": 5},
        {"op": "x", "value": 1},
    ],
)
def test_a_condition_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    """An operator needs a value that it can use, and existence is what a query asks anyway."""
    with pytest.raises(InvalidMessage):
        JSONPathFilter("$.payload.total", **arguments)


def test_a_payload_that_cannot_be_decoded_is_no_verdict() -> None:
    """W11: an error while deciding is not a "no match"; the bus makes it a failed attempt."""
    with pytest.raises(ValueError, match="line 1"):
        JSONPathFilter("$.payload.*").matches(Event.from_log(META, b"not json"))
