"""The mark: two slots written in turn, so that what is torn or flipped never takes both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from events.errors import StorageError
from events.persistence.mark import SLOT_BYTES, Mark, MarkFile, read_mark
from events.testing.crashes import crash_states
from events.testing.simulated import Fault, SimulatedFileSystem

PATH = "/.t.mark.json"
FIRST = Mark(log_id="a" * 32)


def mark_file(fs: SimulatedFileSystem) -> MarkFile:
    """The mark as a log opens it."""
    mark, _ = read_mark(fs, PATH)
    return MarkFile(fs, PATH, mark or FIRST)


def test_a_mark_comes_back_as_it_was_written() -> None:
    """Recovery: every field is read back, the largest values that can occur included."""
    fs = SimulatedFileSystem()
    big = 10**18
    mark = Mark(
        log_id="f" * 32,
        durable=big,
        segment=10**9,
        position=10**12,
        first=big - 1,
        first_segment=10**9,
        at=10**15,
        names=big,
        repairing=True,
    )
    file = mark_file(fs)
    assert not file.exists_on_disk
    file.write(mark, sync=True)
    assert file.exists_on_disk
    assert read_mark(fs, PATH) == (replace(mark, generation=1), False)
    assert len(fs.files()[PATH]) == 2 * SLOT_BYTES


def test_the_newest_mark_counts() -> None:
    """Recovery: marks are written in turn into two slots, and the higher generation wins."""
    fs = SimulatedFileSystem()
    file = mark_file(fs)
    for durable in range(1, 6):
        file.write(replace(FIRST, durable=durable))
        found, damaged = read_mark(fs, PATH)
        assert found is not None
        assert (found.durable, found.generation, damaged) == (durable, durable, False)


def test_where_there_is_no_mark() -> None:
    """Recovery: no file is no damage; an empty file is a mark that was lost."""
    fs = SimulatedFileSystem()
    assert read_mark(fs, PATH) == (None, False)
    fs.put(PATH, b"")
    assert read_mark(fs, PATH) == (None, True)
    fs.put(PATH, b"\0" * 2 * SLOT_BYTES)
    assert read_mark(fs, PATH) == (None, False)


def test_a_file_that_is_no_mark() -> None:
    """Recovery: garbage is damage, and a file that is far too long was not written by the bus."""
    fs = SimulatedFileSystem()
    for content in (b"x", b"{}\n", b"garbage" * 100, b"\xff" * 1024):
        fs.put(PATH, content)
        assert read_mark(fs, PATH) == (None, True)
    fs.put(PATH, b" " * 2000)
    with pytest.raises(StorageError):
        read_mark(fs, PATH)


def test_every_bit_of_a_mark() -> None:
    """Recovery: any flipped bit spoils one slot at most; the other one stands in, and the damage is reported."""
    fs = SimulatedFileSystem()
    file = mark_file(fs)
    file.write(replace(FIRST, durable=10))
    file.write(replace(FIRST, durable=20))
    content = fs.files()[PATH]
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            fs.put(PATH, bytes(flipped))
            found, damaged = read_mark(fs, PATH)
            assert found is not None
            assert (found.durable, damaged) == (10 if place < SLOT_BYTES else 20, True)


def test_a_crash_while_marks_are_written() -> None:
    """F6: whatever a crash leaves of a mark, what it says was written before the crash and never more than that.

    Once a mark was synced, no crash takes it away again.
    """
    fs = SimulatedFileSystem()
    file = mark_file(fs)
    fs.records = True
    synced_at: dict[int, int] = {}
    written_at: dict[int, int] = {0: 0}
    for durable, sync in ((1, False), (2, True), (3, False), (4, True), (5, False)):
        file.write(replace(FIRST, durable=durable), sync=sync)
        written_at[len(fs.history)] = durable
        if sync:
            synced_at[len(fs.history)] = durable
    states = 0
    for state in crash_states(fs.history, limit=400):
        found, _ = read_mark(state.fs, PATH)
        begun = max((value for at, value in written_at.items() if at <= state.moment + 1), default=0) + 1
        safe = max((value for at, value in synced_at.items() if at <= state.moment), default=0)
        assert (found.durable if found else 0) in range(safe, begun + 1), str(state)
        states += 1
    assert states > 50


def test_a_failed_write_leaves_the_mark_that_was() -> None:
    """Recovery: a mark that could not be written spoils at most the older slot, and is written again later."""
    fs = SimulatedFileSystem()
    file = mark_file(fs)
    file.write(replace(FIRST, durable=1))
    file.write(replace(FIRST, durable=2))
    fs.inject(Fault(on=frozenset({"pwrite"}), short=100))
    fs.inject(Fault(at=2, on=frozenset({"pwrite"})))
    with pytest.raises(OSError, match="injected"):
        file.write(replace(FIRST, durable=3))
    found, damaged = read_mark(fs, PATH)
    assert found is not None
    assert (found.durable, damaged, file.mark.durable) == (2, True, 2)
    file.write(replace(FIRST, durable=3))
    found, damaged = read_mark(fs, PATH)
    assert found is not None
    assert (found.durable, damaged) == (3, False)


def test_a_reopened_mark_goes_on_in_the_other_slot() -> None:
    """Recovery: the newest mark is never overwritten by the next one, also across processes."""
    fs = SimulatedFileSystem()
    for durable in range(1, 8):
        before = read_mark(fs, PATH)[0]
        content = fs.files().get(PATH, b"")
        mark_file(fs).write(replace(before or FIRST, durable=durable))
        after = fs.files()[PATH]
        if before is not None:
            slot = before.generation % 2 * SLOT_BYTES
            assert after[slot : slot + SLOT_BYTES] == content[slot : slot + SLOT_BYTES]


def test_the_mark_is_readable_by_people() -> None:
    """A mark is a line of JSON in each slot."""
    fs = SimulatedFileSystem()
    mark_file(fs).write(replace(FIRST, durable=12))
    text = fs.files()[PATH][SLOT_BYTES:].decode()
    assert text.startswith('{"log_id":"aaaa')
    assert '"durable":12' in text
    assert text.endswith(" \n")
