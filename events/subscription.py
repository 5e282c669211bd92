"""Subscriptions: what `subscribe` returns, and a registry for those who declare handlers before there is a bus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from events.contracts import Filter, Handler
from events.errors import InvalidMessage
from events.handlers import HandlerShape
from events.names import check_group, check_space, check_topic_pattern
from events.persistence.store import StartKind

Start = Literal["earliest", "latest"] | datetime | int


@dataclass(eq=False, slots=True)
class Subscription:
    """A handler that consumes as a group. Two with the same group share its events between them."""

    topic: str
    group: str
    handler: Handler
    space: str = "*"
    filters: Sequence[Filter] = ()
    start: Start = "earliest"
    settings: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: f"sub-{uuid4().hex}")
    is_active: bool = False

    def __post_init__(self) -> None:
        self.topic = check_topic_pattern(self.topic)
        check_group(self.group)
        if self.space != "*":
            check_space(self.space)
        start_of(self.start, self.topic, self.space)

    def __repr__(self) -> str:
        return f"Subscription({self.group} on {self.topic!r} in {self.space!r})"


def start_of(start: Start, topic: str, space: str) -> tuple[StartKind, int]:
    """Where a new group begins, as its record keeps it (rule W4)."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidMessage("start", start, "a time to start from has a time zone")
        return "timestamp", int(start.timestamp() * 1000)
    if isinstance(start, int) and not isinstance(start, bool):
        if "*" in topic or space == "*":
            raise InvalidMessage("start", start, "an offset needs one exact topic and one space to mean anything")
        if start < 1:
            raise InvalidMessage("start", start, "offsets begin at 1")
        return "offset", start
    if start in ("earliest", "latest"):
        return start, 0
    raise InvalidMessage("start", start, "start is 'earliest', 'latest', a datetime, or an offset")


class SubscriptionRegistry:
    """Handlers declared ahead of time; give it to `EventBus(registry=...)`, which subscribes them when it starts.

    A handler registered while the bus runs is subscribed soon after.
    """

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self._listener: Callable[[Subscription], object] | None = None

    def register_subscription(
        self,
        topic: str,
        handler: Handler,
        *,
        group: str | None = None,
        advanced_filters: Sequence[Filter] = (),
        space: str = "*",
        start: Start = "earliest",
        **settings: Any,
    ) -> tuple[str, Subscription]:
        """Declare a handler; its id and the subscription. The group defaults to the handler's qualified name."""
        name = group or default_group(handler)
        subscription = Subscription(
            topic=topic,
            group=name,
            handler=handler,
            space=space,
            filters=tuple(advanced_filters),
            start=start,
            settings=settings,
        )
        self._subscriptions[subscription.id] = subscription
        if self._listener is not None:
            self._listener(subscription)
        return subscription.id, subscription

    def __iter__(self) -> Any:
        return iter(list(self._subscriptions.values()))

    def __len__(self) -> int:
        return len(self._subscriptions)

    def attach(self, listener: Callable[[Subscription], object]) -> None:
        """Tell a running bus of what is registered from now on."""
        self._listener = listener

    def detach(self, listener: Callable[[Subscription], object]) -> None:
        """Tell that bus nothing more."""
        if self._listener == listener:
            self._listener = None


def default_group(handler: Handler) -> str:
    """A group name made of a handler's qualified name."""
    name = HandlerShape.of(handler, batch=1).name
    cleaned = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)
    while "__" in cleaned:
        cleaned = cleaned.replace("__", "_")
    parts = [part for part in cleaned.split(".") if part]
    return check_group(".".join(parts).lstrip("-_")[:100] or "handler")
