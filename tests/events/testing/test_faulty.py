"""A store that fails on request, at the contract of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.bus import EventBus
from events.persistence.memory import MemoryStore
from events.persistence.store import Store
from events.persistence.wal import WalSettings, WalStore
from events.testing.faulty import FaultyStore
from events.testing.recording import Recorder
from events.types import Nack
from tests.events.bus_support import an_event, settled


@pytest.mark.parametrize("on_disk", [False, True])
async def test_every_durable_operation_can_be_made_to_fail(tmp_path: Path, on_disk: bool) -> None:
    """Testing kit: the names of the operations, over any store; without trouble nothing changes."""
    seen: list[str] = []
    inner: Store = WalStore(tmp_path / "w", WalSettings(ballast_bytes=0, tail_bytes=0)) if on_disk else MemoryStore()
    recorder = Recorder(lambda recorded: Nack(delay=0))
    async with EventBus(store=FaultyStore(inner, seen.append)) as bus:
        await bus.subscribe("actions", "learner", recorder, max_retries=1)
        await bus.publish(an_event(1))
        await settled(bus)
        assert len(await bus.dlq.list()) == 1
    assert set(seen) == {"append", "read", "save_checkpoint", "save_group", "dead_letter"}


async def test_what_is_raised_there_reaches_whoever_asked() -> None:
    """Testing kit: a failing append fails the publish, with the error that the test chose."""

    def trouble(operation: str) -> None:
        if operation == "append":
            raise OSError(5, "injected")

    async with EventBus(store=FaultyStore(MemoryStore(), trouble)) as bus:
        with pytest.raises(OSError, match="injected"):
            await bus.publish(an_event(1))
        assert bus.health().ok
