"""What each middleware costs per event, against what OpenTelemetry's SDK costs alone (goal G6): `python -m perf.chain`.

An event is published, delivered to one group and settled, one after the other, on a store in memory, so that no disk is
measured. A middleware's cost is the difference to a bus without any. The SDK's own cost is the difference that the same
three spans, with the same attributes, and the same instruments make when they are written by hand around publish and
handler of such a bus. Processor time is measured, of all threads, so that neither other processes nor waiting count;
rounds are interleaved, so that a machine that slows down slows everything down.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from events.bus import EventBus
from events.contracts import Filter, Hop, HopResult, Middleware, Next
from events.persistence.memory import MemoryStore
from events.types import Actor, Event, EventMeta
from filters import CompoundFilter, CustomFunctionFilter, JSONPathFilter, SimpleFilter, exact
from middleware import (
    CircuitBreakerMiddleware,
    FeatureFlags,
    IdempotencyMiddleware,
    MetricsMiddleware,
    QuarantineMiddleware,
    RBACMiddleware,
    RedactionMiddleware,
    TracingMiddleware,
)
from middleware.conventions import DURATION_BUCKETS_S
from policies.rbac import PolicyEngine

GOAL: Final = 1.3
_POLICY: Final = """\
p, role:agent, home*, **, publish|consume|ack, allow
p, role:agent, home*, secret.**, *, deny
g, agent:*, role:agent, *
clearance, role:agent, *, RED
# end of policy
"""
_PAYLOAD: Final = {"action_id": "a1", "status": "ok", "tags": ["one", "two"], "took_ms": 12.5}


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds an event: the median of the rounds, and how far they lie apart."""

    name: str
    median_us: float
    spread_us: float

    @classmethod
    def of(cls, name: str, seconds: Sequence[float]) -> Cost:
        """Of one time per round, each for one event."""
        micros = sorted(1e6 * value for value in seconds)
        quarter = len(micros) // 4
        return cls(name, statistics.median(micros), micros[-1 - quarter] - micros[quarter])


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


# -- on a bus --------------------------------------------------------------------------------------------------


async def _empty(hop: Hop, call_next: Next) -> HopResult:
    return await call_next(hop)


def chains(telemetry: Telemetry, engine: PolicyEngine) -> dict[str, Callable[[], list[Middleware]]]:
    """Every chain that is measured, by name; each made anew for each round."""
    flags = FeatureFlags()

    def observed() -> list[Middleware]:
        return [
            TracingMiddleware(telemetry.tracers),
            MetricsMiddleware(meter_provider=telemetry.meters),
            RBACMiddleware(engine, reload_every_s=None),
        ]

    def content() -> list[Middleware]:
        return [
            RedactionMiddleware(),
            IdempotencyMiddleware(),
            QuarantineMiddleware(),
            CircuitBreakerMiddleware(),
        ]

    return {
        "nothing": list,
        "an empty function": lambda: [_empty],
        "a flag around it": lambda: [flags.flagged(_empty, "empty")],
        "tracing, no provider": lambda: [TracingMiddleware()],
        "metrics, no provider": lambda: [MetricsMiddleware()],
        "tracing": lambda: observed()[:1],
        "metrics": lambda: observed()[1:2],
        "RBAC": lambda: observed()[2:],
        "redaction": lambda: content()[:1],
        "idempotency": lambda: content()[1:2],
        "quarantine": lambda: content()[2:3],
        "breaker": lambda: content()[3:],
        "tracing + metrics + RBAC": observed,
        "all of them": lambda: [*observed(), *content()],
    }


async def time_bus(chain: list[Middleware], events: int, hand: ByHand | None = None) -> float:
    """Seconds per event from publish to settled: through a chain, or with the same written by hand around it."""
    bus = EventBus(chain, store=MemoryStore())
    planner = bus.bind("agent:planner")

    async def handle(event: Event[Any]) -> None:
        return None

    async def publish(event: Event[Any]) -> None:
        await planner.publish(event)

    handler = handle if hand is None else hand.around_handler(handle)
    publishes = publish if hand is None else hand.around_publish(publish)
    await planner.subscribe("actions", "learner", handler, space="home")

    async def run(number: int) -> None:
        for _ in range(number):
            meta = EventMeta(topic="actions", type="ACTION_EXECUTED", space_id="home", actor="agent:planner")
            await publishes(Event(meta, _PAYLOAD))
        await bus.wait_settled()

    await run(events // 10)
    started = time.process_time()
    await run(events)
    elapsed = time.process_time() - started
    await bus.close()
    return elapsed / events


# -- by hand ---------------------------------------------------------------------------------------------------

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


# -- decisions and filters -------------------------------------------------------------------------------------


def time_call(call: Callable[[], object], number: int) -> float:
    """Seconds per call."""
    started = time.process_time()
    for _ in range(number):
        call()
    return (time.process_time() - started) / number


def decisions(policy: Path) -> dict[str, Callable[[], object]]:
    """One authorisation, with the cache and without."""
    cached, uncached = PolicyEngine(policy), PolicyEngine(policy, cache_size=0)
    return {
        "RBAC decision, cached": lambda: cached.decide("agent:planner", "publish", "actions", "home"),
        "RBAC decision, no cache": lambda: uncached.decide("agent:planner", "publish", "actions", "home"),
    }


def filters() -> dict[str, Callable[[], object]]:
    """One question to each kind of filter."""
    alice = Actor(user_id="alice")
    meta = EventMeta(topic="actions", type="ACTION_EXECUTED", space_id="home", actor=alice, priority=75)
    event = Event(meta, {**_PAYLOAD, "items": [{"n": n, "ok": n % 2 == 0} for n in range(10)]})
    urgent, hers = SimpleFilter("meta.priority", 75, "exact"), SimpleFilter("meta.actor.user_id", "alice", "exact")
    kinds: dict[str, Filter] = {
        "SimpleFilter exact": urgent,
        "SimpleFilter regex": SimpleFilter("payload.status", "^o.*", "regex"),
        "CompoundFilter AND": CompoundFilter("AND", [urgent, hers]),
        "CloudEvents exact": exact({"type": "ACTION_EXECUTED"}),
        "JSONPath, plain path": JSONPathFilter("$.meta.actor.user_id"),
        "JSONPath, filter over 10": JSONPathFilter("$.payload.items[?@.n == 7]"),
        "JSONPath-ng, filter over 10": JSONPathFilter("$.payload.items[?(@.n == 7)]", dialect="jsonpath-ng"),
        "CustomFunctionFilter": CustomFunctionFilter(lambda one: one.payload["status"] == "ok", name="ok"),
    }
    return {name: partial(kind.matches, event) for name, kind in kinds.items()}


# -- the run ---------------------------------------------------------------------------------------------------


def measure(events: int, rounds: int) -> dict[str, Any]:
    """All figures of one run."""
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.csv"
        policy.write_text(_POLICY)
        telemetry = Telemetry()
        made = chains(telemetry, PolicyEngine(policy))
        calls = decisions(policy) | filters()
        for _ in range(rounds):
            times.setdefault("SDK by hand", []).append(anyio.run(time_bus, [], events, ByHand(telemetry)))
            for name, make in made.items():
                times.setdefault(name, []).append(anyio.run(time_bus, make(), events))
            for name, call in calls.items():
                times.setdefault(name, []).append(time_call(call, events))
        telemetry.close()
    costs = {name: Cost.of(name, values) for name, values in times.items()}
    # Differences round by round: both ends of each have had the same machine.
    above = {
        name: Cost.of(name, [full - bare for full, bare in zip(times[name], times["nothing"], strict=True)])
        for name in ["SDK by hand", *made]
        if name != "nothing"
    }
    rounds_of = zip(times["tracing + metrics + RBAC"], times["nothing"], times["SDK by hand"], strict=True)
    ratios = [(full - bare) / (sdk - bare) for full, bare, sdk in rounds_of]
    return {
        "parameters": {"events": events, "rounds": rounds, "store": "memory", "publishers": 1, "workers": 1},
        "bus_us": asdict(costs["nothing"]),
        "above_us": {name: asdict(cost) for name, cost in above.items()},
        "calls_us": {name: asdict(costs[name]) for name in calls},
        "g6_ratio": statistics.median(ratios),
        "g6_goal": GOAL,
    }


def show(figures: dict[str, Any]) -> None:
    """The figures for a person."""
    parameters = figures["parameters"]
    print(f"{parameters['events']} events a round, {parameters['rounds']} rounds; median µs (half of them within)")
    print(f"\n  {'a bus without middleware':<30}{_shown(figures['bus_us'])}   publish, handle, settle\n")
    longest = max(cost["median_us"] for cost in figures["above_us"].values())
    for name, cost in figures["above_us"].items():
        print(f"  + {name:<28}{_shown(cost)}   {'▇' * max(0, round(40 * cost['median_us'] / longest))}")
    print()
    for name, cost in figures["calls_us"].items():
        print(f"  {name:<30}{_shown(cost)}   {1e6 / cost['median_us']:>12,.0f} /s")
    verdict = "met" if figures["g6_ratio"] <= GOAL else "MISSED"
    print(f"\nG6: tracing + metrics + RBAC cost {figures['g6_ratio']:.2f} x the SDK by hand (goal {GOAL}): {verdict}")


def _shown(cost: dict[str, Any]) -> str:
    return f"{cost['median_us']:>9.2f} (±{cost['spread_us'] / 2:.2f})".ljust(20)


def main() -> None:
    """Measure, print, and fail when asked to and the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m perf.chain", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--check", action="store_true", help="exit with 1 when goal G6 is missed")
    arguments = parser.parse_args()
    figures = measure(arguments.events, arguments.rounds)
    show(figures)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.check and figures["g6_ratio"] > GOAL:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
