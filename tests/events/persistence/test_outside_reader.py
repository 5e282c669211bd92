"""Reading a workspace beside its writer: only what is proven durable comes out (rule F6)."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import Array, c_uint64
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import anyio
import pytest

from events.errors import BusError, OffsetGone, StorageFull
from events.persistence.files import OsFileSystem
from events.persistence.reader import WorkspaceReader
from events.persistence.store import Entry, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from tests.events.persistence.mounts import mounted
from tests.events.persistence.processes import FORKS, received, started

pytestmark = pytest.mark.slow

NAMES = (LogName("home", "alpha"), LogName("home", "beta"))
SETTINGS = WalSettings(segment_bytes=24 * 1024, ballast_bytes=16 * 1024)
LIVES = 12
LIFE_S = 0.6
KEEPS_EVENTS = 1_500
CUTS = 50


def entry_of(topic: str, identity: str, size: int) -> Entry:
    """An event that can be told from every other."""
    members = b'"meta":{"topic":"%b","type":"NOTED","space_id":"home"},"payload":{"id":"%b","body":"%b"}'
    return Entry(members % (topic.encode(), identity.encode(), b"x" * size))


def identity_in(line: bytes) -> str:
    """Which event a line holds."""
    found = re.search(rb'"id":"([^"]+)"', line)
    assert found is not None
    return found[1].decode()


# -- the writer --------------------------------------------------------------------------------------------------


class Troubled(OsFileSystem):
    """A disk that is slow, writes in pieces and is full now and then; notes what it has really synced.

    `synced` holds, by topic, the highest offset that a returned fdatasync covers. It is raised before anything
    could tell a reader, so whatever a reader hands out must be below it.
    """

    def __init__(self, synced: Array[c_uint64], random: Random) -> None:
        super().__init__()
        self._synced = synced
        self._random = random
        self._topics: dict[int, int] = {}
        self.is_often_full = False

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        handle = super().open(path, create=create, write=write)
        topic = os.path.basename(path).partition(".")[0]
        self._topics[handle] = next((i for i, name in enumerate(NAMES) if name.topic == topic), -1)
        return handle

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        if self._random.random() < 0.5:
            data = data[: self._random.randint(1, len(data))]
        written = super().pwrite(handle, data, position)
        time.sleep(self._random.uniform(0, 0.001))
        if self.is_often_full and self._random.random() < 0.01:
            raise OSError(errno.ENOSPC, "no room")
        return written

    def sync(self, handle: int) -> None:
        time.sleep(self._random.uniform(0, 0.002))
        super().sync(handle)
        size = self.size(handle)
        last_line = self.pread(handle, 4096, max(0, size - 4096))[:-1].rpartition(b"\n")[2]
        topic = self._topics[handle]
        if topic >= 0 and last_line:
            offset = int(last_line[len('{"offset":') : last_line.index(b",")])
            self._synced[topic] = max(self._synced[topic], offset)


def write(connection: Connection, workspace: str, life: str, synced: Array[c_uint64], seed: int) -> None:
    """Append, rotate and delete on a troubled disk, and say what became of each event."""
    random = Random(seed)
    anyio.run(_write, connection, workspace, life, Troubled(synced, random), random)


async def _write(connection: Connection, workspace: str, life: str, fs: OsFileSystem, random: Random) -> None:
    store = WalStore(workspace, SETTINGS, fs=fs)
    await store.open(lambda log, records: None)
    logs = [await store.log(name) for name in NAMES]
    deletes = isinstance(fs, Troubled)
    if isinstance(fs, Troubled):
        fs.is_often_full = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        for publisher in range(4):
            log = logs[publisher % len(logs)]
            tasks.start_soon(_publish, connection, log, f"{life}-{publisher}", Random(random.random()), deletes)


async def _publish(connection: Connection, log: StoreLog, author: str, random: Random, deletes: bool) -> None:
    sequence = 0
    while True:
        identities = [f"{author}-{sequence + index}" for index in range(random.choice((1, 2, 20)))]
        entries = [entry_of(log.name.topic, identity, random.randint(0, 300)) for identity in identities]
        sequence += len(identities)
        try:
            # So short that a full disk withdraws the lines, and others get their offsets.
            offsets = await log.append(entries, timeout_s=0.06)
        except StorageFull:
            connection.send(("withdrawn", log.name.topic, identities))
        except BusError:
            continue  # unknown
        else:
            connection.send(("acked", log.name.topic, list(zip(offsets, identities, strict=True))))
        if deletes and random.random() < 0.02:
            with suppress(OSError):  # no room for the mark that announces it; then nothing is deleted
                await log.drop_before(log.next_offset - KEEPS_EVENTS)


# -- the reader --------------------------------------------------------------------------------------------------


class Follower:
    """Reads a log from outside for as long as the test lasts, and remembers what it was given."""

    def __init__(self, workspace: Path, name: LogName, may_be_out: Callable[[], int]) -> None:
        self.name = name
        self.lines: dict[int, bytes] = {}
        self.counts: Counter[str] = Counter()
        self._may_be_out = may_be_out
        self._log = WorkspaceReader(workspace).log(name)
        self._next = 1

    def look(self) -> None:
        """F6: what comes next, and now and then all of it once more, is proven durable and the same as ever."""
        self.counts["looks"] += 1
        if self.counts["looks"] % 10 == 0:
            self._take(self._log.read())
        proof = self._log.prove()
        self.counts["withheld"] += proof.withheld_lines > 0
        try:
            self._take(self._log.read(self._next))
        except OffsetGone as gone:
            self.counts["deleted before it was read"] += 1
            self._next = gone.first_retained
        if self.lines and self.counts["looks"] % 10 == 5:
            known = max(self.lines)
            at = int(re.findall(rb'"at":(\d+)', self.lines[known])[-1])
            found = self._log.offset_at(at)
            assert found <= known or proof.first > known, f"{found} is not the first of its time: {known} is"

    def _take(self, records: Iterator[Any]) -> None:
        expected = 0
        with suppress(OffsetGone):  # a deletion overtook us; the next look begins behind it
            for record in records:
                # Asked at once: what is handed out was synced before, not a moment later.
                limit = self._may_be_out()
                assert record.offset <= limit, f"offset {record.offset} came out; {limit} is synced"
                assert expected in (0, record.offset), f"offset {record.offset} came where {expected} should"
                assert record.line[-11:] == b'%08x"}\n' % crc32(record.line[:-19])
                known = self.lines.setdefault(record.offset, record.line)
                assert known == record.line, f"offset {record.offset} had other bytes before"
                expected = record.offset + 1
                self._next = max(self._next, expected)


def follow(followers: list[Follower], stop: threading.Event, failures: list[BaseException]) -> None:
    """Look again and again until told to stop."""
    try:
        while not stop.is_set():
            for follower in followers:
                follower.look()
    except BaseException as failure:
        failures.append(failure)


def whole_lines(workspace: Path, name: LogName) -> int:
    """The last offset that stands in the files as a whole line, proven or not: counted without our own code."""
    folder = workspace / ".bus/spaces" / name.space_id / "wal"
    last = 0
    for path in sorted(folder.glob(f"{name.topic}.*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            if line[-10:] == b'%08x"}' % crc32(line[:-18]):
                last = int(line[10 : line.index(b",")])
    return last


def test_a_reader_beside_a_writer_sees_only_what_is_durable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F6: beside a writer that commits, rotates, deletes, is cut back by a full disk and is killed.

    Each record that comes out had been synced before, is whole, is the one that was acknowledged under its offset,
    and stays so. A withdrawn event never comes out. After a kill the reader says how many lines it withholds.
    """
    seed = int(os.environ.get("EVENTS_TEST_SEED") or Random().getrandbits(32))
    print(f"EVENTS_TEST_SEED={seed}")
    random = Random(seed)
    workspace = tmp_path / "workspace"
    synced = FORKS.RawArray("Q", len(NAMES))
    followers = [Follower(workspace, name, lambda i=i: synced[i]) for i, name in enumerate(NAMES)]  # type: ignore[misc]
    stop, failures = threading.Event(), list[BaseException]()
    thread = threading.Thread(target=follow, args=(followers, stop, failures))
    acked: dict[str, dict[int, str]] = {name.topic: {} for name in NAMES}
    withdrawn: set[str] = set()
    withheld_after_kills = 0
    thread.start()
    try:
        for life in range(LIVES):
            arguments = (str(workspace), str(life), synced, random.getrandbits(32))
            with started(write, *arguments) as (process, connection):
                timer = threading.Timer(LIFE_S + random.uniform(0, 0.1), process.kill)
                timer.start()
                for kind, topic, what in received(connection):
                    if kind == "acked":
                        acked[topic].update(what)
                    elif kind == "withdrawn":
                        withdrawn.update(what)
                timer.join()
                process.join()
                assert process.exitcode == -9, "the writer ended by itself"
            assert not failures, failures
            reader = WorkspaceReader(workspace)
            for name in NAMES:
                proof = reader.log(name).prove()
                assert proof.withheld_lines == whole_lines(workspace, name) - proof.durable
                assert reader.withheld().get(name, 0) == proof.withheld_lines
                withheld_after_kills += proof.withheld_lines
        time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    assert not failures, failures

    anyio.run(_recover, workspace)
    reader = WorkspaceReader(workspace)
    assert reader.withheld() == {}, "recovery has proven what was in doubt"
    for follower in followers:
        final = {record.offset: record.line for record in reader.log(follower.name).read()}
        for offset, line in follower.lines.items():
            identity = identity_in(line)
            assert acked[follower.name.topic].get(offset, identity) == identity
            assert identity not in withdrawn
            assert final.get(offset, line) == line
        assert {identity_in(line) for line in final.values()}.isdisjoint(withdrawn)
        assert set(acked[follower.name.topic]) <= set(final) | set(range(1, min(final)))
    counts = sum((follower.counts for follower in followers), Counter())
    read = sum(len(follower.lines) for follower in followers)
    assert withdrawn, "the disk was never full"
    assert counts["withheld"], "nothing was ever in doubt"
    with capsys.disabled():
        print(
            f"\n{read} records read in {counts['looks']} looks beside {LIVES} writers, {counts['withheld']} times with "
            f"lines withheld; {len(withdrawn)} events withdrawn, none seen; {withheld_after_kills} lines withheld "
            f"after kills (seed {seed})"
        )


async def _recover(workspace: Path) -> int:
    """Open and close it; the number of torn tails."""
    store = WalStore(workspace, SETTINGS)
    await store.open(lambda log, records: None)
    for name in NAMES:
        log = await store.log(name)
        assert log.error is None, log.error
    await store.close()
    return len(store.reports)


# -- a power cut -------------------------------------------------------------------------------------------------


def write_until_dark(connection: Connection, workspace: str, life: str, seed: int) -> None:
    """Append on the disk as it is, and say what was acknowledged."""
    anyio.run(_write, connection, workspace, life, OsFileSystem(), Random(seed))


def test_what_was_acknowledged_or_read_survives_a_power_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S1, F6: 50 power cuts on a real ext4: nothing acknowledged before the cut is lost, nor anything read outside.

    What is acknowledged or read while the cut is under way does not count: fdatasync may then return 0 in vain.
    """
    seed = int(os.environ.get("EVENTS_TEST_SEED") or Random().getrandbits(32))
    print(f"EVENTS_TEST_SEED={seed}")
    random = Random(seed)
    acked: dict[str, dict[int, str]] = {name.topic: {} for name in NAMES}
    withheld = torn = 0
    with mounted("ext4", tmp_path / "disk", 48 * 1024 * 1024, capsys) as disk:
        workspace = disk.path / "workspace"
        followers = [Follower(workspace, name, lambda: 1 << 62) for name in NAMES]
        for cut in range(CUTS):
            with started(write_until_dark, str(workspace), str(cut), random.getrandbits(32)) as (process, connection):
                assert connection.poll(30), "the writer says nothing"
                _watch(connection, acked, followers, until=time.monotonic() + random.uniform(0, 0.06))
                disk.cut_power()
                process.kill()
                process.join()
            disk.unmount()
            disk.mount()
            withheld += sum(WorkspaceReader(workspace).withheld().values())
            for follower in followers:
                follower.look()
            torn += anyio.run(_recover, workspace)
            final = {
                name.topic: {r.offset: r.line for r in WorkspaceReader(workspace).log(name).read()} for name in NAMES
            }
            for follower in followers:
                found = final[follower.name.topic]
                assert found.items() >= follower.lines.items(), f"cut {cut}: what was read is gone, or has changed"
                for offset, identity in acked[follower.name.topic].items():
                    assert identity_in(found[offset]) == identity, f"cut {cut}: offset {offset} is another event"
    read = sum(len(follower.lines) for follower in followers)
    assert read
    with capsys.disabled():
        count = sum(map(len, acked.values()))
        print(
            f"\n{CUTS} power cuts: {count} acknowledged events and {read} records read from outside, all there; "
            f"{withheld} lines withheld after a cut, {torn} torn tails healed (seed {seed})"
        )


def _watch(
    connection: Connection, acked: dict[str, dict[int, str]], followers: list[Follower], *, until: float
) -> None:
    """Hear the writer and read beside it; the last it said in time is heard."""
    while time.monotonic() < until:
        for follower in followers:
            follower.look()
        while connection.poll(0):
            kind, topic, what = connection.recv()
            assert kind == "acked", "this disk is large enough"
            acked[topic].update(what)
            if time.monotonic() > until:
                return
