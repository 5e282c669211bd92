"""A store that fails on request: the real one underneath, errors injected at its contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from events.persistence.codec import Record
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName, Store, StoreLog

Trouble = Callable[[str], None]


class FaultyStore:
    """Calls `trouble(operation)` before each durable operation: raise there to make it fail.

    Operations are `append`, `read`, `save_checkpoint`, `save_group` and `dead_letter`. Everything else goes straight
    to the store underneath.
    """

    def __init__(self, store: Store, trouble: Trouble) -> None:
        self._inner = store
        self._trouble = trouble

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def log(self, name: LogName) -> StoreLog:
        """A log whose appends and reads may fail."""
        return cast(StoreLog, _FaultyLog(await self._inner.log(name), self._trouble, "append"))

    async def dead_letters(self, name: LogName) -> StoreLog:
        """A dead-letter log whose appends may fail."""
        return cast(StoreLog, _FaultyLog(await self._inner.dead_letters(name), self._trouble, "dead_letter"))

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        """Save, unless there is trouble."""
        self._trouble("save_checkpoint")
        await self._inner.save_checkpoint(name, group, checkpoint)

    async def save_group(self, record: GroupRecord) -> None:
        """Save, unless there is trouble."""
        self._trouble("save_group")
        await self._inner.save_group(record)


class _FaultyLog:
    def __init__(self, inner: StoreLog, trouble: Trouble, operation: str) -> None:
        self._inner = inner
        self._trouble = trouble
        self._operation = operation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        self._trouble(self._operation)
        return await self._inner.append(entries, timeout_s=timeout_s)

    async def read(self, offset: int, max_bytes: int) -> list[Record]:
        self._trouble("read")
        return await self._inner.read(offset, max_bytes)
