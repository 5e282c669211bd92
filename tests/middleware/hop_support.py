"""What the tests of the middlewares share: hops without a bus, and small buses with a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from events.bus import EventBus
from events.chain import compose
from events.config import BusConfig
from events.contracts import Hop, HopResult, Middleware
from events.persistence.wal import WalSettings
from events.types import Event, EventMeta, Receipt


@dataclass(frozen=True)
class FakeDelivery:
    """One attempt at one event."""

    offset: int = 1
    topic: str = "actions"
    space_id: str = "home"
    group: str = "learner"
    attempt: int = 1
    round: int = 0

    @property
    def replayed(self) -> bool:
        return self.round > 0

    @property
    def identity(self) -> str:
        return f"{self.space_id}/{self.topic}/{self.offset}#{self.round}"

    def extend(self, seconds: float) -> None:
        raise NotImplementedError


@dataclass
class Terminal:
    """What stands behind the chain: remembers what reaches it, and answers as told."""

    answer: Callable[[Hop], HopResult] = lambda hop: None
    hops: list[Hop] = field(default_factory=list)

    async def __call__(self, hop: Hop) -> HopResult:
        self.hops.append(hop)
        if hop.kind == "handle":
            return self.answer(hop)
        return [Receipt(meta.space_id, str(meta.topic), n, meta.event_id) for n, meta in enumerate(hop.metas, 1)]


def event(payload: dict[str, Any] | None = None, *, topic: str = "actions", **meta: Any) -> Event[Any]:
    """A small event."""
    return Event(EventMeta(**{"topic": topic, "type": "NOTED", "space_id": "home", **meta}), payload or {})


def publish_hop(*events: Event[Any]) -> Hop:
    """A publish on its way into the chain, sealed as the bus seals it."""
    return Hop(
        kind="publish",
        metas=[one.meta for one in events],
        sizes=[len(one.raw_payload or str(one.payload)) for one in events],
        _events=events,
    )


def handle_hop(*events: Event[Any], deliveries: Sequence[FakeDelivery] = (), group: str = "learner") -> Hop:
    """A delivery on its way into the chain."""
    made = [FakeDelivery(n, str(one.meta.topic), one.meta.space_id, group) for n, one in enumerate(events, 1)]
    return Hop(
        kind="handle",
        metas=[one.meta for one in events],
        sizes=[len(one.raw_payload or str(one.payload)) for one in events],
        group=group,
        deliveries=deliveries or made,
        _events=events,
    )


async def cross(middleware: Middleware | Sequence[Middleware], hop: Hop, terminal: Terminal) -> HopResult:
    """Send a hop through the real chain."""
    chain = middleware if isinstance(middleware, Sequence) else [middleware]
    return await compose(chain, terminal)(hop)


def chained_bus(workspace: Path, *middlewares: Middleware, **settings: Any) -> EventBus:
    """A bus on real files with a chain. Retries come almost at once, so that nothing here waits for them."""
    config = {"backoff_base": 0.001, "backoff_max": 0.01, "checkpoint_interval_s": 0.01, **settings}
    return EventBus(middlewares, workspace=workspace, config=BusConfig(wal=WalSettings(ballast_bytes=0), **config))
