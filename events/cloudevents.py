"""Events as CloudEvents 1.0 JSON and back, without loss either way (rule E5).

The attributes of a CloudEvent are strings, booleans and 32-bit integers under names of a-z and 0-9. The two
envelopes overlap, and neither contains the other. So each carries what it cannot express for the other:

- What has an attribute by convention is written there: `_attributes` writes, `_fields` reads.
- What reading those would not bring back (headers, a device, unknown keys, a time to live of 1.0 and not 1)
  stands as a JSON object in one attribute of ours, `eventmeta`. There null says that a field is not set.
- What a foreign CloudEvent says and writing our fields would not bring back stands in the meta under the
  unknown key `cloudevent`. The log keeps it like every unknown key (rule E1), and it is written back for as
  long as it does not contradict the fields. `_data` in it says that `data` was no JSON object: the payload is
  then `{"data": value}`, `{"data_base64": text}` or `{}`.

Where an event stood in a log (`sequence`, `recordedtime`) is no part of the event: it is written on request, and
left out again on reading.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import orjson
from pydantic import ValidationError

from events.errors import InvalidMessage, InvalidSpace, InvalidTopic
from events.names import SPACE_RULE, TOPIC_RULE, escape_space, is_space
from events.serialization import encode_payload
from events.types import PRIORITY_LEVELS, TRACEPARENT_PATTERN, Actor, Event, EventMeta

_REST: Final = "eventmeta"
_KEPT: Final = "cloudevent"
_SHAPE: Final = "_data"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# The labels that the Data Classification extension recommends. It tells a consumer to refuse labels that it
# does not know, so our own words would travel no further than ourselves.
_LABELS: Final = {"GREEN": "public", "AMBER": "internal", "RED": "confidential", "BLACK": "restricted"}
_BANDS: Final = {label: band for band, label in _LABELS.items()}
_TEXTS: Final = {  # attributes that hold a field as it is
    "id": "event_id",
    "topic": "topic",
    "spaceid": "space_id",
    "partitionkey": "key",
    "correlationid": "correlation_id",
    "causationid": "causation_id",
}
_ATTRIBUTES: Final = {field: name for name, field in _TEXTS.items()} | {"actor": "authid", "ts": "time"}

_is_name = re.compile(r"[a-z0-9]+").fullmatch
_is_type = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*").fullmatch
_is_uri = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)[A-Za-z0-9._~:@/-]+").fullmatch
_is_time = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII).fullmatch
_is_traceparent = re.compile(TRACEPARENT_PATTERN.removeprefix("^").removesuffix("$")).fullmatch
# How `to_cloudevent` writes a position in a log.
_is_position: Final = {
    "sequence": re.compile(r"\d{20}", re.ASCII).fullmatch,
    "recordedtime": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII).fullmatch,
}
# Control characters, surrogates and noncharacters, which a string of CloudEvents may not have.
_unfit = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
    + "]"
).search

Scalar = str | int | bool


def to_cloudevent(event: Event[Any], *, offset: int | None = None, at_ms: int | None = None) -> dict[str, Any]:
    """The event as a CloudEvent in structured mode: a dict that is JSON, and the caller's own.

    `offset` and `at_ms` are the event's place in the log, for those who have one; they become `sequence` and
    `recordedtime`.
    """
    raw = event.raw_payload
    payload = orjson.loads(encode_payload(event.payload, sys.maxsize) if raw is None else raw)
    fields = _plain(event.meta)
    kept = fields.pop(_KEPT, None)
    foreign: dict[str, Any] = kept if isinstance(kept, dict) else {}

    shape, data = _unwrapped(payload, foreign.get(_SHAPE))
    ours = _attributes(fields, shape)
    written = _still_true(foreign, ours, fields)
    result: dict[str, Any] = {**ours, **written}
    read_back = {name for name in written if name not in _is_position}
    if shape != "object":
        read_back.add(_SHAPE)

    rest = _difference(fields, _fields(result))
    if kept is not None and (not foreign or foreign.keys() != read_back):
        rest[_KEPT] = {name: foreign[name] for name in foreign if name not in read_back} if foreign else kept
    if rest:
        result[_REST] = _ascii(rest)
    if offset is not None:
        if offset < 1:
            raise InvalidMessage("offset", offset, "the offsets of a log start at 1")
        result["sequence"] = f"{offset:020d}"
    if at_ms is not None:
        result["recordedtime"] = _stamp(_EPOCH + timedelta(milliseconds=at_ms), "milliseconds")
    return {**result, **data}


def from_cloudevent(
    data: Mapping[str, Any] | bytes, *, default_space: str | None = None, default_topic: str | None = None
) -> Event:
    """The event of a CloudEvent in structured mode, parsed or as bytes; `InvalidMessage` when it is none.

    A CloudEvent from elsewhere names no space and no topic of ours; the defaults say where it belongs. Who it
    says caused it (`authid`, `authclaims`) is what its sender claims: check it before you rely on the actor.
    """
    members = _parsed(data) if isinstance(data, bytes) else data
    if not isinstance(members, Mapping):
        raise InvalidMessage("cloudevent", data, "one CloudEvent is a JSON object, as a mapping or as bytes")
    attributes = _checked(members)
    shape, payload = _wrapped(members)
    rest = _rest_of(attributes)
    native = "spaceid" in attributes and "topic" in attributes
    fields = _fields(attributes)
    fields.setdefault("space_id", default_space)
    fields.setdefault("topic", default_topic)
    fields.update(rest)

    fields = _plain(_meta({name: value for name, value in fields.items() if value is not None}))
    ours = _attributes(fields, shape)
    kept: dict[str, Any] = {
        name: value
        for name, value in attributes.items()
        if not _same(ours.get(name), value) and not (native and _is_place(name, value))
    }
    if shape != "object":
        kept[_SHAPE] = shape
    if kept:
        before = fields.get(_KEPT, {})
        if not isinstance(before, dict):
            rule = f"the key {_KEPT!r} of a meta holds the attributes of a foreign CloudEvent"
            raise InvalidMessage(f"{_REST}.{_KEPT}", before, rule)
        fields[_KEPT] = {**before, **kept}
    try:
        encoded = encode_payload(payload, sys.maxsize)
    except InvalidMessage as error:
        inside = error.field.removeprefix("payload").removeprefix("" if shape == "object" else ".data")
        raise InvalidMessage(f"data{inside}", error.found, error.allowed) from None
    return Event.from_log(_meta(fields), encoded)


def _attributes(fields: Mapping[str, Any], shape: str) -> dict[str, Scalar]:
    """The attributes that express fields of a meta; what no attribute can hold is left out."""
    topic, actor, key = fields["topic"], fields.get("actor"), fields.get("key")
    ttl = fields.get("ttl_sec")
    who = (actor.get("user_id") or actor.get("agent_id")) if isinstance(actor, dict) else actor
    wanted: dict[str, Any] = {
        "specversion": "1.0",
        "id": quote(fields["event_id"]) if _unfit(fields["event_id"]) else fields["event_id"],
        "source": _uri(who) if who else f"/spaces/{escape_space(fields['space_id'])}/topics/{topic}",
        "type": fields["type"],
        "subject": key,
        "time": fields["ts"],
        "datacontenttype": "application/json" if shape in ("object", "value") else None,
        "topic": topic,
        "spaceid": fields["space_id"],
        "partitionkey": key,
        "correlationid": fields.get("correlation_id"),
        "causationid": fields.get("causation_id"),
        "expirytime": None if ttl is None else _expiry(fields["ts"], ttl),
        "authtype": None if actor is None else _auth_type(actor),
        "authid": who,
        "authclaims": _ascii(actor) if isinstance(actor, dict) else None,
        "dataclassification": _LABELS.get(fields.get("band", "")),
        "traceparent": fields.get("traceparent"),
        "tracestate": (fields.get("headers") or {}).get("tracestate"),
        "traceid": fields.get("trace_id"),
        "idemkey": fields.get("idem_key"),
        "priority": fields.get("priority"),
        "schemaversion": fields.get("schema_version"),
    }
    return {name: value for name, value in wanted.items() if _fits(value)}


def _fields(attributes: Mapping[str, Scalar]) -> dict[str, Any]:
    """What attributes say about the fields of a meta; the inverse of `_attributes`, as far as there is one."""
    fields: dict[str, Any] = {field: attributes[name] for name, field in _TEXTS.items() if name in attributes}
    fields["type"] = _type_name(str(attributes["type"]))
    created = _time("time", attributes["time"]) if "time" in attributes else datetime.now(UTC)
    fields["ts"] = _stamp(created)
    if "expirytime" in attributes:
        left = (_time("expirytime", attributes["expirytime"]) - created) // timedelta(microseconds=1)
        fields["ttl_sec"] = max(0, left // 1_000_000 if left % 1_000_000 == 0 else left / 1_000_000)
    if (actor := _actor(attributes)) is not None:
        fields["actor"] = actor
    if "dataclassification" in attributes:
        # A label that we do not know may stand for anything, so nobody gets it without clearance for all.
        fields["band"] = _BANDS.get(str(attributes["dataclassification"]), "BLACK")
    state = attributes.get("tracestate")
    if isinstance(state, str):
        fields["headers"] = {"tracestate": state}
    # The rest are names that others may use for something else, so only what can be ours is read.
    parent, trace, idem = (attributes.get(name) for name in ("traceparent", "traceid", "idemkey"))
    if isinstance(parent, str) and _is_traceparent(parent):
        fields["traceparent"] = parent
    if isinstance(trace, str) and 1 <= len(trace) <= 256:
        fields["trace_id"] = trace
    if isinstance(idem, str) and 1 <= len(idem) <= 512:
        fields["idem_key"] = idem
    priority, version = attributes.get("priority"), attributes.get("schemaversion")
    if priority in PRIORITY_LEVELS or (type(priority) is int and 0 <= priority <= 100):
        fields["priority"] = priority
    if type(version) is int and version >= 1:
        fields["schema_version"] = version
    return fields


def _still_true(foreign: Mapping[str, Any], ours: dict[str, Scalar], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the kept attributes that say what the fields say, or nothing about them.

    Others have been overtaken: somebody imported a CloudEvent and then gave the event another time or type.
    """
    understood = _fields(ours)

    def agrees(attributes: Mapping[str, Any]) -> bool:
        try:
            said = _fields(_checked({**ours, **attributes}))
        except InvalidMessage:
            return False
        changed = _difference(said, understood)
        return all(_same(said.get(field), fields.get(field)) for field in changed)

    usable = {
        name: value
        for name, value in foreign.items()
        if name not in ("data", "data_base64", _REST) and value is not None
        if not _same(ours.get(name), value) and agrees({name: value})
    }
    return usable if agrees(usable) else {}


def _is_place(name: str, value: Scalar) -> bool:
    """Whether an attribute is a position in a log, as `to_cloudevent` writes it."""
    return name in _is_position and isinstance(value, str) and _is_position[name](value) is not None


def _unwrapped(payload: dict[str, Any], shape: object) -> tuple[str, dict[str, Any]]:
    """The member that holds the data. A payload that has changed since its import is an object like any."""
    if shape == "none" and not payload:
        return "none", {}
    if shape == "value" and payload.keys() == {"data"} and not isinstance(payload["data"], dict):
        return "value", payload
    if shape == "base64" and payload.keys() == {"data_base64"} and _is_base64(payload["data_base64"]):
        return "base64", payload
    return "object", {"data": payload}


def _wrapped(members: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The payload for what a CloudEvent has as data, which need not be an object, or be there at all."""
    if "data_base64" in members:
        encoded = members["data_base64"]
        if "data" in members:
            raise InvalidMessage("data_base64", encoded, "a CloudEvent has data or data_base64, not both")
        if not _is_base64(encoded):
            raise InvalidMessage("data_base64", encoded, "data_base64 is a string in Base64")
        return "base64", {"data_base64": encoded}
    if "data" not in members:
        return "none", {}
    data = members["data"]
    return ("object", data) if isinstance(data, Mapping) else ("value", {"data": data})


def _checked(members: Mapping[str, Any]) -> dict[str, Scalar]:
    """The attributes, once they keep the rules of CloudEvents. Null counts as absent there."""
    attributes: dict[str, Scalar] = {}
    for name, value in members.items():
        if name in ("data", "data_base64"):
            continue
        if not isinstance(name, str) or not _is_name(name):
            raise InvalidMessage("cloudevent", name, "the name of an attribute is of a-z and 0-9 alone")
        if value is None:
            continue
        if not _is_scalar(value):
            rule = "an attribute is a string, a boolean or a whole number of 32 bits"
            raise InvalidMessage(name, value, rule, hint="Put anything else into data")
        if isinstance(value, str) and _unfit(value):
            raise InvalidMessage(name, value, "a string of CloudEvents has no control characters")
        attributes[name] = value
    if attributes.get("specversion") != "1.0":
        raise InvalidMessage("specversion", attributes.get("specversion"), "CloudEvents 1.0 is what we read")
    for name in ("id", "source", "type"):
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise InvalidMessage(name, attributes.get(name), "CloudEvents require it, as a string with content")
    return attributes


def _rest_of(attributes: dict[str, Scalar]) -> dict[str, Any]:
    """Take out what `to_cloudevent` found no attribute for."""
    if _REST not in attributes:
        return {}
    text = attributes.pop(_REST)
    rest = _parsed(text.encode(), _REST) if isinstance(text, str) else None
    if not isinstance(rest, dict):
        raise InvalidMessage(_REST, text, "this attribute is ours, and holds a JSON object")
    for name in ("spaceid", "topic"):
        # Who lets CloudEvents in or keeps them out by these two must not be told something else.
        if name in attributes and _TEXTS[name] in rest:
            raise InvalidMessage(f"{_REST}.{_TEXTS[name]}", rest[_TEXTS[name]], f"{name} says it already")
    return rest


def _meta(fields: Mapping[str, Any]) -> EventMeta:
    """The meta of these fields, with complaints that name the attribute at fault."""
    if "space_id" not in fields:
        hint = "Pass default_space= for CloudEvents that come from elsewhere"
        raise InvalidSpace("spaceid", None, "this CloudEvent names no space", hint=hint)
    if "topic" not in fields:
        hint = "Pass default_topic= for CloudEvents that come from elsewhere"
        raise InvalidTopic("topic", None, "this CloudEvent names no topic", hint=hint)
    try:
        meta = EventMeta.from_json(_ascii(fields).encode())
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        field = str(problem["loc"][0]) if problem["loc"] else _REST
        name = _ATTRIBUTES.get(field, f"{_REST}.{field}")
        if field == "topic":
            raise InvalidTopic(name, fields["topic"], TOPIC_RULE) from None
        raise InvalidMessage(name, fields.get(field), problem["msg"]) from None
    if not is_space(meta.space_id):
        raise InvalidSpace("spaceid", meta.space_id, SPACE_RULE)
    return meta


def _actor(attributes: Mapping[str, Scalar]) -> Any:
    who, claims = attributes.get("authid"), attributes.get("authclaims")
    if isinstance(claims, str):
        try:
            _parsed(claims.encode(), "authclaims")
            claimed = Actor.__pydantic_validator__.validate_json(claims)
        except ValueError:
            return who or None
        # Claims of another kind may look like an actor of ours with unknown keys, and would hide who it was.
        if (claimed.user_id or claimed.agent_id) == who:
            return json.loads(claimed.model_dump_json(exclude_none=True))
    return who or None


def _auth_type(actor: str | Mapping[str, Any]) -> str:
    if isinstance(actor, str):
        kinds = {"user": "app_user", "agent": "service_account"}
        return kinds.get(actor.partition(":")[0], "unknown")
    return "app_user" if actor.get("user_id") else "service_account" if actor.get("agent_id") else "unknown"


def _uri(who: str) -> str:
    """An actor as a URI reference: `agent:planner` is one as it stands."""
    return who if _is_uri(who) else quote(who, safe="@")


def _type_name(name: str) -> str:
    """A type of ours for any type: `com.example.orderPlaced` is COM_EXAMPLE_ORDER_PLACED."""
    if len(name) <= 100 and _is_type(name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    words = re.sub(r"[^A-Z0-9]+", "_", words).strip("_") or "CLOUD_EVENT"
    return (words if words[0].isalpha() else f"CE_{words}")[:100].rstrip("_")


def _time(name: str, text: object) -> datetime:
    try:
        if isinstance(text, str) and _is_time(text):
            return datetime.fromisoformat(text.upper())
    except ValueError:
        pass
    raise InvalidMessage(name, text, "a time is as in RFC 3339, 2026-11-18T08:30:00Z, and names its zone")


def _stamp(time: datetime, timespec: str = "auto") -> str:
    return time.isoformat(timespec=timespec).replace("+00:00", "Z")


def _expiry(created: str, ttl_sec: float) -> str | None:
    try:
        return _stamp(datetime.fromisoformat(created) + timedelta(seconds=ttl_sec))
    except OverflowError:  # it outlives the calendar
        return None


def _plain(meta: EventMeta) -> dict[str, Any]:
    # Not orjson: it would make a float of an integer of more than 64 bits.
    fields: dict[str, Any] = json.loads(meta.to_json())
    fields["ts"] = _stamp(meta.ts)
    return fields


def _difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What to change in `found` to get `wanted`; None says to take it away."""
    names = dict.fromkeys([*wanted, *found])
    return {name: wanted.get(name) for name in names if not _same(wanted.get(name), found.get(name))}


def _same(one: object, other: object) -> bool:
    """Equal as JSON: 1, 1.0 and true are three values there."""
    return one is other or _ascii(one) == _ascii(other)


def _ascii(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f")  # the one control character that json writes as it is


def _is_scalar(value: object) -> bool:
    return type(value) in (str, bool) or (type(value) is int and -(2**31) <= value < 2**31)


def _fits(value: object) -> bool:
    return _is_scalar(value) and not (isinstance(value, str) and _unfit(value))


def _is_base64(text: object) -> bool:
    try:
        return isinstance(text, str) and base64.b64decode(text, validate=True) is not None
    except (binascii.Error, ValueError):
        return False


def _parsed(data: bytes, where: str = "cloudevent") -> Any:
    """JSON with nothing lost on the way in: no key twice, no number that a float or an int cannot hold."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key stands twice in one object")
        return made

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError(f"{text[:40]} is no finite number")
        return value

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=object_of, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(where, data, f"not JSON in UTF-8: {error}") from None
