"""The spans and instruments of the chain without the chain: what OpenTelemetry's SDK costs for them by itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from events.types import Event
from middleware.conventions import DURATION_BUCKETS_S


class _NullExporter(SpanExporter):
    """Takes spans and drops them: what an exporter does with them is not measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Telemetry:
    """An SDK as in production: every span recorded and batch-exported, every instrument aggregated."""

    def __init__(self) -> None:
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(BatchSpanProcessor(_NullExporter(), max_queue_size=65_536))
        self.meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)

    def close(self) -> None:
        """Stop the exporter's thread."""
        self.tracers.shutdown()
        self.meters.shutdown()


Step = Callable[[Event[Any]], Awaitable[None]]


class ByHand:
    """The same spans and instruments, at the same places, by somebody who has only OpenTelemetry: what that costs.

    Written as its documentation shows it: spans as context managers, the context in and out of the envelope by its
    own propagator, instruments with ready-made attributes.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer = telemetry.tracers.get_tracer("by-hand")
        meter = telemetry.meters.get_meter("by-hand")
        buckets = DURATION_BUCKETS_S
        self._operation = meter.create_histogram("operation", "s", explicit_bucket_boundaries_advisory=buckets)
        self._process = meter.create_histogram("process", "s", explicit_bucket_boundaries_advisory=buckets)
        self._sent, self._consumed = meter.create_counter("sent"), meter.create_counter("consumed")
        self._propagator = TraceContextTextMapPropagator()
        measured = {"messaging.system": "cognitive_events", "messaging.destination.name": "actions"}
        group = {"messaging.consumer.group.name": "learner"}
        kinds = {"publish": "send", "handle": "process", "settle": "settle"}
        named = {
            name: {"messaging.operation.name": f"events.{name}", "messaging.operation.type": kind}
            for name, kind in kinds.items()
        }
        self._measured = {name: {**measured, **named[name], **({} if name == "publish" else group)} for name in kinds}
        self._base = {
            name: {**self._measured[name], "topic": "actions", **({} if name == "publish" else {"group": "learner"})}
            for name in kinds
        }

    def around_publish(self, publish: Step) -> Step:
        """A publish with its span, its context in the envelope, and its instruments."""

        async def published(event: Event[Any]) -> None:
            started = time.perf_counter()
            attributes = {
                **self._base["publish"],
                **_about(event),
                "size_bytes": 70,
                "messaging.message.body.size": 70,
            }
            with self._tracer.start_as_current_span(
                "events.publish actions", kind=SpanKind.PRODUCER, attributes=attributes
            ) as span:
                carrier: dict[str, str] = {}
                self._propagator.inject(carrier)
                changes = {"traceparent": carrier["traceparent"], "trace_id": carrier["traceparent"][3:35]}
                await publish(Event.remade(event, event.meta.amended(changes)))
                span.set_attribute("messaging.cognitive_events.offset", 1)
            self._operation.record(time.perf_counter() - started, self._measured["publish"])
            self._sent.add(1, self._measured["publish"])

        return published

    def around_handler(self, handle: Step) -> Step:
        """A handler with its span, which links to the producer's, the span of its settlement, and its instruments."""

        async def handled(event: Event[Any]) -> None:
            started = time.perf_counter()
            carrier = {"traceparent": event.meta.traceparent or ""}
            producer = trace.get_current_span(self._propagator.extract(carrier)).get_span_context()
            place = {"messaging.cognitive_events.offset": 1, "offset": 1}
            attributes = {
                **self._base["handle"],
                **_about(event),
                **place,
                "messaging.cognitive_events.attempt": 1,
                "retries": 0,
                "messaging.message.body.size": 70,
            }
            with self._tracer.start_as_current_span(
                "events.handle actions",
                context=contexts.Context(),
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(producer)],
            ) as span:
                await handle(event)
                span.set_attribute("lat_ms", (time.perf_counter() - started) * 1000)
                self._process.record(time.perf_counter() - started, self._measured["handle"])
                self._consumed.add(1, self._measured["handle"])
                outcome = {"messaging.cognitive_events.outcome": "acked"}
                self._tracer.start_span(
                    "events.settle actions",
                    kind=SpanKind.CLIENT,
                    attributes={**self._base["settle"], **_about(event), **place, **outcome},
                ).end()
                self._operation.record(0.0, self._measured["settle"])

        return handled


def _about(event: Event[Any]) -> dict[str, Any]:
    meta = event.meta
    return {
        "messaging.message.id": meta.event_id,
        "messaging.cognitive_events.space": meta.space_id,
        "space_id": meta.space_id,
    }


def bare_calls(telemetry: Telemetry) -> Callable[[], None]:
    """The SDK's calls for one event and nothing else, one behind the other, each in its cheapest form."""
    tracer = telemetry.tracers.get_tracer("bare")
    meter = telemetry.meters.get_meter("bare")
    operation = meter.create_histogram("bare-operation", "s", explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S)
    process = meter.create_histogram("bare-process", "s", explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S)
    sent, consumed = meter.create_counter("bare-sent"), meter.create_counter("bare-consumed")
    base = {"messaging.system": "cognitive_events", "messaging.destination.name": "actions", "topic": "actions"}
    about = {"messaging.message.id": "ev-1", "messaging.cognitive_events.space": "home", "space_id": "home"}
    group = {"messaging.consumer.group.name": "learner", "group": "learner"}
    named = {name: {"messaging.operation.name": name, "messaging.operation.type": "x"} for name in "phs"}
    sizes = {"size_bytes": 70, "messaging.message.body.size": 70}
    place = {"messaging.cognitive_events.offset": 1, "offset": 1}
    tries = {"messaging.cognitive_events.attempt": 1, "retries": 0}
    outcome = {"messaging.cognitive_events.outcome": "acked"}
    measured = {key: base[key] for key in list(base)[:2]}
    published, handled, settled = (
        {**measured, **named["p"]},
        {**measured, **named["h"], "messaging.consumer.group.name": "learner"},
        {**measured, **named["s"], "messaging.consumer.group.name": "learner"},
    )

    def one_event() -> None:
        span = tracer.start_span("publish", kind=SpanKind.PRODUCER, attributes={**base, **named["p"], **about, **sizes})
        token = contexts.attach(trace.set_span_in_context(span))
        span.set_attribute("messaging.cognitive_events.offset", 1)
        contexts.detach(token)
        span.end()
        operation.record(0.001, published)
        sent.add(1, published)
        attempt = tracer.start_span(
            "handle",
            context=contexts.Context(),
            kind=SpanKind.CONSUMER,
            attributes={**base, **named["h"], **about, **group, **place, **tries, "messaging.message.body.size": 70},
            links=[Link(span.get_span_context())],
        )
        token = contexts.attach(trace.set_span_in_context(attempt))
        attempt.set_attribute("lat_ms", 0.1)
        contexts.detach(token)
        attempt.end()
        process.record(0.001, handled)
        consumed.add(1, handled)
        ended = tracer.start_span(
            "settle",
            context=trace.set_span_in_context(attempt, contexts.Context()),
            kind=SpanKind.CLIENT,
            attributes={**base, **named["s"], **about, **group, **place, **outcome},
            start_time=1,
        )
        ended.end(2)
        operation.record(0.001, settled)

    return one_event
