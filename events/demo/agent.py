"""The modules of the tour's agent, its attention, and the process that is killed."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from events.attention_gate import Admit, Boost, Decision, Defer, Drop, GateContext
from events.bus import EventBus
from events.clock import AnchoredClock
from events.config import BusConfig
from events.contracts import Delivery, Verdict
from events.logs import setup_logging
from events.types import Ack, Event, EventMeta, EventType, Nack

SPACE: Final = "demo"
CHILD: Final = "--child"
GROUPS: Final = ("planner", "actor", "memory")
CONFIG: Final = BusConfig(max_retries=2, backoff_base=0.05, backoff_max=0.2, checkpoint_interval_s=0.05)
COME_BACK_S: Final = 0.25
DEFER_S: Final = 0.3
_DAY_MS: Final = 86_400_000


def meta(topic: str, type: EventType, **fields: Any) -> EventMeta:
    """The envelope of one of the agent's events."""
    return EventMeta(topic=topic, type=type, space_id=SPACE, **fields)


@dataclass
class Attempt:
    """One attempt at one action, as the actor saw it."""

    number: int
    at: float
    failed: bool


@dataclass
class Agent:
    """Three modules on one bus. What they were given is counted here, so that the story can be checked against it."""

    bus: EventBus
    handled: Counter[str] = field(default_factory=Counter)
    published: int = 0
    outages: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    knows_cities: bool = False

    async def start(self) -> None:
        """Subscribe the modules; they begin with what is published from now on."""
        await self.bus.subscribe("perception", "planner", self.plan, start="latest", workers=2)
        await self.bus.subscribe("actions", "actor", self.act, start="latest", workers=4)
        await self.bus.subscribe("*", "memory", self.remember, start="latest")

    async def perceive(self, number: int, conversation: str, **payload: Any) -> None:
        """The senses: something was seen."""
        seen = meta("perception", EventType.ATTENTION_REQUEST, correlation_id=conversation, key=conversation)
        await self.bus.publish(Event(seen, {"number": number, **payload}))
        self.published += 1

    async def plan(self, event: Event[Any]) -> None:
        """The planner: for everything seen, decide on something to do."""
        decided = meta(
            "actions",
            EventType.ACTION_DECISION,
            correlation_id=event.meta.correlation_id,
            causation_id=event.meta.event_id,
            key=event.meta.key,
            actor="agent:planner",
        )
        await self.bus.publish(Event(decided, {"tool": "weather", **event.payload}))
        self.handled["planner"] += 1
        self.published += 1

    async def act(self, event: Event[Any], delivery: Delivery) -> Verdict:
        """The actor: call a tool. Some tools are down for a while, and one caller forgot to say which city."""
        tool, attempt = event.payload["tool"], delivery.attempt
        is_down = attempt <= self.outages.get(event.payload.get("name", ""), 0)
        is_unknown = event.payload.get("city") == "" and not self.knows_cities
        seen = self.attempts.setdefault(event.meta.event_id, [])
        seen.append(Attempt(attempt, time.monotonic(), failed=is_down or is_unknown))
        if is_down and attempt > 1:
            return Nack(f"{tool} asks to come back later", delay=COME_BACK_S)
        if is_down:
            raise ConnectionError(f"{tool} does not answer")
        if is_unknown:
            raise KeyError("city")
        done = meta(
            "outcomes",
            EventType.ACTION_EXECUTED,
            correlation_id=event.meta.correlation_id,
            causation_id=event.meta.event_id,
            key=event.meta.key,
        )
        await self.bus.publish(Event(done, {"ok": True, "number": event.payload.get("number", 0)}))
        self.handled["actor"] += 1
        self.published += 1
        return Ack()

    async def remember(self, event: Event[Any]) -> None:
        """The memory: listens to everything."""
        self.handled["memory"] += 1

    def counters(self) -> dict[str, int]:
        """What to show while they work."""
        return {"published": self.published, **{name: self.handled[name] for name in GROUPS}}


class Attention:
    """The tour's attention gate: a pure function of the event and the moment, with a reason for each decision."""

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """Drop noise, put chatter off once, let what a person said go first."""
        source = event.payload.get("source", "")
        if source == "sensor":
            return Drop("a sensor that repeats itself")
        if source == "chatter" and not context.deferrals:
            return Defer(DEFER_S, "chatter can wait")
        return Boost(90, "a person spoke") if source == "person" else Admit()


class Yesterday(AnchoredClock):
    """The clock as it was a day ago, to write a history that can then be replayed as yesterday's."""

    def _wall_ms(self) -> int:
        return super()._wall_ms() - _DAY_MS


def child_main(workspace: str) -> None:
    """The process that is going to be killed: publishes and handles as fast as it can, and says so on stdout."""
    with (Path(workspace) / "demo.log").open("a", encoding="utf-8") as log:
        setup_logging("info", stream=log)
        anyio.run(_publish_for_ever, workspace)


async def _publish_for_ever(workspace: str) -> None:
    async def handle(event: Event[Any]) -> None:
        # A line is written whole or not at all: it is shorter than a pipe's buffer.
        os.write(1, f"handled {event.meta.event_id}\n".encode())
        await anyio.sleep(0.002)

    async with EventBus(workspace=workspace, config=CONFIG) as bus:
        await bus.subscribe("stream", "worker", handle, workers=2)
        number = 0
        while True:
            event = Event(meta("stream", EventType.WORKING_MEMORY_UPDATE, key=f"k{number % 5}"), {"number": number})
            receipt = await bus.publish(event)
            # Only now: it is durable, and whatever happens next must not lose it.
            os.write(1, f"published {receipt.event_id}\n".encode())
            number += 1
