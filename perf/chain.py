"""What each middleware costs per event, against what OpenTelemetry's SDK costs alone (goal G6): `python -m perf.chain`.

An event is published, delivered to one group and settled, one after the other, on a store in memory, so that no disk is
measured. A middleware's cost is the difference to a bus without any. The SDK's own cost is the difference that the same
three spans, with the same attributes, and the same instruments make when they are written by hand around publish and
handler of such a bus, as OpenTelemetry's documentation shows it; beside it stands what the SDK's calls take when they
are made one behind the other, each in its cheapest form, with nothing carried through the log.

Processor time is measured, of all threads, so that neither other processes nor waiting count; rounds are interleaved,
so that a machine that slows down slows everything down.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

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
from perf.by_hand import ByHand, Telemetry, bare_calls
from perf.harness import Figures, Ratio, Report
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


async def time_bus(
    chain: list[Middleware], events: int, hand: ByHand | None = None, beside: Callable[[], None] | None = None
) -> float:
    """Seconds per event from publish to settled: through a chain, with the same by hand, or something beside it."""
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
            if beside is not None:
                beside()
        await bus.wait_settled()

    await run(events // 10)
    started = time.process_time()
    await run(events)
    elapsed = time.process_time() - started
    await bus.close()
    return elapsed / events


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


BUS: Final = "a bus without middleware"
HAND: Final = "+ OpenTelemetry by hand"
BARE: Final = "+ the SDK's calls alone"
FULL: Final = "+ tracing + metrics + RBAC"
G6: Final = "G6 full chain, against OpenTelemetry by hand"


def measured(events: int, rounds: int) -> dict[str, Figures]:
    """All figures of one run: the bus, what each chain adds to it, and single calls."""
    times: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.csv"
        policy.write_text(_POLICY)
        telemetry = Telemetry()
        made = {f"+ {name}": make for name, make in chains(telemetry, PolicyEngine(policy)).items()}
        calls = decisions(policy) | filters()
        for _ in range(rounds):
            base = anyio.run(time_bus, [], events)
            # Differences within a round: both ends have had the same machine.
            turn = {
                HAND: anyio.run(time_bus, [], events, ByHand(telemetry)) - base,
                BARE: anyio.run(time_bus, [], events, None, bare_calls(telemetry)) - base,
                **{name: anyio.run(time_bus, make(), events) - base for name, make in made.items()},
                **{name: time_call(call, events) for name, call in calls.items()},
            }
            for name, seconds in {BUS: base, **turn}.items():
                times.setdefault(name, []).append(max(seconds, 1e-8))
        telemetry.close()
    return {name: Figures(name, [1 / seconds for seconds in values]) for name, values in times.items()}


def main() -> None:
    """Measure, print, and fail when asked to and the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m perf.chain", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000, help="events a round")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-save", action="store_true", help="leave perf/results alone")
    parser.add_argument("--check", action="store_true", help="exit with 1 when goal G6 is missed")
    arguments = parser.parse_args()
    parameters = {
        "events a round": arguments.events,
        "rounds": arguments.repeats,
        "store": "memory",
        "time": "processor",
    }
    report = Report("chain", "What each middleware adds to an event, from publish to settled", parameters)
    figures = measured(arguments.events, arguments.repeats)
    report.add(figures, [Ratio(G6, FULL, HAND, 1 / GOAL), Ratio("the same, against the SDK's calls alone", FULL, BARE)])
    report.show()
    factor = figures[HAND].over(figures[FULL])
    print(f"\nG6: the full chain costs {factor:.2f} x OpenTelemetry by hand, goal {GOAL}: {_verdict(factor)}")
    if not arguments.no_save:
        print(f"saved to {report.save()}")
    if arguments.check and factor > GOAL:
        raise SystemExit(1)


def _verdict(factor: float) -> str:
    return "met" if factor <= GOAL else "MISSED"


if __name__ == "__main__":
    main()
