"""A load that is too much for a group, with a gate and without: what becomes of what matters, and of the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

from events.bus import EventBus
from events.clock import Clock
from events.cognitive_events import standard
from events.types import Event, EventMeta

TOPIC: Final = "senses"
GROUP: Final = "mind"
SPACE: Final = "home"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many events every tick, one in `keen_every` of them salient; a handler that takes `work_s` for each."""

    ticks: int = 300
    tick_s: float = 0.01
    per_tick: int = 30
    keen_every: int = 20
    work_s: float = 0.005
    workers: int = 4
    max_inflight: int = 256
    drain_s: float = 1.0

    @property
    def factor(self) -> float:
        """How many times more comes in than can be handled."""
        return self.per_tick / self.tick_s / (self.workers / self.work_s)


@dataclass(slots=True)
class Figures:
    """What came of it: latencies from publish to handler in seconds, and what was dropped or is still to come."""

    published: int = 0
    keen: list[float] = field(default_factory=list)
    dull: list[float] = field(default_factory=list)
    keen_published: int = 0
    dropped: int = 0
    deferrals: int = 0
    waiting: int = 0

    def shown(self, name: str) -> str:
        """One line for a person."""
        at = {name: percentiles(values) for name, values in (("keen", self.keen), ("dull", self.dull))}
        return (
            f"{name:<10} salient: {len(self.keen):>5} of {self.keen_published} handled, "
            f"p50 {at['keen'][0]:8.1f} ms, p95 {at['keen'][1]:8.1f} ms, p99 {at['keen'][2]:8.1f} ms | "
            f"other: {len(self.dull):>5} handled, p50 {at['dull'][0]:8.1f} ms, {self.dropped} dropped, "
            f"{self.deferrals} deferrals, {self.waiting} still wait"
        )


def percentiles(seconds: list[float]) -> tuple[float, float, float]:
    """The 50th, 95th and 99th in milliseconds."""
    if len(seconds) < 2:
        return (0.0, 0.0, 0.0)
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49] * 1000, cuts[94] * 1000, cuts[98] * 1000


async def overload(bus: EventBus, clock: Clock, load: Load, step: Callable[[float], Awaitable[None]]) -> Figures:
    """Run the load on a bus. `step` lets time pass: really, or on a fake clock."""
    figures = Figures()
    began: dict[str, float] = {}

    async def handle(event: Event) -> None:
        waited = clock.monotonic() - began.pop(event.meta.event_id)
        (figures.keen if event.payload["tags"] else figures.dull).append(waited)
        await clock.sleep(load.work_s)

    await bus.subscribe(TOPIC, GROUP, handle, workers=load.workers, max_inflight=load.max_inflight, overflow="spill")
    focus = {"tags": ["alarm"], "reason": "something is burning"}
    await bus.publish(standard().event("FOCUS_SHIFT_REQUEST", focus, space_id=SPACE))
    await step(load.tick_s)
    for tick in range(load.ticks):
        events = [_event(tick * load.per_tick + index, load) for index in range(load.per_tick)]
        now = clock.monotonic()
        began.update({event.meta.event_id: now for event in events})
        figures.published += len(events)
        figures.keen_published += sum(bool(event.payload["tags"]) for event in events)
        await bus.publish_many(events)
        await step(load.tick_s)
    await step(load.drain_s)
    counts: Any = bus.statistics().groups[GROUP]
    figures.dropped = counts.get("dropped", 0)
    figures.deferrals = counts.get("deferred", 0)
    figures.waiting = figures.published - len(figures.keen) - len(figures.dull) - figures.dropped
    return figures


def _event(number: int, load: Load) -> Event:
    is_keen = number % load.keen_every == 0
    feeling = {"arousal": 0.9, "valence": -0.8} if is_keen else {"arousal": 0.1, "valence": 0.0}
    meta = EventMeta(topic=TOPIC, type="SENSED", space_id=SPACE)
    return Event(meta, {"n": number, "tags": ["alarm"] if is_keen else [], **feeling})
