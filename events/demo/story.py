"""The acts of the tour, each of which measures what it shows and checks what it claims."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import anyio
import anyio.to_thread

from events.attention.inspector import AttentionInspector
from events.attention_gate import Boost, Defer, Drop
from events.bus import EventBus
from events.cli.output import plural
from events.demo.agent import CHILD, CONFIG, DEFER_S, GROUPS, SPACE, Agent, Attention, Yesterday, meta
from events.demo.stage import Stage
from events.fingerprints import fingerprint
from events.history import read_history
from events.inspection import Inspector
from events.logs import setup_logging
from events.persistence.reader import WorkspaceReader
from events.persistence.repair import verify
from events.persistence.store import LogName
from events.persistence.wal import WalStore
from events.types import Event, EventType
from events.units import show_seconds

_OBSERVATIONS: Final = 120
_OTHERS: Final = 20
_YESTERDAY: Final = 90
_ACKNOWLEDGED_BEFORE_KILL: Final = 250
_PATIENCE_S: Final = 60.0
_TOOLS: Final = ("search", "weather", "calendar")


async def tell(stage: Stage) -> None:
    """The whole story. The bus's own log goes to a file, so that it does not talk over us."""
    stage.workspace.mkdir(parents=True, exist_ok=True)
    with (stage.workspace / "demo.log").open("a", encoding="utf-8") as log:
        undo = setup_logging("info", stream=log)
        try:
            history = await _write_yesterday(stage)
            began = datetime.now(UTC)
            await _work_and_fail(stage)
            await _attend(stage)
            await _crash(stage)
            await _replay(stage, history, began)
            await _verify(stage)
        finally:
            undo()


async def _write_yesterday(stage: Stage) -> list[str]:
    """Before the curtain: a history with the clock set back a day, so that there is a yesterday to replay."""
    clock = Yesterday()
    store = WalStore(stage.workspace, CONFIG.wal, clock=clock)
    async with EventBus(store=store, config=CONFIG) as bus:
        events = [
            Event(
                meta("actions", EventType.ACTION_EXECUTED, ts=datetime.fromtimestamp(clock.now_ms() / 1000, UTC)),
                {"tool": _TOOLS[number % 3], "ok": number % 3 != 1 or number % 2 == 0},
            )
            for number in range(_YESTERDAY)
        ]
        return [receipt.event_id for receipt in await bus.publish_many(events)]


async def _work_and_fail(stage: Stage) -> None:
    async with EventBus(workspace=stage.workspace, config=CONFIG) as bus:
        agent = Agent(bus)
        await agent.start()
        await _work(stage, agent)
        await _retry(stage, agent)
        await _die_and_return(stage, agent)


async def _work(stage: Stage, agent: Agent) -> None:
    await stage.act(
        "An agent at work",
        "Perception publishes; a planner decides, an actor acts, a memory listens to everything.",
    )
    began = time.monotonic()
    with stage.counting(agent.counters):
        for number in range(_OBSERVATIONS):
            await agent.perceive(number, f"conversation-{number % 12}")
            await anyio.sleep(0.008)
        settled = await agent.bus.wait_settled(_PATIENCE_S)
    spent = time.monotonic() - began
    stage.correlation = "conversation-7"
    lag = sum(agent.bus.statistics().groups[name]["lag"] for name in GROUPS)
    expected = {"planner": _OBSERVATIONS, "actor": _OBSERVATIONS, "memory": 3 * _OBSERVATIONS}
    stage.measured(published=agent.published, handled=dict(agent.handled), seconds=round(spent, 3))
    stage.claim(
        f"{agent.published} events on disk before anyone was told, {agent.handled.total()} deliveries, "
        f"all settled (lag {lag}) in {show_seconds(spent)}",
        settled and lag == 0 and dict(agent.handled) == expected,
    )


async def _retry(stage: Stage, agent: Agent) -> None:
    await stage.act(
        "A tool is down for a while",
        "The weather service fails twice for one event; the others do not wait for it.",
    )
    agent.outages["lisbon"] = 2
    handled = agent.handled["actor"]
    asked = meta("actions", EventType.ACTION_DECISION, key="lisbon", correlation_id=stage.correlation)
    others = meta("actions", EventType.ACTION_DECISION)
    await agent.bus.publish_many(
        [
            Event(asked, {"tool": "weather", "name": "lisbon"}),
            *(Event(others.another(), {"tool": "search", "number": number}) for number in range(_OTHERS)),
        ]
    )
    settled = await agent.bus.wait_settled(_PATIENCE_S)
    attempts = agent.attempts.pop(asked.event_id)
    began, ended = attempts[0].at, attempts[-1].at
    meanwhile = sum(began < first.at < ended for first, *_ in agent.attempts.values())
    waits = [show_seconds(after.at - before.at) for before, after in pairwise(attempts)]
    stage.measured(retry_attempts=len(attempts), handled_meanwhile=meanwhile)
    stage.claim(
        f"failed, failed, worked: attempt {attempts[-1].number} came after waits of {' and '.join(waits)}; "
        f"{meanwhile} others were handled meanwhile",
        settled
        and [one.failed for one in attempts] == [True, True, False]
        and agent.handled["actor"] - handled == _OTHERS + 1
        and meanwhile > 0,
    )


async def _die_and_return(stage: Stage, agent: Agent) -> None:
    await stage.act(
        "One event cannot be handled",
        "It names no city, and no retry will help: it goes to the dead letters with its errors.",
    )
    receipt = await agent.bus.publish(
        Event(
            meta("actions", EventType.ACTION_DECISION, correlation_id=stage.correlation),
            {"tool": "weather", "city": ""},
        )
    )
    settled = await agent.bus.wait_settled(_PATIENCE_S)
    letters = await agent.bus.dlq.list(group="actor")
    dead = next((one for one in letters if one.event_id == receipt.event_id), None)
    if dead is not None:
        mark = fingerprint(dead.errors[-1])
        stage.tell(f"offset {dead.offset} of {dead.topic}: {dead.errors[-1]} (fingerprint {mark})")
    stage.claim(
        f"dead after {dead.attempts if dead else 0} attempts, and nothing waits behind it",
        settled and len(letters) == 1 and dead is not None and dead.attempts == CONFIG.max_retries + 1,
    )
    stage.tell("The actor learns to ask for the city, and the dead letter is tried again.")
    agent.knows_cities = True
    retried = await agent.bus.dlq.retry(group="actor")
    settled = await agent.bus.wait_settled(_PATIENCE_S)
    left = await agent.bus.dlq.list()
    stage.measured(dead=len(letters), retried=retried, dead_after=len(left))
    stage.claim(
        f"{retried} retried from there, handled on its attempt {agent.attempts[receipt.event_id][-1].number}, "
        f"{plural(len(left), 'dead letter')} left",
        settled and retried == 1 and not left and not agent.attempts[receipt.event_id][-1].failed,
    )


async def _attend(stage: Stage) -> None:
    await stage.act(
        "Not everything deserves attention",
        "A gate before each group drops what repeats itself, defers chatter, and lets a person go first.",
    )
    heard = list[tuple[str, float]]()
    sources = ["sensor"] * 30 + ["chatter"] * 12 + ["person"] * 3 + ["colleague"] * 5

    async def listen(event: Event[Any]) -> None:
        heard.append((event.payload["source"], time.monotonic()))

    async with EventBus(workspace=stage.workspace, config=CONFIG, gate=Attention()) as bus:
        began = time.monotonic()
        await bus.subscribe("voices", "listener", listen)
        voices = meta("voices", EventType.AFFECT_ANNOTATED)
        await bus.publish_many([Event(voices.another(), {"source": source}) for source in sources])
        with stage.counting(lambda: {"arrived": len(sources), "listened to": len(heard)}):
            settled = await bus.wait_settled(_PATIENCE_S)
        counts = bus.statistics().groups["listener"]
    dropped, deferred = counts.get("dropped", 0), counts.get("deferred", 0)
    listened = Counter(source for source, _ in heard)
    waited = min((at - began for source, at in heard if source == "chatter"), default=0.0)
    stage.measured(dropped=dropped, deferred=deferred, heard=dict(listened))
    stage.claim(
        f"{dropped} dropped, {deferred} deferred and heard after {show_seconds(waited)}, "
        f"{len(heard)} of {len(sources)} listened to",
        settled
        and (dropped, deferred) == (30, 12)
        and listened == {"chatter": 12, "person": 3, "colleague": 5}
        and waited >= DEFER_S,
    )
    await _remember_why(stage)


async def _remember_why(stage: Stage) -> None:
    """Every decision but a plain admit is on record, with its reason."""
    found = await AttentionInspector(stage.workspace).decisions(group="listener", limit=1000)
    reasons = Counter((type(one.ask.treated).__name__.lower(), one.ask.treated.reason) for one in found)
    for (word, reason), number in sorted(reasons.items()):
        if reason:
            stage.tell(f"{word:5} {number:3}  {reason}")
    stage.dropped = next((one.ask.event_id or "" for one in found if isinstance(one.ask.treated, Drop)), "")
    recorded = Counter(type(one.ask.treated) for one in found)
    kinds = [recorded[kind] for kind in (Drop, Defer, Boost)]
    stage.claim(f"all {sum(kinds)} of these are on record with their reasons", kinds == [30, 12, 3])


async def _crash(stage: Stage) -> None:
    await stage.act(
        "The process is killed",
        "Another process publishes and handles as fast as it can; then SIGKILL, in mid-work, no goodbye.",
    )
    published, handled = list[str](), list[str]()
    with stage.counting(lambda: {"acknowledged": len(published), "handled": len(handled)}):
        code = await anyio.to_thread.run_sync(_kill_in_mid_work, stage, published, handled)
    stage.tell(f"It died of signal {-code}. A new process opens the workspace and goes on.")
    again = list[str]()

    async def handle(event: Event[Any]) -> None:
        again.append(event.meta.event_id)

    async with EventBus(workspace=stage.workspace, config=CONFIG) as bus:
        await bus.subscribe("stream", "worker", handle, workers=2)
        settled = await bus.wait_settled(_PATIENCE_S)
        logged = [record.event.meta.event_id async for record in bus.replay("stream", space=SPACE)]
    lost = set(published) - set(logged)
    unhandled = set(logged) - set(handled) - set(again)
    twice = set(handled) & set(again)
    stage.measured(acknowledged=len(published), lost=len(lost), handled_before=len(handled), handled_after=len(again))
    stage.claim(
        f"{len(published)} acknowledged before the kill, {len(lost)} lost", code == -signal.SIGKILL and not lost
    )
    stage.claim(
        f"{len(set(handled))} handled before, {len(again)} after, {len(unhandled)} never; {len(twice)} came twice, "
        "as at-least-once allows",
        settled and not unhandled and len(again) > 0 and len(logged) == len(set(logged)),
    )


def _kill_in_mid_work(stage: Stage, published: list[str], handled: list[str]) -> int:
    """Start the child, read what it says, kill it, read what it had still said; its return code."""
    command = [sys.executable, "-m", "events.demo", CHILD, str(stage.workspace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        assert child.stdout is not None
        for line in child.stdout:
            what, _, event_id = line.strip().partition(" ")
            (published if what == "published" else handled).append(event_id)
            if len(published) == _ACKNOWLEDGED_BEFORE_KILL and child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
    return child.returncode


async def _replay(stage: Stage, history: list[str], began: datetime) -> None:
    await stage.act(
        "Yesterday, once more",
        "The log holds yesterday too (written first, with the clock set back a day). Learning reads it again.",
    )
    midnight = began.replace(hour=0, minute=0, second=0, microsecond=0)
    tried, worked, seen = Counter[str](), Counter[str](), list[str]()
    reader, actions = WorkspaceReader(stage.workspace), LogName(SPACE, "actions")
    for record in read_history(reader, [actions], start=midnight - timedelta(days=1), stop=began):
        seen.append(record.event.meta.event_id)
        tried[record.event.payload["tool"]] += 1
        worked[record.event.payload["tool"]] += record.event.payload["ok"]
    rates = ", ".join(f"{tool} {worked[tool] / tried[tool]:.0%}" for tool in sorted(tried))
    stage.tell(f"How often each tool worked yesterday: {rates}")
    stage.measured(replayed=len(seen))
    stage.claim(f"{len(seen)} of {len(history)} events replayed, in the order they were published", seen == history)


async def _verify(stage: Stage) -> None:
    await stage.act("And the files")
    found = list(verify(stage.workspace))
    unsound = [one for one in found if not one.is_sound]
    size = sum(one.found.bytes_read for one in found)
    states = list(Inspector(stage.workspace).group_states())
    stage.measured(logs=len(found), bytes=size)
    stage.claim(f"every one of {size:,} bytes in {plural(len(found), 'log')} verified", not unsound and size > 0)
    # Events published while a group was not running wait for it: that is what a durable group is.
    waiting = Counter[str]()
    for state in states:
        waiting[state.group] += state.lag
    waiting = +waiting
    told = ", ".join(f"{number} for {group}" for group, number in sorted(waiting.items())) or "nothing"
    stage.tell(f"Still on disk for groups that were not running since: {told}.")
