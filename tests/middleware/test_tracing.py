"""Tracing: the spans that a real SDK exports, their links, and what is never in them."""

from __future__ import annotations

import gc
import json
import timeit
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from events.contracts import DeadLetter, Hop, HopResult, Settlement, Skip
from events.errors import Denied, InvalidMessage
from events.types import Ack, Event, EventMeta, EventType, Nack
from middleware.tracing import TracingMiddleware
from tests.events.bus_support import settled
from tests.middleware.hop_support import FakeDelivery, Terminal, chained_bus, cross, event, handle_hop, publish_hop

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """A real SDK that exports into memory."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """What was exported, in order of ending."""
        return self.exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    """The SDK, shut down afterwards."""
    made = Traces()
    yield made
    made.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """A span's attributes as a plain dict."""
    return dict(span.attributes or {})


def context_of(span: ReadableSpan) -> SpanContext:
    """A span's own context, which it always has."""
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent_of(span: ReadableSpan) -> str:
    """What stands in an envelope for a span."""
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[int]:
    """The spans that a span links to."""
    return [link.context.span_id for link in span.links]


# -- names and attributes ----------------------------------------------------------------------------------------


async def test_a_publish_is_a_producer_span(traces: Traces) -> None:
    """Name, kind and attributes are the conventions' and the seed's; the offset is known when it ends."""
    one = event({"n": 1}, correlation_id="talk-1")
    await cross(TracingMiddleware(traces.provider), publish_hop(one), Terminal())
    span = traces.one("events.publish actions")
    assert span.kind is SpanKind.PRODUCER
    assert attributes(span) == {
        "messaging.system": "cognitive_events",
        "messaging.operation.name": "events.publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "actions",
        "messaging.message.id": one.meta.event_id,
        "messaging.message.conversation_id": "talk-1",
        "messaging.message.body.size": 8,
        "messaging.cognitive_events.space": "home",
        "messaging.cognitive_events.offset": 1,
        "topic": "actions",
        "space_id": "home",
        "size_bytes": 8,
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_a_handle_is_a_consumer_span(traces: Traces) -> None:
    """Group, offset and attempt are there, under the conventions' names and the seed's; so is the time it took."""
    one = event({"n": 1})
    hop = handle_hop(one, deliveries=[FakeDelivery(7, attempt=3)])
    await cross(TracingMiddleware(traces.provider), hop, Terminal())
    span = traces.one("events.handle actions")
    assert span.kind is SpanKind.CONSUMER
    found = attributes(span)
    assert found.pop("lat_ms") >= 0
    assert found == {
        "messaging.system": "cognitive_events",
        "messaging.operation.name": "events.handle",
        "messaging.operation.type": "process",
        "messaging.destination.name": "actions",
        "messaging.consumer.group.name": "learner",
        "messaging.message.id": one.meta.event_id,
        "messaging.message.body.size": 8,
        "messaging.cognitive_events.space": "home",
        "messaging.cognitive_events.offset": 7,
        "messaging.cognitive_events.attempt": 3,
        "topic": "actions",
        "group": "learner",
        "space_id": "home",
        "offset": 7,
        "retries": 2,
    }


async def test_a_settle_is_a_client_span_below_its_attempt(traces: Traces) -> None:
    """It says how the delivery ended, and has the times of settling, not those of its export."""
    tracing, one = TracingMiddleware(traces.provider), event()
    await cross(tracing, handle_hop(one), Terminal())
    tracing.settled([Settlement("learner", "home", "actions", 1, one.meta, "acked", None, 1000, 2000)])
    span, handled = traces.one("events.settle actions"), traces.one("events.handle actions")
    assert span.kind is SpanKind.CLIENT
    assert span.parent is not None
    assert span.parent.span_id == context_of(handled).span_id
    assert (span.start_time, span.end_time) == (1000, 2000)
    assert attributes(span) == {
        "messaging.system": "cognitive_events",
        "messaging.operation.name": "events.settle",
        "messaging.operation.type": "settle",
        "messaging.destination.name": "actions",
        "messaging.consumer.group.name": "learner",
        "messaging.message.id": one.meta.event_id,
        "messaging.cognitive_events.space": "home",
        "messaging.cognitive_events.offset": 1,
        "messaging.cognitive_events.outcome": "acked",
        "topic": "actions",
        "group": "learner",
        "space_id": "home",
        "offset": 1,
    }


def test_what_ends_untried_links_to_its_producer(traces: Traces) -> None:
    """An event that expired has no attempt to be the child of."""
    tracing, one = TracingMiddleware(traces.provider), event(traceparent=PARENT)
    tracing._find_tracer()
    tracing.settled([Settlement("learner", "home", "actions", 1, one.meta, "expired", None, 1, 2)])
    span = traces.one("events.settle actions")
    assert span.parent is None
    assert linked(span) == [0xB7AD6B7169203331]
    assert attributes(span)["messaging.cognitive_events.outcome"] == "expired"


async def test_a_batch_is_one_span(traces: Traces) -> None:
    """`messaging.batch.message_count` counts it; every event carries the context of that one span."""
    terminal = Terminal()
    await cross(TracingMiddleware(traces.provider), publish_hop(event({"n": 1}), event({"n": 2})), terminal)
    span = traces.one("events.publish actions")
    found = attributes(span)
    assert found["messaging.batch.message_count"] == 2
    assert found["size_bytes"] == 16
    assert "messaging.message.id" not in found
    assert {meta.traceparent for meta in terminal.hops[0].metas} == {traceparent_of(span)}


async def test_a_batch_of_many_topics_names_none(traces: Traces) -> None:
    """A span that is about several topics says so by leaving the topic out."""
    hop = publish_hop(event(), event(topic="affect"))
    await cross(TracingMiddleware(traces.provider), hop, Terminal())
    found = attributes(traces.one("events.publish"))
    assert "messaging.destination.name" not in found
    assert found["space_id"] == "home"


async def test_a_batch_links_once_to_each_producer(traces: Traces) -> None:
    """Three events of two producers: two links, and no parent."""
    other = PARENT.replace("b7ad", "c7ad")
    hop = handle_hop(event(traceparent=PARENT), event(traceparent=other), event(traceparent=PARENT))
    await cross(TracingMiddleware(traces.provider, parent=True), hop, Terminal())
    span = traces.one("events.handle actions")
    assert linked(span) == [0xB7AD6B7169203331, 0xC7AD6B7169203331]
    assert span.parent is None


async def test_a_template_names_topics_of_high_cardinality(traces: Traces) -> None:
    """The span is named by the kind of topic; the topic itself stays an attribute."""
    tracing = TracingMiddleware(traces.provider, template=lambda topic: f"{topic.split('.')[0]}.(id)")
    await cross(tracing, publish_hop(event(topic="orders.4711")), Terminal())
    found = attributes(traces.one("events.publish orders.(id)"))
    assert found["messaging.destination.name"] == "orders.4711"
    assert found["messaging.destination.template"] == "orders.(id)"


async def test_a_topic_given_as_a_member_is_a_plain_string(traces: Traces) -> None:
    """E2: exporters see text, not an enum."""
    one = Event(EventMeta(topic=EventType.ACTION_EXECUTED, space_id="home"), {})
    await cross(TracingMiddleware(traces.provider), publish_hop(one), Terminal())
    assert type(attributes(traces.one("events.publish ACTION_EXECUTED"))["topic"]) is str


async def test_deprecated_names_are_not_emitted(traces: Traces) -> None:
    """What the conventions gave up is nowhere."""
    tracing, one = TracingMiddleware(traces.provider), event(traceparent=PARENT)
    await cross(tracing, publish_hop(one), Terminal())
    await cross(tracing, handle_hop(one), Terminal())
    tracing.settled([Settlement("learner", "home", "actions", 1, one.meta, "acked", None, 1, 2)])
    deprecated = {"messaging.operation", "messaging.client_id", "messaging.kafka.consumer.group"}
    assert len(traces.spans) == 3
    assert not deprecated & {name for span in traces.spans for name in attributes(span)}


# -- failures ----------------------------------------------------------------------------------------------------


class Boom(Exception):
    """What a handler might raise."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Boom("alice@example.org"), "Boom"),
        (InvalidMessage("payload.secret", "hunter2", "no"), "INVALID_MESSAGE"),
        (Denied("a", "publish", "t", "s", ""), "DENIED"),
    ],
)
@pytest.mark.parametrize("kind", ["publish", "handle"])
async def test_an_error_is_named_and_never_quoted(traces: Traces, error: Exception, expected: str, kind: str) -> None:
    """`error.type` has few values. The text of an error may quote a payload, so it stays out of the trace."""

    async def fail(hop: Hop) -> HopResult:
        raise error

    hop = publish_hop(event()) if kind == "publish" else handle_hop(event())
    with pytest.raises(type(error)):
        await TracingMiddleware(traces.provider)(hop, fail)
    span = traces.one(f"events.{kind} actions")
    assert attributes(span)["error.type"] == expected
    assert span.status.status_code is StatusCode.ERROR
    assert not span.events
    assert not {"alice", "hunter2"} & set(json.dumps(json.loads(span.to_json())).replace("@", '"').split('"'))


async def test_a_cancelled_handle_is_cancelled_on_every_backend(traces: Traces) -> None:
    """Both backends cancel with a class of their own; the trace does not show which one ran."""

    async def hang(hop: Hop) -> HopResult:
        await anyio.sleep_forever()
        return None

    with anyio.move_on_after(0.01):
        await TracingMiddleware(traces.provider)(handle_hop(event()), hang)
    assert attributes(traces.one("events.handle actions"))["error.type"] == "cancelled"


@pytest.mark.parametrize(
    ("verdict", "outcome", "error"),
    [
        (None, None, None),
        (Ack(), None, None),
        (Nack("no"), "nack", "nack"),
        (Nack("later", count=False), "wait", None),
        (DeadLetter("bad"), "dead_letter", "dead_letter"),
        (Skip("denied"), "denied", None),
    ],
)
async def test_a_verdict_is_an_outcome(traces: Traces, verdict: Any, outcome: str | None, error: str | None) -> None:
    """What was not simply acked says how it ended, and only a failed attempt is an error."""
    await cross(TracingMiddleware(traces.provider), handle_hop(event()), Terminal(lambda hop: verdict))
    found = attributes(traces.one("events.handle actions"))
    assert found.get("messaging.cognitive_events.outcome") == outcome
    assert found.get("error.type") == error


# -- context -----------------------------------------------------------------------------------------------------


async def test_the_context_goes_into_the_envelope(traces: Traces) -> None:
    """`traceparent` names the publish span, and `trace_id` is filled from it."""
    terminal = Terminal()
    await cross(TracingMiddleware(traces.provider), publish_hop(event({"n": 1})), terminal)
    meta = terminal.hops[0].metas[0]
    assert meta.traceparent == traceparent_of(traces.one("events.publish actions"))
    assert meta.trace_id == meta.traceparent[3:35]
    assert terminal.hops[0].events[0].meta is meta
    assert EventMeta.from_json(meta.to_json()) == meta, "what was put there is what a checked meta would hold"


async def test_what_the_producer_said_is_kept(traces: Traces) -> None:
    """A `traceparent` or `trace_id` that is there already is not replaced; the publish span links to it."""
    terminal = Terminal()
    await cross(TracingMiddleware(traces.provider), publish_hop(event(traceparent=PARENT)), terminal)
    await cross(TracingMiddleware(traces.provider), publish_hop(event(trace_id="trace-123")), terminal)
    first, second = (hop.metas[0] for hop in terminal.hops)
    assert (first.traceparent, first.trace_id) == (PARENT, PARENT[3:35])
    assert linked(traces.spans[0]) == [0xB7AD6B7169203331]
    assert second.trace_id == "trace-123"
    assert second.traceparent == traceparent_of(traces.spans[1])


async def test_a_consumer_links_by_default(traces: Traces) -> None:
    """The attempt is a trace of its own, which names where the event came from."""
    await cross(TracingMiddleware(traces.provider), handle_hop(event(traceparent=PARENT)), Terminal())
    span = traces.one("events.handle actions")
    assert span.parent is None
    assert linked(span) == [0xB7AD6B7169203331]
    assert f"{context_of(span).trace_id:032x}" != PARENT[3:35]


async def test_a_consumer_can_be_a_child(traces: Traces) -> None:
    """`parent=True` continues the producer's trace."""
    tracing = TracingMiddleware(traces.provider, parent=True)
    await cross(tracing, handle_hop(event(traceparent=PARENT)), Terminal())
    span = traces.one("events.handle actions")
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT[36:52]
    assert f"{context_of(span).trace_id:032x}" == PARENT[3:35]


@pytest.mark.parametrize(
    "invalid", ["ff" + PARENT[2:], f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{'1' * 32}-{'0' * 16}-01"]
)
async def test_a_context_that_w3c_calls_invalid_is_no_context(traces: Traces, invalid: str) -> None:
    """It fits the envelope's pattern, and means nothing."""
    tracing = TracingMiddleware(traces.provider, parent=True)
    await cross(tracing, handle_hop(event(traceparent=invalid)), Terminal())
    span = traces.one("events.handle actions")
    assert span.parent is None
    assert not span.links


async def test_what_runs_around_the_workers_start_is_not_their_parent(traces: Traces) -> None:
    """A worker inherits the context of whoever started the bus; its attempts do not."""
    with traces.provider.get_tracer("app").start_as_current_span("request"):
        await cross(TracingMiddleware(traces.provider), handle_hop(event()), Terminal())
        await cross(TracingMiddleware(traces.provider), publish_hop(event()), Terminal())
    assert traces.one("events.handle actions").parent is None
    published = traces.one("events.publish actions").parent
    assert published is not None
    assert published.span_id == context_of(traces.one("request")).span_id


async def test_baggage_is_kept_in_the_headers(traces: Traces) -> None:
    """What is in the context when an event is published is in the context of its handler, and goes on from there."""
    tracing, published, republished = TracingMiddleware(traces.provider), Terminal(), Terminal()
    token = contexts.attach(baggage.set_baggage("tenant", "blue one"))
    try:
        await cross(tracing, publish_hop(event(headers={"own": "kept"})), published)
    finally:
        contexts.detach(token)
    meta = published.hops[0].metas[0]
    assert meta.headers == {"own": "kept", "baggage": "tenant=blue+one"}
    with pytest.raises(TypeError):
        meta.headers["more"] = "x"

    async def handler(hop: Hop) -> HopResult:
        assert baggage.get_all() == {"tenant": "blue one"}
        await cross(tracing, publish_hop(event()), republished)
        return None

    await tracing(handle_hop(Event(meta, {})), handler)
    assert republished.hops[0].metas[0].headers == {"baggage": "tenant=blue+one"}
    assert not baggage.get_all()


async def test_the_vendors_state_travels_with_its_context(traces: Traces) -> None:
    """`tracestate` is a header beside `traceparent`, and comes back in the link."""
    tracing, terminal = TracingMiddleware(traces.provider, parent=True), Terminal()
    one = event(traceparent=PARENT, headers={"tracestate": "vendor=1"})
    await cross(tracing, handle_hop(one), Terminal())
    assert context_of(traces.spans[0]).trace_state.to_header() == "vendor=1"

    async def handler(hop: Hop) -> HopResult:
        await cross(tracing, publish_hop(event()), terminal)
        return None

    await tracing(handle_hop(one), handler)
    assert terminal.hops[0].metas[0].headers == {"tracestate": "vendor=1"}


async def test_what_the_sampler_drops_still_hands_its_context_on() -> None:
    """Nothing is exported, and those behind know that the trace is not sampled."""
    traces, terminal = Traces(sampler=ALWAYS_OFF), Terminal()
    tracing, one = TracingMiddleware(traces.provider), event()
    await cross(tracing, publish_hop(one), terminal)
    await cross(tracing, handle_hop(terminal.hops[0].events[0]), terminal)
    tracing.settled([Settlement("learner", "home", "actions", 1, one.meta, "acked", None, 1, 2)])
    assert not traces.spans
    found = terminal.hops[0].metas[0].traceparent
    assert found is not None
    assert not int(found[-2:], 16) & TraceFlags.SAMPLED


# -- without a provider ------------------------------------------------------------------------------------------


async def test_without_a_provider_nothing_changes() -> None:
    """The hop goes through as it came: the same object, the same metas."""
    terminal = Terminal()
    hops = [publish_hop(event()), handle_hop(event(traceparent=PARENT))]
    for hop in hops:
        await TracingMiddleware()(hop, terminal)
    assert terminal.hops[0] is hops[0]
    assert terminal.hops[1] is hops[1]


async def test_without_a_provider_the_trace_id_is_passed_on() -> None:
    """What a handler publishes belongs to the same free-form trace, unless it says otherwise."""
    tracing, terminal = TracingMiddleware(), Terminal()

    async def handler(hop: Hop) -> HopResult:
        await cross(tracing, publish_hop(event(), event(trace_id="own")), terminal)
        return None

    await tracing(handle_hop(event(trace_id="trace-123")), handler)
    await cross(tracing, publish_hop(event()), terminal)
    assert [meta.trace_id for meta in terminal.hops[0].metas] == ["trace-123", "own"]
    assert terminal.hops[1].metas[0].trace_id is None


async def test_without_a_provider_a_current_context_is_handed_on() -> None:
    """Somebody else's context goes into what is published, but does not leak into what a worker handles."""
    tracing, terminal, handled = TracingMiddleware(), Terminal(), Terminal()
    context = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
    token = contexts.attach(trace.set_span_in_context(NonRecordingSpan(context)))
    try:
        await cross(tracing, publish_hop(event()), terminal)

        async def handler(hop: Hop) -> HopResult:
            return await cross(tracing, publish_hop(event()), handled)

        await tracing(handle_hop(event()), handler)
    finally:
        contexts.detach(token)
    assert terminal.hops[0].metas[0].traceparent == f"00-{1:032x}-{2:016x}-01"
    assert handled.hops[0].metas[0].traceparent is None


def test_without_a_provider_it_costs_next_to_nothing() -> None:
    """A hop through it costs little more than one through an empty middleware: a few function calls."""

    async def empty(hop: Hop, call_next: Any) -> HopResult:
        result: HopResult = await call_next(hop)
        return result

    async def terminal(hop: Hop) -> HopResult:
        return None

    def time_of(middleware: Any, hop: Hop) -> float:
        def run() -> None:
            coroutine = middleware(hop, terminal)
            with pytest.raises(StopIteration):
                coroutine.send(None)

        gc.collect()
        return min(timeit.repeat(run, number=500, repeat=7)) / 500

    for hop in (publish_hop(event()), handle_hop(event(traceparent=PARENT))):
        assert time_of(TracingMiddleware(), hop) - time_of(empty, hop) < 20e-6


async def test_a_payload_is_never_touched(traces: Traces) -> None:
    """It stands where payloads are sealed, and does without."""

    class Untouchable(dict[str, Any]):
        def _refuse(self, *_: object) -> Any:
            raise AssertionError("the payload was touched")

        __getitem__ = __iter__ = __contains__ = get = items = keys = values = _refuse

    tracing, terminal = TracingMiddleware(traces.provider), Terminal()
    one: Event[Any] = Event(event().meta, Untouchable(secret="x"))
    sealed = Hop(kind="publish", metas=[one.meta], sizes=[3], _events=[one])
    await tracing(sealed, terminal)
    with pytest.raises(PermissionError):
        _ = terminal.hops[0].events
    await tracing(handle_hop(event()), terminal)
    assert len(traces.spans) == 2


# -- the whole way -----------------------------------------------------------------------------------------------


async def test_a_trace_goes_from_producer_over_the_bus_to_a_second_publish(tmp_path: Path, traces: Traces) -> None:
    """Producer, consumer, settle, and what the consumer publishes: the right parents, and the right links."""
    tracing = TracingMiddleware(traces.provider)
    async with chained_bus(tmp_path / "w", tracing) as bus:

        async def plan(one: Event[Any]) -> None:
            await bus.publish(event({"of": one.meta.event_id}, topic="plans"))

        async def act(one: Event[Any]) -> None:
            assert one.meta.trace_id == trace.format_trace_id(context_of(traces.one("events.publish plans")).trace_id)

        await bus.subscribe("actions", "planner", plan)
        await bus.subscribe("plans", "actuator", act)
        with traces.provider.get_tracer("app").start_as_current_span("request"):
            await bus.publish(event({"n": 1}))
        await settled(bus)
    request, published = traces.one("request"), traces.one("events.publish actions")
    handled, settle = traces.one("events.handle actions"), traces.one("events.settle actions")
    again, second = traces.one("events.publish plans"), traces.one("events.handle plans")

    def is_below(span: ReadableSpan, parent: ReadableSpan) -> bool:
        same = context_of(span).trace_id == context_of(parent).trace_id
        return same and span.parent is not None and span.parent.span_id == context_of(parent).span_id

    assert is_below(published, request)
    assert handled.parent is None
    assert linked(handled) == [context_of(published).span_id]
    assert is_below(settle, handled)
    assert is_below(again, handled)
    assert second.parent is None
    assert linked(second) == [context_of(again).span_id]
    assert is_below(traces.one("events.settle plans"), second)


async def test_a_plain_handler_in_its_thread_sees_the_span(tmp_path: Path, traces: Traces) -> None:
    """The context follows a function into the worker thread that runs it."""
    seen: list[int] = []

    def handler(one: Event[Any]) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async with chained_bus(tmp_path / "w", TracingMiddleware(traces.provider)) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event())
        await settled(bus)
    assert seen == [context_of(traces.one("events.handle actions")).span_id]


async def test_every_attempt_has_its_spans(tmp_path: Path, traces: Traces) -> None:
    """A retry is another handle, which links to the same producer; its settle says what became of it."""

    async def handler(one: Event[Any], delivery: Any) -> Nack | None:
        return Nack("again") if delivery.attempt < 3 else None

    async with chained_bus(tmp_path / "w", TracingMiddleware(traces.provider)) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event())
        await settled(bus)
    published = context_of(traces.one("events.publish actions")).span_id
    handles = [span for span in traces.spans if span.name == "events.handle actions"]
    settles = [span for span in traces.spans if span.name == "events.settle actions"]
    assert [attributes(span)["retries"] for span in handles] == [0, 1, 2]
    assert [linked(span) for span in handles] == [[published]] * 3
    assert [attributes(span)["messaging.cognitive_events.outcome"] for span in settles] == ["retry", "retry", "acked"]
    assert [span.parent.span_id for span in settles if span.parent] == [context_of(span).span_id for span in handles]


async def test_a_batch_is_settled_in_one_span(tmp_path: Path, traces: Traces) -> None:
    """Five events in one delivery: a span to publish, one to handle, one to settle."""

    async def handler(events: list[Event[Any]]) -> None:
        assert len(events) == 5

    async with chained_bus(tmp_path / "w", TracingMiddleware(traces.provider)) as bus:
        await bus.subscribe("actions", "learner", handler, batch=5)
        await bus.publish_many([event({"n": n}) for n in range(5)])
        await settled(bus)
    counts = {span.name: attributes(span)["messaging.batch.message_count"] for span in traces.spans}
    assert counts == {"events.publish actions": 5, "events.handle actions": 5, "events.settle actions": 5}
    assert len(traces.spans) == 3
