"""Payloads at the boundary: what is JSON passes unchanged, what is not is refused with its place."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import subprocess
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, RootModel

from events.errors import InvalidMessage, PayloadTooLarge
from events.serialization import MAX_DEPTH, encode_event, encode_payload
from events.types import Event, EventMeta, EventType

LIMIT = 1 << 20
NAN, INF = float("nan"), float("inf")


# --- things that are not JSON ---------------------------------------------------------------------------


class SubStr(str):
    """A string that may say one thing to us and another to the encoder."""

    __slots__ = ()


class SubInt(int):
    """The same with an integer."""


class SubFloat(float):
    """The same with a float, as numpy's are."""


class SubList(list[Any]):
    """The same with a list."""


class SubDict(dict[str, Any]):
    """The same with an object, below the top."""


class Point(NamedTuple):
    """A tuple with names, which an array would lose."""

    x: int


@dataclasses.dataclass
class Data:
    """What orjson would write without being asked."""

    x: int = 1


class Model(BaseModel):
    """A model inside a payload; at the top it would be welcome."""

    x: int = 1


class Bad(enum.Enum):
    """Enums are written as their values, so these are as bad as those."""

    NOT_A_NUMBER = NAN
    BYTES = b"x"
    NESTED = ((NAN,),)
    SURROGATE = "\udc80"


class Grumpy:
    """Not even its repr works."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> Iterator[int]:
    """A generator."""
    while True:
        yield 1


NOT_JSON: dict[str, object] = {
    "nan": NAN,
    "inf": INF,
    "-inf": -INF,
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "set": {1},
    "frozenset": frozenset({1}),
    "complex": 1j,
    "datetime": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2026, 1, 1),
    "time": datetime.time(1),
    "timedelta": datetime.timedelta(1),
    "decimal": decimal.Decimal("1.1"),
    "fraction": fractions.Fraction(1, 3),
    "dataclass": Data(),
    "dataclass type": Data,
    "model": Model(),
    "namedtuple": Point(1),
    "OrderedDict": collections.OrderedDict(a=1),
    "defaultdict": collections.defaultdict(int),
    "Counter": collections.Counter("a"),
    "deque": collections.deque([1]),
    "mappingproxy": types.MappingProxyType({"a": 1}),
    "SubStr": SubStr("x"),
    "SubInt": SubInt(1),
    "SubFloat": SubFloat(1.0),
    "SubList": SubList(),
    "SubDict": SubDict(),
    "fragment": orjson.Fragment(b'1}\n{"offset":1'),
    "good fragment": orjson.Fragment(b"1"),
    "generator": endless(),
    "range": range(3),
    "function": len,
    "type": int,
    "module": json,
    "object": object(),
    "Ellipsis": ...,
    "NotImplemented": NotImplemented,
    "exception": ValueError("x"),
    "grumpy": Grumpy(),
    "event": Event(EventMeta(topic="t", type="T", space_id="s"), {}),
    "int 2**64": 2**64,
    "int -2**63-1": -(2**63) - 1,
    "int 10**5000": 10**5000,
    "surrogate": "\ud800",
    "half a pair": "ok \udfff",
    "enum nan": Bad.NOT_A_NUMBER,
    "enum bytes": Bad.BYTES,
    "enum nested": Bad.NESTED,
    "enum surrogate": Bad.SURROGATE,
}

# Where a fault may sit, and how the error names the place.
PLACES: dict[str, tuple[Callable[[object], dict[str, Any]], str]] = {
    "value": (lambda bad: {"a": bad}, "payload.a"),
    "second": (lambda bad: {"ok": 1, "a": bad, "null": None}, "payload.a"),
    "array": (lambda bad: {"a": [1, None, bad]}, "payload.a[2]"),
    "tuple": (lambda bad: {"a": (1, bad)}, "payload.a[1]"),
    "nested": (lambda bad: {"a": {"b": [{"c": bad}]}}, "payload.a.b[0].c"),
    "odd key": (lambda bad: {"a.b\n": {"": bad}}, r"payload['a.b\n']['']"),
    "deep": (lambda bad: nested(200, bad), "payload" + ".a" * 200),
}


def nested(levels: int, leaf: object, wrap: Callable[[object], object] = lambda inner: {"a": inner}) -> Any:
    """A leaf in that many containers."""
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def in_list(inner: object) -> object:
    """One more array around it."""
    return [inner]


def in_tuple(inner: object) -> object:
    """One more tuple around it, which is an array too."""
    return (inner,)


def place_of(bad: str, place: str) -> str:
    """The path of a fault; an enum's value may have its fault further inside."""
    return PLACES[place][1] + ("[0][0]" if bad == "enum nested" else "")


FAULTS = [(bad, place) for bad in NOT_JSON for place in PLACES]


@pytest.mark.parametrize(("bad", "place"), FAULTS, ids=lambda value: value)
def test_a_value_that_is_not_json_is_refused_where_it_sits(bad: str, place: str) -> None:
    """Boundary: nothing that would not come back as it went in gets past, and the error points at it."""
    with pytest.raises(InvalidMessage) as caught:
        encode_payload(PLACES[place][0](NOT_JSON[bad]), LIMIT)
    assert caught.value.field == place_of(bad, place)
    assert caught.value.code == "INVALID_MESSAGE"
    message = str(caught.value)
    assert "\n" not in message
    assert message.encode()


BAD_KEYS: list[object] = [None, 1, 1.5, True, b"a", ("a",), frozenset(), NAN, SubStr("a"), EventType.HIPPO_ENCODE]
BAD_KEYS += ["\ud800", "a\udfff", datetime.date(2026, 1, 1), uuid.UUID(int=0), Grumpy()]


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: f"{type(key).__name__}")
def test_a_key_that_is_no_string_is_refused_where_it_sits(key: object) -> None:
    """Boundary: json would make strings of some and null of others; keys are strings or refused."""
    for payload, field in (({key: 1}, "payload key"), ({"a": [{key: None}]}, "payload.a[0] key")):
        with pytest.raises(InvalidMessage) as caught:
            encode_payload(payload, LIMIT)
        assert caught.value.field == field


NOT_OBJECTS: list[object] = [None, [], (), "{}", b"{}", 1, NAN, {1}, Data(), object(), RootModel[list[int]]([1])]
NOT_OBJECTS += [RootModel[str]("x"), orjson.Fragment(b"{}"), Grumpy(), [("a", 1)], iter({}), Model]


@pytest.mark.parametrize("payload", NOT_OBJECTS, ids=lambda payload: type(payload).__name__)
def test_a_payload_is_an_object(payload: object) -> None:
    """E3: arrays, scalars and models that are one of those are refused as a whole."""
    with pytest.raises(InvalidMessage, match="JSON object") as caught:
        encode_payload(payload, LIMIT)
    assert caught.value.field == "payload"


def circle(*, by: str) -> dict[str, Any]:
    """A payload that contains itself."""
    payload: dict[str, Any] = {"ok": 1}
    doubled: list[Any] = []
    doubled += [doubled, doubled]
    inner: list[Any] = [payload]
    payload["again"] = {"object": payload, "array": inner, "tuple": (inner,), "doubled": doubled}[by]
    return payload


DEEP: dict[str, Callable[[], dict[str, Any]]] = {
    "objects": lambda: nested(10_000, 1),
    "arrays": lambda: {"a": nested(10_000, 1, in_list)},
    "tuples": lambda: {"a": nested(10_000, 1, in_tuple)},
    "tuples, very deep": lambda: {"a": nested(300_000, 1, in_tuple)},
    "tuples, a little": lambda: {"a": nested(MAX_DEPTH, 1, in_tuple)},
    "mixed": lambda: {"a": nested(5_000, 1, lambda inner: [(inner,), {"b": 1}])},
    "nothing inside": lambda: nested(MAX_DEPTH, {}),
    "object circle": lambda: circle(by="object"),
    "array circle": lambda: circle(by="array"),
    "tuple circle": lambda: circle(by="tuple"),
    "circle of two": lambda: circle(by="doubled"),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_too_deep_or_circular_is_refused(name: str) -> None:
    """Boundary: an endless or very deep payload ends in an error, not in the end of the process."""
    payload = DEEP[name]()
    with pytest.raises(InvalidMessage, match="deep, or in a cycle") as caught:
        encode_payload(payload, LIMIT)
    assert caught.value.field.startswith("payload.")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("leaf", [1, "x", None, 0.5])
@pytest.mark.parametrize("wrap", [lambda inner: {"a": inner}, in_list, in_tuple], ids=["object", "array", "tuple"])
def test_the_depth_limit_is_exact(leaf: object, wrap: Callable[[object], object]) -> None:
    """Boundary: as deep as the limit passes and comes back, one deeper does not, whatever it is made of."""
    payload = {"a": nested(MAX_DEPTH - 1, leaf, wrap)}
    assert orjson.loads(encode_payload(payload, LIMIT)) == json.loads(json.dumps(payload))
    with pytest.raises(InvalidMessage):
        encode_payload({"a": nested(MAX_DEPTH, leaf, wrap)}, LIMIT)


def shares(width: int, levels: int) -> dict[str, Any]:
    """A small structure that would be astronomically large if it were written out."""
    part: Any = "x"
    for _ in range(levels):
        part = [part] * width
    return {"a": part}


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "text": lambda: {"a": "x" * LIMIT},
    "text that grows": lambda: {"a": "\x00" * (LIMIT // 5)},
    "key": lambda: {"x" * LIMIT: 1},
    "array": lambda: {"a": [1] * LIMIT},
    "tuple": lambda: {"a": (1,) * LIMIT},
    "many keys": lambda: {str(number): number for number in range(100_000)},
    "shared parts": lambda: shares(2, 60),
    "shared parts, wide": lambda: shares(1000, 5),
    "shared tuples": lambda: {"a": ((("x",) * 1000,) * 1000,) * 1000},
    "shared text": lambda: {"a": ["x" * 1_000_000] * 1_000_000},
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_refused(name: str) -> None:
    """Boundary: also what only becomes large when it is written, and before it is."""
    with pytest.raises(PayloadTooLarge, match="max_event_bytes") as caught:
        encode_payload(LARGE[name](), LIMIT)
    assert (caught.value.field, caught.value.code) == ("payload", "PAYLOAD_TOO_LARGE")
    assert caught.value.size_bytes > caught.value.limit_bytes == LIMIT


def test_there_are_enough_hostile_payloads() -> None:
    """Boundary: at least 300 of them in this file."""
    count = len(FAULTS) + 2 * len(BAD_KEYS) + len(NOT_OBJECTS) + len(DEEP) + len(LARGE)
    print(f"{count} hostile payloads")
    assert count >= 300


def test_the_limit_is_for_meta_and_payload_together() -> None:
    """Boundary: a line that fits exactly passes, one byte less refuses it and reports the configured limit."""
    event = Event(EventMeta(topic="t", type="T", space_id="s"), {"a": "x" * 100})
    meta, payload = encode_event(event, LIMIT)
    size = len(meta) + len(payload)
    assert encode_event(event, size) == (meta, payload)
    for small in (event, Event.from_log(event.meta, payload)):
        with pytest.raises(PayloadTooLarge) as caught:
            encode_event(small, size - 1)
        assert (caught.value.size_bytes, caught.value.limit_bytes) == (size, size - 1)


# --- models ---------------------------------------------------------------------------------------------


class Loose(BaseModel):
    """A model that lets anything in."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    a: Any


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (NAN, "payload.a"),
        ([INF], "payload.a[0]"),
        ("\ud800", "payload.a"),
        (2**70, "payload.a"),
        (object(), "payload"),
        (b"\xff", "payload"),
        (Grumpy(), "payload"),
        (circle(by="object"), "payload"),
        (nested(2000, 1), "payload"),
    ],
    ids=["nan", "inf", "surrogate", "huge", "object", "bytes", "grumpy", "circle", "deep"],
)
def test_a_model_is_held_to_the_same_rule(bad: object, field: str) -> None:
    """E3: what pydantic cannot write, or would write as something else, is an `InvalidMessage` too."""
    with pytest.raises(InvalidMessage) as caught:
        encode_payload(Loose(a=bad), LIMIT)
    assert caught.value.field.startswith(field)
    assert str(caught.value).encode()


def test_a_model_is_written_as_its_json() -> None:
    """E3: the fields of a model may have types that a dict may not; pydantic knows how to write those."""

    class Visit(BaseModel):
        at: datetime.datetime
        price: decimal.Decimal
        tags: set[str]

    visit = Visit(at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), price=decimal.Decimal("1.10"), tags={"a"})
    encoded = encode_payload(visit, LIMIT)
    assert encoded == b'{"at":"2026-01-01T00:00:00Z","price":"1.10","tags":["a"]}'
    assert Visit.model_validate_json(encoded) == visit


# --- what is JSON ---------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["null", "NaN", "\x00", "\n", "\u2028", '"', "\\", "\x7f", "🙂"]),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)


@given(st.dictionaries(texts, json_values))
def test_every_json_object_comes_back_exactly(payload: dict[str, Any]) -> None:
    """Boundary: the same values of the same types (1 is not 1.0, 0.0 not -0.0), for other JSON readers too."""
    encoded = encode_payload(payload, LIMIT)
    assert repr(orjson.loads(encoded)) == repr(payload)
    assert repr(json.loads(encoded)) == repr(payload)
    assert b"\n" not in encoded


@given(st.dictionaries(texts, json_values))
def test_encoding_leaves_the_payload_alone(payload: dict[str, Any]) -> None:
    """Boundary: the caller's objects are read, not changed."""
    before = json.dumps(payload)
    encode_payload(payload, LIMIT)
    assert json.dumps(payload) == before


class Window(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __getitem__(self, key: str) -> Any:
        return {"a": 1}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "payload",
    [Window(), types.MappingProxyType({"a": 1}), collections.OrderedDict(a=1), SubDict(a=1), Model(x=1), {"a": 1}],
    ids=lambda payload: type(payload).__name__,
)
def test_any_mapping_may_be_the_payload(payload: object) -> None:
    """E3: at the top a mapping or a model is as good as a dict; what is written is an object."""
    assert encode_payload(payload, LIMIT) in (b'{"a":1}', b'{"x":1}')


def test_enums_uuids_and_tuples_are_written_as_what_they_stand_for() -> None:
    """Boundary: the few types that have one obvious JSON form are welcome, beside a null as well."""
    payload = {"type": EventType.HIPPO_ENCODE, "id": uuid.UUID(int=1), "pair": (1, (2,)), "none": None}
    assert orjson.loads(encode_payload(payload, LIMIT)) == {
        "type": "HIPPO_ENCODE",
        "id": "00000000-0000-0000-0000-000000000001",
        "pair": [1, [2]],
        "none": None,
    }


def test_the_process_survives_the_deepest_payloads() -> None:
    """Boundary: in a process of its own, since the encoder's own limit does not hold for tuples there."""
    script = (
        "from events.errors import InvalidMessage\n"
        "from events.serialization import encode_payload\n"
        "for levels in (255, 1_000, 3_000, 10_000, 1_000_000):\n"
        "    deep = ()\n"
        "    for _ in range(levels):\n"
        "        deep = (deep,)\n"
        "    try:\n"
        "        encode_payload({'a': deep}, 1 << 30)\n"
        "    except InvalidMessage:\n"
        "        print(levels)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout.split() == ["255", "1000", "3000", "10000", "1000000"]
