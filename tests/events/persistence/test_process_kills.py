"""A writer that is killed again and again: what it acknowledged is there, and no offset is lost or used twice."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import anyio
import pytest

from events.persistence.codec import event_members
from events.persistence.files import OsFileSystem
from events.persistence.log import Sync
from events.persistence.repair import verify
from events.persistence.store import Checkpoint, Entry, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from events.serialization import encode_event
from events.types import Event, EventMeta
from tests.events.persistence.processes import started

pytestmark = pytest.mark.slow

KILLS = 200
SPACE = "home"
TOPICS = ("alpha", "beta")
PUBLISHERS = 4
GROUP = "readers"
KEEPS_EVENTS = 2_000
BATCH_SIZES = (1, 1, 1, 2, 7, 40)

Identity = tuple[int, int, int]  # the life of the writer, the publisher in it, and its how many-th event


def payload_of(identity: Identity) -> dict[str, Any]:
    """What an event says follows from who published it, so that half an event cannot pass for a whole one."""
    digest = sha256(repr(identity).encode()).hexdigest()
    return {"identity": list(identity), "body": digest * (1 + int(digest[0], 16) // 4)}


def entry_of(topic: str, identity: Identity) -> Entry:
    """The event as it is appended."""
    event = Event(EventMeta(topic=topic, type="NOTED", space_id=SPACE), payload_of(identity))
    meta, payload = encode_event(event, 1_000_000)
    return Entry(event_members(meta, payload), event.meta, len(meta))


class Halting(OsFileSystem):
    """Writes a part of what it is given, as a file system may, and pauses: the kill finds half a line there."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        if self._random.random() < 0.5:
            return super().pwrite(handle, data, position)
        written = super().pwrite(handle, data[: self._random.randint(1, len(data))], position)
        time.sleep(self._random.uniform(0, 0.002))
        return written


def live(connection: Connection, workspace: str, life: int, seed: int, known: dict[str, int], last: bool) -> None:
    """One life of the writer: recover, read back what is there, then append until somebody pulls the plug."""
    random = Random(seed)
    backend = random.choice(("asyncio", "trio"))
    anyio.run(_live, connection, workspace, life, random, known, last, backend=backend)


async def _live(
    connection: Connection, workspace: str, life: int, random: Random, known: dict[str, int], last: bool
) -> None:
    modes: tuple[Sync, ...] = ("always", "always", "interval")
    sync = random.choice(modes)
    settings = WalSettings(segment_bytes=32 * 1024, sync=sync, ballast_bytes=16 * 1024, max_open_files=4)
    store = WalStore(workspace, settings, fs=random.choice((OsFileSystem(), Halting(Random(random.random())))))
    await store.open(lambda log, records: None)
    logs = [await store.log(LogName(SPACE, topic)) for topic in TOPICS]
    for log in logs:
        await _read_back(connection, store, log, known[log.name.topic])
    connection.send(("open", [found.condition for _, found in store.reports]))
    if last:
        await store.close()
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        tasks.start_soon(_settle, connection, store, logs, random)
        for publisher in range(PUBLISHERS):
            log = logs[publisher % len(logs)]
            tasks.start_soon(_publish, connection, log, life, publisher, Random(random.random()))


async def _read_back(connection: Connection, store: WalStore, log: StoreLog, known: int) -> None:
    assert log.error is None, log.error
    topic, offset = log.name.topic, max(log.first_offset, known + 1)
    connection.send(("first", topic, log.first_offset, known))
    while records := await log.read(offset, 64 * 1024):
        connection.send(("found", topic, [(record.offset, record.line) for record in records]))
        offset = records[-1].offset + 1
    checkpoint = await store.load_checkpoint(log.name, GROUP)
    connection.send(("read", topic, log.next_offset - 1, checkpoint.committed if checkpoint else 0))


async def _publish(connection: Connection, log: StoreLog, life: int, publisher: int, random: Random) -> None:
    sequence = 0
    while True:
        size = random.choice(BATCH_SIZES)
        identities = [(life, publisher, sequence + index) for index in range(size)]
        offsets = await log.append([entry_of(log.name.topic, identity) for identity in identities], timeout_s=30)
        connection.send(("acked", log.name.topic, list(zip(offsets, identities, strict=True))))
        sequence += size


async def _settle(connection: Connection, store: WalStore, logs: list[StoreLog], random: Random) -> None:
    while True:
        log = random.choice(logs)
        await anyio.sleep(random.uniform(0, 0.004))
        committed = log.next_offset - 1
        await log.sync()
        await store.save_checkpoint(log.name, GROUP, Checkpoint(log_id=log.log_id, committed=committed))
        connection.send(("settled", log.name.topic, committed))
        if random.random() < 0.1:
            connection.send(("dropping", log.name.topic, committed - KEEPS_EVENTS))
            await log.drop_before(committed - KEEPS_EVENTS)


class Ledger:
    """What the writer was heard to promise of one log, and what was found of it so far."""

    def __init__(self) -> None:
        self.acked: dict[int, Identity] = {}
        self.checksums: dict[int, int] = {}
        self.next_sequence: Counter[tuple[int, int]] = Counter()
        self.last_found = 0
        self.last_acked = 0
        self.settled = 0
        self.may_drop_below = 1
        self.next_offset = 1

    def heard_acks(self, acks: Iterable[tuple[int, Identity]]) -> None:
        """S4: an offset is given to one event only."""
        for offset, identity in acks:
            assert offset not in self.acked, f"offset {offset} was acknowledged twice"
            assert offset > self.last_found, f"offset {offset} was in the log before it was acknowledged"
            self.acked[offset] = identity
            self.last_acked = max(self.last_acked, offset)

    def begins(self, first: int, known: int) -> None:
        """The log begins where a deletion that was asked for left it, and nowhere else."""
        assert 1 <= first <= max(1, self.may_drop_below), f"begins at {first}, though nobody asked for that"
        self.next_offset = max(first, known + 1)

    def found(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """S1, S4, S5: each line is whole, in its place, and what was acknowledged there; none comes twice."""
        for offset, line in lines:
            assert offset == self.next_offset, f"offset {offset} follows {self.next_offset - 1}"
            self.next_offset += 1
            checksum = crc32(line)
            if offset <= self.last_found:
                assert self.checksums[offset] == checksum, f"offset {offset} has changed"
                continue
            self.checksums[offset] = checksum
            self.last_found = offset
            record = json.loads(line)
            life, publisher, sequence = record["payload"]["identity"]
            identity: Identity = (life, publisher, sequence)
            assert record["offset"] == offset
            assert record["crc"] == f"{crc32(line[:-19]):08x}"
            assert record["payload"] == payload_of(identity)
            assert self.acked.get(offset, identity) == identity
            assert sequence == self.next_sequence[life, publisher], f"{identity} is there twice, or out of turn"
            self.next_sequence[life, publisher] += 1

    def was_read(self, last_offset: int, committed: int) -> None:
        """S1, F7: nothing acknowledged is missing, and the checkpoint is neither lost nor ahead of the log."""
        assert self.next_offset == last_offset + 1
        assert self.last_acked <= last_offset, f"{self.last_acked} was acknowledged; the log ends at {last_offset}"
        assert self.settled <= committed <= last_offset, f"{self.settled} was settled; the checkpoint says {committed}"

    @property
    def unacknowledged(self) -> int:
        """Whole events whose publisher was killed before it heard of them."""
        return len(self.checksums) - len(self.acked)


def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1, S4, S5, F7: after each of 200 kills every acknowledged event is there, whole, under its own offset.

    The workspace is never closed in between, and some kills hit a writer that is still recovering from the one
    before. EVENTS_TEST_SEED repeats a run's choices; the moments of the kills are the machine's.
    """
    seed = int(os.environ.get("EVENTS_TEST_SEED") or Random().getrandbits(32))
    print(f"EVENTS_TEST_SEED={seed}")
    random = Random(seed)
    ledgers = {topic: Ledger() for topic in TOPICS}
    killed_while: Counter[str] = Counter()
    conditions: Counter[str] = Counter()
    began = time.monotonic()
    for life in range(KILLS + 1):
        is_last = life == KILLS
        reads_all = is_last or life % 20 == 19
        known = {topic: 0 if reads_all else ledger.last_found for topic, ledger in ledgers.items()}
        kill_early = not is_last and random.random() < 0.2
        after_start, after_open = random.uniform(0, 0.02), random.uniform(0, 0.03)
        arguments = (str(tmp_path / "workspace"), life, random.getrandbits(32), known, is_last)
        with started(live, *arguments) as (process, connection):
            kill_at = time.monotonic() + (after_start if kill_early else 60)
            is_open = False
            with suppress(EOFError, OSError):
                while (left := kill_at - time.monotonic()) > 0 and connection.poll(left):
                    if _hear(connection, ledgers, conditions):
                        is_open = True
                        kill_at = min(kill_at, time.monotonic() + (60 if is_last else after_open))
                process.kill()
                while True:  # what it said before it died counts
                    is_open = _hear(connection, ledgers, conditions) or is_open
            process.join()
        assert process.exitcode == (0 if is_last else -9), f"the writer ended by itself in life {life}"
        assert is_open or kill_early, "the writer did not come up in time"
        killed_while["publishing" if is_open else "opening"] += not is_last

    assert all(verified.is_sound for verified in verify(tmp_path / "workspace"))
    assert killed_while.total() == KILLS
    found = sum(len(ledger.checksums) for ledger in ledgers.values())
    unacknowledged = sum(ledger.unacknowledged for ledger in ledgers.values())
    with capsys.disabled():
        print(
            f"\n{KILLS} kills ({killed_while['opening']} while opening, {conditions['torn']} torn tails healed) in "
            f"{time.monotonic() - began:.1f} s: {found - unacknowledged} acknowledged events, all there, and "
            f"{unacknowledged} whole ones that nobody had heard of (seed {seed})"
        )


def _hear(connection: Connection, ledgers: dict[str, Ledger], conditions: Counter[str]) -> bool:
    """Enter one message of the writer; True when it says that it is open."""
    kind, *rest = connection.recv()
    if kind == "open":
        conditions.update(rest[0])
        assert not conditions["corrupt"], "a kill is no damage"
        return True
    topic, *details = rest
    ledger = ledgers[topic]
    if kind == "acked":
        ledger.heard_acks(details[0])
    elif kind == "settled":
        ledger.settled = max(ledger.settled, details[0])
    elif kind == "dropping":
        ledger.may_drop_below = max(ledger.may_drop_below, details[0])
    elif kind == "first":
        ledger.begins(*details)
    elif kind == "found":
        ledger.found(details[0])
    elif kind == "read":
        ledger.was_read(*details)
    else:
        raise AssertionError(kind)
    return False
