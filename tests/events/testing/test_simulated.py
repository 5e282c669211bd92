"""The simulated file system: what programs see, what the disk holds, and what calls may go wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.persistence.files import FileSystem, OsFileSystem
from events.testing.images import Fate
from events.testing.simulated import Fault, SimulatedFileSystem


def fs_with(content: bytes = b"") -> tuple[SimulatedFileSystem, int]:
    """A file system with a durable file, open for writing."""
    fs = SimulatedFileSystem()
    fs.put("/file", content)
    return fs, fs.open("/file", write=True)


@pytest.fixture(params=["real", "simulated"])
def any_fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FileSystem, str]]:
    """The real file system and the simulated one, each with an empty folder."""
    if request.param == "real":
        yield OsFileSystem(), str(tmp_path)
    else:
        fs = SimulatedFileSystem()
        fs.mkdir("/folder")
        yield fs, "/folder"
        assert fs.open_handles == 0


def test_it_behaves_like_a_real_one(any_fs: tuple[FileSystem, str]) -> None:
    """The same calls give the same answers on a real file system and on the simulated one."""
    fs, folder = any_fs
    path = os.path.join(folder, "file")
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    with pytest.raises(FileNotFoundError):
        fs.open(os.path.join(folder, "nowhere", "file"), create=True)
    handle = fs.open(path, create=True)
    assert fs.size(handle) == 0
    assert fs.pwrite(handle, b"hello", 3) == 5
    assert fs.pread(handle, 100, 0) == b"\0\0\0hello"
    assert fs.pread(handle, 2, 4) == b"el"
    assert fs.pread(handle, 10, 100) == b""
    fs.truncate(handle, 5)
    assert fs.pread(handle, 100, 3) == b"he"
    fs.truncate(handle, 7)
    assert fs.pread(handle, 100, 3) == b"he\0\0"
    fs.sync(handle)
    fs.close(handle)
    with pytest.raises(FileExistsError):
        fs.open(path, create=True)
    with pytest.raises(OSError, match="Bad file"):
        fs.size(handle)
    reading = fs.open(path)
    with pytest.raises(OSError, match="Bad file"):
        fs.pwrite(reading, b"x", 0)
    fs.rename(path, path + "2")
    assert fs.pread(reading, 100, 3) == b"he\0\0"
    fs.close(reading)
    assert fs.listdir(folder) == ["file2"]
    with pytest.raises(FileNotFoundError):
        fs.rename(path, path + "3")
    with pytest.raises(FileNotFoundError):
        fs.unlink(path)
    inner = os.path.join(folder, "inner")
    fs.mkdir(inner)
    with pytest.raises(FileExistsError):
        fs.mkdir(inner)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(os.path.join(folder, "nowhere", "inner"))
    with pytest.raises(NotADirectoryError):
        fs.listdir(path + "2")
    with pytest.raises(FileNotFoundError):
        fs.listdir(path)
    fs.sync_directory(folder)
    lock = fs.lock(os.path.join(inner, "lock"))
    with pytest.raises(BlockingIOError):
        fs.lock(os.path.join(inner, "lock"))
    other = fs.open(os.path.join(inner, "lock"))
    fs.close(other)
    with pytest.raises(BlockingIOError):
        fs.lock(os.path.join(inner, "lock"))
    fs.close(lock)
    fs.close(fs.lock(os.path.join(inner, "lock")))
    fs.unlink(path + "2")
    assert fs.listdir(folder) == ["inner"]


def test_nothing_is_durable_before_its_sync() -> None:
    """A crash takes what was written and not synced; what was synced it cannot take."""
    fs, handle = fs_with(b"old")
    fs.pwrite(handle, b"new content", 0)
    assert fs.files() == {"/file": b"new content"}
    assert fs.crash().files() == {"/file": b"old"}
    fs.sync(handle)
    assert fs.crash().files() == {"/file": b"new content"}
    fs.truncate(handle, 3)
    assert fs.crash().files() == {"/file": b"new content"}
    fs.sync(handle)
    assert fs.crash().files() == {"/file": b"new"}


@pytest.mark.parametrize(
    ("fate", "left"),
    [
        (Fate(0, 0), b"base"),
        (Fate(0, 6, True), b"baseABCDEF"),
        (Fate(0, 2), b"baseAB"),
        (Fate(0, 2, True), b"baseAB\0\0\0\0"),
        (Fate(0, 0, True), b"base\0\0\0\0\0\0"),
        (Fate(3, 6, True), b"base\0\0\0DEF"),
    ],
)
def test_what_a_crash_leaves_of_a_write(fate: Fate, left: bytes) -> None:
    """A write that was not synced is there, gone, torn, or there as NULs."""
    fs, handle = fs_with(b"base")
    fs.pwrite(handle, b"ABCDEF", 4)
    assert [(change.path, change.kind, change.size) for change in fs.image().unsynced()] == [("/file", "write", 6)]
    assert fs.crash([fate]).files() == {"/file": left}


def test_writes_may_reach_the_disk_in_any_order() -> None:
    """Of several writes a later one may be there and an earlier one not; a truncation counts like a write."""
    fs, handle = fs_with(b"")
    fs.pwrite(handle, b"one", 0)
    fs.pwrite(handle, b"two", 3)
    fs.truncate(handle, 4)
    kept, dropped, cut = Fate(0, 3, True), Fate(0, 0), Fate(0, 1)
    assert fs.crash([dropped, kept, dropped]).files() == {"/file": b"\0\0\0two"}
    assert fs.crash([kept, kept, cut]).files() == {"/file": b"onet"}
    assert fs.crash([kept, dropped, cut]).files() == {"/file": b"one\0"}


def test_names_are_lost_with_their_directory() -> None:
    """Creating, renaming and deleting are durable once the directory is synced; a crash keeps them up to a point."""
    fs = SimulatedFileSystem()
    fs.mkdir("/folder")
    fs.sync_directory("/")
    for name in ("a", "b"):
        handle = fs.open(f"/folder/{name}", create=True)
        fs.pwrite(handle, name.encode(), 0)
        fs.sync(handle)
        fs.close(handle)
    fs.rename("/folder/b", "/folder/c")
    fs.unlink("/folder/a")
    found = [sorted(fs.crash([Fate(0, kept)]).files()) for kept in range(5)]
    assert found == [[], ["/folder/a"], ["/folder/a", "/folder/b"], ["/folder/a", "/folder/c"], ["/folder/c"]]
    fs.sync_directory("/folder")
    assert fs.crash().files() == {"/folder/c": b"b"}


def test_a_rename_over_a_file_is_one_step() -> None:
    """Replacing: before or after, and never neither."""
    fs, handle = fs_with(b"old")
    fs.close(handle)
    handle = fs.open("/new", create=True)
    fs.pwrite(handle, b"new", 0)
    fs.sync(handle)
    fs.close(handle)
    fs.sync_directory("/")
    fs.rename("/new", "/file")
    assert fs.crash().files() == {"/file": b"old", "/new": b"new"}
    assert fs.crash([Fate(0, 1)]).files() == {"/file": b"new"}
    fs.mkdir("/folder")
    with pytest.raises(OSError, match="cross-device"):
        fs.rename("/file", "/folder/file")


def test_a_directory_that_is_lost_takes_everything_in_it() -> None:
    """A synced file in a directory whose own name was not synced is gone."""
    fs = SimulatedFileSystem()
    fs.mkdir("/folder")
    handle = fs.open("/folder/file", create=True)
    fs.pwrite(handle, b"x", 0)
    fs.sync(handle)
    fs.sync_directory("/folder")
    assert fs.crash().files() == {}
    fs.sync_directory("/")
    assert fs.crash().files() == {"/folder/file": b"x"}


def test_a_killed_process_leaves_the_page_cache() -> None:
    """After a kill all is there as it was, no handle and no lock; and what was not synced may still be lost."""
    fs, handle = fs_with(b"old")
    fs.pwrite(handle, b"new", 0)
    fs.lock("/lock")
    for survivor in (fs.after_kill(), SimulatedFileSystem(fs.image())):
        assert survivor.files() == {"/file": b"new", "/lock": b""}
        assert survivor.open_handles == 0
        survivor.close(survivor.lock("/lock"))
        assert survivor.crash().files() == {"/file": b"old"}
        handle = survivor.open("/file", write=True)
        survivor.sync(handle)
        assert survivor.crash().files() == {"/file": b"new"}
    assert fs.crash().files() == {"/file": b"old"}


def test_a_sync_that_fails_may_lose_what_the_cache_shows() -> None:
    """After a failed fsync the cache shows the write, the next fsync succeeds, and the disk never gets it."""
    fs, handle = fs_with(b"old")
    fs.pwrite(handle, b"new", 0)
    fs.inject(Fault(on=frozenset({"sync"}), loses=True))
    with pytest.raises(OSError, match="injected"):
        fs.sync(handle)
    fs.sync(handle)
    assert fs.files() == {"/file": b"new"}
    assert fs.after_kill().files() == {"/file": b"new"}
    assert fs.crash([Fate(0, 3, True)]).files() == {"/file": b"old"}
    fs.pwrite(handle, b"new", 0)
    fs.sync(handle)
    assert fs.crash().files() == {"/file": b"new"}


def test_a_directory_sync_that_fails_may_lose_names() -> None:
    """The same for the names in a directory."""
    fs = SimulatedFileSystem()
    fs.close(fs.open("/file", create=True))
    fs.inject(Fault(on=frozenset({"sync_directory"}), loses=True))
    with pytest.raises(OSError, match="injected"):
        fs.sync_directory("/")
    fs.sync_directory("/")
    assert list(fs.files()) == ["/file"]
    assert list(fs.after_kill().files()) == ["/file"]
    assert fs.crash([Fate(0, 9)]).files() == {}


def test_a_fault_strikes_where_it_was_told_to() -> None:
    """Faults count the calls that they are about: once, or from then on; short writes are no errors."""
    fs, handle = fs_with(b"old")
    fs.inject(Fault(at=2, on=frozenset({"pwrite"}), error=errno.ENOSPC))
    assert fs.pwrite(handle, b"abc", 0) == 3
    with pytest.raises(OSError, match="injected") as caught:
        fs.pwrite(handle, b"abc", 0)
    assert caught.value.errno == errno.ENOSPC
    assert fs.pwrite(handle, b"abc", 0) == 3
    fs.inject(Fault(forever=True))
    for _ in range(3):
        with pytest.raises(OSError, match="injected"):
            fs.size(handle)
    fs.heal()
    fs.inject(Fault(on=frozenset({"pwrite"}), short=2))
    assert fs.pwrite(handle, b"xyz", 0) == 2
    assert fs.pwrite(handle, b"xyz", 0) == 3
    fs.inject(Fault(on=frozenset({"close"})))
    with pytest.raises(OSError, match="injected"):
        fs.close(handle)
    assert fs.open_handles == 0


def test_a_disk_has_an_end() -> None:
    """Writes beyond the capacity are cut short, then refused; overwriting costs nothing, deleting gives room."""
    fs, handle = fs_with(b"12345")
    fs.put("/other", b"12345")
    fs.capacity_bytes = 12
    assert fs.pwrite(handle, b"abcde", 0) == 5
    assert fs.pwrite(handle, b"fghij", 5) == 2
    with pytest.raises(OSError, match="No space"):
        fs.pwrite(handle, b"h", 7)
    with pytest.raises(OSError, match="No space"):
        fs.open("/new", create=True)
    fs.unlink("/other")
    assert fs.pwrite(handle, b"hij", 7) == 3


def test_names_that_differ_by_case_may_be_one() -> None:
    """A folding file system finds a file under any spelling, and keeps the first one."""
    fs = SimulatedFileSystem(folds_case=True)
    fs.mkdir("/Folder")
    fs.close(fs.open("/Folder/File", create=True))
    fs.close(fs.open("/FOLDER/FILE"))
    with pytest.raises(FileExistsError):
        fs.open("/folder/file", create=True)
    assert fs.listdir("/folder") == ["File"]
    fs.sync_directory("/")
    fs.sync_directory("/folder")
    assert list(fs.crash().listdir("/FOLDER")) == ["File"]


def test_the_history_is_made_of_images() -> None:
    """Recording keeps an image after each call that changed something, and nothing for one that did not."""
    fs, handle = fs_with(b"old")
    fs.records = True
    fs.pread(handle, 1, 0)
    fs.pwrite(handle, b"new", 0)
    fs.size(handle)
    fs.sync(handle)
    assert [image.call for image in fs.history] == ["write /file", "sync /file"]
    assert SimulatedFileSystem(fs.history[0]).crash().files() == {"/file": b"old"}
    assert SimulatedFileSystem(fs.history[1]).crash().files() == {"/file": b"new"}


def test_a_digest_tells_what_a_program_could_read() -> None:
    """Two file systems are the same if every name and every byte is."""
    first, second = SimulatedFileSystem(), SimulatedFileSystem()
    for fs in (first, second):
        fs.mkdir("/folder")
        fs.put("/folder/file", b"x")
    assert first.digest() == second.digest()
    second.put("/folder/file", b"y")
    assert first.digest() != second.digest()
    second.put("/folder/file", b"x")
    second.put("/folder/other", b"")
    assert first.digest() != second.digest()
