"""Log lines: one per fact, as text or JSON; and that no payload ever stands in one, whatever goes wrong."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest
from pydantic import BaseModel

from events.attention_gate import Decision, GateContext
from events.bus import EventBus
from events.contracts import DeadLetter, Hop, HopResult, Next, Skip
from events.errors import BusError, Denied
from events.fingerprints import ErrorText
from events.logs import LOGGERS, FactFormatter, setup_logging
from events.types import Event, EventMeta, Nack
from filters import CustomFunctionFilter
from middleware.rbac import RBACMiddleware
from policies.rbac import PolicyEngine
from tests.events.bus_support import disk_bus, settled

MARKER = "xyzzy-marker"


class Plain(logging.Handler):
    """What any other handler could print of a record without its traceback: the message, and every extra."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        extras = {name: str(value) for name, value in vars(record).items() if name not in ("exc_info", "exc_text")}
        self.lines.append(f"{record.getMessage()} {extras}")


class Logged:
    """Everything that was logged, in all forms, at every level."""

    def __init__(self) -> None:
        self.text, self.json, self.plain = io.StringIO(), io.StringIO(), Plain()

    def __str__(self) -> str:
        return "\n".join([self.text.getvalue(), self.json.getvalue(), *self.plain.lines])

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.json.getvalue().splitlines()]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """All that the bus logs while the test runs."""
    found = Logged()
    undo = [setup_logging("debug", stream=found.text), setup_logging("debug", "json", stream=found.json)]
    for name in LOGGERS:
        logging.getLogger(name).addHandler(found.plain)
    yield found
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(found.plain)
    for one in reversed(undo):
        one()


def an_event(topic: str = "actions", **payload: Any) -> Event:
    """An event whose payload holds the marker in its keys and values."""
    return Event(EventMeta(topic=topic, type="NOTED", space_id="home"), {MARKER: MARKER, "text": MARKER, **payload})


class Wanted(BaseModel):
    """What one handler insists on."""

    text: int


async def raises(event: Event[Any]) -> NoReturn:
    """A handler that puts the payload into its error."""
    raise ValueError(f"cannot handle {event.payload}")


async def raises_by_name(event: Event[Any]) -> NoReturn:
    """A handler that raises an exception named after the payload."""
    raise type(MARKER.replace("-", "_").title(), (Exception,), {})(event.payload["text"])


async def nacks(event: Event[Any]) -> Nack:
    """A handler that gives the payload as its reason."""
    return Nack(f"{MARKER}: {event.payload['text']}")


async def typed(event: Event[Wanted]) -> None:
    """A handler whose model the payload does not fit."""
    assert event.payload.text


async def returns_nonsense(event: Event[Any]) -> Any:
    """A handler that returns what no handler may."""
    return event.payload


async def acks(event: Event[Any]) -> None:
    """A handler without complaints."""


class Careless:
    """A middleware, a filter and a gate in one, each of which quotes what it saw when it fails."""

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "handle" and hop.metas[0].topic == "quarantined":
            return DeadLetter(f"not safe: {hop.events[0].payload}")
        if hop.kind == "handle" and hop.metas[0].topic == "skipped":
            return Skip("filtered")
        if hop.kind == "handle" and hop.metas[0].topic == "broken":
            raise RuntimeError(f"middleware saw {hop.events[0].payload}")
        return await call_next(hop)

    def matches(self, event: Event[Any]) -> bool:
        raise LookupError(f"filter saw {event.payload}")

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        raise ArithmeticError(f"gate saw {event.payload}")


@pytest.mark.parametrize("handler", [raises, raises_by_name, nacks, typed, returns_nonsense])
async def test_failing_handlers_log_their_kind_and_no_payload(workspace: Path, logged: Logged, handler: Any) -> None:
    """Every attempt and the dead letter have a line each; the payload stands in none of them."""
    async with disk_bus(workspace, max_retries=2) as bus:
        await bus.subscribe("actions", "actor", handler)
        await bus.publish(an_event())
        await settled(bus)
        assert len(await bus.dlq.list()) == 1
    failures = [fact for fact in logged.facts if fact["logger"] == "events.settling" and fact["level"] == "WARNING"]
    assert [fact["attempt"] for fact in failures] == [1, 2, 3]
    assert {fact["group"] for fact in failures} == {"actor"}
    assert [fact["level"] for fact in logged.facts if fact["message"].startswith("gave up")] == ["ERROR"]
    assert MARKER not in str(logged)


@pytest.mark.parametrize("topic", ["quarantined", "skipped", "broken", "filtered"])
async def test_middleware_filters_and_gates_that_quote_a_payload_are_not_quoted(
    workspace: Path, logged: Logged, topic: str
) -> None:
    """What plugged-in code says of a payload stays out of the log too."""
    careless = Careless()
    bus = EventBus([careless], config=disk_bus(workspace, max_retries=1).config, workspace=workspace, gate=careless)
    async with bus:
        filters = [CustomFunctionFilter(careless.matches)] if topic == "filtered" else []
        await bus.subscribe(topic, "actor", acks, filters=filters)
        await bus.publish(an_event(topic))
        await settled(bus)
    assert logged.facts
    assert MARKER not in str(logged)


async def test_refusals_name_the_event_and_no_payload(workspace: Path, logged: Logged) -> None:
    """A denied publish and a denied delivery are audited by names alone."""
    rbac = RBACMiddleware(PolicyEngine())
    async with EventBus([rbac], workspace=workspace) as bus:
        await bus.bind("agent:planner").subscribe("actions", "actor", acks, subject="agent:planner")
        owner = bus.bind("user:owner")
        await owner.publish(an_event().replace(band="BLACK"))
        with pytest.raises(Denied):
            await bus.bind("stranger:x").publish(an_event())
        await settled(bus)
    audited = [fact for fact in logged.facts if fact["logger"] == "events.audit"]
    assert {json.loads(fact["message"])["subject"] for fact in audited} == {"agent:planner", "stranger:x"}
    assert MARKER not in str(logged)


@pytest.mark.parametrize("damage", ["torn", "corrupt"])
async def test_recovery_names_bytes_and_no_payload(workspace: Path, logged: Logged, damage: str) -> None:
    """A torn end is a warning, damage an error; both name the file and the byte."""
    async with disk_bus(workspace) as bus:
        await bus.publish_many([an_event(number=number) for number in range(20)])
    segment = next(workspace.rglob("actions.*.jsonl"))
    data = segment.read_bytes()
    if damage == "torn":
        segment.write_bytes(data + data[: len(data) // 30])
    else:
        segment.write_bytes(data[: len(data) // 2])  # the mark knows of more
    async with disk_bus(workspace) as bus:
        with suppress(BusError):
            await bus.publish(an_event())
        await bus.subscribe("actions", "actor", acks)
        with anyio.move_on_after(0.2):
            await settled(bus)
    told = [fact for fact in logged.facts if fact["logger"] == "events.store"]
    assert {fact["condition"] for fact in told} == {damage}
    assert {fact["level"] for fact in told} == {"WARNING" if damage == "torn" else "ERROR"}
    assert MARKER not in str(logged)


# -- the lines themselves --------------------------------------------------------------------------------------


def a_record(message: str = "it happened", *args: object, **extra: object) -> logging.LogRecord:
    """A record as the bus's loggers make them."""
    record = logging.LogRecord("events.group", logging.WARNING, __file__, 1, message, args, None)
    record.created = 1_763_455_200.123
    vars(record).update(extra)
    return record


def test_a_text_line_is_the_fact_and_its_pairs() -> None:
    """Time, level, logger, message, then every extra as key=value."""
    line = FactFormatter().format(a_record("took %d", 3, group="actor", topic="a b", note="", done=True, none=None))
    expected = '2025-11-18T08:40:00.123Z WARNING events.group: took 3 group=actor topic="a b" note="" done=True none=""'
    assert line == expected


def test_a_json_line_has_the_same_facts() -> None:
    """Numbers stay numbers; what JSON does not know is shown as text."""
    line = FactFormatter(as_json=True).format(a_record("took %d", 3, offset=7, path=Path("/x")))
    assert json.loads(line) == {
        "at": "2025-11-18T08:40:00.123Z",
        "level": "WARNING",
        "logger": "events.group",
        "message": "took 3",
        "offset": 7,
        "path": "/x",
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_whatever_is_logged_stays_one_line(as_json: bool) -> None:
    """Line ends and control characters are escaped, long values cut."""
    record = a_record("one\ntwo\x1b[31m\u2028", group="x\r\ny", long="z" * 10_000)
    line = FactFormatter(as_json=as_json).format(record)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(line) < 2_500


def test_an_exception_is_folded_into_the_line() -> None:
    """Its kind, its fingerprint and the way to it; what it says only if that was asked for."""
    try:
        raise KeyError(MARKER)
    except KeyError as error:
        record = a_record("failed")
        record.exc_info = (KeyError, error, error.__traceback__)
    folded = json.loads(FactFormatter(as_json=True).format(record))
    assert folded["exception"] == str(ErrorText(f"KeyError: '{MARKER}'"))
    assert folded["traceback"].startswith("test_logs.py:")
    assert MARKER in FactFormatter(error_text=True).format(record)


def test_the_text_of_errors_can_be_asked_for() -> None:
    """In the message and in the extras alike."""
    error = ErrorText("KeyError: 'city'")
    record = a_record("failed: %s", error, error=error)
    assert "city" not in FactFormatter().format(record)
    assert FactFormatter(error_text=True).format(record).count("KeyError: 'city'") == 2


def test_setting_up_can_be_taken_back() -> None:
    """Levels, propagation and handlers are as before, so that an application can change its mind."""
    before = [(one.level, one.propagate, list(one.handlers)) for one in map(logging.getLogger, LOGGERS)]
    stream = io.StringIO()
    undo = setup_logging("warning", stream=stream)
    logging.getLogger("events.group").info("not shown")
    logging.getLogger("events.group").warning("shown")
    undo()
    logging.getLogger("events.group").warning("gone again")
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["shown"]
    assert [(one.level, one.propagate, list(one.handlers)) for one in map(logging.getLogger, LOGGERS)] == before


async def test_what_goes_well_has_no_line(workspace: Path, logged: Logged) -> None:
    """An ack is no news: above DEBUG the log is about what somebody should know."""
    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "actor", acks)
        await bus.publish_many([an_event() for _ in range(10)])
        await settled(bus)
    assert [fact for fact in logged.facts if fact["level"] != "DEBUG"] == []
