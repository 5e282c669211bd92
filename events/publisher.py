"""A publisher bound to a topic, a type and a space: the meta is checked once, then payloads suffice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from events.types import Event, EventMeta, Receipt

if TYPE_CHECKING:
    from events.surface import Surface

Payload = Mapping[str, Any] | BaseModel


class Publisher:
    """Publishes payloads under one envelope; each event gets an id and a time of its own."""

    def __init__(self, bus: Surface, template: EventMeta) -> None:
        self._bus = bus
        self.template = template

    async def publish(self, payload: Payload, *, timeout_s: float | None = None, **meta: Any) -> Receipt:
        """Publish one payload. `key=`, `idem_key=` and the like differ from event to event."""
        event: Event[Any] = Event(self._meta(meta), payload)
        return await self._bus.publish(event, timeout_s=timeout_s)

    async def publish_many(
        self, payloads: Iterable[Payload], *, timeout_s: float | None = None, **meta: Any
    ) -> list[Receipt]:
        """Publish many payloads in one commit."""
        events: list[Event[Any]] = [Event(self._meta(meta), payload) for payload in payloads]
        return await self._bus.publish_many(events, timeout_s=timeout_s)

    def _meta(self, changes: Mapping[str, Any]) -> EventMeta:
        return self.template.another(**changes)
