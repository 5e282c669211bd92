"""The default gate on a live bus: load and its alerts, a focus that shifts, budgets, and a policy that changes."""

from pathlib import Path
from typing import Any

import pytest

from events.attention.salience import GROUP, SalienceGate
from events.attention_gate import Admit, AttentionGate, Boost, CompositeGate, Defer, Drop
from events.bus import EventBus
from events.cognitive_events import standard
from events.config import BusConfig
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event
from policies.files import END
from tests.events.attention.support import PRIORITY_ONLY, a_context, a_policy, an_event, gated
from tests.events.bus_support import Held, group_of, history, settled, until

RELEVANT_ONLY = PRIORITY_ONLY.replace("priority = 1.0", "priority = 0.0").replace("relevance = 0.0", "relevance = 1.0")
FOCUSED = "[levels.calm]\ndrop_below = 0.5\n"


def request(type: str, payload: dict[str, Any], space: str = "home") -> Event:
    """A request that moves attention."""
    return standard().event(type, payload, space_id=space)


async def alerts(bus: EventBus) -> list[tuple[str, str]]:
    """From where to where the load went, by the alerts on the bus."""
    return [
        (record.event.payload["before"], record.event.payload["level"])
        for record in await history(bus, "metacog")
        if record.event.meta.type == "COGNITIVE_LOAD_ALERT"
    ]


async def test_the_packaged_policy_admits_a_calm_stream() -> None:
    """Out of the box nothing is dropped or deferred while there is no load."""
    recorder = Recorder()
    async with gated(SalienceGate()) as bus:
        await bus.subscribe("actions", "learner", recorder)
        for number in range(50):
            await bus.publish(an_event({"n": number}, priority=number))
        await settled(bus)
        assert len(recorder.deliveries) == 50
        assert {key for key in group_of(bus, "learner") if key in ("dropped", "deferred")} == set()


async def test_load_moves_the_thresholds_and_is_told(fake_clock: FakeClock) -> None:
    """A window that fills makes the group strained, then overloaded: what is dull waits or goes, and alerts say so."""
    policy = a_policy(
        "[levels.strained]\nenter = 0.5\nleave = 0.2\ndefer_below = 0.6\ndefer_s = 3.0\n"
        "[levels.overloaded]\nenter = 0.9\nleave = 0.3\ndrop_below = 0.6\n[load]\nhold_s = 1.0\nalert_every_s = 0.0\n"
    )
    held, gate = Held(), SalienceGate(policy)
    async with gated(gate, store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", held, max_inflight=10, max_parked=100)
        dull = [an_event({"n": number}, priority=50) for number in range(12)]
        keen = [an_event({"n": 100 + number}, priority=70) for number in range(4)]
        await bus.publish_many(dull)  # five enter, and then it is strained
        await fake_clock.advance(0)
        assert (gate.level("learner"), group_of(bus, "learner")["deferred"]) == ("strained", 7)
        await bus.publish_many(keen)  # nothing is asked of them but that there is room
        await fake_clock.advance(0)
        assert group_of(bus, "learner")["inflight"] == 9
        await bus.publish_many([an_event({"n": 201}, priority=50), an_event({"n": 200}, priority=70)])
        await fake_clock.advance(0)
        assert gate.level("learner") == "overloaded"
        assert group_of(bus, "learner")["dropped"] == 1
        held.let_go()
        await fake_clock.advance(10)
        await settled(bus)
        assert gate.level("learner") == "calm"
        assert sorted(held.ended) == [*range(12), *range(100, 104), 200]
        assert await alerts(bus) == [("calm", "strained"), ("strained", "overloaded"), ("overloaded", "calm")]


async def test_an_alert_says_what_its_model_asks(fake_clock: FakeClock) -> None:
    """COGNITIVE_LOAD_ALERT carries group, levels, load and what made it, in the space where it was noticed."""
    policy = a_policy("[load]\ntopic = 'mind.alerts'\n[levels.strained]\nenter = 0.5\nleave = 0.2\n")
    held = Held()
    async with gated(SalienceGate(policy), store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", held, max_inflight=4)
        await bus.publish_many([an_event({"n": number}) for number in range(3)])
        await fake_clock.advance(1)
        (record,) = await history(bus, "mind.alerts")
        assert standard().fault(record.event) is None
        assert record.space_id == "home"
        assert record.event.payload == {
            "group": "learner",
            "before": "calm",
            "level": "strained",
            "load": 0.5,
            "inflight": 2,
            "max_inflight": 4,
            "backlog": 0,
            "latency_s": 0.0,
        }
        held.let_go()


async def test_the_focus_is_shifted_from_the_bus() -> None:
    """A shift decides what is relevant from then on, in its space; the next one replaces it."""
    recorder = Recorder()
    policy = a_policy(FOCUSED, base=RELEVANT_ONLY)
    gate = SalienceGate(policy)
    async with gated(gate) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await until(lambda: GROUP in bus.statistics().groups)
        await bus.publish(an_event({"n": 0}, key="stove"))
        await bus.publish(request("FOCUS_SHIFT_REQUEST", {"key": "stove"}))
        await settled(bus)
        await bus.publish_many([an_event({"n": 1}, key="stove"), an_event({"n": 2}, key="door")])
        await bus.publish(an_event({"n": 3}, key="stove", space_id="elsewhere"))
        await settled(bus)
        await bus.publish(request("FOCUS_SHIFT_REQUEST", {"filter": {"path": "payload.n", "op": "ge", "value": 5}}))
        await settled(bus)
        await bus.publish_many([an_event({"n": 4}, key="stove"), an_event({"n": 5})])
        await settled(bus)
        assert [payload["n"] for payload in recorder.payloads] == [1, 5]


async def test_an_attention_request_adds_to_the_focus(fake_clock: FakeClock) -> None:
    """Requests stand beside the focus, with their weight and for their time."""
    recorder = Recorder()
    policy = a_policy("[levels.calm]\ndefer_below = 0.5\ndefer_s = 1.0\nboost_from = 0.9\n", base=RELEVANT_ONLY)
    async with gated(SalienceGate(policy), store=MemoryStore(clock=fake_clock), max_deferrals=1) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(request("ATTENTION_REQUEST", {"tags": ["fire"], "weight": 1.0, "duration_s": 2}))
        await bus.publish(request("ATTENTION_REQUEST", {"tags": ["tea"], "weight": 0.6, "duration_s": 60}))
        await fake_clock.advance(0.1)
        await bus.publish_many([an_event({"tags": ["tea"]}), an_event({"tags": ["fire"]}), an_event({"tags": []})])
        await fake_clock.advance(5)
        await bus.publish(an_event({"tags": ["fire"]}))
        decided = {one.ask.context.offset: one.ask.treated for one in await bus.attention.decisions()}
    assert isinstance(decided[2], Boost)
    assert isinstance(decided[4], Defer)
    assert 1 not in decided


async def test_the_focus_outlives_the_process(workspace: Path) -> None:
    """After a restart the first event is judged by the focus that was set before: it is read back from the log."""
    policy = a_policy(FOCUSED, base=RELEVANT_ONLY)
    config = BusConfig(checkpoint_interval_s=0.01)
    async with EventBus(workspace=workspace, gate=SalienceGate(policy), config=config) as bus:
        await bus.publish(request("FOCUS_SHIFT_REQUEST", {"key": "stove"}))
        await bus.publish(request("FOCUS_SHIFT_REQUEST", {"key": "door"}))
        await until(lambda: GROUP in bus.statistics().groups)
        await settled(bus)
    recorder = Recorder()
    async with EventBus(workspace=workspace, gate=SalienceGate(policy), config=config) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([an_event({"n": 0}, key="stove"), an_event({"n": 1}, key="door")])
        await settled(bus)
    assert [payload["n"] for payload in recorder.payloads] == [1]


async def test_habituation_lets_the_ever_same_fade() -> None:
    """What comes again and again scores less each time; something new among it does not."""
    policy = a_policy(
        "[novelty]\nhabituate_after = 5.0\n[levels.calm]\ndrop_below = -0.49\n",
        base=PRIORITY_ONLY.replace("priority = 1.0", "priority = 0.0").replace(
            "habituation = 0.0", "habituation = -1.0"
        ),
    )
    recorder = Recorder()
    async with gated(SalienceGate(policy)) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish_many([an_event({"n": number}, key="tick") for number in range(20)])
        await bus.publish(an_event({"n": 99}, key="bang"))
        await settled(bus)
    assert sorted(payload["n"] for payload in recorder.payloads) == [0, 1, 2, 3, 4, 99]


async def test_a_budget_holds_for_each_actor(fake_clock: FakeClock) -> None:
    """Two a minute for each actor: the third waits for the next minute, another actor's first does not."""
    policy = a_policy('[budgets.talk]\nper = "actor"\nevents = 2\neach_s = 60.0\n')
    recorder = Recorder()
    async with gated(SalienceGate(policy), store=MemoryStore(clock=fake_clock)) as bus:
        await bus.subscribe("actions", "learner", recorder)
        actors = ["user:a", "user:a", "user:a", "user:b", "user:a"]
        await bus.publish_many([an_event({"n": n}, actor=actor) for n, actor in enumerate(actors)])
        await fake_clock.advance(1)
        assert [payload["n"] for payload in recorder.payloads] == [0, 1, 3]
        await fake_clock.advance(60)
        assert [payload["n"] for payload in recorder.payloads] == [0, 1, 3, 2, 4]


async def test_the_gate_does_not_gate_itself() -> None:
    """The group through which the gate hears of the focus is never held back, whatever the policy says."""
    policy = a_policy("[levels.calm]\ndrop_below = 100.0\nboost_from = 200.0\n")
    async with gated(SalienceGate(policy)) as bus:
        recorder = Recorder()
        await bus.subscribe("metacog", "learner", recorder)
        await until(lambda: GROUP in bus.statistics().groups)
        await bus.publish(request("FOCUS_SHIFT_REQUEST", {"key": "stove"}))
        await settled(bus)
        assert group_of(bus, GROUP).get("acked") == 1
        assert group_of(bus, "learner").get("dropped") == 1


async def test_a_policy_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A change of the file is in force soon after; a bad one is told, and changes nothing. Versions are on record."""
    path = tmp_path / "attention.toml"
    path.write_text(f"{PRIORITY_ONLY}\n{END}\n")
    gate = SalienceGate(path, reload_every_s=0.01)
    first = gate.version
    recorder = Recorder()
    async with gated(gate) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(an_event({"n": 0}))
        await settled(bus)
        path.write_text(f"{PRIORITY_ONLY}[levels.calm]\ndrop_below = 0.9\n{END}\n")
        await until(lambda: gate.version != first)
        receipt = await bus.publish(an_event({"n": 1}))
        await settled(bus)
        path.write_text("[levels.calm]\ndrop_below = 'all'\n")
        await until(lambda: "last good one stays" in caplog.text)
        (decided,) = (await bus.attention.explain(receipt.event_id)).decisions
        assert isinstance(decided.ask.treated, Drop)
        assert decided.ask.policy == gate.version != first
    assert [payload["n"] for payload in recorder.payloads] == [0]


async def test_a_deleted_group_is_forgotten() -> None:
    """What was learnt of a group goes with it; one of the same name begins anew."""
    gate = SalienceGate(a_policy("[levels.strained]\nenter = 0.5\nleave = 0.2\n"))
    async with gated(CompositeGate([gate, AttentionGate()])) as bus:
        held = Held()
        await bus.subscribe("actions", "learner", held, max_inflight=2)
        await bus.publish_many([an_event({"n": 0}), an_event({"n": 1})])
        await until(lambda: gate.level("learner") == "strained")
        held.let_go()
        await settled(bus)
        await bus.delete_group("learner")
        assert gate.level("learner") == "calm"


async def test_who_may_not_listen_still_decides(caplog: pytest.LogCaptureFixture) -> None:
    """Where the gate cannot subscribe, as under a strict topology, it says so and goes on deciding."""
    recorder = Recorder()
    policy = a_policy("[levels.calm]\ndrop_below = 0.6\n")
    async with gated(SalienceGate(policy), strict_topics=("actions",)) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await until(lambda: "stopped following" in caplog.text)
        await bus.publish_many([an_event({"n": 0}, priority=90), an_event({"n": 1}, priority=10)])
        await settled(bus)
    assert [payload["n"] for payload in recorder.payloads] == [0]


def test_what_is_plainly_admitted_says_its_score() -> None:
    """Also an admit can be asked for its score, though it is not journaled with it."""
    gate = SalienceGate(a_policy())
    assert gate.decide(an_event(), a_context(priority=42)) == Admit("", 0.42)
