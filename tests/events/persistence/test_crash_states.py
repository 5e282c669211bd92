"""All short workloads of a store, crashed after every call in every way: what was promised is there, and nothing else.

Each workload is a sequence of up to three operations. The crashes during its last operation are explored, since those
during the others are explored by the shorter workloads. Every state is opened by the real store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import product

import anyio
import pytest

from events.persistence.io import InlineIo
from events.persistence.log import Sync
from events.persistence.store import Checkpoint, Entry, GroupRecord
from events.persistence.wal import WalSettings, WalStore
from events.testing.clock import FakeClock
from events.testing.crashes import crash_states
from events.testing.images import Image
from events.testing.simulated import SimulatedFileSystem
from tests.events.persistence.logs import AT, NAME, WORKSPACE, entries, read_all, store_on

SPARED = frozenset({"lock"})  # what stands in it is for people


@dataclass(frozen=True)
class Promised:
    """What the store had promised at a moment, and what it was about to do."""

    acknowledged: int = 0  # all offsets up to here; what stands at an offset follows from its number
    attempted: int = 0  # offsets up to here may be there too
    firsts: frozenset[int] = frozenset({1})  # where the log may begin
    committed: int | None = None
    may_commit: int | None = None
    group: int = 0  # how often the group was saved
    may_group: int = 0
    dead: int = 0
    may_dead: int = 0


@dataclass
class Run:
    """A workload under way."""

    fs: SimulatedFileSystem
    store: WalStore
    promised: Promised = field(default_factory=Promised)

    async def append(self, count: int) -> None:
        """Append a batch; its numbers are its offsets."""
        log = await self.store.log(NAME)
        upto = self.promised.acknowledged + count
        self.promised = replace(self.promised, attempted=upto)
        offsets = await log.append(entries(*range(upto - count + 1, upto + 1)), timeout_s=30)
        assert offsets == list(range(upto - count + 1, upto + 1))
        await log.sync()  # with `sync=always` there is nothing left to do
        self.promised = replace(self.promised, acknowledged=upto)

    async def checkpoint(self) -> None:
        """Settle all but the last offset."""
        log = await self.store.log(NAME)
        await log.sync()
        committed = max(0, log.next_offset - 2)
        self.promised = replace(self.promised, may_commit=committed)
        await self.store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=committed))
        self.promised = replace(self.promised, committed=committed)

    async def save_group(self) -> None:
        """Save the group's record, each time with another number in it."""
        number = self.promised.group + 1
        self.promised = replace(self.promised, may_group=number)
        await self.store.save_group(GroupRecord(name="readers", topic="t", space="*", created_ms=number))
        self.promised = replace(self.promised, group=number)

    async def drop(self) -> None:
        """Delete what lies below the last offset."""
        log = await self.store.log(NAME)
        firsts = {*self.promised.firsts, *range(log.first_offset, max(2, log.next_offset))}
        self.promised = replace(self.promised, firsts=frozenset(firsts))
        first = await log.drop_before(log.next_offset - 1)
        self.promised = replace(self.promised, firsts=frozenset({first}))

    async def dead_letter(self) -> None:
        """Append to the dead letters, which name the last offset of the log."""
        log = await self.store.log(NAME)
        await log.sync()
        number = self.promised.dead + 1
        self.promised = replace(self.promised, may_dead=number)
        dead = await self.store.dead_letters(NAME)
        await dead.append([Entry(b'"n":%d' % number, names=log.next_offset - 1)], timeout_s=30)
        await dead.sync()
        self.promised = replace(self.promised, dead=number)

    async def mark(self) -> None:
        """Have the housekeeping come by."""
        await (await self.store.log(NAME)).sync()
        clock = self.store.clock
        assert isinstance(clock, FakeClock)
        for log in list(self.store._attended):
            log.keep(clock.monotonic(), sync_due=True)

    async def reopen(self) -> None:
        """Close the store and open it again."""
        await self.store.close()
        self.store = await opened(self.fs, self.store.settings.sync)


OPERATIONS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "append": lambda run: run.append(1),
    "batch": lambda run: run.append(3),  # segments have two lines, so this rotates
    "checkpoint": lambda run: run.checkpoint(),
    "group": lambda run: run.save_group(),
    "drop": lambda run: run.drop(),
    "dead": lambda run: run.dead_letter(),
    "mark": lambda run: run.mark(),
    "reopen": lambda run: run.reopen(),
}


async def opened(fs: SimulatedFileSystem, sync: Sync = "always") -> WalStore:
    """A store with tiny segments."""
    settings = WalSettings(ballast_bytes=0, segment_lines=2, sync=sync)
    store = WalStore(WORKSPACE, settings, fs=fs, io=InlineIo(), clock=FakeClock(AT))
    await store.open(lambda log, records: None)
    return store


async def check(fs: SimulatedFileSystem, promised: Promised, where: str) -> Promised:
    """Open what a crash left and compare it with the promises; what is promised now, having been served."""
    async with store_on(fs, segment_lines=2) as store:
        log = await store.log(NAME)
        assert log.error is None, f"{where}: {log.error}"
        last = log.next_offset - 1
        assert promised.acknowledged <= last <= max(promised.attempted, promised.acknowledged), f"{where}: S1 {last}"
        assert log.first_offset in promised.firsts, f"{where}: begins at {log.first_offset}"
        records = await read_all(log)
        numbers = [record.members()["n"] for record in records]
        assert numbers == list(range(log.first_offset, last + 1)), f"{where}: S4, S5 {numbers}"
        checkpoint = await store.load_checkpoint(NAME, "readers")
        committed = checkpoint.committed if checkpoint else None
        assert committed in (promised.committed, promised.may_commit), f"{where}: checkpoint {committed}"
        assert (committed or 0) <= last, f"{where}: F7"
        groups = [group.created_ms for group in await store.groups()]
        assert sum(groups) in (promised.group, promised.may_group), f"{where}: group {groups}"
        dead = await store.dead_letters(NAME)
        assert dead.error is None, f"{where}: {dead.error}"
        assert dead.next_offset - 1 in (promised.dead, promised.may_dead), f"{where}: dead letters"
        assert await log.append(entries(last + 1), timeout_s=30) == [last + 1]
    served = last + 1
    return replace(promised, acknowledged=served, attempted=served, group=sum(groups), may_group=sum(groups))


async def run_workload(names: tuple[str, ...], sync: Sync) -> tuple[list[Image], Promised, Promised]:
    """Run a workload; the images of its last operation, and what was promised before and after that."""
    fs = SimulatedFileSystem()
    run = Run(fs, await opened(fs, sync))
    for name in names[:-1]:
        await OPERATIONS[name](run)
    fs.records = True
    before = run.promised
    start = fs.image("the start")
    await OPERATIONS[names[-1]](run)
    during, after = run.promised, run.promised
    during = replace(
        after,
        acknowledged=before.acknowledged,
        committed=before.committed,
        group=before.group,
        dead=before.dead,
        firsts=before.firsts | after.firsts,
    )
    return [start, *fs.history], during, after


async def explore(workloads: list[tuple[str, ...]], sync: Sync, *, limit: int) -> Counter[str]:
    """Crash every workload everywhere, and also kill its process there, go on, and only then cut the power."""
    counts: Counter[str] = Counter()
    seen: set[tuple[bytes, object]] = set()
    for names in workloads:
        history, during, after = await run_workload(names, sync)
        counts["workloads"] += 1
        last = len(history) - 1

        def promised(moment: int, last: int = last, during: Promised = during, after: Promised = after) -> Promised:
            return after if moment == last else during

        for state in crash_states(history, limit=limit, cuts=2, spared=SPARED, promised=promised, seen=seen):
            await check(state.fs, promised(state.moment), f"{names} {state}")
            counts["crashes"] += 1
        for moment, image in enumerate(history):
            fs = SimulatedFileSystem(image)
            where = f"{names}, killed after call {moment} ({image.call})"
            promises = await check(fs, promised(moment), where)
            await check(fs.crash(), promises, f"{where}, then the power failed")
            counts["kills, each with a power cut behind the next start"] += 1
    return counts


@pytest.mark.parametrize(("sync", "length", "limit"), [("always", 3, 40), ("interval", 2, 60)])
def test_every_short_workload_in_every_crash(
    sync: Sync, length: int, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1, S4, S5, F7: after any crash at any call of any workload, what was acknowledged is there under its own
    offset, nothing else is, checkpoints and groups are those that were saved, and the log takes the next event."""
    workloads = [names for size in range(1, length + 1) for names in product(OPERATIONS, repeat=size)]
    counts = anyio.run(lambda: explore(workloads, sync, limit=limit))
    with capsys.disabled():
        print(f"\nsync={sync}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    assert counts["crashes"] > 500
