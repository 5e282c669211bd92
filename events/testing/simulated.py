"""A file system in memory that knows what a crash may take from it.

Every file has its contents as programs see them (the page cache), what the disk holds, and the changes between the
two; every directory the same for its names. `sync` and `sync_directory` carry changes over; nothing else does. An
`Image` is all of that at one moment, and `Image.crash(choice)` is the file system that the next process finds when
the power fails at that moment: for each change that was not synced, `choice` says what is left of it.

Nothing here is random, so a choice, which is a short tuple, replays a failure. Calls come from one thread at a time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

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
CHANGES: Final[frozenset[Call]] = frozenset(
    {"open", "pwrite", "truncate", "sync", "sync_directory", "rename", "unlink", "mkdir", "lock"}
)
_ROOT: Final = 1


class Fate(NamedTuple):
    """What a crash leaves of one change that was not synced.

    Of a write the bytes from `start` to `stop` reach the disk; where `extends`, the file's length does too, and what
    is missing of the bytes reads as NULs. A truncation happened if `stop` is 1. Of a directory's changes the first
    `stop` happened, in their order.
    """

    start: int
    stop: int
    extends: bool = False


Choice = tuple[Fate, ...]
DROPPED: Final = Fate(0, 0)


class _Write(NamedTuple):
    position: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Named(NamedTuple):
    """A change of a directory's names: `gone` vanishes, and `name` stands for `node` from then on. One step."""

    gone: str | None
    name: str | None
    node: int


class _File:
    __slots__ = ("cache", "disk", "image", "label", "locked", "pending")

    def __init__(self, label: str, content: bytes = b"") -> None:
        self.label = label
        self.disk = content
        self.cache: bytes | bytearray = content
        self.pending: tuple[_Write | _Truncate, ...] = ()
        self.locked = False
        self.image: _FileImage | None = None


class _Directory:
    __slots__ = ("disk", "image", "label", "names", "pending")

    def __init__(self, label: str, names: Mapping[str, int] | None = None) -> None:
        self.label = label
        self.disk: Mapping[str, int] = names or {}
        self.names: dict[str, int] = dict(self.disk)
        self.pending: tuple[_Named, ...] = ()
        self.image: _DirectoryImage | None = None


class _FileImage(NamedTuple):
    label: str
    disk: bytes
    pending: tuple[_Write | _Truncate, ...]


class _DirectoryImage(NamedTuple):
    label: str
    disk: Mapping[str, int]
    pending: tuple[_Named, ...]


class Unsynced(NamedTuple):
    """A change that a crash may undo: `size` is the bytes of a write, or how many changes of names there are."""

    path: str
    kind: Literal["write", "truncate", "names"]
    size: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Image:
    """What disk and memory held at one moment. `call` is the last call before it, for people."""

    call: str
    _nodes: Mapping[int, _FileImage | _DirectoryImage]
    _folds_case: bool

    def unsynced(self) -> list[Unsynced]:
        """The changes that a crash at this moment may undo; a choice has one fate for each, in this order."""
        found: list[Unsynced] = []
        for node in self._nodes.values():
            if not node.pending:
                continue
            if isinstance(node, _DirectoryImage):
                found.append(Unsynced(node.label, "names", len(node.pending)))
                continue
            for change in node.pending:
                if isinstance(change, _Write):
                    found.append(Unsynced(node.label, "write", len(change.data), change.data))
                else:
                    found.append(Unsynced(node.label, "truncate", 1))
        return found

    def crash(self, choice: Sequence[Fate] = ()) -> SimulatedFileSystem:
        """The file system after a power cut. Changes for which there is no fate are lost."""
        fates = iter(choice)
        nodes: dict[int, _File | _Directory] = {}
        for number, node in self._nodes.items():
            if isinstance(node, _DirectoryImage):
                kept = next(fates, DROPPED).stop if node.pending else 0
                nodes[number] = _Directory(node.label, _with_names(node.disk, node.pending[:kept]))
            else:
                content = node.disk
                if node.pending:
                    content = _with_changes(content, node.pending, [next(fates, DROPPED) for _ in node.pending])
                nodes[number] = _File(node.label, content)
        return SimulatedFileSystem(folds_case=self._folds_case, _nodes=nodes)


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


class SimulatedFileSystem:
    """Implements `events.persistence.files.FileSystem`. Starts with an empty root directory.

    `calls` counts every call, by name; `history` has an image after each call that changed something, if `records`
    is set. `capacity_bytes` makes writes fail with ENOSPC beyond it; `folds_case` takes `A` and `a` for one name.
    """

    def __init__(
        self,
        *,
        folds_case: bool = False,
        capacity_bytes: int | None = None,
        _nodes: dict[int, _File | _Directory] | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.records = False
        self.history: list[Image] = []
        self.calls: dict[Call, int] = {}
        self._folds_case = folds_case
        self._nodes: dict[int, _File | _Directory] = _nodes if _nodes is not None else {_ROOT: _Directory("/")}
        self._next_node = max(self._nodes) + 1
        self._directories: dict[str, int] = {}
        self._handles: dict[int, tuple[_File, bool]] = {}
        self._next_handle = 3
        self._faults: list[_Armed] = []
        self._forget_unreachable()

    # -- what a test does with it ------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Have a later call go wrong. Its count begins now."""
        self._faults.append(_Armed(fault))

    def heal(self) -> None:
        """Take all faults back."""
        self._faults.clear()

    def image(self, call: str = "") -> Image:
        """What disk and memory hold now."""
        nodes: dict[int, _FileImage | _DirectoryImage] = {}
        for number, node in self._nodes.items():
            if node.image is None:
                if isinstance(node, _File):
                    node.image = _FileImage(node.label, node.disk, node.pending)
                else:
                    node.image = _DirectoryImage(node.label, node.disk, node.pending)
            nodes[number] = node.image
        return Image(call, nodes, self._folds_case)

    def crash(self, choice: Sequence[Fate] = ()) -> SimulatedFileSystem:
        """The file system after a power cut at this moment; this one stays as it is."""
        return self.image().crash(choice)

    def after_kill(self) -> SimulatedFileSystem:
        """What the next process finds when this one is killed: the page cache is still there, no handle is."""
        nodes: dict[int, _File | _Directory] = {}
        for number, node in self._nodes.items():
            if isinstance(node, _File):
                file = nodes[number] = _File(node.label, node.disk)
                file.cache, file.pending = bytes(node.cache), node.pending
            else:
                directory = nodes[number] = _Directory(node.label, node.disk)
                directory.names, directory.pending = dict(node.names), node.pending
        return SimulatedFileSystem(folds_case=self._folds_case, capacity_bytes=self.capacity_bytes, _nodes=nodes)

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
        name = os.path.basename(path)
        number = directory.names.get(self._key(name, directory))
        node = self._nodes[number] if number is not None else None
        if not isinstance(node, _File):
            number, node = self._next_node, _File(path)
            self._next_node += 1
            self._nodes[number] = node
            directory.names[name] = number
            directory.disk = {**directory.disk, name: number}
            directory.image = None
        node.disk = node.cache = content
        node.pending = ()
        node.image = None

    @property
    def open_handles(self) -> int:
        """How many handles are open."""
        return len(self._handles)

    # -- the seam ----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        self._called("open")
        parent = self._directory(os.path.dirname(path))
        name = os.path.basename(path)
        number = parent.names.get(self._key(name, parent))
        if number is None:
            if not create:
                raise _os_error(errno.ENOENT, path)
            node = self._created(parent, path)
            self._changed("create", path)
            return self._handle(node, writable=True)
        if create:
            raise _os_error(errno.EEXIST, path)
        found = self._nodes[number]
        if not isinstance(found, _File):
            raise _os_error(errno.EISDIR, path)
        return self._handle(found, writable=write)

    def close(self, handle: int) -> None:
        node, _ = self._open_file(handle)
        del self._handles[handle]  # also where it fails: nobody may close it twice
        if not any(other is node for other, _ in self._handles.values()):
            node.locked = False
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
        room = self._room(node, position + len(data))
        if room is not None:
            data = data[: max(0, room - position)]
            if not data:
                raise _os_error(errno.ENOSPC, node.label)
        node.cache = _written(node.cache, data, position)
        node.pending = (*node.pending, _Write(position, data))
        self._changed("write", node.label, node)
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        self._called("truncate")
        node = self._writable(handle)
        node.cache = _truncated(node.cache, size)
        node.pending = (*node.pending, _Truncate(size))
        self._changed("truncate", node.label, node)

    def sync(self, handle: int) -> None:
        node = self._open_file(handle)[0]
        self._called("sync", node)
        if node.pending:
            kept = [_kept(change) for change in node.pending]
            node.disk = _with_changes(node.disk, node.pending, kept)
            node.pending = ()
        self._changed("sync", node.label, node)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._called("sync_directory", directory)
        if directory.pending:
            directory.disk = dict(directory.names)
            directory.pending = ()
        self._changed("sync", path, directory)

    def rename(self, source: str, target: str) -> None:
        self._called("rename")
        directory = self._directory(os.path.dirname(source))
        if self._directory(os.path.dirname(target)) is not directory:
            raise _os_error(errno.EXDEV, target)
        key = self._key(os.path.basename(source), directory)
        node = directory.names.pop(key, None)
        if node is None:
            raise _os_error(errno.ENOENT, source)
        name = self._key(os.path.basename(target), directory)
        directory.names[name] = node
        directory.pending = (*directory.pending, _Named(key, name, node))
        self._changed("rename", target, directory)

    def unlink(self, path: str) -> None:
        self._called("unlink")
        directory = self._directory(os.path.dirname(path))
        key = self._key(os.path.basename(path), directory)
        if directory.names.pop(key, None) is None:
            raise _os_error(errno.ENOENT, path)
        directory.pending = (*directory.pending, _Named(key, None, 0))
        self._changed("unlink", path, directory)

    def mkdir(self, path: str) -> None:
        self._called("mkdir")
        parent = self._directory(os.path.dirname(path))
        name = os.path.basename(path)
        if not name or self._key(name, parent) in parent.names:
            raise _os_error(errno.EEXIST, path)
        self._nodes[self._next_node] = _Directory(path)
        self._directories[self._folded(path)] = self._next_node
        self._name(parent, name, self._next_node)
        self._next_node += 1
        self._changed("mkdir", path, parent)

    def listdir(self, path: str) -> list[str]:
        self._called("listdir")
        return list(self._directory(path).names)

    def lock(self, path: str) -> int:
        self._called("lock")
        parent = self._directory(os.path.dirname(path))
        number = parent.names.get(self._key(os.path.basename(path), parent))
        node = self._nodes[number] if number is not None else self._created(parent, path)
        assert isinstance(node, _File)
        if node.locked:
            raise _os_error(errno.EWOULDBLOCK, path)
        node.locked = True
        self._changed("lock", path, node)
        return self._handle(node, writable=True)

    # -- inside ------------------------------------------------------------------------------------------------

    def _called(self, call: Call, synced: _File | _Directory | None = None) -> int | None:
        """Count a call and let the faults have their say; how many bytes a write may take, if not all."""
        self.calls[call] = self.calls.get(call, 0) + 1
        short: int | None = None
        for armed in self._faults:
            if armed.strikes(call):
                if armed.fault.short is not None:
                    short = armed.fault.short
                    continue
                if armed.fault.loses and synced is not None:
                    synced.pending, synced.image = (), None
                raise _os_error(armed.fault.error, f"injected at {call} {armed.count}")
        return short

    def _changed(self, call: str, path: str, node: _File | _Directory | None = None) -> None:
        if node is not None:
            node.image = None
        if self.records:
            self.history.append(self.image(f"{call} {path}"))

    def _created(self, parent: _Directory, path: str) -> _File:
        if self.capacity_bytes is not None and self._used() >= self.capacity_bytes:
            raise _os_error(errno.ENOSPC, path)
        node = self._nodes[self._next_node] = _File(path)
        self._name(parent, os.path.basename(path), self._next_node)
        self._next_node += 1
        return node

    def _name(self, parent: _Directory, name: str, node: int) -> None:
        parent.names[name] = node
        parent.pending = (*parent.pending, _Named(None, name, node))
        parent.image = None

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

    def _room(self, node: _File, end: int) -> int | None:
        """Where a write must stop on a disk that is too small for it; None where all of it fits."""
        if self.capacity_bytes is None or end <= len(node.cache):
            return None
        room = len(node.cache) + max(0, self.capacity_bytes - self._used())
        return room if room < end else None

    def _used(self) -> int:
        return sum(len(node.cache) for _, node in self._walk() if isinstance(node, _File))

    def _directory(self, path: str) -> _Directory:
        number = self._directories.get(self._folded(path))
        if number is None:
            parent = self._directories.get(self._folded(os.path.dirname(path)))
            is_file = parent is not None and path != "/" and os.path.basename(path) in self._directory_of(parent).names
            raise _os_error(errno.ENOTDIR if is_file else errno.ENOENT, path)
        return self._directory_of(number)

    def _directory_of(self, number: int) -> _Directory:
        node = self._nodes[number]
        assert isinstance(node, _Directory)
        return node

    def _folded(self, text: str) -> str:
        return text.casefold() if self._folds_case else text

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
            if isinstance(node, _File):
                yield path, node
                continue
            yield path or "/", node
            waiting += [(f"{path}/{name}", child) for name, child in sorted(node.names.items(), reverse=True)]

    def _forget_unreachable(self) -> None:
        """Know the directories by their paths, and nothing that only a lost name led to."""
        waiting = [("/", _ROOT)]
        reachable: set[int] = set()
        while waiting:
            path, number = waiting.pop()
            reachable.add(number)
            node = self._nodes[number]
            if isinstance(node, _Directory):
                self._directories[self._folded(path)] = number
                waiting += [(os.path.join(path, name), child) for name, child in node.names.items()]
                # What a crash may bring back is kept too: names that are gone from memory alone.
                reachable.update(node.disk.values(), (change.node for change in node.pending))
        self._nodes = {number: node for number, node in self._nodes.items() if number in reachable}


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _kept(change: _Write | _Truncate) -> Fate:
    return Fate(0, len(change.data), True) if isinstance(change, _Write) else Fate(0, 1)


def _written(content: bytes | bytearray, data: bytes, position: int) -> bytearray:
    grown = content if isinstance(content, bytearray) else bytearray(content)
    if len(grown) < position:
        grown.extend(bytes(position - len(grown)))
    grown[position : position + len(data)] = data
    return grown


def _truncated(content: bytes | bytearray, size: int) -> bytes | bytearray:
    return content[:size] if size <= len(content) else _written(content, b"", size)


def _with_changes(disk: bytes, changes: Sequence[_Write | _Truncate], fates: Sequence[Fate]) -> bytes:
    content: bytes | bytearray = bytearray(disk)
    for change, fate in zip(changes, fates, strict=True):
        if isinstance(change, _Truncate):
            if fate.stop:
                content = _truncated(content, change.size)
            continue
        if fate.stop > fate.start:
            content = _written(content, change.data[fate.start : fate.stop], change.position + fate.start)
        if fate.extends and len(content) < change.position + len(change.data):
            content = _written(content, b"", change.position + len(change.data))
    return bytes(content)


def _with_names(disk: Mapping[str, int], changes: Sequence[_Named]) -> Mapping[str, int]:
    names = dict(disk)
    for change in changes:
        if change.gone is not None:
            names.pop(change.gone, None)
        if change.name is not None:
            names[change.name] = change.node
    return names
