"""The cache of open files: bounded, never closing what is in use, and telling whom a failed close concerns."""

from __future__ import annotations

import errno
import threading

import pytest

from events.persistence.handles import Handles
from events.testing.simulated import Fault, SimulatedFileSystem


def files(count: int) -> SimulatedFileSystem:
    """A file system with files `/0`, `/1` and on, each holding its number."""
    fs = SimulatedFileSystem()
    for number in range(count):
        fs.put(f"/{number}", b"%d" % number)
    return fs


def test_a_file_is_opened_once() -> None:
    """M: while a file is known, using it again opens nothing."""
    fs = files(1)
    handles = Handles(fs, 4)
    for _ in range(5):
        with handles.pinned("/0") as handle:
            assert fs.pread(handle, 10, 0) == b"0"
    assert fs.calls["open"] == 1
    handles.close()
    assert fs.open_handles == 0


def test_no_more_files_are_open_than_allowed() -> None:
    """M: ten thousand logs need no ten thousand descriptors; the least recently used goes first."""
    fs = files(100)
    handles = Handles(fs, 8)
    for number in range(100):
        with handles.pinned(f"/{number}") as handle:
            assert fs.pread(handle, 10, 0) == b"%d" % number
        assert fs.open_handles <= 8
    with handles.pinned("/92"), handles.pinned("/99"):
        pass
    assert fs.calls["open"] == 100
    assert handles.peak == 8
    assert len(handles) == 8
    handles.close()
    assert fs.open_handles == 0


def test_what_is_in_use_stays_open() -> None:
    """M: a pinned or held file is not closed, also where the limit is passed for that while."""
    fs = files(10)
    handles = Handles(fs, 1)
    with handles.pinned("/0") as first:
        handles.hold("/0")
        for number in range(1, 10):
            with handles.pinned(f"/{number}"):
                assert fs.pread(first, 10, 0) == b"0"
    with handles.pinned("/5"):
        assert fs.pread(first, 10, 0) == b"0"
    handles.release("/0")
    with handles.pinned("/6"), handles.pinned("/7"):
        pass
    with pytest.raises(OSError, match="Bad file"):
        fs.pread(first, 10, 0)
    handles.close()
    assert fs.open_handles == 0


def test_a_file_that_was_open_for_reading_is_opened_again_for_writing() -> None:
    """A writer gets a handle that can write; readers that still use the old one keep it until they are done."""
    fs = files(1)
    handles = Handles(fs, 4)
    with handles.pinned("/0") as reading:
        with handles.pinned("/0", write=True) as writing:
            assert fs.pwrite(writing, b"new", 0) == 3
            assert fs.pread(reading, 10, 0) == b"new"
        with handles.pinned("/0") as again:
            assert again == writing
    handles.close()
    assert fs.open_handles == 0


def test_a_forgotten_file_is_closed_unless_in_use() -> None:
    """A sealed or deleted segment is closed at once, or when its last reader is done."""
    fs = files(2)
    handles = Handles(fs, 4)
    with handles.pinned("/0"):
        handles.forget("/0")
        assert fs.open_handles == 1
    handles.forget("/0")
    handles.forget("/0")
    handles.forget("/never opened")
    assert fs.open_handles == 0


def test_whoever_wrote_a_file_hears_of_a_failed_close() -> None:
    """Poisoning: a close that fails, whenever the cache gets to it, is told to the file's owner, and to nobody else."""
    fs = files(3)
    handles = Handles(fs, 1)
    lost: list[tuple[str, str]] = []
    with handles.pinned("/0", write=True, on_lost=lambda path, reason: lost.append((path, reason))):
        pass
    fs.inject(Fault(on=frozenset({"close"}), error=errno.EIO, forever=True))
    with handles.pinned("/1"):
        pass
    assert [path for path, _ in lost] == ["/0"]
    assert "close failed" in lost[0][1]
    with handles.pinned("/2"):
        pass
    handles.close()
    assert len(lost) == 1


def test_an_open_that_fails_leaves_nothing_behind() -> None:
    """EMFILE and the like go to the caller, and the cache is as it was."""
    fs = files(1)
    handles = Handles(fs, 4)
    fs.inject(Fault(on=frozenset({"open"}), error=errno.EMFILE))
    with pytest.raises(OSError, match="injected"), handles.pinned("/0"):
        pass
    with pytest.raises(FileNotFoundError), handles.pinned("/nowhere"):
        pass
    assert len(handles) == 0
    with handles.pinned("/0"):
        assert len(handles) == 1


class Meeting(SimulatedFileSystem):
    """Lets two threads open the same file at the same moment; `order` says whose open returns first."""

    def __init__(self, fs: SimulatedFileSystem) -> None:
        super().__init__(fs.image())
        self.meet = False
        self.both = threading.Barrier(2)
        self.writer_is_in = threading.Event()

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        handle = super().open(path, create=create, write=write)
        if self.meet:
            self.both.wait(5)
            if not write:
                self.writer_is_in.wait(5)
        return handle


def test_a_reader_that_comes_late_does_not_displace_a_writer() -> None:
    """Poisoning: what a writer holds until its next sync stays the file's handle, whoever opens it meanwhile.

    Both threads miss the cache and open; the writer is done first and holds. Releasing must find what was held.
    """
    fs = Meeting(files(1))
    handles = Handles(fs, 4)
    fs.meet = True

    def write() -> None:
        with handles.pinned("/0", write=True) as handle:
            fs.pwrite(handle, b"new", 0)
            handles.hold("/0")
        fs.writer_is_in.set()

    def read() -> None:
        with handles.pinned("/0") as handle:
            fs.pread(handle, 10, 0)

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs.meet = False
    opened = fs.calls["open"]
    with handles.pinned("/0", write=True):
        assert fs.calls["open"] == opened, "the writer's handle was displaced"
    handles.release("/0")
    handles.forget("/0")
    assert len(handles) == 0
    handles.close()
    assert fs.open_handles == 0
