"""Some bytes that can be given up: on a full disk, what settles events must still be written.

Publishers wait on a full disk; acks and dead letters cannot, since they are what lets segments go. Once the ballast
was spent on them, a publisher may write again only when it is back: else the next one would take its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from events.persistence.files import DISK_FULL, FileSystem, opened, write_all
from events.persistence.log import DiskFull

T = TypeVar("T")
logger = logging.getLogger("events.store")


class Ballast:
    """A file of `size` bytes that means nothing. Safe from any thread."""

    def __init__(self, fs: FileSystem, path: str, size: int) -> None:
        self._fs = fs
        self._path = path
        self._size = size
        self._lock = Lock()
        self._is_missing = False

    def restore(self) -> bool:
        """Put it in place; False when there is no room for it."""
        with self._lock:
            try:
                if self._size and self._found() != self._size:
                    with suppress(FileNotFoundError):
                        self._fs.unlink(self._path)
                    with opened(self._fs, self._path, create=True) as handle:
                        write_all(self._fs, handle, bytes(self._size), 0)
                        self._fs.sync(handle)
            except OSError as error:
                with suppress(OSError):  # a part of it would only take room from others
                    self._fs.unlink(self._path)
                self._is_missing = error.errno in DISK_FULL
            else:
                self._is_missing = False
            return not self._is_missing

    def _found(self) -> int:
        try:
            with opened(self._fs, self._path) as handle:
                return self._fs.size(handle)
        except FileNotFoundError:
            return -1

    def demand(self) -> None:
        """What publishers call before they write: `DiskFull` while the ballast is away and does not fit."""
        if self._is_missing and not self.restore():
            raise DiskFull

    def spent_on(self, work: Callable[[], T]) -> T:
        """Do what must not fail for want of room, if need be in the ballast's place.

        The work is done twice then, so a failure of it leaves nothing behind.
        """
        try:
            return work()
        except (OSError, DiskFull) as error:
            if (isinstance(error, OSError) and error.errno not in DISK_FULL) or not self._spend():
                raise
        return work()

    def _spend(self) -> bool:
        with self._lock:
            try:
                self._fs.unlink(self._path)
            except OSError:
                return False
            self._is_missing = True
        logger.warning("the disk is full; gave up the ballast so that acks can still be written")
        return True
