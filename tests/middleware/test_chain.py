"""The chain as a whole: the order of its effects, what stays sealed, and what an exception does to an event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import events.middleware
import middleware
from events.attention_gate import Admit, Decision, GateContext
from events.bus import EventBus
from events.chain import name_of
from events.config import BusConfig
from events.contracts import Hop, HopResult, Middleware, Next, Settlement, Stage
from events.errors import Denied, InvalidMessage
from events.persistence.wal import WalSettings
from events.types import Event, SecurityBand
from filters import CustomFunctionFilter
from middleware import (
    CircuitBreakerMiddleware,
    IdempotencyMiddleware,
    MetricsMiddleware,
    QuarantineMiddleware,
    RBACMiddleware,
    RedactionMiddleware,
    TracingMiddleware,
    standard,
)
from policies.files import END
from policies.rbac import PolicyEngine
from tests.events.bus_support import group_of, history, settled
from tests.middleware.exposition import parse
from tests.middleware.hop_support import chained_bus, event

POLICY = f"""\
p, agent:planner, *, **, publish, allow
p, agent:learner, *, **, consume|ack, allow
p, agent:spy, *, **, consume|ack, allow
clearance, agent:planner, *, RED
clearance, agent:learner, *, RED
{END}
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    """A folder with policies: the planner publishes, the learner is cleared for RED, the spy is not."""
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "policy.csv").write_text(POLICY)
    (folder / "topics.toml").write_text(f'[topics."*"]\nredaction = "redact"\n{END}\n')
    return folder


# -- the order of effects ----------------------------------------------------------------------------------------


class Story:
    """Listens to every part of the chain, and writes down what happens in which order."""

    def __init__(self) -> None:
        self.publishing: list[str] = []
        self.handling: list[str] = []

    def tell(self, what: str) -> None:
        """Write down one thing that happened, on the side it belongs to."""
        (self.publishing if what.startswith("publish") else self.handling).append(what)


class Spans(SpanProcessor):
    """Tells when a span begins and ends."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self._story.tell(f"{span.name.split()[0].removeprefix('events.')}: span begins")

    def on_end(self, span: ReadableSpan) -> None:
        self._story.tell(f"{span.name.split()[0].removeprefix('events.')}: span ends")


class Engine(PolicyEngine):
    """Tells when it is asked about an event."""

    story: Story

    def decide(self, subject: str | None, action: str, *about: Any, **more: Any) -> Any:
        self.story.tell(f"{'publish' if action == 'publish' else 'handle'}: authorised")
        return super().decide(subject, action, *about, **more)


class Gate:
    """Tells when it is asked."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        self._story.tell("gate: admitted")
        return Admit()


class Yours:
    """A middleware of the user's, which also tells of settlements and checkpoints."""

    def __init__(self, story: Story) -> None:
        self._story = story

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        assert hop.events[0].payload == {"to": "[redacted:email]"}
        self._story.tell(f"{hop.kind}: yours")
        result = await call_next(hop)
        if hop.kind == "publish":
            self._story.tell("publish: durable in the log")
        return result

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self._story.tell(f"settle: {settlements[0].outcome}")

    async def before_checkpoint(self) -> None:
        self._story.tell("offsets: checkpoint")


async def test_the_way_of_an_event(tmp_path: Path, policies: Path) -> None:
    """Validation, tracing, metrics, RBAC, redaction and yours, the log; then the gate, tracing, metrics, RBAC,
    filters, yours, the handler, the settlement, and the checkpoint: each effect in its place."""
    story = Story()
    engine = Engine.of_folder(policies)
    assert isinstance(engine, Engine)
    engine.story = story
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Spans(story))
    chain = standard(
        engine,
        Yours(story),
        tracing=TracingMiddleware(provider),
        metrics=MetricsMiddleware(
            sink=lambda name, value, labels: story.tell(
                f"{'publish' if 'publish' in name else 'handle'}: {'timed' if 'latency' in name else 'counted'}"
            )
        ),
    )
    config = BusConfig(wal=WalSettings(ballast_bytes=0), checkpoint_interval_s=0.01)
    bus = EventBus(chain, workspace=tmp_path / "w", config=config, gate=Gate(story))

    async def handler(one: Event[Any]) -> None:
        assert one.payload == {"to": "[redacted:email]"}
        story.tell("handle: handler")

    def wanted(one: Event[Any]) -> bool:
        story.tell("handle: filtered")
        return True

    async with bus:
        filters = [CustomFunctionFilter(wanted, name="wanted")]
        await bus.subscribe("actions", "learner", handler, filters=filters, subject="agent:learner")
        story.handling.clear()  # subscribing was authorised too
        with pytest.raises(InvalidMessage):
            await bus.publish(event({"when": object()}))
        assert not story.publishing, "what is malformed is refused before anything else looks at it"
        await bus.bind("agent:planner").publish(event({"to": "ann@example.org"}, band=SecurityBand.RED))
        await settled(bus)
    assert story.publishing == [
        "publish: span begins",
        "publish: authorised",
        "publish: yours",
        "publish: durable in the log",
        "publish: counted",
        "publish: timed",
        "publish: span ends",
    ]
    assert story.handling[:12] == [
        "gate: admitted",
        "handle: span begins",
        "handle: authorised",
        "handle: filtered",
        "handle: yours",
        "handle: handler",
        "handle: counted",
        "handle: timed",
        "handle: span ends",
        "settle: span begins",
        "settle: span ends",
        "settle: acked",
    ]
    assert set(story.handling[12:]) == {"offsets: checkpoint"}
    provider.shutdown()


# -- what stays sealed -------------------------------------------------------------------------------------------


async def test_who_is_not_cleared_sees_nothing(tmp_path: Path, policies: Path) -> None:
    """Neither its handler nor its own filter sees the event, and nothing of the payload is in its trace or metrics."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    metrics, seen = MetricsMiddleware(), list[str]()
    chain = standard(policies, tracing=TracingMiddleware(provider), metrics=metrics)

    def peek(one: Event[Any]) -> bool:
        seen.append(f"filter {one.payload}")
        return True

    async def handler(one: Event[Any]) -> None:
        seen.append(f"handler {one.payload}")

    async with chained_bus(tmp_path / "w", *chain) as bus:
        filters = [CustomFunctionFilter(peek, name="peek")]
        await bus.subscribe("actions", "spy", handler, filters=filters, subject="agent:spy")
        secret = event({"plan": "the launch code is swordfish"}, band=SecurityBand.RED)
        await bus.bind("agent:planner").publish(secret)
        await settled(bus)
        assert group_of(bus, "spy")["denied"] == 1
        text = metrics.expose()
    assert not seen
    spans = exporter.get_finished_spans()
    (handled,) = [span for span in spans if span.name == "events.handle actions"]
    assert (handled.attributes or {})["messaging.cognitive_events.outcome"] == "denied"
    assert not any("swordfish" in span.to_json() for span in spans)
    assert "swordfish" not in text
    assert parse(text).value("events_skipped_total", topic="actions", group="spy", reason="denied") == 1
    provider.shutdown()


@pytest.mark.parametrize("observer", [TracingMiddleware, MetricsMiddleware])
async def test_observers_cannot_be_put_where_payloads_are_open(observer: Any) -> None:
    """A chain in another order is refused when the bus is made, with the reason."""
    with pytest.raises(InvalidMessage, match="put it before RedactionMiddleware"):
        EventBus([RedactionMiddleware(), observer()])


@pytest.mark.parametrize("stage", [Stage.TRACE, Stage.MEASURE, Stage.AUTHORISE])
async def test_a_payload_is_sealed_for_everything_before_content(tmp_path: Path, stage: Stage) -> None:
    """Asking for the events is an error of the one who asks, and the publish fails."""

    class Curious:
        def __init__(self) -> None:
            self.stage = stage

        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            _ = hop.events
            return await call_next(hop)

    async with chained_bus(tmp_path / "w", Curious()) as bus:
        with pytest.raises(PermissionError, match="never a payload"):
            await bus.publish(event())


# -- exceptions --------------------------------------------------------------------------------------------------


class Failing:
    """A middleware that raises on the handle side until it is told to stop, before or behind the handler."""

    def __init__(self, stage: Stage, *, after: bool) -> None:
        self.stage, self._after = stage, after
        self.failures = 2

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            return await call_next(hop)
        result = await call_next(hop) if self._after else None
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a fault of the middleware")
        return result if self._after else await call_next(hop)


@pytest.mark.parametrize("after", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("stage", list(Stage))
async def test_an_exception_in_a_middleware_is_a_failed_attempt(tmp_path: Path, stage: Stage, after: bool) -> None:
    """Never a lost event, never a dead worker: it is tried again, and what comes behind it is handled."""
    handled: list[int] = []

    async def handler(one: Event[Any]) -> None:
        handled.append(one.payload["n"])

    async with chained_bus(tmp_path / "w", Failing(stage, after=after), max_retries=3) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many([event({"n": n}) for n in range(5)])
        await settled(bus)
        counts = group_of(bus, "learner")
        assert bus.health().ok
    assert set(handled) == set(range(5))
    assert (counts["acked"], counts["failed"]) == (5, 2)
    assert "dead" not in counts


async def test_an_exception_that_stays_is_a_dead_letter(tmp_path: Path) -> None:
    """After its retries the event is in the dead letters, whole, and the worker lives."""
    failing = Failing(Stage.CONTENT, after=False)
    failing.failures = 10**6

    async def handler(one: Event[Any]) -> None: ...

    async with chained_bus(tmp_path / "w", failing, max_retries=1) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event({"n": 1}))
        await settled(bus)
        (dead,) = await bus.dlq.list()
        assert dead.event.payload == {"n": 1}
        failing.failures = 0
        await bus.publish(event({"n": 2}))
        await settled(bus)
        assert group_of(bus, "learner")["acked"] == 1


async def test_an_exception_while_publishing_writes_nothing(tmp_path: Path) -> None:
    """The publisher hears of it, and the log is as it was."""

    async def refuse(hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish" and hop.events[0].payload["n"] == 1:
            raise ValueError("not this one")
        return await call_next(hop)

    async with chained_bus(tmp_path / "w", refuse) as bus:
        with pytest.raises(ValueError, match="not this one"):
            await bus.publish(event({"n": 1}))
        await bus.publish(event({"n": 2}))
        assert [record.event.payload["n"] for record in await history(bus)] == [2]


async def test_an_observer_that_raises_when_told_of_the_end_changes_nothing(tmp_path: Path) -> None:
    """`settled` is news, not a vote."""

    class Broken:
        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        def settled(self, settlements: Sequence[Settlement]) -> None:
            raise RuntimeError("no")

    async def handler(one: Event[Any]) -> None: ...

    async with chained_bus(tmp_path / "w", Broken()) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many([event() for _ in range(3)])
        await settled(bus)
        assert group_of(bus, "learner")["acked"] == 3


# -- the usual chain ---------------------------------------------------------------------------------------------


def test_the_usual_chain_is_a_readable_list(policies: Path) -> None:
    """Tracing, metrics; where there are policies RBAC, payloads against their models, and redaction; then yours."""

    async def yours(hop: Hop, call_next: Next) -> HopResult:
        return await call_next(hop)

    assert [name_of(one) for one in standard()] == ["TracingMiddleware", "MetricsMiddleware"]
    assert [name_of(one) for one in standard(None, yours)] == ["TracingMiddleware", "MetricsMiddleware", "yours"]
    content = ["PayloadSchemaMiddleware", "RedactionMiddleware", "yours"]
    expected = ["TracingMiddleware", "MetricsMiddleware", "RBACMiddleware", *content]
    assert [name_of(one) for one in standard(policies, yours)] == expected
    assert [name_of(one) for one in standard(PolicyEngine.of_folder(policies), yours)] == expected


async def test_with_policies_nobody_may_what_they_do_not_give(tmp_path: Path, policies: Path) -> None:
    """The chain that `standard` makes is closed to whoever is not bound."""
    async with chained_bus(tmp_path / "w", *standard(policies)) as bus:
        with pytest.raises(Denied):
            await bus.publish(event())


async def test_everything_together(tmp_path: Path, policies: Path) -> None:
    """All middlewares of this package in one chain on one bus, and every event is handled once."""
    metrics = MetricsMiddleware()
    yours: list[Middleware] = [IdempotencyMiddleware(), QuarantineMiddleware(), CircuitBreakerMiddleware()]
    handled: list[int] = []

    async def handler(one: Event[Any]) -> None:
        handled.append(one.payload["n"])

    async with chained_bus(tmp_path / "w", *standard(policies, *yours, metrics=metrics)) as bus:
        await bus.subscribe("actions", "learner", handler, subject="agent:learner", workers=4)
        planner = bus.bind("agent:planner")
        await planner.publish_many([event({"n": n}, idem_key=f"k{n % 50}", key=f"{n % 7}") for n in range(100)])
        await settled(bus)
    assert sorted(handled) == sorted(set(handled))
    assert {n % 50 for n in handled} == set(range(50))
    exposed = parse(metrics.expose())
    assert exposed.value("events_skipped_total", topic="actions", group="learner", reason="duplicate") == 50


def test_the_seeds_import_path_works() -> None:
    """`from events.middleware import ...` is the same as `from middleware import ...`, and nothing more."""
    assert events.middleware.__all__ == middleware.__all__
    for name in middleware.__all__:
        assert getattr(events.middleware, name) is getattr(middleware, name)
    assert events.middleware.RBACMiddleware is RBACMiddleware
