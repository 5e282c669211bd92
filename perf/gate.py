"""What a gate costs for each event, and what it is good for: `python -m perf.gate`.

First the gates by themselves, then the whole step in a group (event, context, decision, note for the journal), then
the way from publish to settled with and without, on a real disk. Last the same overload with a gate and without, in
real time: what becomes of the latency of what matters, and of the rest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from events.attention.salience import SalienceGate
from events.attention_gate import AttentionGate, CompositeGate, Gate, GateContext, Situation
from events.bus import EventBus
from events.persistence.memory import MemoryStore
from events.types import Event, EventMeta
from perf.harness import Ratio, Report, Round, measure
from perf.overload import Load, overload
from policies.attention import AttentionPolicy

GOAL_US: Final = 2.0
PLAIN: Final = "plain admit of the base gate"
_SPACE: Final = "home"
_RECORDS: Final = 256
_NEVER: Final = "[levels.strained]\nenter = 1000.0\nleave = 999.0\n[levels.overloaded]\nenter = 1001.0\nleave = 999.0\n"
"""A policy under which no load is too much: so that the cost of deciding is measured, and not that of deferring."""


def an_event(number: int = 0) -> Event:
    """A small event, about 270 bytes of JSON."""
    meta = EventMeta(topic="senses", type="SENSED", space_id=_SPACE, actor="agent:eye", key=f"k{number % 8}")
    return Event(meta, {"n": number, "arousal": 0.4, "valence": -0.2, "text": "something moved in the garden"})


def repeated(call: Callable[[], object], number: int) -> Round:
    """A round of calls."""

    async def run() -> int:
        for _ in range(number):
            call()
        return number

    return run


def gates_alone(number: int) -> dict[str, Round]:
    """`decide` by itself, on an event whose payload is decoded."""
    event = an_event()
    context = GateContext("mind", _SPACE, "senses", 1, 1_700_000_000_000, 1_699_999_999_000, 3, 1024)
    strained = context._replace(situation=Situation("strained", 0.7), familiarity=3.0)
    base, salience = AttentionGate(), SalienceGate(AttentionPolicy.load_file())
    composite = CompositeGate([base, base, base])

    def whole() -> None:
        sensed = salience.sense(event, context)
        salience.learn(event, sensed, salience.decide(event, sensed))

    return {
        PLAIN: repeated(lambda: base.decide(event, context), number),
        "three base gates composed": repeated(lambda: composite.decide(event, context), number),
        "SalienceGate: decide": repeated(lambda: salience.decide(event, strained), number),
        "SalienceGate: sense, decide, learn": repeated(whole, number),
    }


@asynccontextmanager
async def step_in_a_group(gate: Gate, number: int) -> Any:
    """The whole of step 6, as a group takes it."""
    bus = EventBus(store=MemoryStore(), gate=gate)
    await bus.start()
    try:
        await bus.subscribe("senses", "mind", _nothing)
        await bus.publish_many([an_event(index) for index in range(_RECORDS)])
        await bus.wait_settled()
        group = bus._dispatcher.groups["mind"]
        (cursor,) = group.cursors.values()
        records, keeper = list(cursor.log.recent(1)), group.services.keeper
        assert keeper is not None

        async def run() -> int:
            for _ in range(number // _RECORDS):
                for record in records:
                    keeper.ask(group, cursor, record, 0, may_defer=True)
                await keeper.flush(cursor, group.name)
            return number // _RECORDS * _RECORDS

        yield run
    finally:
        await bus.close(timeout_s=5)


async def _nothing(event: Event) -> None:
    pass


def end_to_end(make: Callable[[], Gate | None], number: int) -> Round:
    """Published in batches of 500 to a real disk, delivered, settled, checkpointed."""

    async def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            async with EventBus(workspace=folder, gate=make()) as bus:
                await bus.subscribe("senses", "mind", _nothing)
                for start in range(0, number, 500):
                    await bus.publish_many([an_event(index) for index in range(start, start + 500)])
                await bus.wait_settled()
        return number

    return run


def patient() -> SalienceGate:
    """The default gate, under a policy that no load disturbs."""
    return SalienceGate(AttentionPolicy.parse(_NEVER))


async def costs(report: Report, *, number: int, events: int, repeats: int) -> None:
    """Microseconds an event, all of them."""
    async with (
        step_in_a_group(AttentionGate(), number) as base,
        step_in_a_group(patient(), number) as salience,
    ):
        figures = await measure(
            {
                **gates_alone(number),
                "whole step in a group, base gate": base,
                "whole step in a group, SalienceGate": salience,
            },
            repeats=repeats,
        )
    ways = {
        "publish to settled, no gate": end_to_end(lambda: None, events),
        "publish to settled, base gate": end_to_end(AttentionGate, events),
        "publish to settled, SalienceGate": end_to_end(patient, events),
    }
    figures |= await measure(ways, repeats=max(3, repeats // 2))
    none, *gated = ways
    report.add(figures, [Ratio(f"{name} / {none}", name, none) for name in gated])


async def overloads(load: Load) -> list[str]:
    """The same load in real time, on a real disk, with the packaged policy and without a gate."""
    lines = []
    for name, gate in (("gate", SalienceGate()), ("no gate", None)):
        with tempfile.TemporaryDirectory() as folder:
            bus = EventBus(workspace=Path(folder), gate=gate)
            await bus.start()
            try:
                lines.append((await overload(bus, bus.clock, load, anyio.sleep)).shown(name))
            finally:
                await bus.close(timeout_s=0)
    return lines


async def run(arguments: argparse.Namespace) -> bool:
    """Measure and print; whether the goal was met."""
    load = Load(ticks=arguments.ticks)
    parameters = {"decisions a round": arguments.number, "events a round": arguments.events}
    report = Report("gate", "What an attention gate costs for each event", parameters)
    await costs(report, number=arguments.number, events=arguments.events, repeats=arguments.repeats)
    report.show()
    took_us = report.figures[PLAIN].microseconds
    met = took_us < GOAL_US
    print(f"\n{PLAIN}: {took_us:.2f} µs, goal under {GOAL_US:g}: {'met' if met else 'MISSED'}")
    print(f"\nThe same overload, {load.factor:g} times what the group can handle, in real time")
    for line in await overloads(load):
        print("  " + line)
    if not arguments.no_save:
        print(f"saved to {report.save()}")
    return met


def main() -> None:
    """Run; fail when asked to and the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m perf.gate", description=__doc__)
    parser.add_argument("--number", type=int, default=20_480, help="decisions a round")
    parser.add_argument("--events", type=int, default=10_000, help="events a round, from publish to settled")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ticks", type=int, default=300, help="how long the overload lasts, in hundredths of a second")
    parser.add_argument("--no-save", action="store_true", help="leave perf/results alone")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the goal is missed")
    arguments = parser.parse_args()
    if not anyio.run(run, arguments) and arguments.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
