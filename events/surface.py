"""What a module of an agent calls: the same surface on the bus itself and on a bus bound to an identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from events.config import OnExpired, Ordering, Overflow
from events.contracts import Filter, Handler
from events.publisher import Publisher
from events.replay import ReplayRecord
from events.subscription import Start, Subscription
from events.types import Event, EventMeta, EventType, Receipt

if TYPE_CHECKING:
    from events.attention.inspector import AttentionInspector
    from events.bus import EventBus
    from events.dlq import DLQInspector


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf something is done, and what that one may handle."""

    subject: str | None = None
    capabilities: frozenset[str] = frozenset()


class Surface(ABC):
    """Publish, subscribe, replay: as somebody, or as nobody in particular."""

    @property
    @abstractmethod
    def _bus(self) -> EventBus: ...

    @property
    @abstractmethod
    def _identity(self) -> Identity: ...

    async def publish(
        self, event: Event[Any], topic: str | EventType | None = None, *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event. It is durable when this returns.

        Raises `InvalidMessage` for a bad event, `QueueFull` or `StorageFull` when there was no room within
        `timeout_s` (nothing is written then), `OutcomeUnknown` when the disk did not answer, `Denied`, `BusClosed`.
        """
        receipts = await self._bus.publish_as(self._identity, [event], topic, timeout_s)
        return receipts[0]

    async def publish_many(
        self, events: Iterable[Event[Any]], topic: str | EventType | None = None, *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish many events in as few commits as possible; receipts in the same order.

        Each event is whole or not there at all; if this raises, some of them may be durable (rule W2).
        """
        return list(await self._bus.publish_as(self._identity, list(events), topic, timeout_s))

    def publisher(
        self, topic: str | EventType, space_id: str, type: str | EventType | None = None, **meta: Any
    ) -> Publisher:
        """A publisher for one topic, type and space: the meta is checked now, then payloads alone are enough."""
        fields = {"topic": topic, "space_id": space_id, **meta}
        if type is not None:
            fields["type"] = type
        if self._identity.subject is not None:
            fields.setdefault("actor", self._identity.subject)
        return Publisher(self, EventMeta(**fields))

    async def subscribe(
        self,
        topic: str | EventType,
        group: str,
        handler: Handler,
        *,
        space: str = "*",
        filters: Sequence[Filter] = (),
        start: Start = "earliest",
        workers: int | None = None,
        max_inflight: int | None = None,
        max_parked: int | None = None,
        batch: int | None = None,
        ordering: Ordering | None = None,
        overflow: Overflow | None = None,
        backoff_base: float | None = None,
        backoff_mult: float | None = None,
        backoff_max: float | None = None,
        max_retries: int | None = None,
        ack_deadline_s: float | None = None,
        on_expired: OnExpired | None = None,
        subject: str | None = None,
        capabilities: Collection[str] = (),
    ) -> Subscription:
        """Consume a topic, or all that match a glob, as a durable group.

        Returns once the group's existence is on disk, so a crash right after loses nothing that is published from
        then on. Subscribing again with the same patterns and filters joins the group with more workers.
        """
        settings = {
            name: value
            for name, value in {
                "workers": workers,
                "max_inflight": max_inflight,
                "max_parked": max_parked,
                "batch": batch,
                "ordering": ordering,
                "overflow": overflow,
                "backoff_base": backoff_base,
                "backoff_mult": backoff_mult,
                "backoff_max": backoff_max,
                "max_retries": max_retries,
                "ack_deadline_s": ack_deadline_s,
                "on_expired": on_expired,
            }.items()
            if value is not None
        }
        subscription = Subscription(
            topic=str(topic),
            group=group,
            handler=handler,
            space=space,
            filters=tuple(filters),
            start=start,
            settings=settings,
        )
        identity = self._identity
        if subject is not None or capabilities:
            identity = Identity(subject or identity.subject, identity.capabilities | frozenset(capabilities))
        await self._bus.subscribe_as(identity, subscription)
        return subscription

    def replay(
        self,
        topic: str | EventType,
        *,
        space: str = "*",
        start: Start = "earliest",
        stop: datetime | int | None = None,
        filters: Sequence[Filter] = (),
        subject: str | None = None,
    ) -> AsyncIterator[ReplayRecord]:
        """History, oldest first, without a group: `async for record in bus.replay("actions", space="s")`.

        From `start` up to, and not including, `stop`; without one, up to what is durable when it begins. Several
        logs are merged by the time of their append.
        """
        identity = Identity(subject, self._identity.capabilities) if subject is not None else self._identity
        return self._bus.replay_as(identity, str(topic), space, start, stop, filters)

    @property
    @abstractmethod
    def dlq(self) -> DLQInspector:
        """The dead letters."""
        ...

    def bind(self, subject: str, capabilities: Collection[str] = ()) -> BoundBus:
        """This surface acting as a subject: what it publishes is signed, what it consumes is checked against it."""
        return BoundBus(self._bus, Identity(subject, frozenset(capabilities)))


class BoundBus(Surface):
    """A bus in the hands of one module. Closing the bus is not its business."""

    def __init__(self, bus: EventBus, identity: Identity) -> None:
        self.__bus = bus
        self.__identity = identity

    @property
    def _bus(self) -> EventBus:
        return self.__bus

    @property
    def _identity(self) -> Identity:
        return self.__identity

    @property
    def dlq(self) -> DLQInspector:
        """The dead letters, as far as this subject may see them."""
        return self.__bus.dlq_as(self.__identity)

    @property
    def attention(self) -> AttentionInspector:
        """What the attention gate decided, as far as this subject may replay what it was about."""
        return self.__bus.attention_as(self.__identity)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop consuming; the group stays."""
        await self.__bus.unsubscribe(subscription)

    def __repr__(self) -> str:
        return f"BoundBus({self.__identity.subject})"
