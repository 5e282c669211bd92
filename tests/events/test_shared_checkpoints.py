"""Many who want one cursor saved, and one that nobody should save any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel

from events.checkpointer import Checkpointer
from events.clock import AnchoredClock
from events.cursor import Cursor
from events.group import Group
from events.lanes import Place
from events.persistence.memory import MemoryStore
from events.persistence.store import Checkpoint, LogName

NAME = LogName("home", "actions")


class Slow(MemoryStore):
    """A store whose checkpoints take a while, and that keeps all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[Checkpoint] = []

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        await anyio.sleep(0.01)
        self.saved.append(checkpoint)
        await super().save_checkpoint(name, group, checkpoint)


async def cursor_in(store: Slow) -> tuple[Checkpointer, Group, Cursor]:
    """A cursor, and as much of a group around it as a checkpointer asks for."""
    cursor = Cursor(await store.log(NAME), 1, None)
    group = SimpleNamespace(
        name="workers", cursors={NAME: cursor}, services=SimpleNamespace(keeper=None), saved=lambda cursor: None
    )
    return Checkpointer(store, AnchoredClock(), 0.0, ()), cast(Group, cast(Any, group)), cursor


async def test_callers_share_a_checkpoint() -> None:
    """W6: workers that each want an attempt on disk wait for one checkpoint that began after they asked, not for
    one each: what care costs is shared.
    """
    store = Slow()
    checkpointer, group, cursor = await cursor_in(store)

    async def settle_and_save(offset: int) -> None:
        cursor.settle(Place(offset))
        await checkpointer.save(group, cursor)
        written = await store.load_checkpoint(NAME, "workers")
        assert written is not None
        assert written.committed >= offset, "what it asked for is not durable"

    async with anyio.create_task_group() as tasks:
        for offset in range(1, 21):
            tasks.start_soon(settle_and_save, offset)
            await anyio.lowlevel.checkpoint()
    assert len(store.saved) < 10
    assert store.saved[-1].committed == 20


async def test_a_cursor_that_was_let_go_is_not_saved() -> None:
    """W1: another cursor may have taken its place and got further; an old one must not set the group back."""
    store = Slow()
    checkpointer, group, cursor = await cursor_in(store)
    cursor.settle(Place(1))
    checkpointer.touch(group, cursor)
    group.cursors.clear()
    await checkpointer.flush()
    assert store.saved == []
