"""A file system in memory that knows what a crash may take from it.

Programs see the page cache; the disk gets nothing but what `sync` and `sync_directory` carry over. `crash(choice)`
is the file system that the next process finds when the power fails now, `after_kill()` the one it finds when only
this process ends. Nothing here is random, so that a failure replays. Calls come from one thread at a time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

from events.testing.images import (
    DirectoryImage,
    Fate,
    FileImage,
    Image,
    Naming,
    Truncate,
    Write,
    truncated,
    whole,
    with_changes,
    with_names,
    written,
)

Call = Literal[
    "open",
    "close",
    "size",
    "pread",
    "pwrite",
    "truncate",
    "sync",
    "sync_directory",
    "rename",
    "unlink",
    "mkdir",
    "listdir",
    "lock",
]
_ROOT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A call that goes wrong: the `at`-th of those `on` (of all, if empty), or all from there on.

    `error` is raised. `short` makes a write take only that many bytes, without an error. A sync that fails and
    `loses` marks the changes as written although they never reach the disk: the cache still shows them, and
    the next sync succeeds.
    """

    at: int = 1
    on: frozenset[Call] = frozenset()
    error: int = errno.EIO
    forever: bool = False
    short: int | None = None
    loses: bool = False


class _Armed:
    __slots__ = ("count", "fault")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.count = 0

    def strikes(self, call: Call) -> bool:
        if self.fault.on and call not in self.fault.on:
            return False
        self.count += 1
        return self.count == self.fault.at or (self.fault.forever and self.count > self.fault.at)


class _File:
    __slots__ = ("cache", "disk", "image", "label", "locked_by", "pending")

    def __init__(self, label: str, content: bytes = b"") -> None:
        self.label = label
        self.disk = content
        self.cache: bytes | bytearray = content
        self.pending: tuple[Write | Truncate, ...] = ()
        self.locked_by: int | None = None
        self.image: FileImage | None = None  # made when somebody asks; None again after each change


class _Directory:
    __slots__ = ("disk", "image", "label", "names", "pending")

    def __init__(self, label: str, names: Mapping[str, int] | None = None) -> None:
        self.label = label
        self.disk: Mapping[str, int] = names or {}
        self.names: dict[str, int] = dict(self.disk)
        self.pending: tuple[Naming, ...] = ()
        self.image: DirectoryImage | None = None


class SimulatedFileSystem:
    """Implements `events.persistence.files.FileSystem`. Starts empty, or as the next process finds an image.

    `calls` counts every call, by name; `history` gets an image after each call that changed something, if `records`
    is set. `capacity_bytes` makes writes fail with ENOSPC beyond it; `folds_case` takes `A` and `a` for one name.
    """

    def __init__(
        self, image: Image | None = None, *, folds_case: bool = False, capacity_bytes: int | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.records = False
        self.history: list[Image] = []
        self.calls: dict[Call, int] = {}
        self._folds_case = folds_case
        self._nodes: dict[int, _File | _Directory] = {_ROOT: _Directory("/")}
        self._directories: dict[str, int] = {"/": _ROOT}
        self._handles: dict[int, tuple[_File, bool]] = {}
        self._next_handle = 3
        self._faults: list[_Armed] = []
        if image is not None:
            self._folds_case = image.folds_case
            self._adopt(image)
        self._next_node = max(self._nodes) + 1

    # -- what a test does with it ------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Have a later call go wrong. Its count begins now."""
        self._faults.append(_Armed(fault))

    def heal(self) -> None:
        """Take all faults back."""
        self._faults.clear()

    def image(self, call: str = "") -> Image:
        """What disk and memory hold now."""
        nodes: dict[int, FileImage | DirectoryImage] = {}
        for number, node in self._nodes.items():
            if node.image is None:
                if isinstance(node, _File):
                    node.image = FileImage(node.label, node.disk, node.pending)
                else:
                    node.image = DirectoryImage(node.label, node.disk, node.pending)
            nodes[number] = node.image
        return Image(call, nodes, self._folds_case)

    def crash(self, choice: Sequence[Fate] = ()) -> SimulatedFileSystem:
        """The file system after a power cut at this moment; this one stays as it is."""
        return crashed(self.image(), choice)

    def after_kill(self) -> SimulatedFileSystem:
        """What the next process finds when this one is killed: the page cache is still there, no handle is."""
        survivor = SimulatedFileSystem(folds_case=self._folds_case, capacity_bytes=self.capacity_bytes)
        survivor._directories = dict(self._directories)
        survivor._next_node = self._next_node
        for number, node in self._nodes.items():
            if isinstance(node, _File):
                file = survivor._nodes[number] = _File(node.label, node.disk)
                file.cache, file.pending = bytes(node.cache), node.pending
            else:
                directory = survivor._nodes[number] = _Directory(node.label, node.disk)
                directory.names, directory.pending = dict(node.names), node.pending
        return survivor

    def files(self) -> dict[str, bytes]:
        """Every file by its path, as a program would read it."""
        return {path: bytes(node.cache) for path, node in self._walk() if isinstance(node, _File)}

    def digest(self) -> bytes:
        """Tells two file systems apart by what a program could read in them."""
        digest = blake2b(digest_size=16)
        for path, node in self._walk():
            content = bytes(node.cache) if isinstance(node, _File) else b"/"
            digest.update(b"%d %d " % (len(path), len(content)))
            digest.update(path.encode())
            digest.update(content)
        return digest.digest()

    def put(self, path: str, content: bytes) -> None:
        """Have a file hold these bytes, on disk and in memory, as if it had always done so. Counts no call."""
        directory = self._directory(os.path.dirname(path))
        number = directory.names.get(self._key(os.path.basename(path), directory))
        node = self._nodes[number] if number is not None else None
        if not isinstance(node, _File):
            node = self._new_file(directory, path)
            directory.disk = with_names(directory.disk, directory.pending[-1:])
            directory.pending = directory.pending[:-1]
        node.disk = node.cache = content
        node.pending, node.image = (), None

    @property
    def open_handles(self) -> int:
        """How many handles are open."""
        return len(self._handles)

    # -- the seam ----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        self._called("open")
        parent = self._directory(os.path.dirname(path))
        number = parent.names.get(self._key(os.path.basename(path), parent))
        if number is None:
            if not create:
                raise _os_error(errno.ENOENT, path)
            self._refuse_when_full(path)
            node: _File | _Directory = self._new_file(parent, path)
            self._changed("create", path)
        elif create:
            raise _os_error(errno.EEXIST, path)
        else:
            node = self._nodes[number]
        if not isinstance(node, _File):
            raise _os_error(errno.EISDIR, path)
        return self._handle(node, writable=write or create)

    def close(self, handle: int) -> None:
        node, _ = self._open_file(handle)
        del self._handles[handle]  # also where it fails: nobody may close it twice
        if node.locked_by == handle:
            node.locked_by = None
        self._called("close")

    def size(self, handle: int) -> int:
        self._called("size")
        return len(self._open_file(handle)[0].cache)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self._called("pread")
        return bytes(self._open_file(handle)[0].cache[position : position + size])

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        short = self._called("pwrite")
        node = self._writable(handle)
        data = bytes(data if short is None else data[:short])
        end = position + len(data)
        if self.capacity_bytes is not None and end > len(node.cache):
            data = data[: max(0, len(node.cache) + self.capacity_bytes - self._used() - position)]
            if not data:
                raise _os_error(errno.ENOSPC, node.label)
        node.cache = written(node.cache, data, position)
        node.pending = (*node.pending, Write(position, data))
        self._changed("write", node.label, node)
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        self._called("truncate")
        node = self._writable(handle)
        node.cache = truncated(node.cache, size)
        node.pending = (*node.pending, Truncate(size))
        self._changed("truncate", node.label, node)

    def sync(self, handle: int) -> None:
        node = self._open_file(handle)[0]
        self._called("sync", node)
        if node.pending:
            node.disk = with_changes(node.disk, node.pending, [whole(change) for change in node.pending])
            node.pending = ()
        self._changed("sync", node.label, node)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._called("sync_directory", directory)
        before = {*directory.disk.values(), *(change.node for change in directory.pending)}
        directory.disk, directory.pending = with_names(directory.disk, directory.pending), ()
        for gone in before.difference(directory.disk.values(), directory.names.values()):
            self._nodes.pop(gone, None)
        self._changed("sync", path, directory)

    def rename(self, source: str, target: str) -> None:
        self._called("rename")
        directory = self._directory(os.path.dirname(source))
        if self._directory(os.path.dirname(target)) is not directory:
            raise _os_error(errno.EXDEV, target)
        gone = self._key(os.path.basename(source), directory)
        node = directory.names.pop(gone, None)
        if node is None:
            raise _os_error(errno.ENOENT, source)
        name = self._key(os.path.basename(target), directory)
        directory.names[name] = node
        directory.pending = (*directory.pending, Naming(gone, name, node))
        self._changed("rename", target, directory)

    def unlink(self, path: str) -> None:
        self._called("unlink")
        directory = self._directory(os.path.dirname(path))
        gone = self._key(os.path.basename(path), directory)
        if directory.names.pop(gone, None) is None:
            raise _os_error(errno.ENOENT, path)
        directory.pending = (*directory.pending, Naming(gone, None, 0))
        self._changed("unlink", path, directory)

    def mkdir(self, path: str) -> None:
        self._called("mkdir")
        parent = self._directory(os.path.dirname(path))
        if not os.path.basename(path) or self._key(os.path.basename(path), parent) in parent.names:
            raise _os_error(errno.EEXIST, path)
        self._directories[self._folded(path)] = self._next_node
        self._add(parent, path, _Directory(path))
        self._changed("mkdir", path, parent)

    def listdir(self, path: str) -> list[str]:
        self._called("listdir")
        return list(self._directory(path).names)

    def lock(self, path: str) -> int:
        self._called("lock")
        parent = self._directory(os.path.dirname(path))
        number = parent.names.get(self._key(os.path.basename(path), parent))
        node = self._nodes[number] if number is not None else self._new_file(parent, path)
        assert isinstance(node, _File)
        if node.locked_by is not None:
            raise _os_error(errno.EWOULDBLOCK, path)
        self._changed("lock", path, node)
        node.locked_by = self._handle(node, writable=True)
        return node.locked_by

    # -- inside ------------------------------------------------------------------------------------------------

    def _called(self, call: Call, synced: _File | _Directory | None = None) -> int | None:
        """Count a call and let the faults have their say; how many bytes a write may take, if not all."""
        self.calls[call] = self.calls.get(call, 0) + 1
        short: int | None = None
        for armed in self._faults:
            if not armed.strikes(call):
                continue
            if armed.fault.short is None:
                if armed.fault.loses and synced is not None:
                    synced.pending, synced.image = (), None
                raise _os_error(armed.fault.error, f"injected at {call} {armed.count}")
            short = armed.fault.short
        return short

    def _changed(self, call: str, path: str, node: _File | _Directory | None = None) -> None:
        if node is not None:
            node.image = None
        if self.records:
            self.history.append(self.image(f"{call} {path}"))

    def _add(self, parent: _Directory, path: str, node: _File | _Directory) -> None:
        number, self._next_node = self._next_node, self._next_node + 1
        self._nodes[number] = node
        parent.names[os.path.basename(path)] = number
        parent.pending = (*parent.pending, Naming(None, os.path.basename(path), number))
        parent.image = None

    def _new_file(self, parent: _Directory, path: str) -> _File:
        node = _File(path)
        self._add(parent, path, node)
        return node

    def _refuse_when_full(self, path: str) -> None:
        if self.capacity_bytes is not None and self._used() >= self.capacity_bytes:
            raise _os_error(errno.ENOSPC, path)

    def _used(self) -> int:
        return sum(len(node.cache) for _, node in self._walk() if isinstance(node, _File))

    def _handle(self, node: _File, *, writable: bool) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = (node, writable)
        return self._next_handle

    def _open_file(self, handle: int) -> tuple[_File, bool]:
        try:
            return self._handles[handle]
        except KeyError:
            raise _os_error(errno.EBADF, str(handle)) from None

    def _writable(self, handle: int) -> _File:
        node, writable = self._open_file(handle)
        if not writable:
            raise _os_error(errno.EBADF, node.label)
        return node

    def _directory(self, path: str) -> _Directory:
        number = self._directories.get(self._folded(path))
        if number is not None:
            return self._directory_of(number)
        parent = self._directories.get(self._folded(os.path.dirname(path)))
        is_file = parent is not None and os.path.basename(path) in self._directory_of(parent).names
        raise _os_error(errno.ENOTDIR if is_file else errno.ENOENT, path)

    def _directory_of(self, number: int) -> _Directory:
        node = self._nodes[number]
        assert isinstance(node, _Directory)
        return node

    def _folded(self, path: str) -> str:
        return path.casefold() if self._folds_case else path

    def _key(self, name: str, directory: _Directory) -> str:
        """The spelling under which a directory has a name; the name itself where it has none."""
        if self._folds_case and name not in directory.names:
            folded = name.casefold()
            return next((known for known in directory.names if known.casefold() == folded), name)
        return name

    def _walk(self) -> Iterator[tuple[str, _File | _Directory]]:
        waiting = [("", _ROOT)]
        while waiting:
            path, number = waiting.pop()
            node = self._nodes[number]
            yield path or "/", node
            if isinstance(node, _Directory):
                waiting += [(f"{path}/{name}", child) for name, child in sorted(node.names.items(), reverse=True)]

    def _adopt(self, image: Image) -> None:
        """Take over an image: the process is another one, so what was not synced is still there, and still not."""
        waiting = [("/", _ROOT)]
        while waiting:
            path, number = waiting.pop()
            found = image.nodes[number]
            if isinstance(found, FileImage):
                file = self._nodes[number] = _File(found.label, found.disk)
                if found.pending:
                    file.pending = found.pending
                    file.cache = with_changes(found.disk, found.pending, [whole(change) for change in found.pending])
                continue
            directory = self._nodes[number] = _Directory(found.label, found.disk)
            if found.pending:
                directory.pending = found.pending
                directory.names = dict(with_names(found.disk, found.pending))
            self._directories[self._folded(path)] = number
            # Also what was named in between: another process may have it open, and a crash may bring it back.
            named = [(change.name, change.node) for change in found.pending if change.name is not None]
            named += [*found.disk.items(), *directory.names.items()]
            waiting += [(os.path.join(path, name), child) for name, child in named]


def crashed(image: Image, choice: Sequence[Fate] = ()) -> SimulatedFileSystem:
    """The file system after a power cut at the moment of an image. Changes for which there is no fate are lost."""
    return SimulatedFileSystem(Image(image.call, image.left_by(choice), image.folds_case))


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
