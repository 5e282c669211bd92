"""Trying a policy on the recorded past: the same one changes nothing, another changes exactly what it would have."""

import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from events.attention.history import Ask, JournalKey, StoreHistory, decode_run
from events.attention.salience import SalienceGate
from events.attention.what_if import NOT_SIMULATED, is_same
from events.attention_gate import Admit, AttentionGate, Decision, Defer, Drop, GateContext, treatment
from events.bus import EventBus
from events.cognitive_events import standard
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event
from policies.attention import AttentionPolicy
from tests.events.attention.support import Scripted, a_policy, an_event, gated
from tests.events.bus_support import settled

KEY = JournalKey("home", "actions", "learner")
BASE = """
[levels.calm]
drop_below = 0.05
defer_below = {defer}
defer_s = 2.0
boost_from = 0.75
[levels.strained]
enter = 0.4
leave = 0.2
drop_below = {drop}
defer_below = 0.45
defer_s = 3.0
boost_from = {boost}
[levels.overloaded]
enter = 0.6
leave = 0.5
drop_below = 0.4
defer_below = 0.6
defer_s = {wait}
boost_from = 0.65
[novelty]
half_life_s = 20.0
[recency]
half_life_s = 5.0
[budgets.chatter]
per = "actor"
events = 25
each_s = 10.0
"""
USUAL = {"defer": 0.3, "drop": 0.2, "boost": 0.7, "wait": 4.0}


def policy_with(**changes: float) -> AttentionPolicy:
    """The policy of these tests, with other thresholds."""
    return AttentionPolicy.parse(BASE.format(**{**USUAL, **changes}))


def stream(seed: int) -> list[list[Event]]:
    """Bursts of events of every sort: keys or none, feelings, priorities, several actors."""
    chance = random.Random(seed)

    def one(number: int) -> Event:
        return an_event(
            {"n": number, "arousal": chance.random(), "valence": chance.uniform(-1, 1), "tags": chance.choices("abc")},
            priority=chance.randrange(0, 101),
            key=chance.choice([None, None, "x", "y", "z"]),
            actor=chance.choice(["user:ann", "agent:bee", None]),
        )

    return [[one(burst * 100 + index) for index in range(chance.randrange(1, 25))] for burst in range(16)]


Course = dict[int, list[Decision]]
"""How each event was treated, decision by decision."""


class Driven:
    """A policy on a live bus, each event met in the context that is on record for it."""

    def __init__(self, policy: AttentionPolicy, asks: list[Ask], appended_ms: dict[int, int]) -> None:
        self._gate = SalienceGate(policy)
        self._known = {(ask.context.offset, ask.context.deferrals): ask.context for ask in asks}
        self._appended_ms = appended_ms
        self.course: Course = defaultdict(list)

    def decide(self, event: Event, context: GateContext) -> Decision:
        known = self._known.get((context.offset, context.deferrals))
        if known is None:
            # Put off more often than it was then: its course has parted from the record already.
            decision: Decision = Admit("no record")
        else:
            known = known._replace(appended_ms=self._appended_ms[context.offset])
            decision = treatment(self._gate.decide(event, known), known)
        self.course[context.offset].append(decision)
        return decision


def parted(before: Course, after: Course) -> set[int]:
    """The events whose courses differ at some decision."""
    return {
        offset
        for offset in before.keys() | after.keys()
        if len(before.get(offset, [])) != len(after.get(offset, []))
        or not all(map(is_same, before[offset], after[offset]))
    }


async def recorded(bus: EventBus) -> list[Ask]:
    """Everything that is on record about the log of these tests, oldest first."""
    lines = [line async for line in StoreHistory(bus.store).lines(KEY)]
    asks = [ask for line in lines for ask in decode_run(line, KEY)]
    return sorted(asks, key=lambda ask: (ask.context.now_ms, ask.context.deferrals))


async def lived(bus: EventBus, clock: FakeClock, bursts: list[list[Event]]) -> None:
    """A course of life: bursts of events, a handler that takes its time, a focus that shifts, and then quiet."""

    async def handle(event: Event) -> None:
        await clock.sleep(0.05)

    await bus.subscribe("actions", "learner", handle, max_inflight=12, workers=1, overflow="spill")
    for index, burst in enumerate(bursts):
        if index % 5 == 2:
            shift = {"tags": ["a", "b", "c"][index % 3 : index % 3 + 1], "duration_s": 3}
            await bus.publish(standard().event("FOCUS_SHIFT_REQUEST", shift, space_id="home"))
        await bus.publish_many(burst)
        await clock.advance(0.4)
    await clock.advance(300)
    assert await bus.wait_settled(0)


@pytest.mark.parametrize("seed", range(3))
async def test_the_same_policy_changes_nothing(seed: int, fake_clock: FakeClock) -> None:
    """W13: asked again in the recorded context, every decision comes out as it did, under any load and focus."""
    policy = policy_with()
    async with gated(SalienceGate(policy), store=MemoryStore(clock=fake_clock), max_deferrals=4) as bus:
        bursts = stream(seed)
        await lived(bus, fake_clock, bursts)
        report = await bus.attention.what_if(policy, topic="actions")
        asks = await recorded(bus)
    assert report.changes == ()
    assert report.events == sum(map(len, bursts))
    assert report.decisions == len(asks) > report.events
    assert all(before == after for before, after in report.outcomes)
    assert {before for before, _ in report.outcomes} == {"admit", "boost", "defer", "drop"}
    assert {ask.context.situation.level for ask in asks} == {"calm", "strained", "overloaded"}
    assert any(ask.context.situation.focus for ask in asks)
    assert any(ask.context.spent for ask in asks)


@pytest.mark.parametrize(
    "change",
    [{"drop": 0.35}, {"drop": 0.1}, {"defer": 0.4}, {"defer": 0.15}, {"boost": 0.55}, {"boost": 0.9}, {"wait": 6.0}],
    ids=lambda change: " ".join(f"{name} {value}" for name, value in change.items()),
)
async def test_another_threshold_changes_exactly_what_a_live_run_would(
    change: dict[str, float], fake_clock: FakeClock
) -> None:
    """The report names the events that a live run of the other policy treats differently, driven through the record.

    Both ways: none that it would treat alike, and none of the others is missing.
    """
    bursts = stream(seed=11)
    async with gated(SalienceGate(policy_with()), store=MemoryStore(clock=fake_clock), max_deferrals=4) as bus:
        await lived(bus, fake_clock, bursts)
        asks = await recorded(bus)
        appended_ms = {record.offset: record.at_ms async for record in bus.replay("actions")}
        report = await bus.attention.what_if(policy_with(**change), topic="actions")
    before: Course = defaultdict(list)
    for ask in asks:
        before[ask.context.offset].append(ask.treated)

    other = FakeClock()
    driven = Driven(policy_with(**change), asks, appended_ms)
    async with gated(driven, store=MemoryStore(clock=other), max_deferrals=4) as bus:
        await lived(bus, other, bursts)

    named = {found.offset for found in report.changes}
    assert named == parted(before, driven.course)
    assert 0 < len(named) < len(before)
    for found in report.changes:
        assert found.before in before[found.offset]
        assert any(is_same(found.after, decision) for decision in driven.course[found.offset])


async def test_a_report_is_the_same_every_time(fake_clock: FakeClock) -> None:
    """Deterministic, as data and as a table; both say what it does not simulate."""
    async with gated(SalienceGate(policy_with()), store=MemoryStore(clock=fake_clock), max_deferrals=4) as bus:
        await lived(bus, fake_clock, stream(seed=5))
        one, other = [await bus.attention.what_if(policy_with(drop=0.3)) for _ in range(2)]
    assert one == other
    data = one.as_dict()
    assert data["changed"] == len(data["changes"]) == len(one.changes)
    assert data["notes"][0] == NOT_SIMULATED
    assert sum(row["decisions"] for row in data["outcomes"]) == one.decisions
    first = data["changes"][0]
    assert first["before"]["decision"] != first["after"]["decision"]
    assert first["after"]["score"] == round(sum(first["after"]["parts"].values()), 4)
    table = one.table(limit=2)
    assert f"{len(one.changes)} of {one.events} events would have been treated differently" in table
    assert NOT_SIMULATED in table
    assert f"and {len(one.changes) - 2} more" in table


async def test_a_range_is_of_offsets_or_of_times(fake_clock: FakeClock) -> None:
    """From `start` up to, and not including, `stop`."""
    policy = a_policy()
    async with gated(SalienceGate(policy), store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        for _ in range(10):
            await bus.publish(an_event(priority=50))
            await fake_clock.advance(1)
        stricter = a_policy("[levels.calm]\ndrop_below = 0.6\n")
        by_offset = await bus.attention.what_if(stricter, start=3, stop=6)
        moments = [datetime.fromtimestamp(1_700_000_000 + second, UTC) for second in (2, 7)]
        by_time = await bus.attention.what_if(stricter, start=moments[0], stop=moments[1])
        nothing = await bus.attention.what_if(stricter, topic="other")
    assert [change.offset for change in by_offset.changes] == [3, 4, 5]
    assert [change.offset for change in by_time.changes] == [3, 4, 5, 6, 7]
    assert (nothing.events, nothing.changes) == (0, ())


async def test_what_cannot_be_asked_again_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Events that the log no longer holds, and decisions that a broken gate never made, are said, not guessed."""
    gate = Scripted(lambda event, context: Admit() if event.payload["n"] % 2 else 1 / 0)
    async with gated(gate) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event({"n": number}) for number in range(10)])
        await settled(bus)
        await bus.attention.decisions()
        log = await bus.store.log(KEY.log)
        await log.drop_before(7)
        report = await bus.attention.what_if(a_policy("[levels.calm]\ndrop_below = 0.9\n"))
    assert (report.decisions, report.gone, report.unjudged) == (2, 3, 5)
    assert [change.offset for change in report.changes] == [8, 10]
    assert len(report.notes) == 4


async def test_any_gate_can_be_tried() -> None:
    """Not only policies: a gate of one's own is asked about the same past."""

    class Odd(AttentionGate):
        def drop(self, event: Event) -> bool:
            return bool(event.payload["n"] % 2)

    async with gated(AttentionGate()) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event({"n": number}) for number in range(6)])
        await settled(bus)
        report = await bus.attention.what_if(Odd())
        same = await bus.attention.what_if(AttentionGate())
    assert [(change.offset, change.after) for change in report.changes] == [
        (offset, Drop("drop hook")) for offset in (2, 4, 6)
    ]
    assert same.changes == ()


async def test_a_budget_that_was_not_there_counts_as_unspent() -> None:
    """Another limit is tried on what was spent then; of a new budget nothing is on record, and that is said."""
    budget = '[budgets.{name}]\nper = "actor"\nevents = {events}\neach_s = 3600.0\nover = "drop"\n'
    async with gated(SalienceGate(a_policy(budget.format(name="all", events=8)))) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        await bus.publish_many([an_event() for _ in range(10)])
        await settled(bus)
        tighter = await bus.attention.what_if(a_policy(budget.format(name="all", events=5)))
        new = await bus.attention.what_if(a_policy(budget.format(name="other", events=5)))
    assert [change.offset for change in tighter.changes] == [6, 7, 8]
    assert [change.offset for change in new.changes] == [9, 10]
    assert any("other" in note for note in new.notes)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (Admit(), Admit("another reason", 0.5), True),
        (Defer(2), Defer(2, "x"), True),
        (Defer(2), Defer(3), False),
        (Defer(2), Drop(), False),
    ],
)
def test_alike_is_what_becomes_of_the_event(before: Any, after: Any, same: bool) -> None:
    """Score and reason may differ; what is done with the event, and for how long, may not."""
    assert is_same(before, after) is same
