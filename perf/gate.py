"""What a gate costs for each event, and what it is good for: `python -m perf.gate`.

Prints the median and the spread of some repetitions in microseconds an event: the gates by themselves, the whole step
in a group (context, decision, journal), and the way from publish to settled with and without. Then the same overload
with and without a gate, in real time on a real disk. `--json` for a program; `--quick` for a look.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio

from events.attention.salience import SalienceGate
from events.attention_gate import AttentionGate, CompositeGate, Gate, GateContext, Situation
from events.bus import EventBus
from events.persistence.memory import MemoryStore
from events.types import Event, EventMeta
from perf.overload import Load, overload, percentiles
from policies.attention import AttentionPolicy

PLAIN_ADMIT_GOAL_US: Final = 2.0
_SPACE: Final = "home"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds for one event."""

    name: str
    median_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        return f"  {self.name:<58} {self.median_us:8.2f}   ({self.low_us:.2f} to {self.high_us:.2f})"


def measured(name: str, run: Callable[[], None], number: int, repeats: int) -> Cost:
    """Run `number` times, again and again; once before to warm up."""
    run_many(run, number // 10 + 1)
    times = [run_many(run, number) / number * 1e6 for _ in range(repeats)]
    return Cost(name, median(times), min(times), max(times))


def run_many(run: Callable[[], None], number: int) -> float:
    """The seconds that so many runs take, without the collector in between."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        for _ in range(number):
            run()
        return time.perf_counter() - began
    finally:
        gc.enable()


def an_event(number: int = 0, topic: str = "senses") -> Event:
    """A small event, as PERFORMANCE.md has them."""
    meta = EventMeta(topic=topic, type="SENSED", space_id=_SPACE, actor="agent:eye", key=f"k{number % 8}")
    return Event(meta, {"n": number, "arousal": 0.4, "valence": -0.2, "text": "something moved in the garden " * 3})


def a_context(number: int = 1) -> GateContext:
    """What a gate is told of it."""
    return GateContext("mind", _SPACE, "senses", number, 1_700_000_000_000, 1_699_999_999_000, 3, 1024)


def gates_alone(number: int, repeats: int) -> list[Cost]:
    """`decide` by itself, on an event whose payload is decoded."""
    event, context = an_event(), a_context()
    base, salience = AttentionGate(), SalienceGate(AttentionPolicy.load_file())
    strained = context._replace(situation=Situation("strained", 0.7), familiarity=3.0)

    def sensed() -> None:
        found = salience.sense(event, context)
        salience.learn(event, found, salience.decide(event, found))

    composite = CompositeGate([base, base, base])
    asked: list[tuple[str, Callable[[], object]]] = [
        ("plain admit of the base gate (goal: under 2)", lambda: base.decide(event, context)),
        ("three base gates composed", lambda: composite.decide(event, context)),
        ("SalienceGate, packaged policy: decide", lambda: salience.decide(event, strained)),
        ("SalienceGate: sense, decide, learn", sensed),
    ]
    return [measured(name, lambda ask=ask: ask() and None, number, repeats) for name, ask in asked]  # type: ignore[misc]


async def step_in_a_group(gate: Gate, number: int, repeats: int, name: str) -> Cost:
    """The whole of step 6 as a group takes it: record to event, context, decision, note for the journal."""
    bus = EventBus(store=MemoryStore(), gate=gate)
    await bus.start()
    try:
        await bus.subscribe("senses", "mind", _nothing, start="latest")
        await bus.publish_many([an_event(index) for index in range(256)])
        await bus.wait_settled()
        group = bus._dispatcher.groups["mind"]
        (cursor,) = group.cursors.values()
        records = list(cursor.log.recent(1))
        keeper = group.services.keeper
        assert keeper is not None

        def one() -> None:
            for record in records:
                keeper.ask(group, cursor, record, 0, may_defer=True)

        cost = measured(name, one, max(1, number // 256), repeats)
        return replace(cost, median_us=cost.median_us / 256, low_us=cost.low_us / 256, high_us=cost.high_us / 256)
    finally:
        await bus.close(timeout_s=5)


async def _nothing(event: Event) -> None:
    pass


async def end_to_end(gate: Gate | None, number: int, name: str) -> Cost:
    """Published in batches of 500 to a real disk, delivered, settled, checkpointed."""
    times: list[float] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            async with EventBus(workspace=folder, gate=gate) as bus:
                await bus.subscribe("senses", "mind", _nothing)
                events = [an_event(index) for index in range(number)]
                began = time.perf_counter()
                for start in range(0, number, 500):
                    await bus.publish_many(events[start : start + 500])
                await bus.wait_settled()
                times.append((time.perf_counter() - began) / number * 1e6)
        gate = type(gate)() if gate is not None else None  # one gate serves one bus
    return Cost(name, median(times), min(times), max(times))


async def overloaded(gate: Gate | None, load: Load) -> dict[str, Any]:
    """The same load in real time, on a real disk."""
    with tempfile.TemporaryDirectory() as folder:
        bus = EventBus(workspace=Path(folder), gate=gate)
        await bus.start()
        try:
            figures = await overload(bus, bus.clock, load, anyio.sleep)
        finally:
            await bus.close(timeout_s=0)
    keen, dull = percentiles(figures.keen), percentiles(figures.dull)
    return {
        "line": figures.shown("gate" if gate is not None else "no gate"),
        "salient_published": figures.keen_published,
        "salient_handled": len(figures.keen),
        "salient_ms": dict(zip(("p50", "p95", "p99"), keen, strict=True)),
        "other_handled": len(figures.dull),
        "other_ms": dict(zip(("p50", "p95", "p99"), dull, strict=True)),
        "dropped": figures.dropped,
        "deferrals": figures.deferrals,
        "waiting": figures.waiting,
    }


async def run(*, quick: bool) -> dict[str, Any]:
    """Everything, as data."""
    number, repeats, events = (20_000, 3, 2_000) if quick else (200_000, 7, 20_000)
    load = Load(ticks=50 if quick else 300)
    costs = gates_alone(number, repeats)
    steps = [("base gate", AttentionGate()), ("SalienceGate", SalienceGate())]
    costs += [await step_in_a_group(gate, number, repeats, f"whole step in a group, {name}") for name, gate in steps]
    chosen: list[tuple[str, Gate | None]] = [("no gate", None), *((name, type(gate)()) for name, gate in steps)]
    costs += [await end_to_end(gate, events, f"publish to settled, batches of 500, {name}") for name, gate in chosen]
    return {
        "costs": [asdict(cost) for cost in costs],
        "load": {**asdict(load), "factor": load.factor},
        "overload": [await overloaded(gate, load) for gate in (SalienceGate(), None)],
        "goal": {"plain_admit_us": PLAIN_ADMIT_GOAL_US, "met": costs[0].median_us < PLAIN_ADMIT_GOAL_US},
    }


def main() -> None:
    """Measure and print; the exit code says whether the goal was met."""
    parser = argparse.ArgumentParser(prog="python -m perf.gate", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: a look, no figures to quote")
    parser.add_argument("--json", action="store_true", help="as data")
    arguments = parser.parse_args()
    found = anyio.run(lambda: run(quick=arguments.quick))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"{'microseconds an event':<60} {'median':>8}   (low to high)")
        for cost in found["costs"]:
            print(Cost(**cost))
        print(f"\noverload, {found['load']['factor']:g} x what the group can handle, real time and disk")
        for outcome in found["overload"]:
            print("  " + outcome["line"])
    sys.exit(0 if found["goal"]["met"] else 1)


if __name__ == "__main__":
    main()
