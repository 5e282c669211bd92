"""What crosses to CloudEvents 1.0 JSON and back."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.cloudevents import from_cloudevent, to_cloudevent
from events.errors import InvalidMessage, InvalidSpace, InvalidTopic
from events.types import Actor, Device, Event, EventMeta, EventType, QoS, SecurityBand

Json = dict[str, Any]

# --- generated events -----------------------------------------------------------------------------------

any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
printable = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Zs", "Zl", "Zp", "Co", "Cf"]), min_size=1)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(any_text, json_values, max_size=4)
labels = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), any_text, max_size=3)
unknown_keys = st.dictionaries(
    st.sampled_from(["zz_new", "cloudevent", "eventmeta", "data", "Ünknown key", "a\nb"]),
    json_values.filter(lambda value: value is not None),
    max_size=3,
)
seconds = st.integers(0, 10**30) | st.floats(0, 1e300, allow_nan=False, allow_infinity=False)
names = st.sampled_from(["actions", "a.b-c_d", "ACTION_DECISION", "x" * 100, "0.1_"])
times = st.datetimes(
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-9, minutes=-30))])
)
actors = (
    any_text
    | st.sampled_from(["agent:planner", "user:ada", "//evil", "1:2", "a b", "http://x"])
    | st.builds(
        lambda known, unknown: {**known, **unknown},
        st.fixed_dictionaries(
            {},
            optional={
                "user_id": any_text,
                "agent_id": any_text,
                "session_id": any_text,
                "on_behalf_of": any_text,
                "roles": st.lists(any_text, max_size=2),
                "attributes": labels,
            },
        ),
        st.dictionaries(st.sampled_from(["clearance", "team"]), json_values.filter(lambda v: v is not None)),
    )
)
overtaken = ["type", "time", "source", "subject", "partitionkey", "expirytime", "authid", "authclaims"]
foreign_names = ["foo", "dataclassification", "sequence", "recordedtime"]
impossible = ["BadName", "specversion", "eventmeta", "data", "data_base64"]
kept_foreign = st.dictionaries(
    st.sampled_from([*overtaken, *foreign_names, *impossible, "_data"]),
    st.sampled_from(["com.example.made", "2024-02-29T12:00:00.123456789Z", "/elsewhere", "77", "0" * 19 + "7"])
    | st.sampled_from(["value", "none", "base64", "{}", "phi"])
    | json_values,
    max_size=4,
)


@st.composite
def metas(draw: st.DrawFn) -> EventMeta:
    """Metas as a log may hold them: every field, every unknown key, nothing that the envelope refuses."""
    fields = draw(
        st.fixed_dictionaries(
            {
                "topic": names,
                "type": st.sampled_from(["ACTION_DECISION", "MY_TYPE_2", "X"]),
                "space_id": st.sampled_from(["s", "a/b", "über", "..", "%41"]) | printable.map(lambda t: t[:20]),
                "event_id": any_text,
                "ts": times.map(datetime.isoformat),
            },
            optional={
                "actor": actors,
                "device": st.fixed_dictionaries(
                    {"device_id": any_text},
                    optional={"kind": any_text, "platform": any_text, "attributes": labels, "newer": json_objects},
                ),
                "trace_id": any_text,
                "traceparent": st.just("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"),
                "idem_key": any_text,
                "ttl_sec": seconds,
                "key": any_text,
                "priority": st.integers(0, 100) | st.sampled_from(["low", "normal", "high", "critical"]),
                "band": st.sampled_from(["GREEN", "AMBER", "RED", "BLACK"]),
                "caps": st.lists(st.sampled_from(["mic", "net:read", "a/b"]), max_size=2),
                "qos": st.fixed_dictionaries(
                    {}, optional={"ack_deadline_s": seconds, "max_retries": st.integers(0, 9)}
                ),
                "correlation_id": any_text,
                "causation_id": any_text,
                "headers": labels | st.just({"tracestate": "a=1"}) | st.just({"tracestate": "a=1", "x": "y"}),
                "schema_version": st.integers(1, 2**40),
                "cloudevent": kept_foreign,
            },
        )
    )
    return EventMeta.from_json(json.dumps({**draw(unknown_keys), **fields}).encode())


payloads = json_objects | st.sampled_from([{"data": 5}, {"data_base64": "AAEC"}, {}, {"data": {"a": 1}}])
events = st.builds(Event, metas(), payloads)

# --- generated CloudEvents ------------------------------------------------------------------------------

ce_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), min_size=1, max_size=12)
ce_times = st.sampled_from(
    [
        "2018-04-05T17:31:00Z",
        "2018-04-05t17:31:00.123456789z",
        "1990-12-31 23:59:59.5-08:00",
        "9999-12-31T23:59:59-12:00",
        "0001-01-01T00:00:00+12:00",
        "2024-02-29T12:00:00-00:00",
    ]
)
ce_scalars = ce_text | st.just("") | st.booleans() | st.integers(-(2**31), 2**31 - 1)
ce_data = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"data": json_objects}),
    st.fixed_dictionaries({"data": json_values}),
    st.fixed_dictionaries({"data_base64": st.sampled_from(["", "AAEC", "aGk="])}),
)
cloudevents = st.builds(
    lambda core, known, foreign, data: {**foreign, **known, **core, **data},
    st.fixed_dictionaries(
        {
            "specversion": st.just("1.0"),
            "id": ce_text,
            "source": ce_text | st.sampled_from(["https://github.com/x", "/mycontext", "agent:planner"]),
            "type": ce_text | st.sampled_from(["com.github.pullRequest.opened", "X_Y", "x" * 300, "0", "日本"]),
        },
        optional={"spaceid": st.sampled_from(["s", "a/b"]), "topic": st.just("in.box")},
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "subject": ce_text,
            "time": ce_times,
            "datacontenttype": st.sampled_from(["application/json", "application/xml", "text/plain"]),
            "dataschema": st.just("https://example.com/schema"),
            "correlationid": ce_text,
            "causationid": ce_text,
            "partitionkey": ce_text,
            "sequence": st.sampled_from(["77", "00000000000000000007"]),
            "sequencetype": st.just("Integer"),
            "recordedtime": st.sampled_from(["2018-04-05T17:31:00Z", "2018-04-05T17:31:00.250Z"]),
            "expirytime": ce_times,
            "authtype": st.sampled_from(["user", "service_account", "odd"]),
            "authid": ce_text | st.just("ada"),
            "authclaims": st.sampled_from(
                ["{}", "not json", '{"sub": "x"}', '{"user_id": "ada", "roles": null, "x": 1}', "[1]", "{}}"]
            ),
            "dataclassification": st.sampled_from(["public", "restricted", "phi"]),
            "traceparent": st.sampled_from(["00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "no"]),
            "tracestate": st.sampled_from(["a=1", ""]),
        },
    ),
    st.dictionaries(
        st.sampled_from(["foo", "comexampleextension1", "priority", "schemaversion", "traceid", "idemkey", "x1"]),
        ce_scalars,
        max_size=4,
    ),
    ce_data,
)


def _must_survive(name: str, value: object, ours: bool) -> bool:
    """Whether an attribute must survive: all but a position in a log of ours."""
    place = {"sequence": r"\d{20}", "recordedtime": r".{19}\.\d{3}Z"}
    return not (ours and name in place and isinstance(value, str) and re.fullmatch(place[name], value))


# --- the round trips ------------------------------------------------------------------------------------


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events, st.none() | st.integers(1, 2**63), st.none() | st.integers(0, 2**41))
def test_every_event_survives_the_way_through_json(event: Event, offset: int | None, at_ms: int | None) -> None:
    """E5: event to CloudEvent to event loses nothing, byte for byte, whatever the meta holds."""
    wire = json.dumps(to_cloudevent(event, offset=offset, at_ms=at_ms)).encode()
    back = from_cloudevent(wire)
    assert json.loads(back.meta.to_json()) == json.loads(event.meta.to_json())
    assert back == event


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(cloudevents)
def test_every_cloudevent_survives_the_way_through_the_log(foreign: Json) -> None:
    """E5: a CloudEvent from elsewhere comes back with every attribute and its data as they were."""
    ours = "spaceid" in foreign and "topic" in foreign
    event = from_cloudevent(json.dumps(foreign).encode(), default_space="s", default_topic="inbox")
    logged = Event.from_log(EventMeta.from_json(event.meta.to_json()), event.raw_payload or b"")
    back = to_cloudevent(logged)
    must = {name: value for name, value in foreign.items() if _must_survive(name, value, ours)}
    assert json.dumps({name: back.get(name, "LOST") for name in must}) == json.dumps(must)
    assert {"data", "data_base64"} & back.keys() == {"data", "data_base64"} & foreign.keys()
    assert from_cloudevent(back) == event


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(events)
def test_what_is_written_keeps_the_rules_of_cloudevents(event: Event) -> None:
    """E5: names of a-z0-9, scalar values without control characters, the required attributes, URI references."""
    written = to_cloudevent(event, offset=1, at_ms=1)
    assert written.keys() >= {"specversion", "id", "source", "type", "spaceid", "topic", "time"}
    for name, value in written.items():
        if name in ("data", "data_base64"):
            continue
        assert re.fullmatch("[a-z0-9]{1,20}", name)
        assert type(value) in (str, bool) or (type(value) is int and -(2**31) <= value < 2**31)
        assert not (isinstance(value, str) and re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", value))
    kept = (event.meta.model_extra or {}).get("cloudevent")
    if not isinstance(kept, dict) or kept.get("source") != written["source"]:  # another's is that one's care
        assert re.fullmatch(r"(?:[A-Za-z0-9._~:@/?#!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", written["source"])
    assert written["id"]
    assert written["type"]


# --- the mapping, by example ----------------------------------------------------------------------------

FULL = EventMeta(
    topic="actions",
    type=EventType.ACTION_DECISION,
    space_id="home/kitchen",
    event_id="ev-1",
    ts=datetime(2026, 11, 18, 8, 30, tzinfo=UTC),
    actor=Actor(user_id="ada", agent_id="planner", roles=("owner",)),
    device=Device(device_id="phone-1"),
    trace_id="t-1",
    traceparent="00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
    idem_key="once",
    ttl_sec=90,
    key="lamp",
    priority="high",
    band=SecurityBand.AMBER,
    caps=("mic",),
    qos=QoS(max_retries=2),
    correlation_id="c-1",
    causation_id="ev-0",
    headers={"tracestate": "a=1", "x": "y"},
    schema_version=3,
)


def test_the_mapping_follows_the_conventions() -> None:
    """E5: each field stands in the attribute that the conventions name; the rest is in `eventmeta`."""
    written = to_cloudevent(Event(FULL, {"on": True}), offset=7, at_ms=1_763_454_600_250)
    assert json.loads(written.pop("eventmeta")) == {
        "caps": ["mic"],
        "device": {"device_id": "phone-1"},
        "headers": {"tracestate": "a=1", "x": "y"},
        "qos": {"max_retries": 2},
    }
    assert json.loads(written.pop("authclaims")) == {"user_id": "ada", "agent_id": "planner", "roles": ["owner"]}
    assert written == {
        "specversion": "1.0",
        "id": "ev-1",
        "source": "ada",
        "type": "ACTION_DECISION",
        "subject": "lamp",
        "time": "2026-11-18T08:30:00Z",
        "datacontenttype": "application/json",
        "topic": "actions",
        "spaceid": "home/kitchen",
        "partitionkey": "lamp",
        "sequence": "00000000000000000007",
        "recordedtime": "2025-11-18T08:30:00.250Z",
        "expirytime": "2026-11-18T08:31:30Z",
        "authtype": "app_user",
        "authid": "ada",
        "dataclassification": "internal",
        "traceparent": FULL.traceparent,
        "tracestate": "a=1",
        "traceid": "t-1",
        "idemkey": "once",
        "priority": "high",
        "schemaversion": 3,
        "correlationid": "c-1",
        "causationid": "ev-0",
        "data": {"on": True},
    }


def test_a_small_event_needs_no_attribute_of_ours_for_the_rest() -> None:
    """E5: what the conventions can say completely is said by them alone."""
    meta = EventMeta(topic="actions", type="TICK", space_id="s", actor="agent:planner", ttl_sec=5)
    written = to_cloudevent(Event(meta, {}))
    assert "eventmeta" not in written
    assert (written["source"], written["authtype"]) == ("agent:planner", "service_account")


@pytest.mark.parametrize(
    ("actor", "source", "auth_type"),
    [
        (None, "/spaces/a%2Fb/topics/actions", None),
        ("agent:planner", "agent:planner", "service_account"),
        ("user:ada", "user:ada", "app_user"),
        ("ada lovelace", "ada%20lovelace", "unknown"),
        ("//evil.example", "%2F%2Fevil.example", "unknown"),
        ("1:2", "1%3A2", "unknown"),
        (Actor(agent_id="planner"), "planner", "service_account"),
        (Actor(roles=("x",)), "/spaces/a%2Fb/topics/actions", "unknown"),
    ],
)
def test_the_source_is_the_actor_or_the_place(actor: str | Actor | None, source: str, auth_type: str | None) -> None:
    """E5: `source` is a URI reference: who caused the event, else where in the bus it comes from."""
    meta = EventMeta(topic="actions", type="TICK", space_id="a/b", actor=actor)
    written = to_cloudevent(Event(meta, {}))
    assert (written["source"], written.get("authtype")) == (source, auth_type)
    assert from_cloudevent(written).meta.actor == actor


@pytest.mark.parametrize("band", list(SecurityBand))
def test_every_band_has_a_label_that_others_know(band: SecurityBand) -> None:
    """E5: bands travel as the labels that the Data Classification extension recommends."""
    written = to_cloudevent(Event(EventMeta(topic="t", type="T", space_id="s", band=band), {}))
    assert written["dataclassification"] in ("public", "internal", "confidential", "restricted")
    assert from_cloudevent(written).meta.band is band


def test_writing_a_cloudevent_leaves_the_event_undecoded() -> None:
    """E5: an event from a log keeps its raw bytes, and the caller may change what it was given."""
    event = Event.from_log(FULL, b'{"a":[1]}')
    written = to_cloudevent(event)
    written["data"]["a"].append(2)
    assert event.raw_payload == b'{"a":[1]}'


# --- CloudEvents from elsewhere -------------------------------------------------------------------------

FOREIGN: Json = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "https://github.com/cloudevents/spec/pull",
    "type": "com.github.pullRequest.opened",
    "subject": "123",
    "time": "2018-04-05T17:31:00.123456789Z",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "comexampleflag": True,
    "unsetextension": None,
    "datacontenttype": "text/xml",
    "data": '<much wow="xml"/>',
}


def taken(**changes: Any) -> Event:
    """The event of FOREIGN with some members changed; `...` leaves one out."""
    members = {name: value for name, value in {**FOREIGN, **changes}.items() if value is not ...}
    return from_cloudevent(members, default_space="s", default_topic="inbox")


def test_a_foreign_cloudevent_becomes_an_event_like_any() -> None:
    """E5: type and time become ours, and what we have no field for is kept under one unknown key (E1)."""
    event = taken()
    assert event.meta.type == "COM_GITHUB_PULL_REQUEST_OPENED"
    assert event.meta.ts == datetime(2018, 4, 5, 17, 31, 0, 123456, tzinfo=UTC)
    assert (event.meta.event_id, event.meta.space_id, event.meta.topic) == ("A234-1234-1234", "s", "inbox")
    assert event.meta.actor is None  # a source is a place; who acted is in authid
    assert event.payload == {"data": FOREIGN["data"]}
    assert (event.meta.model_extra or {})["cloudevent"] == {
        "source": FOREIGN["source"],
        "type": FOREIGN["type"],
        "subject": "123",
        "time": FOREIGN["time"],
        "comexampleextension1": "value",
        "comexampleothervalue": 5,
        "comexampleflag": True,
        "datacontenttype": "text/xml",
        "_data": "value",
    }
    back = to_cloudevent(event)
    assert back == {**{k: v for k, v in FOREIGN.items() if v is not None}, "spaceid": "s", "topic": "inbox"}


def test_what_changed_since_the_import_wins_over_what_was_kept() -> None:
    """E5: a kept attribute that contradicts the event's fields is not written, and still not lost."""
    event = taken().replace(type="SEEN", ts=datetime(2020, 1, 1, tzinfo=UTC), payload={"now": "an object"})
    back = to_cloudevent(event)
    assert (back["type"], back["time"], back["data"]) == ("SEEN", "2020-01-01T00:00:00Z", {"now": "an object"})
    assert back["comexampleextension1"] == "value"
    assert from_cloudevent(back) == event


def test_an_extension_that_somebody_adds_on_the_way_is_kept() -> None:
    """E5: intermediaries may add attributes to a CloudEvent of ours; they come back out."""
    written = {**to_cloudevent(Event(FULL, {"a": 1})), "hopcount": 3}
    event = from_cloudevent(written)
    assert event.meta.headers == FULL.headers
    assert to_cloudevent(event) == written


@pytest.mark.parametrize(
    "data",
    ["text", 5, 1.5, True, None, [1, {"a": 2}], {"data": "an object"}, {}, {"data_base64": "AAEC"}],
    ids=repr,
)
def test_data_of_every_kind_comes_back(data: object) -> None:
    """E5: data need not be an object, and null is data too."""
    back = to_cloudevent(taken(data=data, datacontenttype=...))
    assert back["data"] == data
    assert back["datacontenttype"] == "application/json"


def test_binary_data_and_no_data_come_back() -> None:
    """E5: `data_base64` stays what it is, and what has no data gets none, nor a content type."""
    back = to_cloudevent(taken(data=..., data_base64="AAEC", datacontenttype=...))
    assert back["data_base64"] == "AAEC"
    assert not back.keys() & {"data", "datacontenttype"}
    assert not to_cloudevent(taken(data=..., datacontenttype=...)).keys() & {"data", "data_base64", "datacontenttype"}


def test_the_extensions_that_we_share_are_understood() -> None:
    """E5: expiry, partition key, correlation, auth context and classification become our fields."""
    meta = taken(
        time="2018-04-05T17:31:00Z",
        expirytime="2018-04-05T17:32:00.5Z",
        partitionkey="p",
        correlationid="c",
        causationid="k",
        authtype="user",
        authid="ada",
        authclaims='{"sub": "ada"}',
        dataclassification="confidential",
        tracestate="a=1",
    ).meta
    assert (meta.ttl_sec, meta.key, meta.correlation_id, meta.causation_id) == (60.5, "p", "c", "k")
    assert (meta.actor, meta.band, meta.headers) == ("ada", SecurityBand.RED, {"tracestate": "a=1"})


def test_an_unknown_classification_counts_as_the_strictest() -> None:
    """E5: a label that we cannot read must not make an event more public than it was."""
    event = taken(dataclassification="phi")
    assert event.meta.band is SecurityBand.BLACK
    assert to_cloudevent(event)["dataclassification"] == "phi"


def test_the_place_in_a_log_is_no_part_of_the_event() -> None:
    """E5: `sequence` and `recordedtime` of ours are written on request and left out on reading; others stay."""
    event = Event(FULL, {})
    assert from_cloudevent(to_cloudevent(event, offset=3, at_ms=5)) == event
    assert to_cloudevent(taken(sequence="77"))["sequence"] == "77"
    moved = to_cloudevent(taken(sequence="77"), offset=3)
    assert moved["sequence"] == "00000000000000000003"
    assert to_cloudevent(from_cloudevent(moved))["sequence"] == "77"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": ...}, "specversion"),
        ({"id": ...}, "id"),
        ({"id": ""}, "id"),
        ({"id": 5}, "id"),
        ({"id": "x" * 257}, "id"),
        ({"source": ...}, "source"),
        ({"type": None}, "type"),
        ({"time": "yesterday"}, "time"),
        ({"time": "2018-04-05T17:31:00"}, "time"),
        ({"time": "2018-02-30T00:00:00Z"}, "time"),
        ({"time": 5}, "time"),
        ({"expirytime": "soon"}, "expirytime"),
        ({"partitionkey": ""}, "partitionkey"),
        ({"partitionkey": 5}, "partitionkey"),
        ({"correlationid": "x" * 257}, "correlationid"),
        ({"authid": "x" * 257}, "authid"),
        ({"authid": True}, "authid"),
        ({"spaceid": "a\u200bb"}, "spaceid"),
        ({"spaceid": "x" * 201}, "spaceid"),
        ({"topic": "../up"}, "topic"),
        ({"Foo": "x"}, "cloudevent"),
        ({"foo_bar": "x"}, "cloudevent"),
        ({"foo": 1.5}, "foo"),
        ({"foo": 2**31}, "foo"),
        ({"foo": {"a": 1}}, "foo"),
        ({"foo": ["a"]}, "foo"),
        ({"foo": b"bytes"}, "foo"),
        ({"foo": "a\nb"}, "foo"),
        ({"foo": "\ud800"}, "foo"),
        ({"foo": "\uffff"}, "foo"),
        ({"data": {1, 2}}, "data"),
        ({"data": {"a": [float("nan")]}}, "data.a[0]"),
        ({"data": [2**64]}, "data[0]"),
        ({"data_base64": "AAEC"}, "data_base64"),
        ({"data": ..., "data_base64": "not base64!"}, "data_base64"),
        ({"data": ..., "data_base64": 5}, "data_base64"),
        ({"eventmeta": "not json"}, "eventmeta"),
        ({"eventmeta": "[]"}, "eventmeta"),
        ({"eventmeta": 5}, "eventmeta"),
        ({"eventmeta": '{"caps":["not a cap!"]}'}, "eventmeta.caps"),
        ({"eventmeta": '{"cloudevent":5}'}, "eventmeta.cloudevent"),
        ({"spaceid": "a", "eventmeta": '{"space_id":"b"}'}, "eventmeta.space_id"),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_what_cannot_be_taken_without_loss_is_refused(changes: Json, field: str) -> None:
    """E5: a malformed CloudEvent is refused with an error that names the attribute."""
    with pytest.raises(InvalidMessage) as caught:
        taken(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"a":1,"a":2}',
        b'{"data":NaN}',
        b'{"data":1e999}',
        b'{"data":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda wire: repr(wire[:20]),
)
def test_bytes_that_are_no_cloudevent_are_refused(wire: bytes) -> None:
    """E5: what json would accept with a loss (a key twice, NaN, an overflow) is refused like what it cannot."""
    with pytest.raises(InvalidMessage) as caught:
        from_cloudevent(wire, default_space="s", default_topic="t")
    assert len(str(caught.value)) < 400


def test_other_things_than_cloudevents_are_refused() -> None:
    """E5: neither a list of CloudEvents nor a string is one CloudEvent."""
    for thing in ([FOREIGN], "{}", None, 5):
        with pytest.raises(InvalidMessage, match="one CloudEvent is a JSON object"):
            from_cloudevent(thing)  # type: ignore[arg-type]


def test_a_cloudevent_without_space_or_topic_says_what_to_do() -> None:
    """E5: the error names the argument that helps."""
    with pytest.raises(InvalidSpace, match="default_space="):
        from_cloudevent(FOREIGN)
    with pytest.raises(InvalidTopic, match="default_topic="):
        from_cloudevent(FOREIGN, default_space="s")


def test_an_offset_below_one_is_refused() -> None:
    """F2: offsets start at 1, so a sequence cannot be lower."""
    with pytest.raises(InvalidMessage, match="offset"):
        to_cloudevent(Event(FULL, {}), offset=0)
