"""Once faults stop, every group drains (promise L): two ways in which a feeder could sleep through its work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio

from events.bus import EventBus
from events.clock import AnchoredClock
from events.config import BusConfig
from events.contracts import Delivery
from events.persistence.wal import WalStore
from events.types import Event, EventMeta, Nack

PATIENCE_S = 30.0


def event_of(number: int, space: str = "home") -> Event[Any]:
    return Event(EventMeta(topic="actions", type="ACTED", space_id=space), {"n": number})


async def test_room_freed_by_one_log_is_of_use_to_another(workspace: Path) -> None:
    """L: a window that was full of one log's events when another fell behind; once they are done, that one is read."""
    done: list[tuple[str, int]] = []
    go = anyio.Event()

    async def handler(event: Event[Any], delivery: Delivery) -> None:
        await go.wait()
        done.append((delivery.space_id, delivery.offset))

    async with EventBus(workspace=workspace) as bus:
        await bus.subscribe("actions", "workers", handler, max_inflight=2, overflow="spill")
        await bus.publish_many([event_of(number, "first") for number in range(2)])
        await bus.publish_many([event_of(number, "second") for number in range(5)])
        await anyio.sleep(0.05)
        go.set()
        assert await bus.wait_settled(PATIENCE_S), bus.statistics()
    assert sorted(done) == [("first", 1), ("first", 2), *(("second", offset) for offset in range(1, 6))]


class Creeping(AnchoredClock):
    """A clock that moves on whenever it is looked at, so that something falls due between any two looks."""

    def __init__(self) -> None:
        self._looks = 0
        super().__init__()

    def monotonic(self) -> float:
        self._looks += 1
        return time.monotonic() + 0.0005 * self._looks


async def test_nothing_that_falls_due_between_two_looks_is_slept_on(workspace: Path) -> None:
    """L: an event whose wait ends just after the feeder looked, and just before it goes to sleep, is not forgotten."""
    config = BusConfig(backoff_base=0.002, backoff_mult=1.0, max_retries=30)

    async def handler(event: Event[Any], delivery: Delivery) -> Nack | None:
        return Nack("again") if delivery.attempt < 20 else None

    async with EventBus(store=WalStore(workspace, clock=Creeping()), config=config) as bus:
        await bus.subscribe("actions", "workers", handler)
        await bus.publish(event_of(1))
        assert await bus.wait_settled(PATIENCE_S), bus.statistics()
        assert bus.statistics().groups["workers"]["failed"] == 19
