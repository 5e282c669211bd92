"""Writing memories: a consumer that turns requests to remember into episodic memories, and tells of each.

    validate -> encode -> store -> publish WRITE_ACCEPTED and WORKING_MEMORY_UPDATE -> note that it was told

The event is settled last. A crash anywhere before that brings it again: the store knows it by its source and makes
no second memory, and whether it was told of decides if it is told of again. Whoever listens may hear of a memory twice
after a crash, under the same event id and idempotency key; never not at all.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from events.cognitive_events import HippoEncode, standard
from events.contracts import DeadLetter, Skip, Verdict
from events.episodic import EpisodicStore, Memory
from events.errors import InvalidMessage
from events.subscription import Subscription
from events.taxonomy import Taxonomy
from events.types import Ack, Actor, Event, EventMeta, EventType

if TYPE_CHECKING:
    from events.bus import EventBus
    from events.consolidation import Consolidator

__all__ = ["WRITE_REQUEST", "Encoder", "WriteHandler", "encode", "source_of"]
logger = logging.getLogger("events.memories")
WRITE_REQUEST: Final = "WRITE_REQUEST"
"""Another name under which modules ask for a memory; the payload is that of HIPPO_ENCODE."""
_MAX_TEXT: Final = 10_000
_SUMMARY: Final = 200

Encoder = Callable[[Event[Any], HippoEncode], Memory | Awaitable[Memory]]
"""Makes a memory of a request. What identifies it (ids, space, source) is set by the handler."""


def source_of(event: Event[Any]) -> str:
    """What a memory is made of, so that it is made once: the producer's idempotency key, or the event itself."""
    return event.meta.event_id if event.meta.idem_key is None else f"{event.meta.topic}:{event.meta.idem_key}"


def encode(event: Event[Any], request: HippoEncode) -> Memory:
    """The usual encoder: what was said, when it happened, and what can be searched of it."""
    meta = event.meta
    return Memory(
        memory_id="",
        space_id=meta.space_id,
        source="",
        event_id=meta.event_id,
        ts=meta.ts if request.ts is None or request.ts.tzinfo is None else request.ts,
        text=(request.text or request.summary or " ".join(_strings(event.payload)))[:_MAX_TEXT],
        actor=_actor(meta),
        key=request.key or meta.key,
        tags=tuple(dict.fromkeys(request.tags or ())),
        valence=request.valence,
        arousal=request.arousal,
        salience=request.salience,
        content=dict(event.payload),
    )


class WriteHandler:
    """Subscribe it with `follow(bus)`. One handler serves any number of spaces.

    `taxonomy` lifts older requests to the current version. With a `consolidator`, every write is a chance that
    consolidation is due.
    """

    def __init__(
        self,
        memories: EpisodicStore,
        *,
        encoder: Encoder = encode,
        types: Sequence[str] = (EventType.HIPPO_ENCODE, WRITE_REQUEST),
        taxonomy: Taxonomy | None = None,
        consolidator: Consolidator | None = None,
        accepted_topic: str = "hippo",
        working_memory_topic: str = "workspace",
    ) -> None:
        self._memories = memories
        self._encoder = encoder
        self._types = frozenset(map(str, types))
        self._taxonomy = taxonomy or standard()
        self._consolidator = consolidator
        self._accepted_topic = accepted_topic
        self._working_memory_topic = working_memory_topic
        self._bus: EventBus | None = None

    async def follow(
        self, bus: EventBus, *, topic: str = "hippo", group: str = "hippocampus", **settings: Any
    ) -> Subscription:
        """Tell of what an earlier process stored and did not tell of, then consume. Settings are `subscribe`'s."""
        self._bus = bus
        for space_id in await self._memories.spaces():
            await self.announce_pending(space_id)
        return await bus.subscribe(topic, group, self, **settings)

    async def __call__(self, event: Event[Any]) -> Verdict:
        """One request. Idempotent: the same one again makes no second memory (rule W1)."""
        assert self._bus is not None, "follow(bus) comes first"
        if event.meta.type not in self._types:
            return Skip("not a write")
        try:
            request = self._validated(event)
        except InvalidMessage as error:
            return DeadLetter(f"not a memory: {error.field}: {error.allowed}")
        made = self._encoder(event, request)
        memory = await made if inspect.isawaitable(made) else made
        source = source_of(event)
        memory = replace(
            memory,
            memory_id=_memory_id(event.meta.space_id, source),
            space_id=event.meta.space_id,
            source=source,
            event_id=event.meta.event_id,
            band=event.meta.band,
            caps=event.meta.caps or (),
            correlation_id=event.meta.correlation_id or event.meta.event_id,
        )
        stored = await self._memories.remember(memory, self._bus.clock.now_ms())
        if not stored.is_announced:
            await self._announce(stored.memory)
        if self._consolidator is not None:
            await self._consolidator.look(self._bus, event.meta.space_id)
        return Ack()

    def _validated(self, event: Event[Any]) -> HippoEncode:
        if event.meta.type == EventType.HIPPO_ENCODE:
            request = self._taxonomy.read(event)
        else:
            as_request = Event.remade(event, event.meta.replace(type=EventType.HIPPO_ENCODE))
            request = self._taxonomy.read(as_request)
        if not isinstance(request, HippoEncode):
            request = HippoEncode.model_validate(request.model_dump())
        if not event.payload:
            raise InvalidMessage("payload", {}, "there is nothing in it to remember")
        return request

    # -- telling -----------------------------------------------------------------------------------------------

    async def announce_pending(self, space_id: str) -> int:
        """Tell of every memory of a space that nobody may have been told of; how many there were."""
        told = 0
        while pending := await self._memories.unannounced(space_id):
            for memory in pending:
                await self._announce(memory)
            told += len(pending)
        if told:
            logger.info("told of %d memories that an earlier process had stored", told, extra={"space": space_id})
        return told

    async def _announce(self, memory: Memory) -> None:
        """Both events in one publish, durable; only then is it noted that they were told."""
        assert self._bus is not None
        accepted = {"memory_id": memory.memory_id, "event_id": memory.event_id, "ts": memory.ts.isoformat()}
        update = {
            "op": "add",
            "item_id": memory.memory_id,
            "memory_id": memory.memory_id,
            "summary": memory.text[:_SUMMARY],
            "strength": 0.5 if memory.salience is None else memory.salience,
        }
        await self._bus.publish_many(
            [
                _told(self._accepted_topic, EventType.WRITE_ACCEPTED, accepted, memory),
                _told(self._working_memory_topic, EventType.WORKING_MEMORY_UPDATE, update, memory),
            ]
        )
        await self._memories.mark_announced(memory)


def _told(topic: str, type: EventType, payload: dict[str, Any], memory: Memory) -> Event[Any]:
    """An event that is the same whenever it is made again, so that hearing it twice can be noticed."""
    digest = sha256(f"{type}:{memory.space_id}:{memory.memory_id}".encode()).hexdigest()
    meta = EventMeta(
        topic=topic,
        type=type,
        space_id=memory.space_id,
        event_id=f"ev-{digest[:32]}",
        idem_key=f"{type}:{memory.memory_id}",
        key=memory.key,
        band=memory.band,
        caps=memory.caps or None,
        correlation_id=memory.correlation_id,
        causation_id=memory.event_id,
    )
    return Event(meta, {**payload, "tags": list(memory.tags)})


def _memory_id(space_id: str, source: str) -> str:
    return "mem-" + sha256(f"{space_id}\x00{source}".encode()).hexdigest()[:32]


def _actor(meta: EventMeta) -> str | None:
    if isinstance(meta.actor, Actor):
        return meta.actor.user_id or meta.actor.agent_id
    return meta.actor


def _strings(value: object) -> list[str]:
    """The words that stand anywhere in a payload, in order."""
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for child in children for text in _strings(child)]
