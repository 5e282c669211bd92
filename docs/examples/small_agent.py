"""A small agent on the bus: it senses, feels, decides, acts, learns and remembers; run it and watch.

    python docs/examples/small_agent.py                   # in a folder that is thrown away
    python docs/examples/small_agent.py --pace 0.5 here   # slowly, and keep the files in ./here

Each module is a handler of its own group, and knows the others only by the events on the wiring map's topics:

    senses -> affect -> arbiter -> actuators -> learner -> back to the arbiter
                 '-> memory (what happened is remembered)

The first day the agent does the first thing that comes to mind. What did not help it does not do again. On the last
day a clock ticks fifty times, and attention keeps the ticks out of the agent's mind.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from itertools import count
from typing import Any

import anyio

from events import Event, EventBus, EventMeta
from events.attention.salience import SalienceGate
from events.cognitive_events import standard
from events.episodic import Recall
from events.episodic_sqlite import SqliteEpisodicStore
from events.working_memory import WorkingMemory
from events.write_handler import WriteHandler
from policies.attention import AttentionPolicy

SPACE = "kitchen"
KINDS = standard()

# What the agent notices, how that feels (valence, arousal), what it could do about it. The last thing would help.
WORLD: dict[str, tuple[float, float, list[str]]] = {
    "smoke over the stove": (-0.9, 0.95, ["open the window", "call for help", "turn off the stove"]),
    "the cat wants food": (0.3, 0.4, ["pet the cat", "feed the cat"]),
    "the kettle whistles": (-0.2, 0.6, ["take it off the stove"]),
}
ATTENTION = """
[budgets.ticks]                  # five ticks an hour are enough for any mind
topics = "senses"
per = "actor"
events = {allowed}
each_s = 3600.0
over = "drop"
"""


class Agent:
    """The modules, and the little that each of them knows."""

    def __init__(self, bus: EventBus, memories: SqliteEpisodicStore) -> None:
        self.bus = bus
        self.memories = memories
        self.in_mind = WorkingMemory(capacity=4)
        self.worth: dict[str, float] = defaultdict(float)  # the arbiter's: how good an action was, for what
        self.ids = count(1)

    async def wake_up(self) -> None:
        """Subscribe every module as a durable group. After a restart each goes on where it left off."""
        await self.bus.subscribe("senses", "affect", self.feel)
        await self.bus.subscribe("affect", "arbiter", self.decide)
        await self.bus.subscribe("actions", "actuators", self.act)
        await self.bus.subscribe("actions", "learner", self.learn)
        await self.bus.subscribe("metacog", "arbiter-lessons", self.take_to_heart)
        await WriteHandler(self.memories).follow(self.bus)
        await self.in_mind.follow(self.bus)

    async def feel(self, event: Event) -> None:
        """Affect: what was sensed gets a feeling."""
        seen = event.payload["seen"]
        valence, arousal, _ = WORLD.get(seen, (0.0, 0.05, []))
        say("affect", f"{seen}: valence {valence:+.1f}, arousal {arousal:.2f}")
        await self.tell(event, "AFFECT_ANNOTATED", {"seen": seen, "valence": valence, "arousal": arousal})

    async def decide(self, event: Event) -> None:
        """Arbiter: what is worth acting on, and which action was worth most so far."""
        seen, arousal = event.payload["seen"], event.payload["arousal"]
        if arousal < 0.2:
            say("arbiter", f"{seen}: not worth a thought")
            return
        choices = WORLD[seen][2]
        action = max(choices, key=lambda choice: self.worth[f"{seen} / {choice}"])
        worths = ", ".join(f"{choice} {self.worth[f'{seen} / {choice}']:+.1f}" for choice in choices)
        say("arbiter", f"{seen}: {action}   [{worths}]")
        decision = {"action_id": f"a{next(self.ids)}", "action": action, "seen": seen, "risk": arousal}
        await self.tell(event, "ACTION_DECISION", decision, priority="high")

    async def act(self, event: Event) -> None:
        """Actuators: do it, and see whether it helped."""
        if event.meta.type != "ACTION_DECISION":
            return
        action, seen = event.payload["action"], event.payload["seen"]
        status = "ok" if action == WORLD[seen][2][-1] else "did not help"
        say("actuators", f"{action}: {status}")
        done = {"action_id": event.payload["action_id"], "status": status, "action": action, "seen": seen}
        await self.tell(event, "ACTION_EXECUTED", done)

    async def learn(self, event: Event) -> None:
        """Learner: an outcome becomes a signal, and a memory."""
        if event.meta.type != "ACTION_EXECUTED":
            return
        outcome = event.payload
        value = 1.0 if outcome["status"] == "ok" else -1.0
        target = f"{outcome['seen']} / {outcome['action']}"
        say("learner", f"{target}: reward {value:+.1f}")
        signal = {"signal": "reward", "value": value, "target": target, "action_id": outcome["action_id"]}
        await self.tell(event, "LEARNING_SIGNAL", signal)
        text = f"{outcome['seen']}: {outcome['action']}, {outcome['status']}"
        await self.tell(event, "HIPPO_ENCODE", {"text": text, "tags": [outcome["status"]], "salience": 0.8})

    async def take_to_heart(self, event: Event) -> None:
        """Arbiter again: half of the way to what the signal says."""
        if event.meta.type == "LEARNING_SIGNAL":
            target, value = event.payload["target"], event.payload["value"]
            self.worth[target] += (value - self.worth[target]) / 2

    async def tell(self, cause: Event, type: str, payload: dict[str, Any], **meta: Any) -> None:
        """Publish on the type's usual topic, as a consequence of what was heard."""
        lineage = {"causation_id": cause.meta.event_id, "correlation_id": cause.meta.correlation_id}
        await self.bus.publish(KINDS.event(type, payload, space_id=SPACE, **lineage, **meta))


def say(who: str, what: str) -> None:
    """A line for whoever watches."""
    print(f"    {who:<10} {what}")


async def sense(bus: EventBus, seen: str, actor: str, correlation: str) -> Event:
    """The world happens to the agent, who is done with it when this returns."""
    meta = EventMeta(topic="senses", type="SENSED", space_id=SPACE, actor=actor, correlation_id=correlation)
    event = Event(meta, {"seen": seen})
    await bus.publish(event)
    await bus.wait_settled()
    return event


async def live(workspace: str, pace_s: float) -> None:
    """Four days."""
    memories = SqliteEpisodicStore(workspace)
    policy = AttentionPolicy.parse(ATTENTION.format(allowed=5))
    async with EventBus(workspace=workspace, gate=SalienceGate(policy)) as bus:
        agent = Agent(bus, memories)
        await agent.wake_up()
        for day in range(1, 4):
            print(f"\nday {day}")
            for seen in WORLD:
                print(f"  {seen}")
                await sense(bus, seen, f"sensor:{seen}", f"day {day}: {seen}")
                await anyio.sleep(pace_s)

        print("\nday 4: the clock ticks fifty times")
        ticks = [await sense(bus, "tick", "sensor:clock", "day 4") for _ in range(50)]

        print("\nwhat it remembers of what helped, from its memories")
        for memory in await memories.find(Recall(space_id=SPACE, tags=("ok",), limit=3)):
            print(f"    {memory.text}")
        print("what it has in mind")
        for item in agent.in_mind.items(SPACE):
            print(f"    {item.strength:.2f}  {item.summary}")

        print("\nwhy the last tick never reached it")
        explanation = await bus.attention.explain(ticks[-1].meta.event_id, group="affect")
        print(f"    {explanation.decisions[0].ask.treated.reason}")
        print("and what if two an hour were enough?")
        report = await bus.attention.what_if(
            AttentionPolicy.parse(ATTENTION.format(allowed=2)), topic="senses", group="affect"
        )
        print(f"    {len(report.changes)} of {report.events} events would have been treated differently")
        print(f"    {report.notes[0]}")
    await memories.close()


def main() -> None:
    """Run in the given folder, or in one that is thrown away."""
    parser = argparse.ArgumentParser(description="A small agent: affect, arbiter, action, learning.")
    parser.add_argument("workspace", nargs="?", help="where to keep the events; a temporary folder if not given")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to pause after each thing that happens")
    arguments = parser.parse_args()
    if arguments.workspace is not None:
        anyio.run(live, arguments.workspace, arguments.pace)
        return
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(live, folder, arguments.pace)


if __name__ == "__main__":
    main()
