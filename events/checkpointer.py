"""Saves what groups have settled: soon, together, and never ahead of the log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from events.clock import Clock
from events.cursor import Cursor
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
        self._flushing = anyio.Lock()

    def touch(self, group: Group, cursor: Cursor) -> None:
        """Something settled, failed or was deferred."""
        if cursor not in self._touched:
            self._touched[cursor] = group
            self._wake.set()

    def is_due(self, cursor: Cursor) -> bool:
        """Whether a cursor still waits to be saved."""
        return cursor in self._touched

    def forget(self, group: Group) -> None:
        """Save no more of a group that has stopped: whoever takes it up next says what it has settled."""
        self._touched = {cursor: owner for cursor, owner in self._touched.items() if owner is not group}

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
        # One at a time: what a round under way has taken is not durable before that round is over.
        async with self._flushing:
            touched, self._touched = self._touched, {}
            waiting = iter(touched.items())

            async def save_some() -> None:
                for cursor, group in waiting:
                    await self._try_save(group, cursor)

            if len(touched) == 1:
                await save_some()
                return
            async with anyio.create_task_group() as tasks:
                for _ in range(min(_PARALLEL, len(touched))):
                    tasks.start_soon(save_some)

    async def _try_save(self, group: Group, cursor: Cursor) -> None:
        try:
            await self.save(group, cursor)
        except Exception as error:  # the disk's, or that of a middleware that is to be asked first
            where = {"group": group.name, "space": cursor.name.space_id, "topic": cursor.name.topic}
            logger.error("a checkpoint could not be saved, and will be tried again: %s", error, extra=where)
            self.touch(group, cursor)

    async def save(self, group: Group, cursor: Cursor) -> None:
        """Make one cursor durable now. In this order: what it relies on, the log, then itself (rule F7).

        Callers that wait for the same cursor share a checkpoint: one that began after the call covers it.
        """
        cursor.save_calls += 1
        call = cursor.save_calls
        async with cursor.saving:
            if cursor.saved_calls >= call:
                return
            if group.cursors.get(cursor.name) is not cursor:
                return  # let go meanwhile: the checkpoint says all that it would, or what another one said since
            covered = cursor.save_calls
            checkpoint = cursor.snapshot()
            settled = cursor.settled.highest
            for hook in self._hooks:
                await hook()
            if group.services.keeper is not None:
                await group.services.keeper.flush(cursor, group.name)
            await cursor.log.sync()
            await self._store.save_checkpoint(cursor.name, group.name, checkpoint)
            cursor.saved_calls = covered
        cursor.saved_highest = max(cursor.saved_highest, settled)
        group.saved(cursor)
