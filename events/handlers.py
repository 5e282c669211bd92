"""Running a handler: what kind of callable it is, what it is given, and the pipeline around it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args, get_type_hints

import anyio
import anyio.to_thread

from events.chain import compose, stage_of
from events.contracts import Filter, Handler, Hop, HopResult, Middleware, Next, Skip, Stage, Verdict
from events.errors import InvalidMessage
from events.persistence.codec import Record
from events.types import Ack, Event, Nack


class Delivered:
    """One attempt at one event (the `Delivery` of the contracts)."""

    __slots__ = ("_extend", "attempt", "group", "offset", "round", "space_id", "topic")

    def __init__(
        self,
        space_id: str,
        topic: str,
        offset: int,
        round: int,
        group: str,
        attempt: int,
        extend: Callable[[float], None],
    ) -> None:
        self.space_id = space_id
        self.topic = topic
        self.offset = offset
        self.round = round
        self.group = group
        self.attempt = attempt
        self._extend = extend

    @property
    def replayed(self) -> bool:
        return self.round > 0

    @property
    def identity(self) -> str:
        suffix = f"#{self.round}" if self.round else ""
        return f"{self.space_id}/{self.topic}/{self.offset}{suffix}"

    def extend(self, seconds: float) -> None:
        """Move the ack deadline to that many seconds from now. From any thread."""
        if not seconds >= 0:
            raise InvalidMessage("seconds", seconds, "a deadline is extended by a number of seconds, not negative")
        self._extend(seconds)

    def __repr__(self) -> str:
        return f"Delivery({self.identity} to {self.group}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True)
class HandlerShape:
    """What `subscribe` found out about a handler, so that deliveries need not ask again."""

    call: Callable[..., Any]
    is_async: bool
    takes_delivery: bool
    event_class: type[Event[Any]]
    name: str

    @classmethod
    def of(cls, handler: Handler, *, batch: int) -> HandlerShape:
        """Inspect a handler; `InvalidMessage` when it cannot be called with an event."""
        if not callable(handler):
            raise InvalidMessage("handler", handler, "a handler is a function or a callable object")
        inner = handler.func if isinstance(handler, partial) else handler
        inner = inner if inspect.isroutine(inner) else type(inner).__call__
        is_async = inspect.iscoroutinefunction(inner)
        try:
            parameters = list(inspect.signature(handler).parameters.values())
        except ValueError:  # a builtin without a signature takes what it is given
            parameters = [inspect.Parameter("event", inspect.Parameter.POSITIONAL_ONLY)]
        positional = [one for one in parameters if one.kind in _POSITIONAL]
        required = [one for one in positional if one.default is one.empty]
        open_ended = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        if len(required) > 2 or not (positional or open_ended):
            raise InvalidMessage("handler", handler, "a handler takes the event, and may take the delivery second")
        takes_delivery = len(required) == 2
        event_class = _event_class(inner, positional[0].name, batch) if positional else Event
        name = getattr(inner, "__qualname__", None) or type(handler).__qualname__
        return cls(handler, is_async, takes_delivery, event_class, name)

    def event_of(self, record: Record) -> Event[Any]:
        """A fresh event for one delivery, typed as the handler's annotation asks."""
        return self.event_class.from_log(record.meta, record.raw_payload)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _event_class(function: Callable[..., Any], parameter: str, batch: int) -> type[Event[Any]]:
    """`Event[Model]` in a handler's annotation has the payload checked and handed out as that model."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # annotations that only a type checker can resolve
        return Event
    annotated = hints.get(parameter, Event)
    if batch > 1:
        annotated = next(iter(get_args(annotated)), Event)
    return annotated if isinstance(annotated, type) and issubclass(annotated, Event) else Event


class FilterStage:
    """The group's filters as the first thing behind authorisation: what they refuse is skipped, with the reason."""

    stage = Stage.CONTENT

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = sorted(filters, key=lambda one: one.cost)

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        refused: dict[int, Verdict] = {}
        for index, event in enumerate(hop.events):
            for one in self._filters:
                matched = one.matches(event)
                if not isinstance(matched, bool):
                    matched = await matched
                if not matched:
                    refused[index] = Skip("filtered")
                    break
        if refused:
            hop = hop.without(refused)
            if not hop.metas:
                return Ack()
        return await call_next(hop)


class Pipeline:
    """Everything between a group and its handler, composed once: the way of step 8."""

    def __init__(
        self,
        shape: HandlerShape,
        middlewares: Sequence[Middleware],
        filters: Sequence[Filter],
        *,
        batch: int,
        subject: str | None,
        capabilities: frozenset[str],
        group: str,
        threads: anyio.CapacityLimiter,
    ) -> None:
        self.shape = shape
        self._batch = batch
        self._subject = subject
        self._capabilities = capabilities
        self._group = group
        self._threads = threads
        stages = list(middlewares)
        if filters:
            behind = next((i for i, one in enumerate(stages) if stage_of(one) >= Stage.CONTENT), len(stages))
            stages.insert(behind, FilterStage(filters))
        self._chain = compose(stages, self._handle_hop) if stages else None
        # The common case, one event and nothing around the handler, without a hop and without a chain.
        self.is_plain = self._chain is None and batch == 1 and shape.is_async and not shape.takes_delivery

    def call(self, record: Record) -> Awaitable[Any]:
        """The handler alone, for a pipeline that `is_plain`; what it returns is not checked."""
        awaitable: Awaitable[Any] = self.shape.call(self.shape.event_of(record))
        return awaitable

    async def run(
        self, records: Sequence[Record], deliveries: Sequence[Delivered]
    ) -> tuple[Verdict, Mapping[Any, Verdict]]:
        """Deliver; the verdict for all, and those that differ by delivery."""
        events = [self.shape.event_of(record) for record in records]
        if self._chain is None:
            return checked_verdict(await self._call(events, deliveries)), {}
        hop = Hop(
            kind="handle",
            metas=[event.meta for event in events],
            sizes=[len(event.raw_payload or b"") for event in events],
            subject=self._subject,
            capabilities=self._capabilities,
            group=self._group,
            deliveries=deliveries,
            _events=events,
        )
        verdict = await self._chain(hop)
        return checked_verdict(verdict), hop.verdicts

    async def _handle_hop(self, hop: Hop) -> HopResult:
        result: HopResult = await self._call(list(hop.events), list(hop.deliveries))
        return result

    def _call(self, events: Sequence[Event[Any]], deliveries: Sequence[Any]) -> Awaitable[Any]:
        shape = self.shape
        if self._batch == 1:
            arguments: tuple[Any, ...] = (events[0], deliveries[0]) if shape.takes_delivery else (events[0],)
        else:
            arguments = (events, deliveries) if shape.takes_delivery else (events,)
        if shape.is_async:
            awaitable: Awaitable[Any] = shape.call(*arguments)
            return awaitable
        return self._in_thread(arguments)

    async def _in_thread(self, arguments: tuple[Any, ...]) -> Any:
        def call() -> tuple[Any]:
            # In a tuple, because trio takes a function that returns a coroutine for a mistake.
            return (self.shape.call(*arguments),)

        (result,) = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        # A plain function may still return a coroutine: a lambda around an async one, say.
        return await result if inspect.isawaitable(result) else result


def checked_verdict(verdict: Any) -> Verdict:
    """What a handler returned, if a handler may return it; a failed attempt otherwise."""
    if verdict is None or isinstance(verdict, Verdict.__args__):
        return verdict
    return Nack(f"the handler returned {type(verdict).__name__}; it may return Ack(), Nack() or None")
