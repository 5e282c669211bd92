"""The gate as a group meets it: when it is asked, what becomes of its answer, and what it may not do (rule W13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.attention_gate import Admit, AttentionGate, Boost, CompositeGate, Decision, Defer, Drop, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.persistence.memory import MemoryStore
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, Nack
from tests.events.bus_support import Collector, Held, an_event, group_of, settled, some_events, until


class Asked:
    """A gate that notes what it was asked, and answers by a function."""

    def __init__(self, answer: Callable[[Event, GateContext], Decision] = lambda event, context: Admit()) -> None:
        self._answer = answer
        self.asked: Counter[tuple[str, int]] = Counter()
        self.contexts: list[GateContext] = []

    def decide(self, event: Event, context: GateContext) -> Decision:
        self.asked[context.group, context.offset] += 1
        self.contexts.append(context)
        return self._answer(event, context)


def _context(**changes: Any) -> GateContext:
    fields: dict[str, Any] = {
        "group": "learner",
        "space_id": "home",
        "topic": "actions",
        "offset": 1,
        "now_ms": 1,
        "appended_ms": 1,
        "inflight": 0,
        "max_inflight": 1,
    }
    return GateContext(**{**fields, **changes})


def test_a_gate_as_it_stands_admits_everything() -> None:
    """W13: four hooks that say nothing let everything pass."""
    assert AttentionGate().decide(an_event(), _context()) == Admit()


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({"drop", "defer", "boost", "admit"}, Drop),
        ({"defer", "boost", "admit"}, Defer),
        ({"boost", "admit"}, Boost),
        ({"boost"}, Boost),
        ({"admit"}, Admit),
        (set(), Drop),
    ],
)
def test_the_hooks_are_asked_in_order(hooks: set[str], expected: type[Decision]) -> None:
    """W13: drop, defer, boost, admit; what is not admitted is dropped."""

    class Gate(AttentionGate):
        defer_s = 9.0
        boost_to = 80

        def drop(self, event: Event[Any]) -> bool:
            return "drop" in hooks

        def defer(self, event: Event[Any]) -> bool:
            return "defer" in hooks

        def boost(self, event: Event[Any]) -> bool:
            return "boost" in hooks

        def admit(self, event: Event[Any]) -> bool:
            return "admit" in hooks

    decision = Gate().decide(an_event(), _context())
    assert isinstance(decision, expected)
    assert getattr(decision, "seconds", 9.0) == 9.0
    assert getattr(decision, "priority", 80) == 80


def test_a_composite_of_none_admits() -> None:
    """W13: no word is no objection."""
    assert CompositeGate([]).decide(an_event(), _context()) == Admit()


async def test_each_group_is_asked_once_about_each_event(fake_clock: FakeClock) -> None:
    """W13: one decision per group and offset, however long the queue and however the events wait in it."""
    gate = Asked()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate)
    first, second = Held(), Collector()
    await bus.subscribe("actions", "first", first, max_inflight=2, overflow="spill")
    await bus.subscribe("actions", "second", second)
    await bus.publish_many(some_events(range(10), key="k"))
    await fake_clock.advance(10)
    first.let_go()
    await settled(bus)
    assert gate.asked == {(group, offset): 1 for group in ("first", "second") for offset in range(1, 11)}
    await bus.close(timeout_s=0)


async def test_an_attempted_event_is_never_gated_again(fake_clock: FakeClock) -> None:
    """W13: retries pass the gate by; it cannot drop what a handler has begun."""
    gate = Asked(lambda event, context: Admit() if fake_clock.monotonic() < 1 else Drop())
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate)
    recorder = Recorder(lambda recorded: Nack(delay=10) if recorded.attempt < 4 else None)
    await bus.subscribe("actions", "learner", recorder)
    await bus.publish(an_event(1))
    await fake_clock.advance(100)
    assert [one.attempt for one in recorder.deliveries] == [1, 2, 3, 4]
    assert gate.asked == {("learner", 1): 1}
    await bus.close(timeout_s=0)


async def test_who_was_admitted_stays_so_while_its_lane_backs_off(fake_clock: FakeClock) -> None:
    """W13: followers that were judged and then parked behind a failing head are not judged a second time."""
    gate = Asked(lambda event, context: Boost(90) if fake_clock.monotonic() < 1 else Drop())
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate)
    recorder = Recorder(lambda recorded: Nack(delay=10) if recorded.offset == 1 and recorded.attempt == 1 else None)
    await bus.subscribe("actions", "learner", recorder)
    await bus.publish_many(some_events(range(5), key="k"))
    await fake_clock.advance(0.5)
    assert group_of(bus, "learner")["parked"] == 5
    await fake_clock.advance(100)
    await settled(bus)
    assert recorder.offsets == [1, 1, 2, 3, 4, 5]
    assert set(gate.asked.values()) == {1}
    await bus.close(timeout_s=0)


async def test_a_deferral_outlives_a_restart(fake_clock: FakeClock) -> None:
    """W13, W7: a deferred event is not asked about before its time, in this process or the next."""
    gate = Asked(lambda event, context: Admit() if context.deferrals else Defer(100))
    store = MemoryStore(clock=fake_clock)
    collector = Collector()
    bus = EventBus(store=store, gate=gate)
    await bus.subscribe("actions", "learner", collector)
    await bus.publish(an_event(1))
    await fake_clock.advance(40)
    await bus.close(timeout_s=0)
    bus = EventBus(store=store, gate=gate)
    await bus.subscribe("actions", "learner", collector)
    await fake_clock.advance(59)
    assert (collector.numbers, gate.asked["learner", 1]) == ([], 1)
    await fake_clock.advance(2)
    assert (collector.numbers, gate.asked["learner", 1]) == ([1], 2)
    assert [context.deferrals for context in gate.contexts] == [0, 1]
    await bus.close(timeout_s=0)


async def test_nothing_is_deferred_for_ever(fake_clock: FakeClock) -> None:
    """W7: after `max_deferrals` a defer counts as an admit."""
    gate = Asked(lambda event, context: Defer(10))
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate, config=BusConfig(max_deferrals=3))
    await bus.subscribe("actions", "learner", collector)
    await bus.publish(an_event(1))
    await fake_clock.advance(29)
    assert collector.numbers == []
    await fake_clock.advance(2)
    assert collector.numbers == [1]
    assert group_of(bus, "learner")["deferred"] == 3
    await bus.close(timeout_s=0)


async def test_a_gate_drops_with_a_count_and_does_not_hold_up_the_lane(fake_clock: FakeClock) -> None:
    """W11: dropped events are settled with the reason; those behind them go on."""
    gate = Asked(lambda event, context: Drop("noise") if event.payload["n"] % 2 else Admit())
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=gate)
    await bus.subscribe("actions", "learner", collector)
    await bus.publish_many(some_events(range(6), key="k"))
    await settled(bus)
    assert collector.numbers == [0, 2, 4]
    assert group_of(bus, "learner")["dropped"] == 3
    await bus.close(timeout_s=0)


@pytest.mark.parametrize("answer", [None, "admit", Defer(float("nan")), Defer(float("inf")), Defer(-1)])
async def test_an_answer_that_means_nothing_admits(fake_clock: FakeClock, answer: Any) -> None:
    """W13: a gate's slip neither loses an event nor stops its publisher."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=Asked(lambda event, context: answer))
    await bus.subscribe("actions", "learner", collector)
    with anyio.fail_after(5):
        await bus.publish(an_event(1))
    await fake_clock.advance(1)
    assert collector.numbers == [1]
    await bus.close(timeout_s=0)


async def test_a_gate_that_raises_admits(fake_clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """W13: what it cannot judge is processed, and the log says so."""

    def fail(event: Event, context: GateContext) -> Decision:
        raise LookupError("no idea")

    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=Asked(fail))
    await bus.subscribe("actions", "learner", collector)
    await bus.publish_many(some_events(range(3)))
    await settled(bus)
    assert collector.numbers == [0, 1, 2]
    assert "no idea" in caplog.text
    await bus.close(timeout_s=0)


async def test_decisions_are_on_disk_when_their_events_are_settled(tmp_path: Path) -> None:
    """W13: journaled before the checkpoint that settles them, in a folder of their own."""
    config = BusConfig(wal=WalSettings(ballast_bytes=0), checkpoint_interval_s=0.01)
    gate = Asked(lambda event, context: Drop("noise") if event.payload["n"] else Admit())
    async with EventBus(workspace=tmp_path / "w", config=config, gate=gate) as bus:
        await bus.subscribe("actions", "learner", Collector())
        await bus.publish_many(some_events(range(2)))
        await settled(bus)
        await until(lambda: list((tmp_path / "w").rglob("offsets/*.json")))
        [journal] = (tmp_path / "w").rglob("gate/*.jsonl")
        assert "noise" in journal.read_text()
