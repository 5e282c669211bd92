"""Step 2 of an event's way: names and shape, before anything else looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from events.errors import InvalidMessage, InvalidTopic, NoSubscriber, TopicAlreadyHandled, TopicFrozen
from events.names import check_space, check_topic
from events.serialization import encode_payload
from events.types import Event, EventMeta, EventType


class Draft(NamedTuple):
    """An event on its way to the log: its meta checked, its payload encoded."""

    meta: EventMeta
    payload: bytes


def checked(event: Event[Any], topic: str | None, actor: str | None, max_bytes: int) -> Draft:
    """The event as it will be published: its payload proven to be JSON, its names proven to be names.

    A topic given beside the event wins; an identity that the bus is bound to signs what is unsigned.
    """
    if not isinstance(event, Event):
        raise InvalidMessage("event", event, "publish takes an Event", hint="Event(meta=EventMeta(...), payload={...})")
    meta = event.meta
    if topic is not None and topic != meta.topic:
        meta = meta.replace(topic=topic if isinstance(topic, EventType) else check_topic(topic))
    if actor is not None and meta.actor is None:
        meta = meta.replace(actor=actor)
    # Cached by value; a meta made around its own checks (model_construct) is caught here.
    check_topic(meta.topic)
    check_space(meta.space_id)
    return Draft(meta, payload_of(event, max_bytes))


def payload_of(event: Event[Any], max_bytes: int) -> bytes:
    """The payload's bytes: the log's own where nobody has looked at them, else encoded anew."""
    raw = event.raw_payload
    return raw if raw is not None else encode_payload(event.payload, max_bytes)


class Topology:
    """Strict mode (rule W16): only the listed topics, one handler each, all set up before the first publish."""

    def __init__(self, topics: tuple[str, ...] | None) -> None:
        self._allowed = None if topics is None else frozenset(map(check_topic, topics))
        self._handled: dict[str, tuple[str, str]] = {}
        self._is_frozen = False

    @property
    def is_strict(self) -> bool:
        """Whether there is anything to keep to."""
        return self._allowed is not None

    @contextmanager
    def subscribing(self, topic: str, space: str, group: str) -> Iterator[None]:
        """A group wants a topic for itself; it gets it unless what is done in here fails."""
        if self._allowed is None:
            yield
            return
        if self._is_frozen:
            raise TopicFrozen(topic)
        self._check_allowed(topic)
        if topic in self._handled:
            raise TopicAlreadyHandled(topic, self._handled[topic][0])
        self._handled[topic] = (group, space)
        try:
            yield
        except BaseException:
            self.unsubscribe(topic)
            raise

    def unsubscribe(self, topic: str) -> None:
        """The topic has no handler any more."""
        self._handled.pop(topic, None)

    def publish(self, topic: str, space_id: str) -> None:
        """An event is about to be published; from now on nothing may change, unless nobody would get it."""
        if self._allowed is None:
            return
        self._check_allowed(topic)
        _, space = self._handled.get(topic, (None, None))
        if space not in ("*", space_id):
            raise NoSubscriber(topic, space_id)
        self._is_frozen = True

    def _check_allowed(self, topic: str) -> None:
        if self._allowed is not None and topic not in self._allowed:
            raise InvalidTopic("topic", topic, f"strict topology allows {', '.join(sorted(self._allowed))}")
