"""Reading from outside the bus: what is not proven durable is withheld, counted, and never handed out."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from events.errors import CorruptLog, OffsetGone
from events.persistence.log import DiskFull, Log, LogLimits, Sync
from events.persistence.reader import LogReader, WorkspaceReader
from events.persistence.recovery import open_log
from events.persistence.store import Entry, LogName
from events.testing.crashes import crash_states
from events.testing.simulated import Call, Fault, SimulatedFileSystem
from tests.events.persistence.logs import (
    AT,
    DIRECTORY,
    NAME,
    NAMING,
    WORKSPACE,
    append,
    append_batches,
    entries,
    is_genuine,
    new_fs,
    offsets_of,
    opened_log,
    segment,
    store_on,
)


def reader_of(fs: SimulatedFileSystem) -> LogReader:
    """A reader of the log in `DIRECTORY`."""
    return LogReader(fs, DIRECTORY, NAMING)


def served(fs: SimulatedFileSystem) -> list[int]:
    """What a reader hands out; all of it genuine."""
    records = list(reader_of(fs).read())
    assert all(map(is_genuine, records))
    return offsets_of(records)


def new_log(limits: LogLimits | None = None) -> tuple[SimulatedFileSystem, Log]:
    """An empty log."""
    fs = new_fs()
    return fs, opened_log(fs, limits)[0]


def test_the_last_batch_is_withheld_until_something_vouches_for_it() -> None:
    """F6: a batch is handed out once the mark covers it or a later line's `batch` does; until then it is counted."""
    fs, log = new_log()
    append(log, 2)
    proof = reader_of(fs).prove()
    assert (proof.durable, proof.withheld_lines, served(fs)) == (0, 2, [])
    append(log, 3)
    proof = reader_of(fs).prove()
    assert (proof.durable, proof.withheld_lines, served(fs)) == (2, 3, [1, 2])
    log.write_mark()
    proof = reader_of(fs).prove()
    assert (proof.durable, proof.withheld_lines, served(fs)) == (5, 0, [1, 2, 3, 4, 5])


def test_a_sealed_segment_is_proven() -> None:
    """F6, F4: a segment was synced before its successor was created, so the successor vouches for it."""
    fs, log = new_log(LogLimits(segment_lines=2, sync="never"))
    append_batches(log, [1, 1])
    assert served(fs) == []
    append(log)
    assert served(fs) == [1, 2]
    assert reader_of(fs).prove().withheld_lines == 1


SYNCS: tuple[Sync, ...] = ("always", "interval", "never")


@pytest.mark.parametrize("sync", SYNCS)
def test_what_is_handed_out_is_on_disk(sync: Sync) -> None:
    """F6: at every moment of a writer's life, what a reader gets beside it survives a crash at that very moment that
    takes all it can; and what a reader finds after any crash survives the next one too."""
    fs, log = new_log(LogLimits(segment_lines=4, sync=sync))
    fs.records = True
    for step in range(14):
        append(log, 1 + step % 3)
        if step % 3 == 1:
            log.sync()
        if step % 4 == 2:
            log.write_mark()
    moments = 0
    for image in fs.history:
        beside = served(SimulatedFileSystem(image))
        on_disk, found = opened_log(SimulatedFileSystem(image).crash())
        assert found.condition != "corrupt"
        assert beside == list(range(1, len(beside) + 1))
        assert on_disk.next_offset > len(beside), image.call
        moments += 1
    assert moments > 40
    states = 0
    for state in crash_states(fs.history, limit=60):
        after = served(state.fs)
        survivor, _ = opened_log(state.fs)
        assert after == list(range(1, len(after) + 1))
        assert survivor.next_offset > len(after), str(state)
        assert served(state.fs.crash()) == list(range(1, survivor.next_offset)), "recovery proves what it serves"
        states += 1
    assert states > 100


class Interrupted(SimulatedFileSystem):
    """Lets something happen on the disk just before the n-th call of whoever reads."""

    left = 0
    meddle: Callable[[], object] = staticmethod(lambda: None)

    def _called(self, call: Call, synced: object = None) -> int | None:
        if self.left:
            self.left -= 1
            if not self.left:
                self.meddle()
        return super()._called(call, synced)  # type: ignore[arg-type]


def interrupted(setup: Callable[[SimulatedFileSystem], Callable[[], object]]) -> int:
    """Read a log while something happens before each call in turn; how many calls there were."""
    for step in range(1, 500):
        fs = Interrupted(new_fs().image())
        meddle = setup(fs)
        fs.meddle = meddle
        fs.left = step
        reader = reader_of(fs)
        proof = reader.prove()
        try:
            records = list(reader.read())
            times = reader.offset_at(AT)
        except OffsetGone:
            records, times = [], 1
        happened = not fs.left
        fs.left = 0
        assert all(map(is_genuine, records))
        offsets = offsets_of(records)
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
        on_disk = opened_log(fs.crash())[0]
        assert not offsets or offsets[-1] < on_disk.next_offset, f"step {step}: handed out what is not on disk"
        assert proof.durable < on_disk.next_offset
        assert times <= on_disk.next_offset
        if not happened:
            return step
    pytest.fail("the reader never came to an end")


def test_a_cut_back_while_somebody_reads() -> None:
    """F6: a full disk cuts a batch off again; proof first, then bytes: a reader never hands out what was cut."""

    def setup(fs: SimulatedFileSystem) -> Callable[[], object]:
        log, _ = opened_log(fs)
        append_batches(log, [2, 1, 2])
        log.write_mark()
        log.fs.pwrite(handle := fs.open(segment(), write=True), b'{"offset":6,"n":6,', log.active_bytes)
        fs.close(handle)

        def cut_back() -> None:
            handle = fs.open(segment(), write=True)
            fs.truncate(handle, log.active_bytes)
            fs.sync(handle)
            fs.close(handle)

        return cut_back

    assert interrupted(setup) > 10


def test_a_whole_batch_cut_back_while_somebody_reads() -> None:
    """F6: the same when the cut takes whole lines, which looked as good as any."""

    def setup(fs: SimulatedFileSystem) -> Callable[[], object]:
        log, _ = opened_log(fs, LogLimits(sync="never"))
        append_batches(log, [2, 1])
        log.sync()
        end = log.active_bytes
        append_batches(log, [1, 2])

        def cut_back() -> None:
            handle = fs.open(segment(), write=True)
            fs.truncate(handle, end)
            fs.sync(handle)
            fs.close(handle)

        return cut_back

    assert interrupted(setup) > 10


def test_appends_marks_and_rotation_while_somebody_reads() -> None:
    """F6: a writer that goes on at any moment of a read neither breaks it nor makes it say too much."""

    def setup(fs: SimulatedFileSystem) -> Callable[[], object]:
        log, _ = opened_log(fs, LogLimits(segment_lines=2))
        append_batches(log, [1, 1, 1])

        def go_on() -> None:
            append_batches(log, [1, 1, 1])
            log.write_mark()
            append(log)

        return go_on

    assert interrupted(setup) > 10


def test_a_deletion_while_somebody_reads() -> None:
    """F6: a reader whose segments are deleted under it says that they are gone; it never skips them in silence."""

    def setup(fs: SimulatedFileSystem) -> Callable[[], object]:
        log, _ = opened_log(fs, LogLimits(segment_lines=2))
        append_batches(log, [1] * 9)
        log.write_mark()
        return lambda: log.drop_before(6)

    assert interrupted(setup) > 10


def test_a_full_disk_and_then_a_power_cut() -> None:
    """F6: beside a writer that is cut back and then power-cut, nothing that is lost was ever handed out."""
    fs, log = new_log()
    fs.records = True
    append(log, 2)
    log.write_mark()
    fs.inject(Fault(at=1, on=frozenset({"pwrite"}), short=150))
    fs.inject(Fault(at=2, on=frozenset({"pwrite"}), error=28))
    with pytest.raises(DiskFull):
        append(log, 4)
    append(log, 1)
    for moment, image in enumerate(fs.history):
        beside = served(SimulatedFileSystem(image))
        for state in crash_states([image], limit=100):
            survivor, _ = opened_log(state.fs)
            assert survivor.next_offset > len(beside), f"call {moment} ({image.call}), {state}"


def test_reading_is_by_offset_and_by_time() -> None:
    """F6: from any proven offset on, up to another, and by append time; a time beyond the proof leads behind it."""
    fs, log = new_log(LogLimits(segment_lines=3))
    for step in range(8):
        append(log, at=AT + step * 10)
    log.write_mark()
    append(log, at=AT + 80)
    reader = reader_of(fs)
    for start in range(1, 9):
        assert offsets_of(reader.read(start)) == list(range(start, 9))
        assert offsets_of(reader.read(start, through=start + 1)) == list(range(start, min(9, start + 2)))
    assert offsets_of(reader.read(9)) == []
    assert [reader.offset_at(AT + at) for at in (-5, 0, 1, 10, 69, 70, 71, 80, 1000)] == [1, 1, 2, 2, 8, 8, 9, 9, 9]


def test_what_retention_took_is_gone_for_readers_too() -> None:
    """F6: a deleted offset is an error that says where the log begins; reading without one begins there."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 7)
    log.drop_before(4)
    reader, handles = reader_of(fs), fs.open_handles
    assert offsets_of(reader.read()) == [3, 4, 5, 6, 7]
    with pytest.raises(OffsetGone) as caught:
        list(reader.read(2))
    assert caught.value.first_retained == 3
    assert fs.open_handles == handles


def test_a_crash_between_the_mark_of_a_deletion_and_the_deletion() -> None:
    """F6: what the mark says is deleted is not handed out, though its file is still there."""
    fs, log = new_log(LogLimits(segment_lines=2))
    append_batches(log, [1] * 7)
    fs.inject(Fault(on=frozenset({"unlink"})))
    with pytest.raises(OSError, match="injected"):
        log.drop_before(4)
    fs.heal()
    assert served(fs) == [3, 4, 5, 6, 7]
    assert served(fs.crash()) == [3, 4, 5, 6, 7]


def test_damage_within_the_proof_is_reported() -> None:
    """No wrong event is served: a reader that meets damage says where, having served what stands before it."""
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1] * 8)
    log.write_mark(sync=True)
    content = fs.files()[segment(2)]
    fs.put(segment(2), content[:150] + bytes([content[150] ^ 1]) + content[151:])
    got: list[int] = []
    reading = reader_of(fs).read()
    with pytest.raises(CorruptLog) as caught:
        got.extend(record.offset for record in reading)
    assert (got, caught.value.path) == ([1, 2, 3, 4], segment(2))


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_missing_segment_is_reported(gone: int) -> None:
    """No event is skipped in silence: where a segment is not there, reading says so."""
    fs, log = new_log(LogLimits(segment_lines=3))
    append_batches(log, [1] * 8)
    log.write_mark(sync=True)
    fs.unlink(segment(gone))
    with pytest.raises((CorruptLog, OffsetGone)):
        served(fs)


def test_a_reader_changes_nothing() -> None:
    """F6: reading writes no byte, takes no lock, and leaves nothing open."""
    fs, log = new_log()
    append_batches(log, [2, 3])
    log.write_mark()
    log._handles.close()
    fs.records = True
    served(fs)
    reader_of(fs).offset_at(AT)
    assert (fs.history, fs.open_handles) == ([], 0)


def test_a_log_that_is_not_there() -> None:
    """F6: reading a log that does not exist gives nothing."""
    proof = reader_of(new_fs()).prove()
    assert (proof.durable, proof.withheld_lines) == (0, 0)
    assert served(new_fs()) == []
    assert reader_of(new_fs()).offset_at(0) == 1


def test_after_a_crash_a_workspace_says_what_it_withholds() -> None:
    """F6: the lines behind the proof are counted by log, and recovery, where the lock is free, brings them to light."""

    async def run() -> None:
        fs = SimulatedFileSystem()
        async with store_on(fs) as store:
            for topic, count in (("t", 3), ("other", 1)):
                log = await store.log(LogName("home", topic))
                await log.append(entries(*range(1, count + 1)), timeout_s=5)
            await (await store.dead_letters(NAME)).append([Entry(b'"dead":1')], timeout_s=5)
            crashed = fs.crash()
            beside = WorkspaceReader(WORKSPACE, fs=fs)
            assert beside.is_held()
        with WorkspaceReader(WORKSPACE, fs=crashed) as reader:
            assert not reader.is_held()
            assert (reader.spaces(), reader.topics("home")) == (["home"], ["other", "t"])
            assert reader.withheld() == {NAME: 3, LogName("home", "other"): 1}
            assert list(reader.log(NAME).read()) == []
        async with store_on(crashed) as store:
            for name in await store.log_names():
                await store.log(name)
            await store.dead_letters(NAME)
        with WorkspaceReader(WORKSPACE, fs=crashed) as reader:
            assert reader.withheld() == {}
            assert offsets_of(reader.log(NAME).read()) == [1, 2, 3]
            assert offsets_of(reader.dead_letters(NAME).read()) == [1]

    anyio.run(run)


def test_the_open_log_of_a_writer_is_no_special_case() -> None:
    """F6: a reader in the bus's own process sees what any other process would."""
    fs, log = new_log()
    append(log, 2)
    reopened, _ = open_log(fs, log._handles, DIRECTORY, NAMING, LogLimits(), aside="/aside")
    assert served(fs) == [1, 2]
    assert reopened.next_offset == 3
