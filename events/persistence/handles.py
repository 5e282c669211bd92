"""A bounded cache of open files, so that ten thousand logs do not need ten thousand descriptors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from events.persistence.files import FileSystem

OnLost = Callable[[str, str], object]


class _Entry:
    __slots__ = ("handle", "on_lost", "path", "pins", "writable")

    def __init__(self, handle: int, path: str, *, writable: bool, on_lost: OnLost | None) -> None:
        self.handle = handle
        self.path = path
        self.writable = writable
        self.on_lost = on_lost
        self.pins = 1


class Handles:
    """Open handles by path, least recently used first to go. Safe from any thread.

    Only an unpinned handle is closed. At the limit with everything pinned it goes over rather than wait: the
    pins are bounded by the number of I/O threads. What a writer has not synced stays pinned by that writer.
    """

    def __init__(self, fs: FileSystem, max_open: int) -> None:
        self._fs = fs
        self._max_open = max_open
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._replaced: list[_Entry] = []
        self._lock = Lock()
        self.peak = 0

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def pinned(
        self, path: str, *, write: bool = False, create: bool = False, on_lost: OnLost | None = None
    ) -> Iterator[int]:
        """The file's handle, kept open for the length of the block.

        `on_lost(path, reason)` is told when closing the file fails, whenever and by whomever that happens.
        """
        entry = self._pin(path, write=write or create, create=create, on_lost=on_lost)
        try:
            yield entry.handle
        finally:
            with self._lock:
                entry.pins -= 1

    def _pin(self, path: str, *, write: bool, create: bool, on_lost: OnLost | None) -> _Entry:
        with self._lock:
            entry = self._take(path, write=write)
        if entry is not None:
            return entry
        fresh = _Entry(self._fs.open(path, write=write, create=create), path, writable=write, on_lost=on_lost)
        with self._lock:
            # Another thread may have been faster, and a writer that holds its handle must find it again.
            entry = self._take(path, write=write)
            closable = self._put(fresh) if entry is None else [fresh]
        for old in closable:
            self._close(old)
        return entry or fresh

    def _take(self, path: str, *, write: bool) -> _Entry | None:
        entry = self._entries.get(path)
        if entry is None or (write and not entry.writable):
            return None
        self._entries.move_to_end(path)
        entry.pins += 1
        return entry

    def _put(self, fresh: _Entry) -> list[_Entry]:
        """Enter a handle; those that can be closed now."""
        replaced = self._entries.pop(fresh.path, None)
        if replaced is not None:
            # Whoever still reads through the old one keeps it; it is closed when they are done.
            self._replaced.append(replaced)
        self._entries[fresh.path] = fresh
        closable = self._evict() + [entry for entry in self._replaced if entry.pins == 0]
        self._replaced = [entry for entry in self._replaced if entry.pins]
        self.peak = max(self.peak, len(self._entries))
        return closable

    def hold(self, path: str) -> None:
        """Keep a file open until `release`."""
        with self._lock:
            self._entries[path].pins += 1

    def release(self, path: str) -> None:
        """Undo a `hold`."""
        with self._lock:
            self._entries[path].pins -= 1

    def _close(self, entry: _Entry) -> None:
        try:
            self._fs.close(entry.handle)
        except OSError as error:
            if entry.on_lost is not None:
                entry.on_lost(entry.path, f"close failed ({error})")

    def _evict(self) -> list[_Entry]:
        surplus = len(self._entries) - self._max_open
        if surplus <= 0:
            return []
        idle = [path for path, entry in self._entries.items() if entry.pins == 0][:surplus]
        return [self._entries.pop(path) for path in idle]

    def forget(self, path: str) -> None:
        """Close a file that was sealed or deleted; harmless when it is not open, or still in use."""
        with self._lock:
            entry = self._entries.get(path)
            if entry is None or entry.pins:
                return
            del self._entries[path]
        self._close(entry)

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            entries = [*self._entries.values(), *self._replaced]
            self._entries.clear()
            self._replaced = []
        for entry in entries:
            self._close(entry)
