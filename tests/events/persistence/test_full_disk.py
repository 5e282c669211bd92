"""A real disk that fills up and has room again: publishers wait, acks go on, nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
import pytest

from events.errors import StorageFull
from events.persistence.reader import WorkspaceReader
from events.persistence.repair import verify
from events.persistence.retention import compact
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from tests.events.persistence.mounts import Disk, mounted
from tests.events.persistence.processes import received, started

NAME = LogName("home", "notes")
SETTINGS = WalSettings(segment_bytes=64 * 1024, ballast_bytes=128 * 1024)
DISK_BYTES = 8 * 1024 * 1024


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Disk]:
    """A small disk of our own."""
    with mounted(request.param, tmp_path / "disk", DISK_BYTES, capsys) as disk:
        yield disk


def entry_of(identity: str, size: int = 6000) -> Entry:
    """An event that takes more than the rest of a page that is already there."""
    members = '"meta":{"topic":"notes","type":"NOTED","space_id":"home"},"payload":{"id":"%s","body":"%s"}'
    return Entry((members % (identity, "x" * size)).encode())


def identities(workspace: Path) -> list[str]:
    """Who is in the log, as a reader outside sees it."""
    return [record.members()["payload"]["id"] for record in WorkspaceReader(workspace).log(NAME).read()]


@asynccontextmanager
async def running(disk: Disk) -> AsyncIterator[tuple[WalStore, StoreLog]]:
    """A store on the disk with its housekeeping, and a log of it."""
    store = WalStore(disk.path / "workspace", SETTINGS)
    await store.open(lambda log, records: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        try:
            yield store, await store.log(NAME)
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await store.close()


async def test_an_append_waits_for_room_and_goes_on_by_itself(disk: Disk) -> None:
    """ENOSPC: the append waits, `storage_full` says so, and it returns once there is room."""
    async with running(disk) as (store, log):
        assert await log.append([entry_of("before")], timeout_s=10) == [1]
        filler = disk.fill()
        offsets: list[int] = []

        async def publish() -> None:
            offsets.extend(await log.append([entry_of("waiting")], timeout_s=30))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await anyio.sleep(0.4)
            assert offsets == []
            assert store.storage_full
            filler.unlink()
        assert offsets == [2]
        assert not store.storage_full
    assert identities(disk.path / "workspace") == ["before", "waiting"]


async def test_storage_full_withdraws_the_line(disk: Disk) -> None:
    """STORAGE_FULL: after its timeout the line is withdrawn for good, and the next event gets its offset."""
    async with running(disk) as (_store, log):
        await log.append([entry_of("before")], timeout_s=10)
        filler = disk.fill()
        with pytest.raises(StorageFull) as refused:
            await log.append([entry_of(f"withdrawn-{index}") for index in range(5)], timeout_s=0.3)
        assert refused.value.waited_s >= 0.3
        with anyio.move_on_after(0.3):
            await log.append([entry_of("cancelled")], timeout_s=30)
        filler.unlink()
        assert await log.append([entry_of("after")], timeout_s=10) == [2]
    assert identities(disk.path / "workspace") == ["before", "after"]


async def test_acks_and_dead_letters_can_be_written_on_a_full_disk(disk: Disk) -> None:
    """The ballast: groups, checkpoints and dead letters still fit, and waiting publishers do not take its place.

    Once there is room the ballast comes back, before the publishers do.
    """
    async with running(disk) as (store, log):
        await log.append([entry_of("before")], timeout_s=10)
        ballast = Path(store.layout.ballast)
        assert ballast.stat().st_size == SETTINGS.ballast_bytes
        filler = disk.fill()
        results: list[int | str] = []

        async def publish(identity: str) -> None:
            try:
                results.extend(await log.append([entry_of(identity)], timeout_s=60))
            except StorageFull as full:
                results.append(full.code)

        async with anyio.create_task_group() as tasks:
            for index in range(20):
                tasks.start_soon(publish, f"waiting-{index}")
            await anyio.sleep(0.2)
            await store.save_group(GroupRecord(name="readers", topic="*", space="*"))
            letters = await store.dead_letters(NAME)
            for index in range(10):
                await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=1))
                assert await letters.append([Entry(b'"n":%d' % index)], timeout_s=0.5) == [index + 1]
                await anyio.sleep(0.06)  # time for the publishers to try again
            assert results == []
            assert store.storage_full
            filler.unlink()
        assert sorted(map(int, results)) == list(range(2, 22))
        assert ballast.stat().st_size == SETTINGS.ballast_bytes
        checkpoint = await store.load_checkpoint(NAME, "readers")
        assert checkpoint is not None
        assert checkpoint.committed == 1


async def test_the_last_room_on_a_disk_is_for_acks(disk: Disk) -> None:
    """The ballast: where it does not fit when the workspace is opened, publishers wait and acks are written."""
    filler = disk.fill()
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - 100 * 1024)
    async with running(disk) as (store, log):
        assert not Path(store.layout.ballast).exists()
        await store.save_group(GroupRecord(name="readers", topic="*", space="*"))
        with pytest.raises(StorageFull):
            await log.append([entry_of("first")], timeout_s=0.3)
        filler.unlink()
        assert await log.append([entry_of("first")], timeout_s=10) == [1]
        assert Path(store.layout.ballast).stat().st_size == SETTINGS.ballast_bytes


async def test_compaction_makes_room_on_a_full_disk(disk: Disk) -> None:
    """F4, F5: what every group has settled is deleted though the disk is full; the last record stays."""
    async with running(disk) as (store, log):
        await store.save_group(GroupRecord(name="readers", topic="*", space="*"))
        for index in range(40):
            [last] = await log.append([entry_of(f"{index}")], timeout_s=10)
        disk.fill()
        with pytest.raises(StorageFull):  # a new segment was created for it, in vain
            await log.append([entry_of("large", size=60_000)], timeout_s=0.3)
        for _ in range(2):  # the lower of two checkpoints counts
            await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=last))
        dropped = await compact(store, NAME)
        assert 1 < dropped.first_now <= last
        assert [record.offset for record in await log.read(last, 1)] == [last]
        assert await log.append([entry_of("after")], timeout_s=10) == [last + 1]
    assert identities(disk.path / "workspace")[-1] == "after"


def fill_up(connection: Connection, workspace: str) -> None:
    """Append until the disk is full and beyond, saying what was acknowledged."""

    async def publish(log: StoreLog, author: int) -> None:
        sequence = 0
        while True:
            batch = [f"{author}-{sequence + index}" for index in range(3)]
            try:
                offsets = await log.append([entry_of(identity, 12_000) for identity in batch], timeout_s=0.3)
            except StorageFull:
                connection.send(("withdrawn", batch))
            else:
                connection.send(("acked", list(zip(offsets, batch, strict=True))))
            sequence += len(batch)

    async def main() -> None:
        store = WalStore(workspace, SETTINGS)
        await store.open(lambda log, records: None)
        log = await store.log(NAME)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            for author in range(4):
                tasks.start_soon(publish, log, author)

    anyio.run(main)


async def test_a_kill_on_a_full_disk_loses_nothing_acknowledged(disk: Disk) -> None:
    """S1, S4, W2: a writer that filled the disk and is killed there leaves a log that opens on the full disk.

    What was acknowledged is in it, and what was withdrawn is not.
    """
    workspace = disk.path / "workspace"
    acked: dict[int, str] = {}
    withdrawn: set[str] = set()
    with started(fill_up, str(workspace)) as (process, connection):
        for kind, what in received(connection):
            if kind == "acked":
                acked.update(what)
            else:
                withdrawn.update(what)
                if len(withdrawn) >= 12:
                    process.kill()
    assert len(withdrawn) >= 12
    assert len(acked) > 300
    async with running(disk) as (_store, log):
        assert log.error is None
        with pytest.raises(StorageFull):
            await log.append([entry_of("too much", size=200_000)], timeout_s=0.3)
    found = dict(enumerate(identities(workspace), start=1))
    assert {offset: found[offset] for offset in acked} == acked
    assert withdrawn.isdisjoint(found.values())
    assert len(set(found.values())) == len(found)
    assert all(verified.is_sound for verified in verify(workspace))
