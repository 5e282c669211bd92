"""The bus for code without an event loop: scripts, notebooks, threads (rule W19)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from events.bus import EventBus, Health, Statistics
from events.contracts import Filter, Handler
from events.dlq import DeadLetterInfo
from events.errors import BusClosed
from events.replay import ReplayRecord
from events.subscription import Start, Subscription
from events.types import Event, EventType, Receipt

T = TypeVar("T")
_CHUNK = 256


class BlockingBus:
    """An `EventBus` on an event loop of its own, in a thread of its own. Any thread may call it.

    `with BlockingBus(workspace="...") as bus:` or `start` and `close` by hand. Arguments are those of `EventBus`.
    A handler may be a plain function; it runs in a worker thread and may publish through the same object.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._arguments = arguments
        self._settings = settings
        self._lock = threading.Condition()
        self._calls = 0
        self._portal: BlockingPortal | None = None
        self._exit: Callable[[], object] | None = None
        self._inner: EventBus | None = None

    def start(self) -> None:
        """Start the loop and the bus. First use does the same."""
        with self._lock:
            if self._portal is not None:
                return
            manager = start_blocking_portal()
            portal = manager.__enter__()
            inner = EventBus(*self._arguments, **self._settings)
            try:
                portal.call(inner.start)
            except BaseException:
                manager.__exit__(None, None, None)
                raise
            self._portal, self._inner = portal, inner
            self._exit = partial(manager.__exit__, None, None, None)

    def close(self, timeout_s: float = 30.0) -> None:
        """Close the bus and stop the loop. Safe to call twice, from any thread but a handler's."""
        with self._lock:
            if self._portal is None:
                return
            portal, inner, leave = self._portal, self._bus, self._exit
            self._portal = self._exit = None
        try:
            portal.call(partial(inner.close, timeout_s))
        finally:
            with self._lock:  # a call that the loop never got to would wait for ever
                self._lock.wait_for(lambda: self._calls == 0)
            if leave is not None:
                leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _bus(self) -> EventBus:
        if self._inner is None:
            self.start()
        assert self._inner is not None
        return self._inner

    def _call(self, function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
        if self._portal is None and self._inner is None:
            self.start()
        with self._lock:
            portal = self._portal
            if portal is None:
                raise BusClosed(function.__name__)
            self._calls += 1
        try:
            return portal.call(partial(function, *arguments, **settings))
        finally:
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

    def publish(
        self, event: Event[Any], topic: str | EventType | None = None, *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event and wait until it is durable."""
        receipt: Receipt = self._call(self._bus.publish, event, topic, timeout_s=timeout_s)
        return receipt

    def publish_many(self, events: Iterable[Event[Any]], *, timeout_s: float | None = None) -> list[Receipt]:
        """Publish many events and wait until they are durable."""
        receipts: list[Receipt] = self._call(self._bus.publish_many, list(events), timeout_s=timeout_s)
        return receipts

    def subscribe(self, topic: str | EventType, group: str, handler: Handler, **settings: Any) -> Subscription:
        """Consume as a group; settings are those of `EventBus.subscribe`."""
        subscription: Subscription = self._call(self._bus.subscribe, topic, group, handler, **settings)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop consuming."""
        self._call(self._bus.unsubscribe, subscription)

    def delete_group(self, group: str) -> None:
        """Forget a group for good."""
        self._call(self._bus.delete_group, group)

    def replay(
        self,
        topic: str | EventType,
        *,
        space: str = "*",
        start: Start = "earliest",
        stop: datetime | int | None = None,
        filters: Sequence[Filter] = (),
    ) -> Iterator[ReplayRecord]:
        """History, oldest first, read in chunks as the caller goes along."""
        records = self._bus.replay(topic, space=space, start=start, stop=stop, filters=filters)

        async def some() -> list[ReplayRecord]:
            chunk: list[ReplayRecord] = []
            async for record in records:
                chunk.append(record)
                if len(chunk) == _CHUNK:
                    break
            return chunk

        while chunk := self._call(some):
            yield from chunk

    def dead_letters(self, **selection: Any) -> list[DeadLetterInfo]:
        """What `bus.dlq.list` lists."""
        found: list[DeadLetterInfo] = self._call(self._bus.dlq.list, **selection)
        return found

    def retry_dead_letters(self, **selection: Any) -> int:
        """What `bus.dlq.retry` retries."""
        retried: int = self._call(self._bus.dlq.retry, **selection)
        return retried

    def wait_settled(self, timeout_s: float | None = None) -> bool:
        """Wait until every group has settled everything that was published."""
        settled: bool = self._call(self._bus.wait_settled, timeout_s)
        return settled

    def health(self) -> Health:
        """How the bus is doing."""
        return self._bus.health()

    def statistics(self) -> Statistics:
        """A snapshot of what the bus has done and holds."""
        return self._bus.statistics()
