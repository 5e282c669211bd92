"""Deleting segments: compaction takes what every group has settled, retention what its limits say, and says so."""

from __future__ import annotations

import logging

import anyio
import pytest

from events.persistence.retention import compact, groups_of, retain
from events.persistence.store import Checkpoint, GroupRecord, LogName, Store, StoreLog
from events.testing.clock import FakeClock
from events.testing.crashes import crash_states
from events.testing.simulated import SimulatedFileSystem
from tests.events.persistence.logs import AT, NAME, entries, read_all, store_on, wal_files, wal_path


async def filled(store: Store, count: int = 9) -> StoreLog:
    """A log with an event a second, three to a segment."""
    log = await store.log(NAME)
    for number in range(1, count + 1):
        await log.append(entries(number), timeout_s=5)
    return log


async def group(store: Store, name: str, *committed: int, topic: str = "t", space: str = "*") -> None:
    """A group that has saved these checkpoints, one after the other."""
    log = await store.log(NAME)
    await store.save_group(GroupRecord(name=name, topic=topic, space=space))
    for offset in committed:
        await store.save_checkpoint(NAME, name, Checkpoint(log_id=log.log_id, committed=offset))


async def test_no_group_no_compaction() -> None:
    """F5: a log that nobody reads is kept whole; so is one that only groups of other logs read."""
    async with store_on(SimulatedFileSystem(), segment_lines=3) as store:
        log = await filled(store)
        assert (await compact(store, NAME)).first_now == 1
        await group(store, "others", topic="another")
        await group(store, "away", space="elsewhere")
        dropped = await compact(store, NAME)
        assert (dropped.first_before, dropped.first_now, dropped.robbed) == (1, 1, ())
        assert len(await read_all(log)) == 9


async def test_compaction_waits_for_the_slowest_group() -> None:
    """F5: a segment goes when every group whose patterns match has settled it; a group without a checkpoint has not."""
    async with store_on(SimulatedFileSystem(), segment_lines=3) as store:
        log = await filled(store)
        await group(store, "fast", 8, 8)
        await group(store, "slow", 4, 4, topic="**")
        assert (await compact(store, NAME)).first_now == 4
        await group(store, "new")
        await group(store, "slow", 8, 8)
        assert (await compact(store, NAME)).first_now == 4
        await store.delete_group("new")
        assert (await compact(store, NAME)).first_now == 7
        assert [record.offset for record in await read_all(log)] == [7, 8, 9]


async def test_compaction_goes_by_the_lower_of_two_checkpoints() -> None:
    """F5: the last checkpoint may be damaged later, and the one before it must still find what it has not settled."""
    fs = SimulatedFileSystem()
    async with store_on(fs, segment_lines=3) as store:
        await filled(store)
        await group(store, "readers", 3, 9)
        assert (await compact(store, NAME)).first_now == 4
    fs.put(wal_path("t__readers.json", "offsets"), b"damaged")
    async with store_on(fs, segment_lines=3) as store:
        checkpoint = await store.load_checkpoint(NAME, "readers")
        assert checkpoint is not None
        log = await store.log(NAME)
        assert (await log.read(checkpoint.committed + 1, 10_000))[0].offset == 4
        assert (await compact(store, NAME)).first_now == 4


@pytest.mark.parametrize("damaged", ["t__readers.json", "t__readers.json.prev"])
async def test_a_damaged_checkpoint_settles_nothing_more(damaged: str) -> None:
    """F5: where one of the two copies is bad, no more is deleted than the good one allows."""
    fs = SimulatedFileSystem()
    async with store_on(fs, segment_lines=3) as store:
        await filled(store)
        await group(store, "readers", 3, 9)
    fs.put(wal_path(damaged, "offsets"), b"damaged")
    async with store_on(fs, segment_lines=3) as store:
        assert await store.settled_by(NAME, "readers") <= 3
        assert (await compact(store, NAME)).first_now <= 4


async def test_the_last_record_stays() -> None:
    """F4: a log that every group has settled to its end keeps the segment with the last record, and goes on."""
    fs = SimulatedFileSystem()
    async with store_on(fs, segment_lines=3) as store:
        log = await filled(store)
        await group(store, "readers", 9, 9)
        for _ in range(2):
            assert (await compact(store, NAME)).first_now == 7
        assert await log.append(entries(10), timeout_s=5) == [10]
    async with store_on(fs, segment_lines=3) as store:
        log = await store.log(NAME)
        assert (log.first_offset, log.next_offset) == (7, 11)


async def test_retention_by_size_counts_whole_segments() -> None:
    """F5: the newest segments that fit the limit stay; the one with the last record stays in any case."""
    fs = SimulatedFileSystem()
    async with store_on(fs, segment_lines=3) as store:
        await filled(store)
        sizes = [len(data) for name, data in sorted(wal_files(fs).items()) if name.endswith(".jsonl")]
        for limit, first in ((sum(sizes), 1), (sum(sizes) - 1, 4), (sizes[2], 7), (0, 7)):
            assert (await retain(store, NAME, now_ms=AT, max_bytes=limit)).first_now == first


async def test_retention_by_age_keeps_what_is_young_enough() -> None:
    """F5: a segment goes when all of it is older than the limit, by the times at which its events were appended."""
    clock = FakeClock(AT)
    async with store_on(SimulatedFileSystem(), clock=clock, segment_lines=3) as store:
        log = await store.log(NAME)
        for number in range(1, 10):
            await log.append(entries(number), timeout_s=5)
            await clock.advance(1)
        now = clock.now_ms()
        for age, first in ((100, 1), (9.5, 1), (7.0, 1), (6.5, 4), (4.0, 4), (3.5, 7), (0, 7)):
            assert (await retain(store, NAME, now_ms=now, max_age_s=age)).first_now == first, age


async def test_a_clock_that_was_wrong_deletes_nothing_young() -> None:
    """Clock jumps: events of a process whose clock was ten years ahead or behind are judged by what the log says."""
    year_ms = 365 * 86_400_000
    fs = SimulatedFileSystem()
    async with store_on(fs, clock=FakeClock(AT + 10 * year_ms), segment_lines=3) as store:
        await filled(store, 4)
    async with store_on(fs, clock=FakeClock(AT), segment_lines=3) as store:
        log = await store.log(NAME)
        for number in range(5, 10):
            await log.append(entries(number), timeout_s=5)
        assert (await retain(store, NAME, now_ms=AT, max_age_s=3600)).first_now == 1
        assert (await retain(store, NAME, now_ms=AT - 10 * year_ms, max_age_s=3600)).first_now == 1


async def test_retention_says_whom_it_robbed(caplog: pytest.LogCaptureFixture) -> None:
    """F5: a group that had not settled what was deleted is named in the result and in a log line, with how much."""
    async with store_on(SimulatedFileSystem(), segment_lines=3) as store:
        await filled(store)
        await group(store, "done", 8, 8)
        await group(store, "behind", 4, 4)
        await group(store, "new")
        await group(store, "elsewhere", topic="other")
        with caplog.at_level(logging.WARNING, logger="events.retention"):
            dropped = await retain(store, NAME, now_ms=AT, max_bytes=0)
        assert (dropped.first_before, dropped.first_now) == (1, 7)
        assert dict(dropped.robbed) == {"behind": 2, "new": 6}
        assert sorted(record.__dict__["group"] for record in caplog.records) == ["behind", "new"]
        assert (await retain(store, NAME, now_ms=AT, max_bytes=0)).robbed == ()


async def test_retention_without_limits_deletes_nothing() -> None:
    """F5: retention is explicit."""
    async with store_on(SimulatedFileSystem(), segment_lines=3) as store:
        await filled(store)
        assert (await retain(store, NAME, now_ms=AT)).first_now == 1


def test_which_groups_read_a_log() -> None:
    """F5, W15: by the patterns of their records, in the log's own space or in all."""
    groups = [
        GroupRecord(name="exact", topic="a.b", space="home"),
        GroupRecord(name="glob", topic="a.*", space="*"),
        GroupRecord(name="all", topic="*", space="home"),
        GroupRecord(name="elsewhere", topic="a.b", space="away"),
        GroupRecord(name="other", topic="a", space="*"),
    ]
    assert [group.name for group in groups_of(LogName("home", "a.b"), groups)] == ["exact", "glob", "all"]


def test_a_crash_between_the_mark_and_the_deletion() -> None:
    """Retention writes the new first offset before it deletes anything: any crash leaves a log that opens and is whole
    from its first offset on, and what was announced is deleted in the end."""

    async def run() -> int:
        fs = SimulatedFileSystem()
        async with store_on(fs, segment_lines=3) as store:
            log = await filled(store)
            await group(store, "readers", 7, 7)
            fs.records = True
            assert (await compact(store, NAME)).first_now == 7
            fs.records = False
            assert len(await read_all(log)) == 3
        states = 0
        for state in crash_states(fs.history, limit=200, spared=frozenset({"lock"})):
            async with store_on(state.fs, segment_lines=3) as store:
                log = await store.log(NAME)
                assert log.error is None, str(state)
                assert log.first_offset in (1, 7), str(state)
                assert [record.offset for record in await read_all(log)] == list(range(log.first_offset, 10))
                assert (await compact(store, NAME)).first_now == 7
                segments = [name for name in wal_files(state.fs) if name.endswith(".jsonl")]
                assert segments == ["t.00000003.jsonl"], str(state)
            states += 1
        return states

    assert anyio.run(run) > 10
