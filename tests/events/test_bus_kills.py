"""A bus with four groups under load, killed a hundred times: nothing is lost, nothing settled comes again."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Delivery
from events.names import topic_matches
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.types import Ack, Event, EventMeta, Nack
from tests.events.process_support import (
    Journal,
    Note,
    checkpoint_of,
    deaths_of,
    keep_quiet,
    lines_of,
    logs_of,
    read_journal,
    started,
)

KILLS = 100
SPACES = ("home", "work space/ü")
TOPICS = ("orders.created", "orders.paid", "chat")
KEYS = (None, "a", "b", "c", "d")
BAD_EVERY = 61  # a payload that the failing group never accepts
MAX_RETRIES = 14
PATTERNS: dict[str, tuple[str, str, dict[str, Any]]] = {  # topic, space and the other settings of each group
    "audit": ("*", "*", {"workers": 2}),
    "billing": ("orders.*", "*", {"workers": 4, "backoff_base": 0.01, "backoff_max": 0.05}),
    "slow": ("chat", "*", {"workers": 3, "overflow": "spill"}),
    "ledger": ("orders.created", "home", {"batch": 8, "ordering": "topic"}),
}
Log = tuple[str, LogName]  # a group, and a log that it consumes


# -- the process that is killed --------------------------------------------------------------------------------


def live(connection: Connection, workspace: str, journal: str, life: int, seed: int, last: bool) -> None:
    """One life: subscribe four groups, publish and consume until killed; the last one drains and closes."""
    random = Random(seed)
    backend = random.choice(("asyncio", "trio"))
    keep_quiet()
    anyio.run(_live, connection, workspace, Journal(journal), life, random, last, backend=backend)


async def _live(
    connection: Connection, workspace: str, journal: Journal, life: int, random: Random, last: bool
) -> None:
    config = BusConfig(
        wal=WalSettings(segment_bytes=64 * 1024, ballast_bytes=4096),
        max_inflight=32,
        max_retries=MAX_RETRIES,
        settle_span=256,
        checkpoint_interval_s=0.02,
    )
    async with EventBus(workspace=workspace, config=config) as bus:
        handlers = _handlers(journal, random)
        for group, (topic, space, settings) in PATTERNS.items():
            await bus.subscribe(topic, group, handlers[group], space=space, **settings)
        journal.note("open", detail=str(life))
        connection.send("open")
        if last:
            assert await bus.wait_settled(timeout_s=120), bus.statistics()
            return
        async with anyio.create_task_group() as tasks:
            for publisher in range(3):
                tasks.start_soon(_publish, bus, journal, Random(random.random()), f"{life}.{publisher}")


async def _publish(bus: EventBus, journal: Journal, random: Random, name: str) -> None:
    sequence = 0
    while True:
        events = []
        for _ in range(random.choice((1, 1, 1, 5))):
            sequence += 1
            meta = EventMeta(
                topic=random.choice(TOPICS), type="NOTED", space_id=random.choice(SPACES), key=random.choice(KEYS)
            )
            events.append(Event(meta, {"n": f"{name}.{sequence}", "bad": random.randrange(BAD_EVERY) == 0}))
        for receipt in await bus.publish_many(events):
            journal.note(
                "published",
                space=receipt.space_id,
                topic=receipt.topic,
                offset=receipt.offset,
                detail=receipt.event_id,
            )
        await anyio.sleep(random.uniform(0, 0.01))


def _handlers(journal: Journal, random: Random) -> dict[str, Any]:
    def note(kind: str, event: Event[Any], delivery: Delivery) -> None:
        journal.note(
            kind,
            group=delivery.group,
            space=delivery.space_id,
            topic=delivery.topic,
            offset=delivery.offset,
            attempt=delivery.attempt,
            detail=event.meta.key or "-",
        )

    async def audit(event: Event[Any], delivery: Delivery) -> None:
        note("begin", event, delivery)
        await anyio.lowlevel.checkpoint()
        note("ack", event, delivery)

    async def billing(event: Event[Any], delivery: Delivery) -> Ack | Nack:
        note("begin", event, delivery)
        await anyio.sleep(random.uniform(0, 0.002))
        if event.payload["bad"] or random.random() < 0.1:
            note("nack", event, delivery)
            return Nack("not this time")
        note("ack", event, delivery)
        return Ack()

    async def slow(event: Event[Any], delivery: Delivery) -> None:
        note("begin", event, delivery)
        await anyio.sleep(random.uniform(0.005, 0.02))
        note("ack", event, delivery)

    async def ledger(events: list[Event[Any]], deliveries: list[Delivery]) -> None:
        for event, delivery in zip(events, deliveries, strict=True):
            note("begin", event, delivery)
        await anyio.sleep(0.001)
        for event, delivery in zip(events, deliveries, strict=True):
            note("ack", event, delivery)

    return {"audit": audit, "billing": billing, "slow": slow, "ledger": ledger}


# -- what it must have kept to ---------------------------------------------------------------------------------


class Witness:
    """Hears what each life did, reads what it left on disk, and holds the one against the other."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.published: dict[tuple[LogName, int], str] = {}
        self.delivered: dict[Log, Counter[int]] = defaultdict(Counter)
        self.acked: dict[Log, set[int]] = defaultdict(set)
        self.dead: dict[Log, set[int]] = defaultdict(set)
        self.settled: dict[Log, set[int]] = defaultdict(set)
        self.highest_of_key: dict[tuple[str, LogName, str], int] = defaultdict(int)
        self.opened = 0

    def hear(self, notes: list[Note]) -> None:
        """Check the deliveries of one life as they came."""
        at: dict[tuple[str, LogName, str], tuple[int, str]] = {}
        for note in notes:
            name = LogName(note.space, note.topic)
            if note.kind == "open":
                self.opened += 1
            elif note.kind == "published":
                assert (name, note.offset) not in self.published, f"offset {note.offset} of {name} was given twice"
                self.published[name, note.offset] = note.detail
            elif note.kind == "begin":
                self._begin(note, name, at)
            else:
                self._end(note, name, at)

    def _begin(self, note: Note, name: LogName, at: dict[tuple[str, LogName, str], tuple[int, str]]) -> None:
        log, offset = (note.group, name), note.offset
        assert offset not in self.settled[log], f"{note} was durably settled before this life began"
        assert offset not in self.dead[log], f"{note} is dead"
        self.delivered[log][offset] += 1
        lane = self._lane(note, name)
        if lane is None:
            return
        before, how = at.get(lane, (0, "ack"))
        if note.group == "ledger":  # a batch begins as a whole
            assert offset > before, f"{note} came after offset {before} of its lane"
        elif how == "nack":
            assert offset >= before, f"{note} came after offset {before} of its key"
        else:
            assert how == "ack", f"{note} began while offset {before} of its key was running"
            assert offset > before, f"{note} came after offset {before} of its key"
        if self.delivered[log][offset] == 1:
            assert offset > self.highest_of_key[lane], f"{note} came first after a later one of its key"
            self.highest_of_key[lane] = offset
        at[lane] = (offset, "running")

    def _end(self, note: Note, name: LogName, at: dict[tuple[str, LogName, str], tuple[int, str]]) -> None:
        lane = self._lane(note, name)
        if lane is not None and (note.group != "ledger" or at[lane][0] == note.offset):
            at[lane] = (note.offset, note.kind)
        if note.kind == "ack":
            self.acked[note.group, name].add(note.offset)

    @staticmethod
    def _lane(note: Note, name: LogName) -> tuple[str, LogName, str] | None:
        if note.group == "ledger":
            return (note.group, name, "")
        return None if note.detail == "-" else (note.group, name, note.detail)

    def look(self) -> None:
        """Read the checkpoints and dead letters that a killed process left: what it says is settled stays so."""
        for name in logs_of(self.workspace):
            last = max((record.offset for record in lines_of(self.workspace, name)), default=0)
            deaths = deaths_of(self.workspace, name)
            for group in groups_of(name):
                log = (group, name)
                dead = [death.offset for death in deaths if death.group == group]
                assert len(dead) == len(set(dead)), f"{group} has two dead letters of one event of {name}: {dead}"
                assert self.dead[log] <= set(dead)
                self.dead[log] = set(dead)
                checkpoint = checkpoint_of(self.workspace, name, group)
                settled = set() if checkpoint is None else set(range(1, checkpoint.committed + 1))
                for first, end in () if checkpoint is None else checkpoint.ranges:
                    settled.update(range(first, end + 1))
                assert self.settled[log] <= settled, f"{group} forgot that it had settled some of {name}"
                assert max(settled, default=0) <= last, f"{group} settled what {name} does not hold"
                unheard = settled - self.acked[log] - self.dead[log]
                assert not unheard, f"{group} settled {sorted(unheard)} of {name}, neither acked nor dead"
                self.settled[log] = settled

    def judge(self) -> int:
        """At the very end: everything that is in the logs reached every group; how many events that were."""
        total = 0
        found: dict[tuple[LogName, int], str] = {}
        for name in logs_of(self.workspace):
            records = list(lines_of(self.workspace, name))
            offsets = [record.offset for record in records]
            assert offsets == list(range(1, len(records) + 1)), f"{name} has a hole or a repeated offset"
            found.update({(name, record.offset): record.meta.event_id for record in records})
            bad = {record.offset for record in records if record.event.payload["bad"]}
            for group in groups_of(name):
                log = (group, name)
                assert set(self.delivered[log]) == set(offsets), f"{group} did not get all of {name}"
                assert self.settled[log] == set(offsets), f"{group} did not settle all of {name}"
                assert self.dead[log] == (bad if group == "billing" else set()), f"the wrong ones died in {group}"
                assert not self.dead[log] & self.acked[log], "an event was both acked and dead"
            total += len(records)
        missing = {key: event_id for key, event_id in self.published.items() if found.get(key) != event_id}
        assert not missing, f"published, and lost: {missing}"
        return total


def groups_of(name: LogName) -> list[str]:
    return [
        group
        for group, (topic, space, _) in PATTERNS.items()
        if topic_matches(topic, name.topic) and space in ("*", name.space_id)
    ]


@pytest.mark.slow
def test_a_hundred_kills(workspace: Path, tmp_path: Path) -> None:
    """S1-S3, W1, W5, W10: whatever moment the process is killed at, every group gets exactly what it had not
    durably settled, each key in order; no publish that returned is lost, and nothing is both acked and dead.
    """
    seed = int(os.environ.get("EVENTS_SEED", "0")) or Random().randrange(1, 1 << 31)
    print(f"\nseed {seed}")
    random, witness, position = Random(seed), Witness(workspace), 0
    journal = tmp_path / "journal"
    began = time.monotonic()
    for life in range(KILLS + 1):
        last = life == KILLS
        with started(live, str(workspace), str(journal), life, random.getrandbits(32), last) as (process, connection):
            if last:
                process.join(150)
                assert process.exitcode == 0, f"the last life ended with {process.exitcode}"
            else:
                early = random.random() < 0.2
                if not early:
                    connection.poll(30)
                process.join(random.uniform(0.0, 0.1) if early else random.uniform(0.0, 0.35))
                assert process.exitcode is None, f"life {life} ended by itself with {process.exitcode}"
        notes, position = read_journal(journal, position)
        witness.hear(notes)
        witness.look()
    total = witness.judge()
    deliveries = sum(sum(counts.values()) for counts in witness.delivered.values())
    distinct = sum(len(counts) for counts in witness.delivered.values())
    print(
        f"{KILLS} kills ({KILLS + 1 - witness.opened} before the groups were up) in {time.monotonic() - began:.0f} s: "
        f"{total} events ({len(witness.published)} acknowledged), {distinct} owed to 4 groups, all delivered; "
        f"{deliveries - distinct} further attempts; {sum(map(len, witness.dead.values()))} dead letters"
    )
