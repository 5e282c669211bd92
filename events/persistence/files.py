"""The one seam between the bus and the file system: every byte that must last goes through here."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol, TypeVar

from events.errors import StorageError

if sys.platform != "win32":
    import fcntl  # the workspace refuses to open on Windows before anything here is called

T = TypeVar("T")
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
_MAX_FOLDERS: Final = 100_000
_MAX_INTERRUPTIONS: Final = 1000  # in a row: a call that is interrupted for ever must fail, not spin


class FileSystem(Protocol):
    """What the log needs of a file system. A simulated one can enumerate what a crash leaves behind.

    Paths are absolute; a handle is whatever `open` returned. Every call may raise OSError. `pwrite` may write
    less than it was given. Nothing is durable before `sync` (contents and length of a file) or `sync_directory`
    (names in a directory) has returned.
    """

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        """`create` makes a new file and fails where one exists; no symbolic link is ever followed."""
        ...

    def close(self, handle: int) -> None: ...
    def size(self, handle: int) -> int: ...
    def pread(self, handle: int, size: int, position: int) -> bytes: ...
    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int: ...
    def truncate(self, handle: int, size: int) -> None: ...
    def sync(self, handle: int) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def mkdir(self, path: str) -> None: ...
    def listdir(self, path: str) -> list[str]: ...

    def lock(self, path: str) -> int:
        """Take the file's exclusive lock until the handle is closed; `BlockingIOError` where it is taken."""
        ...


class OsFileSystem:
    """The real one. No link is followed: paths are real ones, so a link in them was planted."""

    def __init__(self) -> None:
        self._real_folders: set[str] = set()

    def _real(self, path: str) -> str:
        """The path, if its folders are no links. O_NOFOLLOW looks at the last name only."""
        folder = os.path.dirname(path)
        if folder not in self._real_folders:
            if os.path.realpath(folder) != folder:
                raise OSError(errno.ELOOP, "a link stands in the place of a folder", folder)
            if len(self._real_folders) > _MAX_FOLDERS:
                self._real_folders.clear()
            if os.path.isdir(folder):
                self._real_folders.add(folder)
        return path

    def _open_directory(self, path: str) -> int:
        return os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_RDWR if write or create else os.O_RDONLY)
        return os.open(self._real(path), flags | (os.O_CREAT | os.O_EXCL if create else 0), FILE_MODE)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def pread(self, handle: int, size: int, position: int) -> bytes:
        return os.pread(handle, size, position)

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(handle, data, position)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        if sys.platform == "darwin":
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync alone leaves the data in the drive's cache there
        else:
            os.fdatasync(handle)

    def sync_directory(self, path: str) -> None:
        handle = self._open_directory(path)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: str, target: str) -> None:
        os.rename(self._real(source), self._real(target))

    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(self._real(path), DIRECTORY_MODE)

    def listdir(self, path: str) -> list[str]:
        handle = self._open_directory(path)
        try:
            return os.listdir(handle)
        finally:
            os.close(handle)

    def lock(self, path: str) -> int:
        handle = os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle


def write_all(fs: FileSystem, handle: int, data: bytes, position: int) -> None:
    """Write all of it: short writes are looped, interrupted ones repeated."""
    view = memoryview(data)
    while view:
        written = _uninterrupted(partial(fs.pwrite, handle, view, position))
        if written <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing and reported no error")
        view = view[written:]
        position += written


def read_all(fs: FileSystem, handle: int, size: int, position: int) -> bytes:
    """Up to `size` bytes from `position`; fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0:
        part = _uninterrupted(partial(fs.pread, handle, size, position))
        if not part:
            break
        parts.append(part)
        size -= len(part)
        position += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _uninterrupted(call: Callable[[], T]) -> T:
    """Repeat a call that a signal interrupted; the last interruption is raised when they do not end."""
    for _ in range(_MAX_INTERRUPTIONS):
        try:
            return call()
        except InterruptedError:
            continue
    return call()


@contextmanager
def opened(fs: FileSystem, path: str, *, create: bool = False, write: bool = False) -> Iterator[int]:
    """A handle for the length of a block. What was to be durable is synced inside the block, not by closing."""
    handle = fs.open(path, create=create, write=write)
    try:
        yield handle
    finally:
        fs.close(handle)


def read_file(fs: FileSystem, path: str, max_bytes: int) -> bytes | None:
    """A whole small file, or None where there is none. A file past the limit is an error, not a surprise."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        data = read_all(fs, handle, max_bytes + 1, 0)
    finally:
        fs.close(handle)
    if len(data) > max_bytes:
        raise StorageError(f"{path} has more than {max_bytes} bytes; it is not a file that the bus wrote")
    return data


def make_directory(fs: FileSystem, path: str) -> bool:
    """Make a directory and its name durable; False where it was there already."""
    try:
        fs.mkdir(path)
    except FileExistsError:
        return False
    fs.sync_directory(os.path.dirname(path))
    return True


def make_directories(fs: FileSystem, path: str) -> None:
    """Make a directory and whatever is missing above it, each of them durable."""
    try:
        make_directory(fs, path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent == path:
            raise
        make_directories(fs, parent)
        make_directory(fs, path)


def list_or_empty(fs: FileSystem, path: str) -> list[str]:
    """The names in a directory; none where it does not exist yet, or where a file or a link stands in its place."""
    try:
        return sorted(fs.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
