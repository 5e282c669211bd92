"""Recovery's third rule: every durable file that names an offset is a witness that the offset had been synced."""

from __future__ import annotations

import pytest

from events.errors import CorruptLog
from events.persistence.named import named_offsets, read_groups
from events.persistence.store import Attempts, Checkpoint, Deferral, Entry, GroupRecord, LogName
from events.persistence.workspace import Layout
from events.testing.simulated import SimulatedFileSystem
from tests.events.persistence.logs import NAME, WORKSPACE, entries, read_all, store_on, wal_files, wal_path

MARK = wal_path(".t.mark.json")
SEGMENT = "t.00000001.jsonl"


async def used(checkpoint: Checkpoint | None = None) -> SimulatedFileSystem:
    """A log of nine events and a group with a checkpoint; the mark is lost, as it may be while the bus runs."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        for number in range(1, 10):
            await log.append(entries(number), timeout_s=5)
        if checkpoint is not None:
            named = Checkpoint(**{**{name: getattr(checkpoint, name) for name in FIELDS}, "log_id": log.log_id})
            await store.save_checkpoint(NAME, "readers", named)
    fs.unlink(MARK)
    return fs.after_kill()


FIELDS = ("committed", "ranges", "attempts", "deferrals", "retries", "dead_letters")


def named(fs: SimulatedFileSystem, name: LogName = NAME) -> int:
    """The highest offset that the files beside a log name."""
    return named_offsets(fs, Layout(WORKSPACE), name).highest


def cut_to(fs: SimulatedFileSystem, lines: int) -> None:
    """Leave only the first lines of the log."""
    fs.put(wal_path(SEGMENT), b"".join(wal_files(fs)[SEGMENT].splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize(
    "checkpoint",
    [
        pytest.param(Checkpoint(log_id="", committed=7), id="committed"),
        pytest.param(Checkpoint(log_id="", committed=2, ranges=((4, 5), (7, 7))), id="a range"),
        pytest.param(Checkpoint(log_id="", committed=2, attempts={3: Attempts(1), 7: Attempts(2)}), id="an attempt"),
        pytest.param(Checkpoint(log_id="", committed=2, deferrals={7: Deferral(5), 4: Deferral(9)}), id="a deferral"),
        pytest.param(Checkpoint(log_id="", committed=2, retries={(7, 1, 3): Attempts(1)}), id="a retry"),
    ],
)
async def test_a_checkpoint_is_a_witness(checkpoint: Checkpoint) -> None:
    """Rule 3: whatever a checkpoint says of an offset, a log that ends before it is corrupt, and is not cut."""
    fs = await used(checkpoint)
    assert named(fs) == 7
    cut_to(fs, 7)
    async with store_on(fs.after_kill()) as store:
        assert (await store.log(NAME)).error is None
    cut_to(fs, 6)
    before = wal_files(fs)[SEGMENT]
    async with store_on(fs) as store:
        log = await store.log(NAME)
        assert isinstance(log.error, CorruptLog)
        assert len(await read_all(log)) == 6
    assert wal_files(fs)[SEGMENT] == before


@pytest.mark.parametrize("lost", ["t__readers.json", "t__readers.json.prev"])
async def test_either_copy_of_a_checkpoint_is_a_witness(lost: str) -> None:
    """Rule 3: the previous copy stands in where the current one is damaged, or missing after a crash."""
    for damage in (b"damaged", None):
        fs = SimulatedFileSystem()
        async with store_on(fs) as store:
            log = await store.log(NAME)
            await log.append(entries(*range(1, 10)), timeout_s=5)
            for committed in (5, 8):
                await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=committed))
        path = wal_path(lost, "offsets")
        if damage is None:
            fs.unlink(path)
        else:
            fs.put(path, damage)
        assert named(fs) == (8 if lost.endswith(".prev") else 5)


async def test_dead_letters_are_witnesses() -> None:
    """Rule 3: a dead letter is written after its event was synced, and its log's mark remembers the highest."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(*range(1, 10)), timeout_s=5)
        dead = await store.dead_letters(NAME)
        for offset in (6, 3):
            await dead.append([Entry(b'"dead":%d' % offset, names=offset)], timeout_s=5)
    assert named(fs) == 6
    async with store_on(fs) as store:  # and does so across a reopen
        await (await store.dead_letters(NAME)).append([Entry(b'"dead":1', names=1)], timeout_s=5)
    assert named(fs) == 6
    fs.unlink(MARK)
    cut_to(fs, 5)
    async with store_on(fs) as store:
        assert isinstance((await store.log(NAME)).error, CorruptLog)


async def test_the_start_of_a_group_is_a_witness() -> None:
    """Rule 3: a group that starts at the latest names the end of every log that there was."""
    fs = await used()
    async with store_on(fs) as store:
        await store.save_group(GroupRecord(name="late", topic="*", space="*", start="latest", ends={"home": {"t": 8}}))
    assert named(fs) == 7
    assert named(fs, LogName("home", "other")) == 0
    assert list(read_groups(fs, Layout(WORKSPACE))) == ["late"]


async def test_a_checkpoint_of_another_log_is_no_witness() -> None:
    """Rule 3: a log id tells a recreated log from the one that a checkpoint means."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1, 2), timeout_s=5)
        await store.save_checkpoint(NAME, "readers", Checkpoint(log_id="0" * 32, committed=500))
    assert named(fs) == 0
    async with store_on(fs) as store:
        assert (await store.log(NAME)).error is None


async def test_without_a_mark_a_checkpoint_names_the_log() -> None:
    """S2: where the mark is lost the log keeps the id that its checkpoints know, so that they still count."""
    fs = await used(Checkpoint(log_id="", committed=7))
    async with store_on(fs) as store:
        checkpoint = await store.load_checkpoint(NAME, "readers")
        assert checkpoint is not None
        assert checkpoint.committed == 7
