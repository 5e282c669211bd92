"""Looking back: why was this dropped, deferred, boosted; for people and for programs, and only for who may see it."""

import json
from pathlib import Path
from typing import Any

import pytest

from events.attention.inspector import AttentionInspector
from events.attention.salience import SalienceGate
from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Hop, HopResult, Next, Stage
from events.errors import Denied
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from tests.events.attention.support import a_policy, an_event, gated
from tests.events.bus_support import settled

POLICY = a_policy("[levels.calm]\ndrop_below = 0.2\ndefer_below = 0.4\ndefer_s = 2.0\nboost_from = 0.8\n")


async def test_explain_tells_the_whole_story_of_an_event(fake_clock: FakeClock) -> None:
    """Each decision with its time, score, parts, reason, level and policy version, to the last one that let it in."""
    async with gated(SalienceGate(POLICY), store=MemoryStore(clock=fake_clock), max_deferrals=2) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        receipts = await bus.publish_many([an_event(priority=priority) for priority in (10, 30, 50, 90)])
        await fake_clock.advance(10)
        dropped, deferred, plain, boosted = [await bus.attention.explain(one.event_id) for one in receipts]
    (only,) = dropped.decisions
    assert only.as_dict() == {
        "space_id": "home",
        "topic": "actions",
        "group": "learner",
        "offset": 1,
        "event_id": receipts[0].event_id,
        "type": "NOTED",
        "at_ms": 1_700_000_000_000,
        "decision": "drop",
        "reason": "calm: 0.1 is below 0.2",
        "score": 0.1,
        "parts": {"priority": 0.1},
        "policy": POLICY.version,
        "level": "calm",
        "load": 0.0,
        "focus": [],
        "inflight": 0,
        "max_inflight": 1024,
        "backlog": 3,
        "deferrals": 0,
        "familiarity": 0.0,
        "spent": {},
    }
    told = [one.as_dict() for one in deferred.decisions]
    assert [one["decision"] for one in told] == ["defer", "defer", "admit"]
    assert [one["deferrals"] for one in told] == [0, 1, 2]
    assert (told[0]["seconds"], told[0]["until_ms"]) == (2.0, 1_700_000_002_000)
    assert told[2]["reason"].startswith("deferred 2 times")
    assert [one.as_dict()["to"] for one in boosted.decisions] == [90]
    assert plain.decisions == ()


async def test_an_explanation_can_be_read_aloud(fake_clock: FakeClock) -> None:
    """As text it names event, group, decision, reason, parts and policy; of a plain admit it says that it was one."""
    async with gated(SalienceGate(POLICY), store=MemoryStore(clock=fake_clock), max_deferrals=1) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        receipts = await bus.publish_many([an_event(priority=priority) for priority in (30, 50)])
        await fake_clock.advance(10)
        deferred, plain = [str(await bus.attention.explain(one.event_id)) for one in receipts]
    for word in (receipts[0].event_id, "offset 1 of 'actions'", "group learner: defer 2s, score 0.3000"):
        assert word in deferred
    for word in ("calm: 0.3 is below 0.4", "priority +0.3000", POLICY.version, "deferred 1 times before"):
        assert word in deferred
    assert "plain admits" in plain


async def test_the_latest_decisions_come_first_and_can_be_selected() -> None:
    """By topic, space and group; as many as are wanted."""
    async with gated(SalienceGate(POLICY)) as bus:
        for group in ("left", "right"):
            await bus.subscribe("*", group, Recorder())
        for topic in ("one", "two"):
            await bus.publish_many([an_event(priority=5, topic=topic) for _ in range(5)])
        await bus.publish(an_event(priority=5, topic="one", space_id="other"))
        await settled(bus)
        everything = await bus.attention.decisions()
        assert len(everything) == 22
        times = [one.ask.context.now_ms for one in everything]
        assert times == sorted(times, reverse=True)
        assert len(await bus.attention.decisions(limit=3)) == 3
        assert {one.key.topic for one in await bus.attention.decisions(topic="two")} == {"two"}
        assert {one.key.group for one in await bus.attention.decisions(group="left")} == {"left"}
        assert len(await bus.attention.decisions(space="other")) == 2


async def test_it_works_beside_a_running_bus_and_without_one(workspace: Path) -> None:
    """From outside the process only what is proven durable is seen, and nothing is changed."""
    config = BusConfig(checkpoint_interval_s=0.01)
    inspector = AttentionInspector(workspace)
    async with EventBus(workspace=workspace, gate=SalienceGate(POLICY), config=config) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        receipt = await bus.publish(an_event(priority=5))
        await settled(bus)
        inside = await bus.attention.explain(receipt.event_id)
        beside = await inspector.explain(receipt.event_id)
        assert beside.decisions in ((), inside.decisions)  # the mark follows within a moment
    after = await inspector.explain(receipt.event_id)
    assert after == inside
    assert json.loads(json.dumps(after.as_dict())) == inside.as_dict()
    report = await inspector.what_if(POLICY)
    assert (report.events, report.changes) == (1, ())


async def test_who_may_not_replay_is_told_nothing() -> None:
    """Decisions name events, so looking at them is a replay, and asks for that right."""

    class Forbidding:
        stage = Stage.AUTHORISE

        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        def authorise(self, subject: Any, action: str, topic: str, space_id: str, *rest: Any) -> None:
            if action == "replay" and topic == "actions":
                raise Denied(str(subject), action, topic, space_id, "for the test")

    async with EventBus([Forbidding()], store=MemoryStore(), gate=SalienceGate(POLICY)) as bus:
        await bus.subscribe("actions", "learner", Recorder())
        receipt = await bus.publish(an_event(priority=5))
        await settled(bus)
        with pytest.raises(Denied):
            await bus.attention.explain(receipt.event_id)
        with pytest.raises(Denied):
            await bus.attention.what_if(POLICY)
