"""The store on disk, as a whole: what it promises about groups, checkpoints, open files and reports."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from events.errors import BusError, CorruptLog, ReadOnly
from events.persistence.documents import encode_document
from events.persistence.store import Checkpoint, GroupRecord, LogName, Store
from events.testing.crashes import crash_states
from events.testing.simulated import Fault, SimulatedFileSystem
from tests.events.persistence.logs import NAME, WORKSPACE, entries, read_all, store_on, wal_files, wal_path

GROUP = GroupRecord(name="readers", topic="t", space="*")
GROUP_PATH = f"{WORKSPACE}/.bus/groups/readers.json"
CHECKPOINT_PATH = wal_path("t__readers.json", "offsets")
SPARED = frozenset({"lock"})


async def committed(store: Store) -> int | None:
    """What the group's checkpoint says."""
    checkpoint = await store.load_checkpoint(NAME, "readers")
    return checkpoint.committed if checkpoint else None


async def save(store: Store, offset: int) -> None:
    """Save a checkpoint of the group."""
    log = await store.log(NAME)
    await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=offset))


async def test_a_group_whose_record_was_being_replaced_still_exists() -> None:
    """W3: a crash between the two renames leaves the previous copy alone, and the group is there by it."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await store.save_group(GROUP)
        fs.records = True
        await store.save_group(replace(GROUP, held=True))
        fs.records = False
    states = 0
    for state in crash_states(fs.history, limit=100, spared=SPARED):
        async with store_on(state.fs) as store:
            assert [group.name for group in await store.groups()] == ["readers"], str(state)
        states += 1
    assert states >= 5


async def test_a_group_record_that_nobody_can_read_is_not_passed_over() -> None:
    """W3: a group exists durably; where both copies of its record are bad, opening says so instead of forgetting it."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await store.save_group(GROUP)
        await store.save_group(GROUP)
    fs.put(GROUP_PATH, b"damaged")
    async with store_on(fs) as store:
        assert [group.name for group in await store.groups()] == ["readers"]
    fs.put(GROUP_PATH, b"damaged")
    fs.put(GROUP_PATH + ".prev", b"damaged")
    with pytest.raises(CorruptLog, match=r"readers\.json"):
        async with store_on(fs):
            pass


async def test_a_damaged_checkpoint_does_not_push_out_the_good_one() -> None:
    """S2: while a damaged checkpoint is replaced, the copy that stood in for it survives every crash."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(*range(1, 10)), timeout_s=5)
        for offset in (3, 5):
            await save(store, offset)
    fs.put(CHECKPOINT_PATH, b"damaged")
    async with store_on(fs) as store:
        assert await committed(store) == 3
        fs.records = True
        await save(store, 8)
        fs.records = False
        await save(store, 9)
        assert await committed(store) == 9
    for state in crash_states(fs.history, limit=100, spared=SPARED):
        async with store_on(state.fs) as store:
            assert await committed(store) in (3, 8), str(state)


async def test_a_lost_checkpoint_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A bad checkpoint falls back to the previous one, then to the start, never to the end; each time it is said."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(*range(1, 10)), timeout_s=5)
        for offset in (3, 5):
            await save(store, offset)
    fs.put(CHECKPOINT_PATH, b"damaged")
    with caplog.at_level(logging.WARNING, logger="events.store"):
        async with store_on(fs) as store:
            assert await committed(store) == 3
        fs.put(CHECKPOINT_PATH, b"damaged")
        fs.put(CHECKPOINT_PATH + ".prev", b"damaged")
        async with store_on(fs) as store:
            assert await committed(store) is None
    assert len([record for record in caplog.records if "checkpoint" in record.message]) == 2


async def test_a_checkpoint_of_a_newer_version_is_not_guessed_at() -> None:
    """A version that this code does not know counts as unreadable: the previous copy stands in."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(*range(1, 10)), timeout_s=5)
        for offset in (3, 5):
            await save(store, offset)
    fs.put(CHECKPOINT_PATH, encode_document({"version": 99, "committed": 9}, 9))
    async with store_on(fs) as store:
        assert await committed(store) == 3


async def test_a_crash_while_a_group_is_deleted() -> None:
    """W3: a group that is being forgotten is there or not, its checkpoints go first, and no older one comes back."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(*range(1, 10)), timeout_s=5)
        await store.save_group(GROUP)
        for offset in (3, 5):
            await save(store, offset)
        fs.records = True
        await store.delete_group("readers")
        fs.records = False
    for state in crash_states(fs.history, limit=100, spared=SPARED):
        async with store_on(state.fs) as store:
            exists = bool(await store.groups())
            assert await committed(store) in ((5, None) if exists else (None,)), str(state)


async def test_open_files_stay_within_their_limit() -> None:
    """M: two hundred logs, and dead letters and checkpoints beside them, need a handful of open files."""
    fs = SimulatedFileSystem()
    async with store_on(fs, max_open_files=5, tail_bytes=0) as store:
        for round_number in (1, 2):
            for number in range(200):
                log = await store.log(LogName(f"space {number}", "t"))
                assert await log.append(entries(round_number), timeout_s=5) == [round_number]
            assert fs.open_handles <= 6  # and the lock
        for number in range(0, 200, 7):
            log = await store.log(LogName(f"space {number}", "t"))
            assert [record.members()["n"] for record in await read_all(log)] == [1, 2]
        assert store.statistics()["open_files_peak"] <= 5
        assert len(await store.log_names()) == 200
    assert fs.open_handles == 0


async def test_unsynced_files_are_synced_before_they_are_closed() -> None:
    """Poisoning, M: with `sync=interval` a file that must make room for others is synced first, never just closed.

    The cache closes what is synced; so at every close of a segment there is nothing left that it could lose.
    """

    class Watching(SimulatedFileSystem):
        """Looks at what a closed file had not yet got to the disk."""

        lost = 0

        def close(self, handle: int) -> None:
            node, _ = self._open_file(handle)
            self.lost += bool(node.pending) and node.label.endswith(".jsonl")
            super().close(handle)

    fs = Watching()
    async with store_on(fs, max_open_files=3, sync="interval") as store:
        logs = [await store.log(LogName(f"space {number}", "t")) for number in range(30)]
        for _ in range(2):
            for log in logs:
                await log.append(entries(log.next_offset), timeout_s=5)
        assert fs.open_handles <= 6
    assert (fs.lost, fs.open_handles) == (0, 0)


async def test_what_recovery_found_is_reported() -> None:
    """Torn and corrupt are both reported with file, byte and offset; what is clean is not."""
    fs = SimulatedFileSystem()
    names = [LogName("home", topic) for topic in ("fine", "torn", "corrupt")]
    async with store_on(fs) as store:
        for name in names:
            await (await store.log(name)).append(entries(1, 2), timeout_s=5)
    fs.put(wal_path("torn.00000001.jsonl"), wal_files(fs)["torn.00000001.jsonl"] + b"{")
    fs.put(wal_path("corrupt.00000001.jsonl"), wal_files(fs)["corrupt.00000001.jsonl"][:-1])
    async with store_on(fs) as store:
        for name in names:
            await store.log(name)
        reports = {name.topic: found for name, found in store.reports}
        assert {topic: found.condition for topic, found in reports.items()} == {"torn": "torn", "corrupt": "corrupt"}
        assert reports["torn"].kept_aside is not None
        damage = reports["corrupt"].damage
        assert damage is not None
        assert (damage.path, damage.first_missing) == (wal_path("corrupt.00000001.jsonl"), 2)


async def test_a_log_that_could_not_be_opened_can_be_opened_later() -> None:
    """L: an error while a log is opened goes to whoever asked, and the next one who asks gets the log."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(1), timeout_s=5)
    for at in range(1, 40):
        fresh = fs.crash()
        async with store_on(fresh) as store:
            fresh.inject(Fault(at=at))
            try:
                await store.log(NAME)
            except (OSError, BusError):
                struck = True
            else:
                struck = False
            fresh.heal()
            log = await store.log(NAME)
            assert await log.append(entries(2), timeout_s=5) == [2]
        if not struck:
            break
    assert at > 3


async def test_nothing_is_written_after_close() -> None:
    """LOCKED: a store that gave its lock back refuses, so that two never write at once."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=5)
    digest = fs.digest()
    for attempt in (
        lambda: log.append(entries(2), timeout_s=5),
        lambda: store.save_group(GROUP),
        lambda: store.log(LogName("home", "new")),
        lambda: log.drop_before(2),
        lambda: store.delete_group("readers"),
    ):
        with pytest.raises(ReadOnly):
            await attempt()
    assert fs.digest() == digest
