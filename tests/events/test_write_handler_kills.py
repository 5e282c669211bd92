"""A writer of memories that is killed a hundred times: one memory for each request, and every one of them told."""

from __future__ import annotations

import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.episodic import Recall
from events.episodic_sqlite import SqliteEpisodicStore
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.types import Event, EventMeta
from events.write_handler import WriteHandler
from tests.events.process_support import Journal, checkpoint_of, lines_of, read_journal, started

KILLS = 100
SPACES = ("home", "work")
PATIENCE_S = 120.0


def live(_connection: object, workspace: str, journal: str, seed: int, last: bool) -> None:
    """One life: ask for memories and write them until killed; the last one finishes what is left."""
    random = Random(seed)
    anyio.run(_live, workspace, Journal(journal), random, last, backend=random.choice(("asyncio", "trio")))


async def _live(workspace: str, journal: Journal, random: Random, last: bool) -> None:
    config = BusConfig(
        wal=WalSettings(segment_bytes=64 * 1024, ballast_bytes=0),
        checkpoint_interval_s=0.02,
        # The requests are not what kills this process, so none of them may be given up for having been there.
        max_retries=10_000,
        backoff_base=0.001,
        backoff_max=0.01,
    )
    memories = SqliteEpisodicStore(workspace)
    async with EventBus(workspace=workspace, config=config) as bus:
        await WriteHandler(memories).follow(bus, workers=4)
        journal.note("open")
        if last:
            assert await bus.wait_settled(timeout_s=PATIENCE_S), bus.statistics()
            await memories.close()
            return
        while True:
            metas = [
                EventMeta(topic="hippo", type="HIPPO_ENCODE", space_id=random.choice(SPACES), key=random.choice("abcd"))
                for _ in range(random.choice((1, 1, 3)))
            ]
            for receipt in await bus.publish_many([Event(meta, {"text": meta.event_id}) for meta in metas]):
                journal.note("asked", space=receipt.space_id, offset=receipt.offset, detail=receipt.event_id)
            await anyio.sleep(random.uniform(0, 0.01))


def requests_in(workspace: Path, space: str) -> list[str]:
    """The requests that are in the log, by event id."""
    records = lines_of(workspace, LogName(space, "hippo"))
    return [record.meta.event_id for record in records if record.meta.type == "HIPPO_ENCODE"]


def told_in(workspace: Path, space: str, topic: str, type: str) -> Counter[str]:
    """Which memories were told of, and how often."""
    records = lines_of(workspace, LogName(space, topic))
    return Counter(record.event.payload["memory_id"] for record in records if record.meta.type == type)


def wait_open(journal: Path, process: BaseProcess) -> None:
    """Return when the process that was started last has begun to work."""
    _, position = read_journal(journal)
    deadline = time.monotonic() + PATIENCE_S
    while not any(note.kind == "open" for note in read_journal(journal, position)[0]):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_one_memory_for_each_request_and_every_one_told(tmp_path: Path) -> None:
    """W1: killed at random a hundred times, no request is lost, none makes two memories, none is kept secret."""
    workspace, journal, random = tmp_path / "workspace", tmp_path / "journal", Random(3)
    for life in range(KILLS):
        with started(live, str(workspace), str(journal), life, False) as (process, _):
            if life % 5:  # every fifth is killed while it starts, or recovers
                wait_open(journal, process)
            time.sleep(random.uniform(0, 0.12))
            assert process.is_alive()
    with started(live, str(workspace), str(journal), KILLS, True) as (process, _):
        process.join(PATIENCE_S)
        assert process.exitcode == 0

    notes, _ = read_journal(journal)
    repeats = 0
    for space in SPACES:
        asked = requests_in(workspace, space)
        assert {note.detail for note in notes if note.kind == "asked" and note.space == space} <= set(asked)
        memories = anyio.run(_all_memories, str(workspace), space)
        assert Counter(event_id for event_id, _ in memories) == Counter(asked)  # one for each, and no other
        ids = {memory_id for _, memory_id in memories}
        for topic, type in (("hippo", "WRITE_ACCEPTED"), ("workspace", "WORKING_MEMORY_UPDATE")):
            told = told_in(workspace, space, topic, type)
            assert set(told) == ids
            repeats += sum(told.values()) - len(told)
        checkpoint = checkpoint_of(workspace, LogName(space, "hippo"), "hippocampus")
        assert checkpoint is not None
        assert not checkpoint.ranges
    total = sum(len(requests_in(workspace, space)) for space in SPACES)
    assert total > KILLS
    print(f"{total} requests, {KILLS} kills, {repeats} announcements heard twice")


async def _all_memories(workspace: str, space: str) -> list[tuple[str, str]]:
    memories = SqliteEpisodicStore(workspace)
    try:
        found = await memories.find(Recall(space_id=space, limit=1_000_000))
        assert await memories.unannounced(space) == []
        return [(memory.event_id, memory.memory_id) for memory in found]
    finally:
        await memories.close()
