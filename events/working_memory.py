"""Working memory: a few items that decay, kept in step with the bus and rebuilt from its log.

It is a fold over WORKING_MEMORY_UPDATE events in the order of their log, with the times that stand in them: whoever
folds the same events has the same memory. So after a restart it is read back from the log, and then goes on live.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from events.cognitive_events import WorkingMemoryUpdate
from events.contracts import Delivery
from events.subscription import Start, Subscription
from events.types import Event, EventType

if TYPE_CHECKING:
    from events.bus import EventBus


@dataclass(frozen=True, slots=True)
class Item:
    """Something held in mind. `strength` was so at `at_ms`, and has been fading since."""

    item_id: str
    strength: float
    at_ms: int
    summary: str | None = None
    memory_id: str | None = None
    tags: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)


class Buffer:
    """The working memory of one space: pure, bounded, and deterministic."""

    def __init__(self, *, capacity: int, half_life_s: float, floor: float) -> None:
        if capacity < 1 or half_life_s <= 0 or not 0 < floor < 1:
            raise ValueError("working memory holds at least one item, fades, and forgets above zero")
        self._capacity = capacity
        self._half_life_ms = half_life_s * 1000
        self._floor = floor
        self._items: dict[str, Item] = {}

    def strength(self, item: Item, now_ms: int) -> float:
        """How present an item is at a time: halved with every half-life."""
        return item.strength * math.pow(0.5, max(0, now_ms - item.at_ms) / self._half_life_ms)

    def items(self, now_ms: int) -> list[Item]:
        """What is in mind at a time, the strongest first, each with its strength by then."""
        present = [replace(item, strength=self.strength(item, now_ms), at_ms=now_ms) for item in self._items.values()]
        kept = [item for item in present if item.strength >= self._floor]
        return sorted(kept, key=lambda item: (-item.strength, item.item_id))

    def apply(self, update: WorkingMemoryUpdate, item_id: str, now_ms: int, content: Mapping[str, Any]) -> None:
        """Take in one update. An item that is added again is as strong as the stronger of the two."""
        match update.op or "add":
            case "clear":
                self._items.clear()
            case "remove":
                self._items.pop(item_id, None)
            case "refresh" if item_id not in self._items:
                return  # what was forgotten cannot be refreshed
            case _:
                self._enter(update, item_id, now_ms, content)
        self._forget(now_ms)

    def _enter(self, update: WorkingMemoryUpdate, item_id: str, now_ms: int, content: Mapping[str, Any]) -> None:
        known = self._items.get(item_id)
        wanted = 1.0 if update.strength is None else update.strength
        left = 0.0 if known is None else self.strength(known, now_ms)
        at_ms = now_ms if known is None else max(now_ms, known.at_ms)
        fresh = Item(
            item_id=item_id,
            strength=max(wanted, left),
            at_ms=at_ms,
            summary=update.summary,
            memory_id=update.memory_id,
            tags=update.tags or (),
            content=content,
        )
        if known is not None:
            # Said again in fewer words: what is not repeated is kept.
            fresh = replace(
                fresh,
                summary=fresh.summary or known.summary,
                memory_id=fresh.memory_id or known.memory_id,
                tags=fresh.tags or known.tags,
                content={**known.content, **content},
            )
        self._items[item_id] = fresh

    def _forget(self, now_ms: int) -> None:
        """What has faded goes, and if there is still too much, the weakest."""
        kept = self.items(now_ms)[: self._capacity]
        names = {item.item_id for item in kept}
        self._items = {name: item for name, item in self._items.items() if name in names}


class WorkingMemory:
    """Working memory for every space, following one topic of a bus.

    `capacity` items at most in a space; an item fades to half its strength in `half_life_s`, and is forgotten below
    `floor`. What it has taken in of each log it takes in no second time.
    """

    def __init__(self, *, capacity: int = 7, half_life_s: float = 300.0, floor: float = 0.05) -> None:
        self._make = partial(Buffer, capacity=capacity, half_life_s=half_life_s, floor=floor)
        self._make()  # a bad setting is told of now, and not by the first event
        self._buffers: dict[str, Buffer] = {}
        self._taken: dict[tuple[str, str], int] = {}

    def items(self, space_id: str, at: datetime | None = None) -> list[Item]:
        """What is in mind in a space, now or at a time; the strongest first."""
        buffer = self._buffers.get(space_id)
        return [] if buffer is None else buffer.items(_ms(at or datetime.now(UTC)))

    async def follow(
        self, bus: EventBus, *, topic: str = "workspace", group: str = "working-memory", since: Start = "earliest"
    ) -> Subscription:
        """Rebuild from the log, then follow it live: no update is missed, and none is taken twice."""
        await self.rebuild(bus, topic=topic, since=since)
        return await bus.subscribe(topic, group, self._heard, ordering="topic")

    async def rebuild(self, bus: EventBus, *, topic: str = "workspace", since: Start = "earliest") -> None:
        """Take in what the log holds and was not taken in yet."""
        async for record in bus.replay(topic, start=since):
            self.take(record.event, record.topic, record.offset)

    async def _heard(self, event: Event[Any], delivery: Delivery) -> None:
        self.take(event, delivery.topic, delivery.offset)

    def take(self, event: Event[Any], topic: str, offset: int) -> None:
        """Fold in one event of a log, unless it, or a later one, was taken in already."""
        space_id = event.meta.space_id
        if offset <= self._taken.get((space_id, topic), 0):
            return
        self._taken[space_id, topic] = offset
        if event.meta.type != EventType.WORKING_MEMORY_UPDATE:
            return
        try:
            update = WorkingMemoryUpdate.model_validate(event.payload)
        except ValidationError:
            return  # it said nothing that could be understood; the log has it for whoever wants to know
        buffer = self._buffers.get(space_id)
        if buffer is None:
            buffer = self._buffers[space_id] = self._make()
        item_id = update.item_id or update.memory_id or event.meta.event_id
        buffer.apply(update, item_id, _ms(event.meta.ts), dict(update.model_extra or {}))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
