"""Redaction: what is written instead, what is refused, where it is on, and that nothing slips through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from events.errors import InvalidMessage
from events.types import Event, SecurityBand
from middleware.instruments import Registry
from middleware.redaction import RedactionAction, RedactionMiddleware
from policies.files import END
from policies.topics import TopicPolicies
from tests.events.bus_support import history
from tests.middleware.hop_support import Terminal, chained_bus, cross, event, handle_hop, publish_hop


async def redacted(redaction: RedactionMiddleware, one: Event[Any]) -> Event[Any]:
    """The event as it would be written."""
    terminal = Terminal()
    await cross(redaction, publish_hop(one), terminal)
    return terminal.hops[0].events[0]


async def test_what_is_found_is_replaced_wherever_it_stands() -> None:
    """In texts, deep in objects and arrays, in names, and as a number; the rest stays as it was."""
    one = event(
        {
            "text": "ask ann@example.org or +49 151 2345 6789",
            "deep": {"list": [1, None, {"card": 4111111111111111}], "password": "hunter2"},
            "ann@example.org": True,
            "fine": ["x", 1.5, False],
        }
    )
    assert (await redacted(RedactionMiddleware(), one)).payload == {
        "text": "ask [redacted:email] or [redacted:phone]",
        "deep": {"list": [1, None, {"card": "[redacted:card]"}], "password": "[redacted:secret]"},
        "[redacted:email]": True,
        "fine": ["x", 1.5, False],
    }


async def test_names_that_are_redacted_alike_all_stay() -> None:
    """Two addresses as names are still two members, and never overwrite one that is there."""
    one = event({"a@x.org": 1, "b@x.org": 2, "[redacted:email]": 3})
    found = (await redacted(RedactionMiddleware(), one)).payload
    assert found == {"[redacted:email]#2": 1, "[redacted:email]#3": 2, "[redacted:email]": 3}


async def test_overlapping_finds_leave_nothing() -> None:
    """Where two detectors find parts of each other, all of both is gone."""
    one = event({"x": "password=ann@example.org,rest"})
    assert (await redacted(RedactionMiddleware(), one)).payload == {"x": "password=[redacted:secret],rest"}


async def test_what_is_clean_is_passed_on_byte_for_byte() -> None:
    """Nothing found, nothing decoded: the same event, its bytes untouched."""
    one = Event.from_log(event().meta, b'{"n":1.50,"big":12345678901234567}')
    assert await redacted(RedactionMiddleware(), one) is one
    assert one.raw_payload == b'{"n":1.50,"big":12345678901234567}'


async def test_headers_are_looked_through_too() -> None:
    """They are free text in the same line; the trace context is not."""
    state = "vendor=4111111111111111"
    one = event(headers={"from": "ann@example.org", "tracestate": state, "n": "1"})
    headers = (await redacted(RedactionMiddleware(), one)).meta.headers
    assert headers == {"from": "[redacted:email]", "tracestate": state, "n": "1"}
    with pytest.raises(TypeError):
        headers["x"] = "y"


async def test_refusing_says_where_and_not_what() -> None:
    """The publish fails before anything is written; the error names the place and the kind, never the value."""
    terminal = Terminal()
    hop = publish_hop(event(), event({"who": [{"mail": "ann@example.org"}]}))
    with pytest.raises(InvalidMessage) as raised:
        await cross(RedactionMiddleware("refuse"), hop, terminal)
    assert raised.value.field == "payload.who[0].mail"
    assert "[email]" in str(raised.value)
    assert "ann" not in str(raised.value)
    assert not terminal.hops, "not even the clean one: a publish is whole or refused"


async def test_a_name_that_is_refused_is_not_quoted() -> None:
    """A payload's names may be the very thing that must not get out."""
    with pytest.raises(InvalidMessage) as raised:
        await cross(RedactionMiddleware("refuse"), publish_hop(event({"ann@example.org": {}})), Terminal())
    assert "ann" not in str(raised.value)


@pytest.mark.parametrize(
    ("topic", "band", "expected"),
    [("chat.in", None, "redact"), ("chat.out", SecurityBand.RED, "refuse"), ("plans", None, "off")],
)
async def test_a_function_decides(topic: str, band: SecurityBand | None, expected: RedactionAction) -> None:
    """A policy may be any function of topic and band."""

    def decide(topic: str, band: SecurityBand | None) -> RedactionAction:
        return "refuse" if band == SecurityBand.RED else "redact" if topic.startswith("chat.") else "off"

    one = event({"x": "ann@example.org"}, topic=topic, band=band)
    if expected == "refuse":
        with pytest.raises(InvalidMessage):
            await redacted(RedactionMiddleware(decide), one)
    else:
        found = (await redacted(RedactionMiddleware(decide), one)).payload["x"]
        assert found == ("[redacted:email]" if expected == "redact" else "ann@example.org")


async def test_a_mapping_decides_by_the_first_that_matches() -> None:
    """Topics and globs; what none of them covers is let through."""
    redaction = RedactionMiddleware({"chat.raw": "off", "chat.**": "redact"})
    expected = {"chat.raw": "ann@example.org", "chat.in": "[redacted:email]", "plans": "ann@example.org"}
    for topic, text in expected.items():
        assert (await redacted(redaction, event({"x": "ann@example.org"}, topic=topic))).payload["x"] == text


async def test_topic_policies_decide_per_topic_and_band(tmp_path: Path) -> None:
    """`redaction` and `redaction_bands` of topics.toml; an event without a band has its topic's, or GREEN."""
    path = tmp_path / "topics.toml"
    path.write_text(
        '[topics."chat"]\nredaction = "redact"\nredaction_bands = ["GREEN", "AMBER"]\n'
        f'[topics."vault"]\nredaction = "redact"\nredaction_bands = ["GREEN"]\nband = "RED"\n{END}\n'
    )
    redaction = RedactionMiddleware(TopicPolicies(path))
    on = [("chat", None, True), ("chat", SecurityBand.AMBER, True), ("chat", SecurityBand.RED, False)]
    off = [("vault", None, False), ("plans", None, False)]
    for topic, band, expected in on + off:
        found = (await redacted(redaction, event({"x": "ann@example.org"}, topic=topic, band=band))).payload["x"]
        assert (found == "[redacted:email]") is expected, (topic, band)


async def test_deliveries_are_not_its_business() -> None:
    """What is in the log stays readable as it is: redaction is of publishing."""
    terminal = Terminal()
    await cross(RedactionMiddleware("refuse"), handle_hop(event({"x": "ann@example.org"})), terminal)
    assert terminal.hops[0].events[0].payload == {"x": "ann@example.org"}


async def test_a_long_payload_is_looked_through_in_a_thread() -> None:
    """It takes milliseconds, in which the loop serves others; the result is the same."""
    one = event({"x": "a word, " * 10_000 + "ann@example.org"})
    assert (await redacted(RedactionMiddleware(), one)).payload["x"].endswith("[redacted:email]")


async def test_a_model_is_redacted_into_plain_data() -> None:
    """What no longer fits its model does not pass for it."""

    class Contact(BaseModel):
        mail: str

    one: Event[Any] = Event[Contact](event().meta, Contact(mail="ann@example.org"))
    found = await redacted(RedactionMiddleware(), one)
    assert found.payload == {"mail": "[redacted:email]"}
    assert type(found) is Event


async def test_a_detector_of_ones_own() -> None:
    """Anything with a name and `find` is one; given detectors take the place of the standard ones."""

    class Ticket:
        name = "ticket"

        def find(self, text: str, key: str | None) -> Iterable[tuple[int, int]]:
            at = text.find("T-")
            return [(at, at + 4)] if at != -1 else []

    redaction = RedactionMiddleware(detectors=[Ticket()])
    found = (await redacted(redaction, event({"x": "see T-12 of ann@example.org"}))).payload
    assert found == {"x": "see [redacted:ticket] of ann@example.org"}


async def test_a_detector_that_raises_fails_the_publish() -> None:
    """What nobody could look at is not written."""

    class Broken:
        name = "broken"

        def find(self, text: str, key: str | None) -> Iterable[tuple[int, int]]:
            raise RuntimeError("no")

    terminal = Terminal()
    with pytest.raises(RuntimeError):
        await cross(RedactionMiddleware(detectors=[Broken()]), publish_hop(event({"x": "y"})), terminal)
    assert not terminal.hops


async def test_finds_are_counted() -> None:
    """By detector, for those who want to know what their producers send."""
    registry = Registry()
    redaction = RedactionMiddleware(registry=registry)
    await redacted(redaction, event({"a": "ann@example.org bob@example.org", "password": "x"}))
    assert redaction.found == {"email": 2, "secret": 1}
    assert 'events_redacted_total{detector="email"} 2' in registry.text()


async def test_nothing_that_was_found_is_on_disk(tmp_path: Path) -> None:
    """On a real bus: the bytes are in no file of the workspace, and a consumer sees what was written instead."""
    async with chained_bus(tmp_path / "w", RedactionMiddleware()) as bus:
        await bus.publish(event({"x": "ann.secret@example.org"}))
        assert [record.event.payload for record in await history(bus)] == [{"x": "[redacted:email]"}]
    written = [path.read_bytes() for path in (tmp_path / "w").rglob("*") if path.is_file()]
    assert not any(b"ann.secret" in data for data in written)


_FOUND = [
    "ann@example.org",
    "call +49 151 2345 6789",
    "(415) 555-0123",
    "0151 23456789",
    "4111 1111 1111 1111",
    "4111.1111.1111.1111",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "sk_live_" + "abcdefghijklmnop1234",
    "glpat-" + "abcdefghijklmnop",
    "Bearer abcdef.ghijkl-mnop=",
    "Passphrase: correcthorse",
    "API key = abcdef123",
    "iVBORw0KGgo" + "A" * 60,
    "data:image/png;base64,AAAA",
]


@pytest.mark.parametrize("text", _FOUND)
@pytest.mark.parametrize("beside", ["", "é", "\n", "\u0001"])
async def test_a_glance_at_the_bytes_misses_nothing(text: str, beside: str) -> None:
    """What tells quickly that there is nothing to look for never says so where something is."""
    for payload in ({"x": beside, "y": text}, {"x": beside, "y": {"z": [text]}}):
        written = Event.from_log(event().meta, orjson.dumps(payload))
        assert b"[redacted:" in orjson.dumps((await redacted(RedactionMiddleware(), written)).payload)


@pytest.mark.parametrize("key", ["password", "db_password", "API-Key", "client_secret", "accessToken", "Authorization"])
async def test_a_glance_at_the_bytes_sees_names(key: str) -> None:
    """A secret by its name alone is seen too, and so is a card that is a number."""
    written = Event.from_log(event().meta, orjson.dumps({key: "x", "n": 4111111111111111}))
    assert (await redacted(RedactionMiddleware(), written)).payload == {
        key: "[redacted:secret]",
        "n": "[redacted:card]",
    }


async def test_an_escaped_payload_is_not_trusted_to_be_harmless() -> None:
    """Bytes that came from elsewhere may spell an address with escapes; they are decoded before anybody judges."""
    written = Event.from_log(event().meta, b'{"x":"ann\\u0040example.org"}')
    assert (await redacted(RedactionMiddleware(), written)).payload == {"x": "[redacted:email]"}


@pytest.mark.parametrize("make", [lambda: [[]] * 200, lambda: {"a" * 100_000: list(range(10_000))}])
async def test_odd_shapes_take_no_longer(make: Callable[[], Any]) -> None:
    """Deep nesting and long names are as quick as anything else."""
    nested: Any = make()
    for _ in range(200):
        nested = {"n": nested}
    one = event({"x": nested})
    assert (await redacted(RedactionMiddleware(), one)).payload == one.payload
