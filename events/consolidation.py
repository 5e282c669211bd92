"""When memories are due to be consolidated: so many of them, so old, or so quiet; told by a CONSOLIDATION_DUE event."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from events.cognitive_events import CONSOLIDATION_DUE
from events.episodic import EpisodicStore, Waiting
from events.errors import BusError
from events.types import Event, EventMeta

if TYPE_CHECKING:
    from events.bus import EventBus

Reason = Literal["count", "age", "idle"]
logger = logging.getLogger("events.memories")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationPolicy:
    """When it is time. None switches a trigger off.

    `count` memories wait; the oldest has waited `age_s`; or nothing was written for `idle_s`, and something waits.
    """

    count: int | None = 100
    age_s: float | None = 3_600.0
    idle_s: float | None = 300.0

    def due(self, waiting: Waiting, now_ms: int) -> Reason | None:
        """Why consolidation is due, if it is."""
        if not waiting.count:
            return None
        if self.count is not None and waiting.count >= self.count:
            return "count"
        if self.age_s is not None and now_ms - waiting.oldest_ms >= self.age_s * 1000:
            return "age"
        if self.idle_s is not None and now_ms - waiting.newest_ms >= self.idle_s * 1000:
            return "idle"
        return None


class Consolidator:
    """Looks at a space after each write, and with `run` at all of them now and then: time passes without writes too.

    The event is published first and noted afterwards, so a crash in between repeats it with the same `after`, and
    loses none. What is consolidated, and how, is up to whoever consumes it.
    """

    def __init__(
        self,
        memories: EpisodicStore,
        policy: ConsolidationPolicy | None = None,
        *,
        topic: str = "hippo",
        every_s: float = 5.0,
    ) -> None:
        self._memories = memories
        self._policy = policy or ConsolidationPolicy()
        self._topic = topic
        self._every_s = every_s

    async def look(self, bus: EventBus, space_id: str) -> Reason | None:
        """Publish that consolidation of a space is due, if it is; why."""
        waiting = await self._memories.waiting(space_id)
        reason = self._policy.due(waiting, bus.clock.now_ms())
        if reason is not None:
            await bus.publish(self._event(space_id, reason, waiting))
            await self._memories.mark_consolidating(space_id, waiting.through)
        return reason

    async def run(self, bus: EventBus) -> None:
        """Look at every space that has memories, again and again, until cancelled."""
        while True:
            for space_id in await self._memories.spaces():
                try:
                    await self.look(bus, space_id)
                except (OSError, BusError) as error:
                    logger.warning("consolidation could not be asked for: %s", error, extra={"space": space_id})
            await bus.clock.sleep(self._every_s)

    def _event(self, space_id: str, reason: Reason, waiting: Waiting) -> Event[Any]:
        meta = EventMeta(
            topic=self._topic,
            type=CONSOLIDATION_DUE,
            space_id=space_id,
            idem_key=f"consolidate:{waiting.after}:{waiting.through}",
        )
        return Event(
            meta,
            {"reason": reason, "count": waiting.count, "after": waiting.after, "through": waiting.through},
        )
