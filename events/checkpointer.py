"""Saves what groups have settled: soon, together, and never ahead of the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from events.clock import Clock
from events.cursor import Cursor
from events.errors import BusError
from events.persistence.store import Store

if TYPE_CHECKING:
    from events.group import Group

logger = logging.getLogger("events.checkpoint")
_PARALLEL: Final = 8


class Checkpointer:
    """One task for the whole bus. A cursor that was touched is saved within the interval, however often."""

    def __init__(
        self, store: Store, clock: Clock, interval_s: float, hooks: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._hooks = hooks
        self._touched: dict[Cursor, Group] = {}
        self._wake = anyio.Event()
        self._hurry = anyio.Event()

    def touch(self, group: Group, cursor: Cursor) -> None:
        """Something settled, failed or was deferred."""
        if cursor not in self._touched:
            self._touched[cursor] = group
            self._wake.set()

    def is_due(self, cursor: Cursor) -> bool:
        """Whether a cursor still waits to be saved."""
        return cursor in self._touched

    def hurry(self) -> None:
        """A group has come as far as it may without a checkpoint."""
        self._hurry.set()

    async def run(self) -> None:
        """Save what was touched, a round at a time, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await self._clock.wait(self._hurry, self._interval_s)
            self._hurry = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Save everything that was touched so far. What cannot be saved now is kept for the next round."""
        touched, self._touched = self._touched, {}
        limiter = anyio.CapacityLimiter(_PARALLEL)

        async def save(group: Group, cursor: Cursor) -> None:
            async with limiter:
                try:
                    await self.save(group, cursor)
                except (OSError, BusError) as error:
                    where = {"group": group.name, "space": cursor.name.space_id, "topic": cursor.name.topic}
                    logger.error("a checkpoint could not be saved, and will be tried again: %s", error, extra=where)
                    self.touch(group, cursor)

        if len(touched) == 1:
            ((cursor, group),) = touched.items()
            await save(group, cursor)
        else:
            async with anyio.create_task_group() as tasks:
                for cursor, group in touched.items():
                    tasks.start_soon(save, group, cursor)

    async def save(self, group: Group, cursor: Cursor) -> None:
        """Make one cursor durable now. In this order: what it relies on, the log, then itself (rule F7)."""
        async with cursor.saving:
            checkpoint = cursor.snapshot()
            settled = cursor.settled.highest
            for hook in self._hooks:
                await hook()
            await cursor.log.sync()
            await self._store.save_checkpoint(cursor.name, group.name, checkpoint)
        cursor.saved_highest = max(cursor.saved_highest, settled)
        group.saved(cursor)
