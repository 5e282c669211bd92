"""Spans around every publish, handle and settle, and the W3C trace context in every envelope.

    events.publish actions   PRODUCER   its context goes into the envelope as `traceparent`
    events.handle actions    CONSUMER   a trace of its own that links to the producer's; a child with `parent=True`
    events.settle actions    CLIENT     a child of the attempt that it ends

A batch is one span of each kind. What a handler publishes is a child of the handler's span. Names, sizes and the
class of an error are recorded, never a payload and, since an error's text may quote one, never that text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.span import TraceState

from events.contracts import Hop, HopResult, Next, Settlement, Stage
from events.types import EventMeta, FrozenDict
from middleware import conventions as names

if TYPE_CHECKING:
    from events.bus import EventBus

_SCOPE: Final = "cognitive_events"
_MAX_LINKS: Final = 128
_NO_CONTEXT: Final = Context()
_BAGGAGE: Final = W3CBaggagePropagator()
_trace_id: ContextVar[str | None] = ContextVar("events_trace_id", default=None)

Template = Callable[[str], str | None]
_HandleKey = tuple[str | None, str, str, int]


class TracingMiddleware:
    """Traces with whatever OpenTelemetry provider is installed; without one it hardly costs anything.

    `template` names the kind of a topic where there are many (`orders.4711` -> `orders.{id}`), for span names. One
    that raises fails the hop. A span that the sampler drops still hands its context on.
    """

    stage = Stage.TRACE

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        parent: bool = False,
        template: Template | None = None,
    ) -> None:
        self._provider = tracer_provider
        self._tracer: Tracer | None = None
        self._parent = parent
        self._base = lru_cache(1024)(partial(_base_attributes, template))
        # The context of each attempt that has ended and is about to be settled.
        self._handled: dict[_HandleKey, Context] = {}

    def attach(self, bus: EventBus) -> None:
        """A new bus: whatever the last one left unsettled will be delivered anew."""
        self._handled.clear()

    def __call__(self, hop: Hop, call_next: Next) -> Coroutine[Any, Any, HopResult]:
        # Plain, so that each hop is one coroutine less.
        tracer = self._tracer or self._find_tracer()
        if hop.kind == "publish":
            return _pass_on(hop, call_next) if tracer is None else self._publish(tracer, hop, call_next)
        return _without_ambient(hop, call_next) if tracer is None else self._handle(tracer, hop, call_next)

    def _find_tracer(self) -> Tracer | None:
        """The tracer, once there is a provider: it may be installed after us, and is never replaced."""
        provider = self._provider or trace.get_tracer_provider()
        if not isinstance(provider, trace.ProxyTracerProvider):
            self._tracer = provider.get_tracer(_SCOPE)
        return self._tracer

    # -- publish -----------------------------------------------------------------------------------------------

    async def _publish(self, tracer: Tracer, hop: Hop, call_next: Next) -> HopResult:
        metas, sizes = hop.metas, hop.sizes
        if not metas:
            return await call_next(hop)
        name, base = self._base(names.PUBLISH, "send", _common(metas, "topic"), None)
        attributes = {**base, **_about_events(metas), "size_bytes": sum(sizes)}
        if len(metas) == 1:
            attributes[names.BODY_SIZE] = sizes[0]
        span = tracer.start_span(
            name,
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            links=_links(metas),
            record_exception=False,
            set_status_on_exception=False,
        )
        token = contexts.attach(trace.set_span_in_context(span))
        try:
            result = await call_next(_in_envelopes(hop, span.get_span_context()))
            if len(metas) == 1 and isinstance(result, Sequence):
                span.set_attribute(names.OFFSET, result[0].offset)
            return result
        except BaseException as error:
            _mark_failed(span, names.error_type_of(error))
            raise
        finally:
            contexts.detach(token)
            span.end()

    # -- handle ------------------------------------------------------------------------------------------------

    async def _handle(self, tracer: Tracer, hop: Hop, call_next: Next) -> HopResult:
        metas, first = hop.metas, hop.deliveries[0]
        topic = first.topic if len(metas) == 1 else _common(metas, "topic")
        name, base = self._base(names.HANDLE, "process", topic, hop.group)
        attributes = {**base, **_about_events(metas)}
        if len(metas) == 1:
            attributes[names.BODY_SIZE] = hop.sizes[0]
            attributes[names.OFFSET] = attributes["offset"] = first.offset
            attributes[names.ATTEMPT], attributes["retries"] = first.attempt, first.attempt - 1
        context, links = self._origin(metas)
        span = tracer.start_span(
            name,
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )
        context = trace.set_span_in_context(span, context)
        token, trace_token = contexts.attach(context), _trace_id.set(metas[0].trace_id if len(metas) == 1 else None)
        started = time.perf_counter()
        try:
            result = await call_next(hop)
            if result is not None or hop.verdicts:
                _mark_outcome(span, hop, result)
            return result
        except BaseException as error:
            _mark_failed(span, names.error_type_of(error))
            raise
        finally:
            span.set_attribute("lat_ms", (time.perf_counter() - started) * 1000)
            _trace_id.reset(trace_token)
            contexts.detach(token)
            span.end()
            self._handled[hop.group, first.space_id, first.topic, first.offset] = context

    def _origin(self, metas: Sequence[EventMeta]) -> tuple[Context, Sequence[Link]]:
        """Where an attempt comes from: never from whatever ran when the worker was started."""
        meta, context = metas[0], _NO_CONTEXT
        if len(metas) > 1:
            return context, _links(metas)
        if meta.headers and "baggage" in meta.headers:
            context = _BAGGAGE.extract(meta.headers, context)
        producer = _producer_of(meta)
        if self._parent and producer is not None:
            return trace.set_span_in_context(trace.NonRecordingSpan(producer), context), ()
        return context, () if producer is None else (Link(producer),)

    # -- settle ------------------------------------------------------------------------------------------------

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """One span for the end of a delivery, below the attempt's; what was never tried links to its producer."""
        tracer = self._tracer
        if tracer is None:
            return
        context: Context | None = None
        for one in settlements:
            context = self._handled.pop((one.group, one.space_id, one.topic, one.offset), None) or context
        if context is not None and not trace.get_current_span(context).get_span_context().trace_flags.sampled:
            return
        first, metas = settlements[0], [one.meta for one in settlements]
        topic = first.topic if len(metas) == 1 else _common(metas, "topic")
        name, base = self._base(names.SETTLE, "settle", topic, first.group)
        outcomes = {one.outcome for one in settlements}
        attributes = {**base, **_about_events(metas), names.OUTCOME: first.outcome if len(outcomes) == 1 else "mixed"}
        if len(metas) == 1:
            attributes[names.OFFSET] = attributes["offset"] = first.offset
        span = tracer.start_span(
            name,
            context=_NO_CONTEXT if context is None else context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(metas) if context is None else (),
            start_time=first.started_ns,
        )
        span.end(first.ended_ns)


# -- attributes ------------------------------------------------------------------------------------------------


def _base_attributes(
    template: Template | None, operation: str, kind: str, topic: str | None, group: str | None
) -> tuple[str, Mapping[str, Any]]:
    """A span's name, and the attributes that all spans of an operation on a topic share."""
    attributes: dict[str, Any] = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: kind,
    }
    if group is not None:
        attributes |= {names.CONSUMER_GROUP: group, "group": group}
    if topic is None:
        return operation, attributes
    attributes |= {names.DESTINATION: topic, "topic": topic}
    kind_of_topic = template(topic) if template is not None else None
    if kind_of_topic is not None:
        attributes[names.DESTINATION_TEMPLATE] = kind_of_topic
    return f"{operation} {kind_of_topic or topic}", attributes


def _about_events(metas: Sequence[EventMeta]) -> dict[str, Any]:
    """What there is to say of one event, or of many together."""
    if len(metas) == 1:
        meta = metas[0]
        about: dict[str, Any] = {names.MESSAGE_ID: meta.event_id, names.SPACE: meta.space_id, "space_id": meta.space_id}
        if meta.correlation_id is not None:
            about[names.CONVERSATION_ID] = meta.correlation_id
        return about
    space = _common(metas, "space_id")
    return {names.BATCH_COUNT: len(metas), **({names.SPACE: space, "space_id": space} if space is not None else {})}


def _common(metas: Sequence[EventMeta], field: str) -> str | None:
    """The value that all of them have in a field, if they do."""
    value = getattr(metas[0], field)
    return str(value) if len(metas) == 1 or all(getattr(meta, field) == value for meta in metas) else None


def _mark_outcome(span: Span, hop: Hop, result: HopResult) -> None:
    verdicts = [names.verdict_of(hop, index, result) for index in range(len(hop.deliveries))]
    outcomes = {names.outcome_of(verdict) for verdict in verdicts}
    if outcomes != {None}:
        span.set_attribute(names.OUTCOME, outcomes.pop() or "acked" if len(outcomes) == 1 else "mixed")
    failure = next(filter(None, map(names.failure_of, verdicts)), None)
    if failure is not None:
        _mark_failed(span, failure)


def _mark_failed(span: Span, error_type: str) -> None:
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(StatusCode.ERROR)


# -- context ---------------------------------------------------------------------------------------------------


@lru_cache(512)
def _remote(traceparent: str, tracestate: str | None) -> SpanContext | None:
    """The span that an envelope names; None for the values that W3C calls invalid."""
    if traceparent.startswith("ff"):
        return None
    state = TraceState.from_header([tracestate]) if tracestate else None
    flags = trace.TraceFlags(int(traceparent[53:], 16))
    found = SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), True, flags, state)
    return found if found.is_valid else None


def _producer_of(meta: EventMeta) -> SpanContext | None:
    if meta.traceparent is None:
        return None
    return _remote(meta.traceparent, meta.headers.get("tracestate") if meta.headers else None)


def _links(metas: Sequence[EventMeta]) -> Sequence[Link]:
    """A link to each producer, once: all events of a batch may have the same one."""
    if len(metas) == 1 and metas[0].traceparent is None:
        return ()
    by_parent: dict[str | None, EventMeta] = {}
    for meta in metas:
        by_parent.setdefault(meta.traceparent, meta)
    producers = map(_producer_of, list(by_parent.values())[:_MAX_LINKS])
    return [Link(producer) for producer in producers if producer is not None]


def _in_envelopes(hop: Hop, context: SpanContext) -> Hop:
    """The hop with its context in every envelope that has none: a producer's own context is not replaced."""
    inherited = _trace_id.get()
    if not context.is_valid and inherited is None:
        return hop
    traceparent = None
    if context.is_valid:
        traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        inherited = traceparent[3:35]
    carried: dict[str, str] = {}
    if context.trace_state:
        carried["tracestate"] = context.trace_state.to_header()
    if baggage.get_all():
        _BAGGAGE.inject(carried)
    return hop.with_metas([_with_context(meta, traceparent, inherited, carried) for meta in hop.metas])


def _with_context(
    meta: EventMeta, traceparent: str | None, trace_id: str | None, carried: Mapping[str, str]
) -> EventMeta:
    changes: dict[str, Any] = {}
    if meta.traceparent is None and traceparent is not None:
        changes["traceparent"] = traceparent
        if carried:
            changes["headers"] = FrozenDict({**carried, **(meta.headers or {})})
    elif meta.traceparent is not None:
        trace_id = meta.traceparent[3:35]
    if meta.trace_id is None and trace_id is not None:
        changes["trace_id"] = trace_id
    return meta.amended(changes) if changes else meta


async def _pass_on(hop: Hop, call_next: Next) -> HopResult:
    """Publish without a provider: a context that somebody else put there is still handed on."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid or _trace_id.get() is not None:
        hop = _in_envelopes(hop, context)
    return await call_next(hop)


async def _without_ambient(hop: Hop, call_next: Next) -> HopResult:
    """Handle without a provider: what was current when the worker was started is not this event's context."""
    metas = hop.metas
    trace_token = _trace_id.set(metas[0].trace_id if len(metas) == 1 else None)
    token = contexts.attach(_NO_CONTEXT) if trace.get_current_span().get_span_context().is_valid else None
    try:
        return await call_next(hop)
    finally:
        _trace_id.reset(trace_token)
        if token is not None:
            contexts.detach(token)
