"""Verify and repair: damage is found, named and left alone until somebody accepts the loss; then only that is lost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import anyio
import pytest

from events.errors import CorruptLog, WorkspaceLocked
from events.persistence.codec import Record
from events.persistence.mark import Mark, MarkFile, read_mark
from events.persistence.repair import Repaired, repair, verify
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName
from events.persistence.workspace import Layout, Workspace
from events.testing.crashes import crash_states
from events.testing.simulated import Fault, SimulatedFileSystem
from tests.events.persistence.logs import (
    NAME,
    WORKSPACE,
    entries,
    is_genuine,
    offsets_of,
    read_all,
    store_on,
    wal_files,
    wal_path,
)

LINES = 3  # of a segment
LAST = 10


@dataclass(frozen=True)
class Outcome:
    """What a store serves of a log, and what it says of it."""

    offsets: list[int]
    gaps: list[tuple[int, int]]
    error: Exception | None
    committed: int | None


def built(*, committed: int | None = None) -> SimulatedFileSystem:
    """A workspace with a log of ten events in segments of three, closed as it should be."""

    async def build() -> SimulatedFileSystem:
        fs = SimulatedFileSystem()
        async with store_on(fs, segment_lines=LINES) as store:
            log = await store.log(NAME)
            for number in range(1, LAST + 1):
                await log.append(entries(number), timeout_s=5)
            if committed is not None:
                await store.save_group(GroupRecord(name="readers", topic="t", space="*"))
                await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=committed))
        return fs.crash()

    return anyio.run(build)


def outcome(fs: SimulatedFileSystem) -> Outcome:
    """Open the workspace and read what it serves; everything must be what was appended."""

    async def look() -> Outcome:
        async with store_on(fs, segment_lines=LINES) as store:
            log = await store.log(NAME)
            error, records = log.error, list[Record]()
            try:
                records = [] if error else await read_all(log)
            except CorruptLog as damage:  # met by reading, where the mark covers it
                error = damage
            assert all(map(is_genuine, records))
            gaps = [(record.offset, record.last) for record in records if record.is_gap]
            checkpoint = await store.load_checkpoint(NAME, "readers")
            if error is None:
                assert await log.append(entries(log.next_offset), timeout_s=5) == [log.next_offset - 1]
            return Outcome(offsets_of(records), gaps, error, checkpoint.committed if checkpoint else None)

    return anyio.run(look)


def segment(number: int) -> str:
    """The path of a segment."""
    return wal_path(f"t.{number:08d}.jsonl")


MARK = wal_path(".t.mark.json")


def lines(fs: SimulatedFileSystem, number: int) -> list[bytes]:
    """The lines of a segment."""
    return fs.files()[segment(number)].splitlines(keepends=True)


def spoil(fs: SimulatedFileSystem, *offsets: int) -> None:
    """Change a bit in the lines of these offsets."""
    for offset in offsets:
        number, index = divmod(offset - 1, LINES)
        found = lines(fs, number + 1)
        found[index] = found[index][:20] + bytes([found[index][20] ^ 4]) + found[index][21:]
        fs.put(segment(number + 1), b"".join(found))


def remove(fs: SimulatedFileSystem, *numbers: int) -> None:
    """Have segments vanish for good."""
    for number in numbers:
        fs.unlink(segment(number))
    fs.sync_directory(os.path.dirname(segment(1)))


def only(repaired: list[Repaired]) -> Repaired:
    """The one log that was repaired."""
    (found,) = repaired
    assert found.name == NAME
    return found


# -- verify ----------------------------------------------------------------------------------------------------


def test_verify_finds_nothing_where_nothing_is_wrong() -> None:
    """Verify reads every log whole, changes nothing and needs no lock."""
    fs = built(committed=4)
    before = fs.digest()
    with_lock = Workspace(fs, Layout(WORKSPACE))
    with_lock.acquire()
    fs.records = True
    (found,) = verify(WORKSPACE, fs=fs)
    assert (found.name, found.kind, found.is_sound, found.found.condition) == (NAME, "wal", True, "clean")
    assert fs.history == []
    with_lock.release()
    assert fs.digest() == before


@pytest.mark.parametrize("offset", range(1, LAST + 1))
def test_verify_finds_every_damaged_line(offset: int) -> None:
    """Verify names file, byte and offset of the damage, also where the mark covers it."""
    fs = built()
    spoil(fs, offset)
    (found,) = verify(WORKSPACE, fs=fs)
    damage = found.found.damage
    assert not found.is_sound
    assert damage is not None
    number, index = divmod(offset - 1, LINES)
    assert (damage.path, damage.first_missing) == (segment(number + 1), offset)
    assert damage.byte == sum(map(len, lines(fs, number + 1)[:index]))


def test_a_torn_tail_is_no_damage() -> None:
    """Verify takes a torn tail for what it is: it heals when the bus opens, and beside a running bus it is none."""
    fs = built()
    fs.put(segment(4), fs.files()[segment(4)] + b'{"offset":11,')
    (found,) = verify(WORKSPACE, fs=fs)
    assert (found.is_sound, found.found.condition) == (True, "torn")
    assert repair(WORKSPACE, accept_loss=True, fs=fs) == []


async def test_dead_letters_and_journals_are_verified_too() -> None:
    """Verify reads every byte of every log: dead letters and journals can be damaged, and repaired, like topics."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        await (await store.log(NAME)).append(entries(1, 2), timeout_s=5)
        await (await store.dead_letters(NAME)).append([Entry(b'"dead":1'), Entry(b'"dead":2')], timeout_s=5)
        await (await store.journal("home", "gate", "t__readers")).append(entries(1, 2), timeout_s=5)
    for folder, name in (("dlq", "t.dlq.jsonl"), ("gate", "t__readers.00000001.jsonl")):
        damaged = fs.crash()
        content = damaged.files()[wal_path(name, folder)]
        damaged.put(wal_path(name, folder), content[:30] + b"?" + content[31:])
        unsound = [found for found in verify(WORKSPACE, fs=damaged) if not found.is_sound]
        assert [found.kind for found in unsound] == [folder]
        (repaired,) = repair(WORKSPACE, accept_loss=True, fs=damaged)
        assert (repaired.kind, repaired.lost) == (folder, ((1, 1),))
        assert all(found.is_sound for found in verify(WORKSPACE, fs=damaged))


def test_verify_beside_a_writer_that_rotates_and_deletes() -> None:
    """Verify beside a running bus: what changes while it looks is not damage."""
    fs = SimulatedFileSystem()

    async def run() -> list[bool]:
        async with store_on(fs, segment_lines=1) as store:
            log = await store.log(NAME)
            await log.append(entries(1, 2, 3, 4, 5), timeout_s=5)
            keep = log.keep  # type: ignore[attr-defined]
            keep(0.0, sync_due=True)
            verdicts: list[bool] = []
            for step in range(1, 30):

                class Busy(SimulatedFileSystem):
                    """Whoever looks at this disk is interrupted by the writer, after so many calls."""

                    left = step

                    def _called(self, *args: object) -> int | None:
                        self.left -= 1
                        if not self.left:
                            meddle()
                        return super()._called(*args)  # type: ignore[arg-type]

                def meddle() -> None:
                    inner = log._log  # type: ignore[attr-defined]
                    number = inner.next_offset
                    from tests.events.persistence.logs import append

                    append(inner)
                    inner.write_mark()
                    inner.drop_before(number - 1)

                fs.__class__ = Busy
                fs.left = step  # type: ignore[attr-defined]
                verdicts += [found.is_sound for found in verify(WORKSPACE, fs=fs)]
                fs.__class__ = SimulatedFileSystem
            return verdicts

    verdicts = anyio.run(run)
    assert verdicts
    assert all(verdicts)


# -- repair ----------------------------------------------------------------------------------------------------


def test_without_consent_nothing_is_changed() -> None:
    """Corrupt is never truncated: a repair that was not told to accept the loss raises the damage, and that is all."""
    fs = built()
    spoil(fs, 5)
    before = {path: data for path, data in fs.files().items() if not path.endswith("/lock")}
    with pytest.raises(CorruptLog) as caught:
        repair(WORKSPACE, fs=fs)
    assert caught.value.first_missing == 5
    assert {path: data for path, data in fs.files().items() if not path.endswith("/lock")} == before


def test_a_repair_needs_the_workspace_for_itself() -> None:
    """LOCKED: nobody repairs under a running bus."""
    fs = built()
    spoil(fs, 5)
    holder = Workspace(fs, Layout(WORKSPACE))
    holder.acquire()
    with pytest.raises(WorkspaceLocked):
        repair(WORKSPACE, accept_loss=True, fs=fs)
    holder.release()


@pytest.mark.parametrize(
    "lost", [*([offset] for offset in range(1, LAST + 1)), [2, 3], [3, 4], [1, 5, 9], [4, 5, 6], [9, 10]]
)
def test_a_repair_gives_up_what_is_damaged_and_nothing_else(lost: list[int]) -> None:
    """F2: each lost offset becomes part of a gap line, all others are served as they were, and the log goes on."""
    fs = built(committed=2)
    spoil(fs, *lost)
    damaged = {path: fs.files()[path] for path in fs.files() if path.endswith(".jsonl")}
    repaired = only(repair(WORKSPACE, accept_loss=True, fs=fs))
    assert sorted(offset for first, last in repaired.lost for offset in range(first, last + 1)) == lost
    after = outcome(fs.crash())
    assert after.offsets == list(range(1, LAST + 1))
    assert sorted(offset for first, last in after.gaps for offset in range(first, last + 1)) == lost
    assert (after.error, after.committed) == (None, 2)
    kept = {fs.files()[path] for path in repaired.kept_aside}
    hurt = {segment((offset - 1) // LINES + 1) for offset in lost}
    assert kept == {damaged[path] for path in hurt}, "the damaged segments are kept whole, and no others are touched"
    assert [found.is_sound for found in verify(WORKSPACE, fs=fs)] == [True]


@pytest.mark.parametrize("gone", [[1], [2], [4], [1, 2], [2, 3], [3, 4], [1, 2, 3, 4]])
def test_a_repair_of_missing_segments(gone: list[int]) -> None:
    """F2: a segment that is not there becomes a gap of exactly its offsets."""
    fs = built()
    remove(fs, *gone)
    lost = [offset for offset in range(1, LAST + 1) if (offset - 1) // LINES + 1 in gone]
    repaired = only(repair(WORKSPACE, accept_loss=True, fs=fs))
    assert sorted(offset for first, last in repaired.lost for offset in range(first, last + 1)) == lost
    after = outcome(fs.crash())
    assert (after.offsets, after.error) == (list(range(1, LAST + 1)), None)


@pytest.mark.parametrize("left", range(LAST))
def test_a_repair_of_a_log_that_is_too_short(left: int) -> None:
    """Rule 3, S4: offsets that the mark or a checkpoint names are given up, never given again; the rest stays."""
    fs = built(committed=8)
    whole, rest = divmod(left, LINES)
    fs.put(segment(whole + 1), b"".join(lines(fs, whole + 1)[:rest]))
    remove(fs, *range(whole + 2, 5))
    for mark_is_there in (True, False):
        damaged = fs.crash()
        named = LAST
        if not mark_is_there:
            damaged.put(MARK, b"")
            named = 8
            if left >= 8:
                continue
        repaired = only(repair(WORKSPACE, accept_loss=True, fs=damaged))
        assert repaired.lost == ((left + 1, named),)
        after = outcome(damaged.crash())
        assert (after.offsets, after.gaps) == (list(range(1, named + 1)), [(left + 1, named)])
        assert (after.error, after.committed) == (None, 8)


def test_a_repair_where_the_mark_is_lost_after_a_deletion() -> None:
    """F5: what retention deleted is not taken for lost, also where no mark is left to say so."""
    fs = built()

    async def drop() -> None:
        async with store_on(fs, segment_lines=LINES) as store:
            await (await store.log(NAME)).drop_before(4)

    anyio.run(drop)
    for mark_is_there in (True, False):
        damaged = fs.crash()
        spoil(damaged, 5)
        if not mark_is_there:
            damaged.put(MARK, b"\xff" * 1024)
        (repaired,) = repair(WORKSPACE, accept_loss=True, fs=damaged)
        assert repaired.lost == ((5, 5),)
        after = outcome(damaged.crash())
        assert (after.offsets, after.error) == (list(range(4, LAST + 1)), None)


def test_a_gap_that_is_damaged_is_given_up_again() -> None:
    """F2: a repaired log can be repaired again, and its gaps are like any other line."""
    fs = built()
    spoil(fs, 5)
    repair(WORKSPACE, accept_loss=True, fs=fs)
    spoil(fs, 5)
    assert only(repair(WORKSPACE, accept_loss=True, fs=fs)).lost == ((5, 5),)
    spoil(fs, 6)
    assert only(repair(WORKSPACE, accept_loss=True, fs=fs)).lost == ((6, 6),)
    after = outcome(fs)
    assert (after.offsets, after.gaps) == (list(range(1, LAST + 1)), [(5, 5), (6, 6)])


# -- interrupted -----------------------------------------------------------------------------------------------


def _flipped() -> SimulatedFileSystem:
    fs = built(committed=3)
    spoil(fs, 2, 8)
    return fs


def _missing() -> SimulatedFileSystem:
    fs = built(committed=3)
    remove(fs, 2)
    return fs


def _short() -> SimulatedFileSystem:
    fs = built(committed=3)
    fs.put(segment(4), b"")
    return fs


def _without_mark() -> SimulatedFileSystem:
    fs = built(committed=9)
    spoil(fs, 5)
    fs.put(segment(4), b"")
    fs.put(segment(3), b"".join(lines(fs, 3)[:1]))
    fs.put(MARK, b"\xff" * 1024)
    return fs


DAMAGES: list[Callable[[], SimulatedFileSystem]] = [_flipped, _missing, _short, _without_mark]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repair_that_is_interrupted_comes_to_the_same_end(
    damage: Callable[[], SimulatedFileSystem], capsys: pytest.CaptureFixture[str]
) -> None:
    """S4: crashed after any call and run again, three deep, a repair ends as if it had never been interrupted."""
    fs = damage()
    original = {data for path, data in fs.files().items() if path.endswith(".jsonl")}
    straight = fs.crash()
    repair(WORKSPACE, accept_loss=True, fs=straight)
    expected = outcome(straight)
    seen: set[tuple[bytes, object]] = set()
    counts: Counter[str] = Counter()

    def go_on(fs: SimulatedFileSystem, depth: int) -> None:
        fs.records = True
        repair(WORKSPACE, accept_loss=True, fs=fs)
        counts["repairs"] += 1
        served = fs.crash()
        kept = {data for path, data in served.files().items() if "/aside/" in path}
        now = {data for path, data in served.files().items() if path.endswith(".jsonl")}
        assert original <= kept | now, "damaged bytes were lost"
        assert outcome(served) == expected
        if depth:
            for state in crash_states(fs.history, limit=30, cuts=1, spared=frozenset({"lock"}), seen=seen):
                found = outcome(state.fs.crash())
                assert found.error is not None or found == expected, f"{state}: neither damaged nor repaired"
                go_on(state.fs, depth - 1)

    go_on(fs, 2)
    with capsys.disabled():
        print(f"\nrepair of {damage.__name__.strip('_')} logs, interrupted everywhere: {counts['repairs']:,} repairs")
    assert counts["repairs"] > 10


@pytest.mark.parametrize("call", ["open", "pwrite", "sync", "sync_directory", "rename", "close", "truncate"])
def test_a_repair_that_fails_can_be_run_again(call: str) -> None:
    """EIO and ENOSPC at any call of a repair: it raises, gives the lock back, and the next run comes to the same end.

    A power cut may bring back that the repair was under way, where the failed call was the sync that ended it.
    """
    damaged = _flipped()
    straight = damaged.crash()
    repair(WORKSPACE, accept_loss=True, fs=straight)
    expected = outcome(straight)
    for at, number in product(range(1, 40), (5, 28)):
        fs = damaged.crash()
        fs.inject(Fault(at=at, on=frozenset({call}), error=number))  # type: ignore[arg-type]
        with suppress(OSError):
            repair(WORKSPACE, accept_loss=True, fs=fs)
        fs.heal()
        repair(WORKSPACE, accept_loss=True, fs=fs)
        survivor = fs.crash()
        repair(WORKSPACE, accept_loss=True, fs=survivor)
        assert outcome(survivor) == expected, f"{call} {at}"


def test_a_log_under_repair_stays_closed() -> None:
    """A repair says in the mark that it is under way, in both slots: until it is done nobody appends."""
    fs = built()
    mark, _ = read_mark(fs, MARK)
    assert mark is not None
    file = MarkFile(fs, MARK, mark)
    for _ in range(2):
        file.write(replace(file.mark, repairing=True), sync=True)
    assert isinstance(outcome(fs).error, CorruptLog)
    assert only(repair(WORKSPACE, accept_loss=True, fs=fs)).lost == ()
    assert outcome(fs).error is None


def test_a_repaired_log_keeps_its_id() -> None:
    """S2: checkpoints still mean the log after its repair, also where the mark was lost and a checkpoint named it."""
    fs = built(committed=9)
    mark: Mark | None = read_mark(fs, MARK)[0]
    assert mark is not None
    for content in (fs.files()[MARK], b"\xff" * 1024):
        damaged = fs.crash()
        spoil(damaged, 2)
        damaged.put(MARK, content)
        repair(WORKSPACE, accept_loss=True, fs=damaged)
        repaired, _ = read_mark(damaged, MARK)
        assert repaired is not None
        assert repaired.log_id == mark.log_id
        assert wal_files(damaged)
        assert outcome(damaged).committed == 9


def test_names_of_other_logs_do_not_matter() -> None:
    """F3: the repair of one log leaves every other one as it was."""
    fs = built()

    async def another() -> None:
        async with store_on(fs) as store:
            await (await store.log(LogName("home", "t.other"))).append(entries(1, 2), timeout_s=5)

    anyio.run(another)
    spoil(fs, 4)
    before = {path: data for path, data in fs.files().items() if "t.other" in path}
    only(repair(WORKSPACE, accept_loss=True, fs=fs))
    assert {path: data for path, data in fs.files().items() if "t.other" in path} == before
