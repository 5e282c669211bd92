"""The gate under overload, in virtual time: what is salient keeps its latency, the rest waits or is dropped."""

import pytest

from events.attention.salience import SalienceGate
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from perf.overload import Figures, Load, overload, percentiles
from tests.events.attention.support import gated

LOAD = Load(ticks=100, per_tick=24, keen_every=12, work_s=0.01, workers=4, max_inflight=64)


async def lived_through(gate: SalienceGate | None) -> Figures:
    """The same load, on a clock that is moved."""
    clock = FakeClock()
    async with gated(gate, store=MemoryStore(clock=clock)) as bus:
        return await overload(bus, clock, LOAD, clock.advance)


async def test_salient_events_keep_their_latency_under_overload(capsys: pytest.CaptureFixture[str]) -> None:
    """Six times more than can be handled. With the packaged policy salient events are handled as they come.

    Without a gate they stand in the same queue as everything else. All times are of a clock that the test moves, so
    that they are the same on every machine.
    """
    assert LOAD.factor == 6.0
    with_gate, without = await lived_through(SalienceGate()), await lived_through(None)
    with capsys.disabled():
        print(f"\n  load {LOAD.factor:g} x capacity, virtual time")
        print("  " + with_gate.shown("gate"))
        print("  " + without.shown("no gate"))
    assert len(with_gate.keen) == with_gate.keen_published == 200
    _, late_with, latest_with = percentiles(with_gate.keen)
    median_without, late_without, _ = percentiles(without.keen)
    assert latest_with <= 100
    assert late_without >= 10 * late_with
    assert median_without >= 10 * late_with
    assert without.dropped == 0
    assert with_gate.dropped + with_gate.waiting > len(with_gate.dull)
