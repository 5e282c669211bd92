"""Thousands of deferred events and processes that are killed: none lost, none early, none twice."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from events.attention_gate import Admit, Decision, Defer, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Delivery
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.types import Event, EventMeta
from tests.events.process_support import Journal, checkpoint_of, lines_of, read_journal, started

EVENTS = 3_000
KILLS = 6
WAITS_S = (9.0, 11.0)
LOG = LogName("home", "thoughts")
PATIENCE_S = 60.0
ROUNDING_MS = 3
"""What is lost when seconds become milliseconds, twice, and by asking two clocks one after the other."""


class Later:
    """Defers each event to the time that its payload names; in its last life it admits whatever it is asked about.

    So in the last life only the deferral on disk can keep an event from being early.
    """

    def __init__(self, journal: Journal, *, last: bool) -> None:
        self._journal = journal
        self._last = last

    def decide(self, event: Event, context: GateContext) -> Decision:
        if self._last:
            self._journal.note("asked", offset=context.offset, attempt=context.deferrals)
            return Admit()
        due = datetime.fromtimestamp(event.payload["due_ms"] / 1000, UTC)
        return Defer.until(due, context, "not yet")


def live(_connection: object, workspace: str, journal: str, seed: int, last: bool) -> None:
    """One life: publish what is missing, then wait to be killed; the last one waits until all are delivered."""
    backend = Random(seed).choice(("asyncio", "trio"))
    anyio.run(_live, workspace, Journal(journal), seed, last, backend=backend)


async def _live(workspace: str, journal: Journal, seed: int, last: bool) -> None:
    async def handle(event: Event, delivery: Delivery) -> None:
        journal.note("delivered", offset=delivery.offset, detail=f"{time.time_ns() // 1_000_000}")

    config = BusConfig(wal=WalSettings(segment_bytes=256 * 1024, ballast_bytes=0), checkpoint_interval_s=0.02)
    async with EventBus(workspace=workspace, gate=Later(journal, last=last), config=config) as bus:
        # Sooner on disk than published: a group that does not exist yet when the process dies is no group.
        await bus.subscribe("thoughts", "mind", handle, workers=4)
        there = (await bus.store.log(LOG)).next_offset - 1
        await _publish(bus, Random(seed), EVENTS - there)
        if last:
            assert await bus.wait_settled(timeout_s=PATIENCE_S)
            return
        await anyio.sleep_forever()


async def _publish(bus: EventBus, random: Random, missing: int) -> None:
    while missing > 0:
        number = min(missing, random.choice((1, 50, 250)))
        now_ms = time.time_ns() // 1_000_000
        waits = [random.uniform(*WAITS_S) for _ in range(number)]
        meta = EventMeta(topic="thoughts", type="THOUGHT", space_id="home")
        await bus.publish_many([Event(meta.another(), {"due_ms": now_ms + int(wait * 1000)}) for wait in waits])
        missing -= number


def deferred_on_disk(workspace: Path) -> int:
    """How many events the checkpoint holds as deferred."""
    checkpoint = checkpoint_of(workspace, LOG, "mind")
    return 0 if checkpoint is None else len(checkpoint.deferrals)


def until(condition: Any) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_deferred_events_survive_kills_and_keep_their_time(tmp_path: Path) -> None:
    """W7, W13: killed again and again with thousands deferred, each is delivered once, and none before its time.

    The first kills come at random moments, also while events are still being published; the last one when every
    deferral is in the checkpoint. Behind the last one stands a gate that would let everything in at once.
    """
    workspace, journal, random = tmp_path / "workspace", tmp_path / "journal", Random(7)
    for life in range(KILLS):
        with started(live, str(workspace), str(journal), life, False) as (process, _):
            if life < KILLS - 1:
                time.sleep(random.uniform(0.05, 0.6))
            else:
                until(lambda: deferred_on_disk(workspace) == EVENTS)
            assert process.is_alive()
    notes, position = read_journal(journal)
    assert [note for note in notes if note.kind == "delivered"] == []
    with started(live, str(workspace), str(journal), KILLS, True) as (process, _):
        process.join(PATIENCE_S + 30)
        assert process.exitcode == 0
    notes, _ = read_journal(journal, position)

    due_ms = {record.offset: record.event.payload["due_ms"] for record in lines_of(workspace, LOG)}
    delivered = [(note.offset, int(note.detail)) for note in notes if note.kind == "delivered"]
    assert Counter(offset for offset, _ in delivered) == Counter(range(1, EVENTS + 1))  # none lost, none twice
    assert [offset for offset, at_ms in delivered if at_ms < due_ms[offset] - ROUNDING_MS] == []  # none early
    asked = [note for note in notes if note.kind == "asked"]
    assert Counter(note.offset for note in asked) == Counter(range(1, EVENTS + 1))
    assert all(note.attempt for note in asked)  # each had been deferred before, by what the disk says
