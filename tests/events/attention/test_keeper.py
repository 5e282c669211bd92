"""A gate on the bus: each hook alone and composed, what a gate is told, and what happens when it breaks."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from events.attention_gate import Admit, AttentionGate, Boost, CompositeGate, Decision, Defer, Drop, GateContext
from events.errors import InvalidMessage
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, Nack
from tests.events.attention.support import Scripted, a_context, an_event, gated
from tests.events.bus_support import Held, group_of, settled, until


def is_odd(event: Event) -> bool:
    """What the hooks of the tests ask."""
    return bool(event.payload["n"] % 2)


class Dropping(AttentionGate):
    """Drops the odd ones."""

    def drop(self, event: Event) -> bool:
        return is_odd(event)


class Deferring(AttentionGate):
    """Defers the odd ones, for three seconds."""

    defer_s = 3.0

    def defer(self, event: Event) -> bool:
        return is_odd(event)


class Boosting(AttentionGate):
    """Boosts the odd ones."""

    def boost(self, event: Event) -> bool:
        return is_odd(event)


class Refusing(AttentionGate):
    """Does not admit the odd ones."""

    def admit(self, event: Event) -> bool:
        return not is_odd(event)


def numbered(number: int, **meta: Any) -> Event:
    """An event with a number."""
    return an_event({"n": number}, **meta)


@pytest.mark.parametrize(("gate", "reason"), [(Dropping(), "drop hook"), (Refusing(), "not admitted")])
async def test_drop_and_refused_admission_settle_with_the_reason(gate: AttentionGate, reason: str) -> None:
    """W11: what is dropped never reaches the handler, is settled, counted, and its reason is on record."""
    recorder = Recorder()
    async with gated(gate) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([numbered(n) for n in range(6)])
        await settled(bus)
        assert [payload["n"] for payload in recorder.payloads] == [0, 2, 4]
        assert group_of(bus, "learner")["dropped"] == 3
        decisions = await bus.attention.decisions()
        assert {(one.ask.context.offset, one.ask.treated.reason) for one in decisions} == {
            (2, reason),
            (4, reason),
            (6, reason),
        }


async def test_defer_waits_and_is_asked_again(fake_clock: FakeClock) -> None:
    """W7: a deferred event takes no room, comes back when its time has come, and is asked about again."""
    recorder = Recorder()
    async with gated(Deferring(), store=MemoryStore(clock=fake_clock), max_deferrals=2) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([numbered(n) for n in range(4)])
        await fake_clock.advance(2.9)
        assert [payload["n"] for payload in recorder.payloads] == [0, 2]
        assert (group_of(bus, "learner")["inflight"], group_of(bus, "learner")["parked"]) == (0, 2)
        await fake_clock.advance(3.0)  # due, asked again, and deferred again
        assert len(recorder.deliveries) == 2
        await fake_clock.advance(3.0)  # the bound of patience: a defer counts as an admit
        assert sorted(payload["n"] for payload in recorder.payloads) == [0, 1, 2, 3]
        assert group_of(bus, "learner")["deferred"] == 4


async def test_boost_goes_first() -> None:
    """What is boosted overtakes what was queued before it and is not."""
    recorder, held = Recorder(), Held()
    async with gated(Boosting()) as bus:
        await bus.subscribe("warmup", "learner", held)
        await bus.subscribe("actions", "ordered", recorder, workers=1)
        await bus.publish_many([numbered(n) for n in range(6)])
        held.let_go()
        await settled(bus)
        assert [payload["n"] for payload in recorder.payloads] == [1, 3, 5, 0, 2, 4]


async def test_boost_never_breaks_a_keys_order() -> None:
    """W5: a boosted event pulls its lane forward, and stays behind the earlier events of its key."""
    recorder = Recorder()
    gate = Scripted(lambda event, context: Boost(99) if event.payload["n"] == 3 else Admit())
    async with gated(gate) as bus:
        await bus.subscribe("actions", "learner", recorder, workers=1)
        keys = ["a", "a", "b", "b"]
        await bus.publish_many([numbered(n, key=key) for n, key in enumerate(keys)])
        await settled(bus)
        delivered = [payload["n"] for payload in recorder.payloads]
    assert [n for n in delivered if n < 2] == [0, 1]
    assert [n for n in delivered if n >= 2] == [2, 3]
    assert delivered[0] == 2


async def test_a_deferred_event_holds_its_key_and_no_other(fake_clock: FakeClock) -> None:
    """W5: what stands behind a deferred event of its key waits with it; other keys go on."""
    recorder = Recorder()
    gate = Scripted(lambda event, context: Defer(5) if event.payload["n"] == 0 and not context.deferrals else Admit())
    async with gated(gate, store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([numbered(0, key="a"), numbered(1, key="a"), numbered(2, key="b")])
        await fake_clock.advance(1)
        assert [payload["n"] for payload in recorder.payloads] == [2]
        await fake_clock.advance(5)
        assert [payload["n"] for payload in recorder.payloads] == [2, 0, 1]


class Every(AttentionGate):
    """Says one word about everything."""

    def __init__(self, word: str) -> None:
        self._word = word

    def decide(self, event: Event, context: GateContext) -> Decision:
        words: dict[str, Decision] = {"admit": Admit(), "boost": Boost(80), "defer": Defer(9), "drop": Drop("enough")}
        return words[self._word]


@pytest.mark.parametrize("first", ["admit", "boost", "defer", "drop"])
@pytest.mark.parametrize("second", ["admit", "boost", "defer", "drop"])
def test_the_strongest_word_of_several_gates_wins(first: str, second: str) -> None:
    """Drop over defer over boost over admit, in whatever order they stand."""
    strength = ["admit", "boost", "defer", "drop"]
    decision = CompositeGate([Every(first), Every(second)]).decide(numbered(0), a_context())
    assert type(decision).__name__.lower() == max(first, second, key=strength.index)


async def test_hooks_work_together_on_the_bus(fake_clock: FakeClock) -> None:
    """Composed on a live bus: one gate drops by a multiple, another defers, a third boosts, each has its say."""

    class Thirds(AttentionGate):
        def drop(self, event: Event) -> bool:
            return not event.payload["n"] % 3

    recorder = Recorder()
    gate = CompositeGate([Boosting(), Thirds(), Deferring()])
    async with gated(gate, store=MemoryStore(clock=fake_clock), max_deferrals=1) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([numbered(n) for n in range(8)])
        await fake_clock.advance(1)
        assert [payload["n"] for payload in recorder.payloads] == [2, 4]
        await fake_clock.advance(3)
        assert sorted(payload["n"] for payload in recorder.payloads) == [1, 2, 4, 5, 7]
        assert group_of(bus, "learner")["dropped"] == 3


async def test_a_composite_passes_everything_on() -> None:
    """What one of the gates senses reaches all, all of them learn, and all are started, run and closed."""
    said: list[str] = []

    class Full(AttentionGate):
        def attach(self, bus: Any) -> None:
            said.append("attach")

        async def start(self) -> None:
            said.append("start")

        async def run(self) -> None:
            said.append("run")

        async def close(self) -> None:
            said.append("close")

        def sense(self, event: Event, context: GateContext) -> GateContext:
            return context._replace(familiarity=4.5)

        def learn(self, event: Event, context: GateContext, treated: Decision) -> None:
            said.append(f"learn {context.familiarity} {type(treated).__name__}")

    asked = Scripted(lambda event, context: Boost(int(context.familiarity * 10)))
    composite = CompositeGate([Full(), asked])
    recorder = Recorder()
    async with gated(composite) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(numbered(0))
        await settled(bus)
    assert said == ["attach", "start", "run", "learn 4.5 Boost", "close"]
    assert asked.asked[0].familiarity == 4.5
    assert composite.version.endswith("Full+Scripted")


def test_two_gates_that_sense_are_refused() -> None:
    """The context has room for what one gate knows; two would overwrite each other."""

    class Sensing(AttentionGate):
        def sense(self, event: Event, context: GateContext) -> GateContext:
            return context

    with pytest.raises(InvalidMessage, match="one of the gates"):
        CompositeGate([Sensing(), Sensing()])


async def test_a_gate_is_told_what_it_needs_to_decide(fake_clock: FakeClock) -> None:
    """W13: place, time, room, backlog, priority, and how often it was put off, are in the context."""
    gate = Scripted(lambda event, context: Defer(2) if not context.deferrals else Admit())
    held = Held()
    async with gated(gate, store=MemoryStore(clock=fake_clock), max_inflight=7) as bus:
        await bus.subscribe("actions", "learner", held)
        start_ms = fake_clock.now_ms()
        await bus.publish_many([numbered(n, priority=n) for n in (60, 61)])
        await fake_clock.advance(2)
        first, second, again, _ = gate.asked
        assert first == GateContext("learner", "home", "actions", 1, start_ms, start_ms, 0, 7, backlog=1, priority=60)
        assert (second.offset, second.backlog, second.priority, second.is_fresh) == (2, 0, 61, True)
        assert (again.offset, again.deferrals, again.is_fresh, again.now_ms) == (1, 1, False, start_ms + 2000)
        held.let_go()


async def test_no_room_to_park_makes_a_defer_an_admit(fake_clock: FakeClock) -> None:
    """W7: at the bound of what may be parked the cursor waits, and a defer counts as an admit."""
    recorder = Recorder()
    gate = Scripted(lambda event, context: Defer(60, "later"))
    async with gated(gate, store=MemoryStore(clock=fake_clock), max_deferrals=3) as bus:
        await bus.subscribe("actions", "learner", recorder, max_parked=2)
        await bus.publish_many([numbered(n) for n in range(5)])
        await fake_clock.advance(1)
        assert len(recorder.deliveries) == 0  # two are parked, and the cursor waits with the rest in the log
        assert [context.may_defer for context in gate.asked] == [True, True]
        await fake_clock.advance(400)
        assert len(recorder.deliveries) == 5


@pytest.mark.parametrize(
    "said",
    [None, "drop", Defer(math.nan), Defer(-1.0), Defer(math.inf), ZeroDivisionError("a slip")],
    ids=["nothing", "a word", "not a number", "the past", "for ever", "an exception"],
)
async def test_a_gate_that_breaks_loses_nothing(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a gate cannot judge is processed, the failure is logged and on record, and the log goes on."""

    def slip(event: Event, context: GateContext) -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    recorder = Recorder()
    async with gated(Scripted(slip)) as bus:
        await bus.subscribe("actions", "learner", recorder)
        receipt = await bus.publish(numbered(0))
        await settled(bus)
        assert len(recorder.deliveries) == 1
        explained = await bus.attention.explain(receipt.event_id)
        assert explained.decisions[0].ask.failed
    assert "the attention gate failed" in caplog.text


async def test_a_boost_out_of_range_is_bounded_and_a_wait_of_centuries_too(fake_clock: FakeClock) -> None:
    """A priority is 0 to 100; what is deferred comes back in this lifetime."""
    gate = Scripted(lambda event, context: Boost(900) if event.payload["n"] else Defer(1e15))
    async with gated(gate, store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([numbered(0), numbered(1)])
        await fake_clock.advance(1)
        treated = {one.ask.context.offset: one.ask.treated for one in await bus.attention.decisions()}
    assert treated[2] == Boost(100)
    assert isinstance(treated[1], Defer)
    assert treated[1].seconds == 10 * 366 * 86_400


async def test_what_was_attempted_is_never_gated_again(fake_clock: FakeClock) -> None:
    """W13: a retry is not asked about, nor is a dead letter that is tried once more."""
    gate = Scripted(lambda event, context: Admit())
    recorder = Recorder(lambda recorded: Nack("not yet"))
    async with gated(gate, store=MemoryStore(clock=fake_clock), max_retries=2, backoff_max=1.0) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(numbered(0))
        await fake_clock.advance(10)
        assert len(await bus.dlq.list()) == 1
        await bus.dlq.retry()
        await fake_clock.advance(10)
        assert len(recorder.deliveries) == 6
        assert len(gate.asked) == 1


async def test_every_group_has_its_own_decision() -> None:
    """W13: one decision per group and offset; what one group drops another may take."""
    gate = Scripted(lambda event, context: Drop("not for them") if context.group == "left" else Admit())
    left, right = Recorder(), Recorder()
    async with gated(gate) as bus:
        await bus.subscribe("actions", "left", left)
        await bus.subscribe("actions", "right", right)
        receipt = await bus.publish(numbered(0))
        await settled(bus)
        explained = await bus.attention.explain(receipt.event_id)
    assert (len(left.deliveries), len(right.deliveries)) == (0, 1)
    assert [one.key.group for one in explained.decisions] == ["left"]


async def test_defer_until_a_time(fake_clock: FakeClock) -> None:
    """A gate may name the time instead of the wait; one that has passed is now."""
    context = a_context(now_ms=fake_clock.now_ms())
    when = datetime.fromtimestamp(fake_clock.now_ms() / 1000 + 90, UTC)
    assert Defer.until(when, context, "at nine").seconds == 90
    assert Defer.until(datetime(2000, 1, 1, tzinfo=UTC), context).seconds == 0
    with pytest.raises(InvalidMessage, match="time zone"):
        Defer.until(datetime(2030, 1, 1), context)  # noqa: DTZ001  the zone is what is missing


async def test_a_gate_whose_run_fails_goes_on_deciding(caplog: pytest.LogCaptureFixture) -> None:
    """What a gate does on the bus by itself may fail without taking the bus along."""

    class Failing(Dropping):
        async def run(self) -> None:
            raise RuntimeError("no bus for me")

    async with gated(Failing()) as bus:
        recorder = Recorder()
        await bus.subscribe("actions", "learner", recorder)
        await until(lambda: "stopped following" in caplog.text)
        await bus.publish_many([numbered(0), numbered(1)])
        await settled(bus)
        assert len(recorder.deliveries) == 1
        assert bus.health().ok
