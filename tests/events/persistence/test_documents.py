"""Documents that are replaced as a whole: a crash leaves the old one, the new one or the copy before, never half."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import StorageError
from events.persistence.documents import (
    MAX_DOCUMENT_BYTES,
    decode_document,
    encode_document,
    read_document,
    read_previous,
    remove_document,
    write_document,
)
from events.testing.crashes import crash_states
from events.testing.simulated import Call, Fault, SimulatedFileSystem

PATH = "/folder/g.json"
DATA = st.dictionaries(
    st.text().filter(lambda key: key not in ("version", "generation", "crc")),
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.lists(st.integers(0, 9)),
    max_size=5,
)


def folder() -> SimulatedFileSystem:
    """A file system with the folder of the documents."""
    fs = SimulatedFileSystem()
    fs.mkdir("/folder")
    fs.sync_directory("/")
    return fs


def value_of(fs: SimulatedFileSystem) -> int | None:
    """What the newest good copy says."""
    document, _ = read_document(fs, PATH)
    return None if document is None else int(document.data["value"])


@given(DATA, st.integers(1, 10**12))
def test_a_document_comes_back_as_it_was_written(data: dict[str, Any], generation: int) -> None:
    """Checkpoints have a version, a generation and a CRC, and what they say is read back exactly."""
    document = decode_document(encode_document(data, generation))
    assert document is not None
    assert (document.data, document.generation, document.is_previous) == (data, generation, False)


def test_every_bit_of_a_document() -> None:
    """A flipped bit anywhere in a document is noticed."""
    raw = encode_document({"committed": 12345, "ranges": [[12350, 12360]]}, 17)
    for place in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[place] ^= 1 << bit
            assert decode_document(bytes(flipped)) is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_document(raw: bytes) -> None:
    """Whatever stands in the file, what does not check out is not believed, and raises nothing."""
    assert decode_document(raw) is None


def test_the_copy_before_stands_in_for_a_bad_one() -> None:
    """A bad document falls back to the previous copy, and says so; two bad ones to nothing."""
    fs = folder()
    write_document(fs, PATH, {"value": 1}, 1)
    write_document(fs, PATH, {"value": 2}, 2)
    assert read_document(fs, PATH) == (decode_document(fs.files()[PATH]), False)
    previous = read_previous(fs, PATH)
    assert previous is not None
    assert previous.data == {"value": 1}
    fs.put(PATH, b"damaged")
    document, damaged = read_document(fs, PATH)
    assert document is not None
    assert (document.data, document.generation, document.is_previous, damaged) == ({"value": 1}, 1, True, True)
    fs.put(PATH + ".prev", b"damaged")
    assert read_document(fs, PATH) == (None, True)


def test_where_there_is_no_document() -> None:
    """No file is no damage."""
    assert read_document(folder(), PATH) == (None, False)


def test_a_document_of_a_newer_version_is_not_guessed_at() -> None:
    """A version that this code does not know is not read as if it were ours."""
    fs = folder()
    fs.put(PATH, encode_document({"version": 2, "value": 1}, 1))
    assert read_document(fs, PATH) == (None, True)


def test_a_file_that_is_far_too_long_is_refused() -> None:
    """A document has a size limit, so that a planted file cannot fill the memory."""
    fs = folder()
    fs.put(PATH, b" " * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(StorageError):
        read_document(fs, PATH)


@pytest.mark.parametrize("generations", [1, 2, 3])
def test_a_crash_at_every_step_of_a_replacement(generations: int) -> None:
    """Replacing: what was durable stays readable at every moment of the next replacement, and half is never read.

    Before a replacement returned its value may be there or not; after that it, or a newer one, always is.
    """
    fs = folder()
    fs.records = True
    returned = [0]
    for value in range(1, generations + 1):
        write_document(fs, PATH, {"value": value, "filler": "x" * 300}, value)
        returned += [value - 1] * (len(fs.history) - len(returned)) + [value]
    states = 0
    for state in crash_states(fs.history, limit=500, cuts=6):
        durable = returned[state.moment]
        assert value_of(state.fs) in ((durable or None), durable + 1), str(state)
        states += 1
        # The next replacement works on whatever the crash left, its remains included.
        write_document(state.fs, PATH, {"value": 99}, 99)
        assert value_of(state.fs.crash()) == 99
    assert states > 10


def test_a_replacement_that_crashes_again_and_again() -> None:
    """Replacing: crashes on top of crashes, three deep, lose no value that was durable."""

    def go_on(fs: SimulatedFileSystem, value: int, depth: int) -> int:
        fs.records, before = True, value_of(fs)
        write_document(fs, PATH, {"value": value}, value)
        tried = 0
        for state in crash_states(fs.history, limit=60, cuts=1):
            assert value_of(state.fs) in (before, value), str(state)
            tried += 1
            if depth:
                tried += go_on(state.fs, value + 1, depth - 1)
        return tried

    fs = folder()
    write_document(fs, PATH, {"value": 1}, 1)
    assert go_on(fs, 2, 2) > 500


CALLS: tuple[Call, ...] = ("open", "pwrite", "sync", "close", "rename", "sync_directory", "unlink")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS])
def test_a_replacement_that_fails(call: Call, forever: bool, number: int) -> None:
    """Replacing: when it raises, the old or the new one is there; and once the disk is well it can be done."""
    for at in (1, 2):
        fs = folder()
        write_document(fs, PATH, {"value": 1}, 1)
        write_document(fs, PATH, {"value": 2}, 2)
        fs.inject(Fault(at=at, on=frozenset({call}), error=number, forever=forever, loses=True))
        try:
            write_document(fs, PATH, {"value": 3}, 3)
        except OSError:
            fs.heal()
            assert value_of(fs) in (2, 3)
            for state in crash_states([fs.image()], limit=200):
                assert value_of(state.fs) in (2, 3), str(state)
        else:
            fs.heal()
            assert value_of(fs.crash()) == 3
        write_document(fs, PATH, {"value": 4}, 4)
        assert value_of(fs.crash()) == 4
        assert fs.open_handles == 0


def test_what_a_failed_sync_left_is_not_synced_again() -> None:
    """Poisoning: after a failed fsync the temporary file is made anew, since its pages may be lost for good."""
    fs = folder()
    write_document(fs, PATH, {"value": 1}, 1)
    fs.inject(Fault(on=frozenset({"sync"}), loses=True))
    with pytest.raises(OSError, match="injected"):
        write_document(fs, PATH, {"value": 2}, 2)
    write_document(fs, PATH, {"value": 3}, 3)
    assert value_of(fs.crash()) == 3


def test_short_writes_are_looped() -> None:
    """A file system may take a few bytes at a time; the document is whole all the same."""
    fs = folder()
    fs.inject(Fault(on=frozenset({"pwrite"}), short=7, forever=True))
    write_document(fs, PATH, {"value": 1}, 1)
    assert value_of(fs.crash()) == 1


def test_a_crash_while_a_document_is_removed() -> None:
    """Forgetting: the document is there as it was, or gone; an older copy never comes back to life."""
    fs = folder()
    write_document(fs, PATH, {"value": 1}, 1)
    write_document(fs, PATH, {"value": 2}, 2)
    fs.records = True
    remove_document(fs, PATH)
    for state in crash_states(fs.history, limit=100):
        assert value_of(state.fs) in (2, None), str(state)
    assert value_of(fs.crash()) is None
    remove_document(fs, PATH)
