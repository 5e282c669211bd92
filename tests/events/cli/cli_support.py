"""What the tests of the command line share: running a command, and a workspace that has something to look at."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from events.attention_gate import AttentionGate
from events.blocking import BlockingBus
from events.cli import app
from events.config import BusConfig
from events.persistence.wal import WalSettings
from events.types import Event, EventMeta, Nack

COMMAND = (sys.executable, "-m", "events")
CONFIG = BusConfig(
    wal=WalSettings(ballast_bytes=0), max_retries=1, backoff_base=0.001, backoff_max=0.01, checkpoint_interval_s=0.01
)


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What it printed, as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(
    *arguments: str | Path,
    workspace: Path | None = None,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    expect: int = 0,
) -> Ran:
    """Run `events` in this process. A traceback is a failure, whatever the command was meant to end with."""
    where = ["-w", str(workspace)] if workspace is not None else []
    result = CliRunner().invoke(app, [*map(str, arguments), *where], input=input, env=env, prog_name="events")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    ran = Ran(result.exit_code, result.stdout, result.stderr)
    assert ran.code == expect, f"exit {ran.code}\n{ran.out}\n{ran.err}"
    return ran


def environment(**changes: str) -> dict[str, str]:
    """The environment of a real process: nothing of ours but what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENTS_")}
    return {**kept, **changes}


def an_event(topic: str, number: int, *, space: str = "home", **meta: Any) -> Event:
    """A small event that is told from others by its number."""
    return Event(EventMeta(topic=topic, type="NOTED", space_id=space, **meta), {"n": number, "text": f"note {number}"})


class Chatter(AttentionGate):
    """Puts low priority off for long."""

    defer_s = 600.0

    def defer(self, event: Event[Any]) -> bool:
        return event.meta.priority == "low"


def fill(workspace: Path) -> None:
    """Two spaces, three topics, three groups; two kinds of dead letters; one retry, one deferral; a causal chain.

    `planner` reads perception and causes actions. `actor` reads actions: of the numbers 0 to 9, 3 and 7 die of one
    thing and 5 of another, 8 waits for another attempt and 9 (low priority) is deferred. `memory` reads everything.
    """
    bus = BlockingBus(workspace=workspace, config=CONFIG, gate=Chatter())

    def plan(event: Event[Any]) -> None:
        meta = event.meta
        bus.publish(an_event("actions", 100, causation_id=meta.event_id, correlation_id=meta.correlation_id))

    def act(event: Event[Any]) -> Nack | None:
        number = event.payload["n"]
        if number in (3, 7):
            raise KeyError(f"goal-{number}")
        if number == 5:
            raise TimeoutError(f"tool took {number}.0 s")
        return Nack("not now", delay=600) if number == 8 else None

    with bus:
        bus.subscribe("perception", "planner", plan)
        bus.subscribe("actions", "actor", act, space="home")
        bus.subscribe("*", "memory", lambda event: None)
        bus.publish_many([an_event("actions", number) for number in range(9)])
        bus.publish(an_event("actions", 9, priority="low", correlation_id="talk-2"))
        bus.publish(an_event("perception", 0, correlation_id="talk-1", actor="user:ann", key="ann"))
        bus.publish_many([an_event("outcomes", number, space="work") for number in range(3)])
        wait(
            lambda: (
                bus.statistics().groups["actor"]["parked"] == 2 and bus.statistics().groups["actor"]["inflight"] == 0
            )
        )
        wait(
            lambda: not bus.statistics().groups["planner"]["lag"] and not bus.statistics().groups["memory"]["inflight"]
        )


def wait(condition: Any, patience_s: float = 20.0) -> None:
    """Return when something has become true."""
    import time

    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def keys(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The keys that all rows have."""
    assert rows
    assert all(row.keys() == rows[0].keys() for row in rows)
    return set(rows[0])
