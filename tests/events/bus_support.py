"""What the tests of the bus share: small events, handlers that wait or fail on request, buses on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio

from events.bus import EventBus
from events.config import BusConfig
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.replay import ReplayRecord
from events.types import Event, EventMeta

HOME = LogName("home", "actions")
PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a broken bus lets it pass."""


def an_event(number: int = 0, *, topic: str = "actions", space: str = "home", **meta: Any) -> Event:
    """A small event that is told from others by its number."""
    return Event(EventMeta(topic=topic, type="NOTED", space_id=space, **meta), {"n": number})


def some_events(numbers: Iterable[int], **meta: Any) -> list[Event]:
    """Several small events."""
    return [an_event(number, **meta) for number in numbers]


def disk_bus(workspace: Path, *, wal: WalSettings | None = None, **settings: Any) -> EventBus:
    """A bus on real files. Retries come almost at once, so that nothing here waits for them."""
    config = {"backoff_base": 0.001, "backoff_max": 0.01, "checkpoint_interval_s": 0.01, **settings}
    return EventBus(workspace=workspace, config=BusConfig(wal=wal or WalSettings(ballast_bytes=0), **config))


def killed(workspace: Path, name: str = "killed") -> Path:
    """A copy of a workspace as it is at this moment: what the next process finds when this one is killed now.

    Nobody publishes meanwhile. A housekeeping thread may rename a file under the copy, which is then begun again.
    """
    target = workspace.parent / name
    while True:
        try:
            return Path(shutil.copytree(workspace, target))
        except shutil.Error:
            shutil.rmtree(target)


async def settled(bus: EventBus) -> None:
    """Return when every group has settled everything."""
    with anyio.fail_after(PATIENCE_S):
        assert await bus.wait_settled()


async def until(condition: Callable[[], object]) -> None:
    """Return when something has become true, where nothing can be waited for."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await anyio.sleep(0.002)


async def history(bus: EventBus, topic: str = "*", **selection: Any) -> list[ReplayRecord]:
    """Everything that a replay hands out."""
    return [record async for record in bus.replay(topic, **selection)]


def group_of(bus: EventBus, group: str) -> Any:
    """What the statistics say of a group."""
    return bus.statistics().groups[group]


class Held:
    """A handler that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._go = anyio.Event()

    async def __call__(self, event: Event) -> None:
        number = event.payload["n"]
        self.begun.append(number)
        await self._go.wait()
        self.ended.append(number)

    def let_go(self) -> None:
        """Let those that wait end, and those that come pass."""
        self._go.set()


class Collector:
    """A handler that takes an event's number, or those of a batch, and is done."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def __call__(self, given: Event | list[Event]) -> None:
        events = given if isinstance(given, list) else [given]
        self.numbers += [event.payload["n"] for event in events]


async def publish_each(bus: EventBus, events: Sequence[Event]) -> None:
    """Publish one after the other."""
    for event in events:
        await bus.publish(event)
