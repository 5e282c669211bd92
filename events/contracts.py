"""The contracts between the bus and what is plugged into it: handlers, filters, middleware, gates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from events.types import Ack, Event, EventMeta, Nack, Receipt

Action = Literal["publish", "consume", "ack", "replay", "dlq", "admin"]


@dataclass(frozen=True, slots=True)
class Skip:
    """Settle the event without handling it: filtered, denied, dropped, expired, duplicate, lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Settle the event into the dead-letter queue at once, without further attempts."""

    reason: str


Verdict = Ack | Nack | Skip | DeadLetter | None
"""How a delivery ends. None is Ack, as from a handler that returns nothing."""


class Delivery(Protocol):
    """One attempt at one event, as a handler's second argument and as middleware sees it."""

    @property
    def space_id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def group(self) -> str: ...
    @property
    def attempt(self) -> int:
        """1 for the first attempt; counts on across restarts."""
        ...

    @property
    def replayed(self) -> bool:
        """Whether this is a dead-letter retry or a replay, which has its own identity (rule W14)."""
        ...

    @property
    def identity(self) -> str:
        """Names this delivery for ever: `space/topic/offset`, with the round of a dead-letter retry."""
        ...

    def extend(self, seconds: float) -> None:
        """Move the ack deadline to that many seconds from now. May be called any number of times."""
        ...


SimpleHandler = Callable[[Any], Awaitable[Verdict] | Verdict]
DeliveryHandler = Callable[[Any, Any], Awaitable[Verdict] | Verdict]
Handler = SimpleHandler | DeliveryHandler
"""`async def handle(event)` or `def handle(event)`, and both may take the `Delivery` second.

With `batch=n` the first argument is a list of events and the second a list of deliveries. A plain function
runs in a worker thread. Returning None or `Ack()` settles; raising or `Nack()` asks for another attempt.
"""


@runtime_checkable
class Filter(Protocol):
    """Decides whether a subscriber wants an event. Declarative filters never raise (rule W11)."""

    @property
    def cost(self) -> int:
        """Roughly microseconds. Compound filters ask the cheap ones first."""
        ...

    def matches(self, event: Event[Any]) -> bool | Awaitable[bool]: ...

    def describe(self) -> Mapping[str, Any]:
        """The filter as plain JSON. Two filters that describe alike are the same to a group (rule W3)."""
        ...


class Stage(IntEnum):
    """Where a middleware may stand in the chain: the order of the numbers is the order of the chain."""

    TRACE = 10
    MEASURE = 20
    AUTHORISE = 30
    CONTENT = 40


@dataclass(frozen=True, slots=True)
class Hop:
    """One crossing of the chain: a publish of some events, or a delivery of some events to a group.

    Middleware before and at `Stage.AUTHORISE` sees metas and sizes only; asking it for events raises. `timeout_s`
    is how long a publish may wait, and `may_wait` whether it may wait for room at all.
    """

    kind: Literal["publish", "handle"]
    metas: Sequence[EventMeta]
    sizes: Sequence[int]
    subject: str | None = None
    capabilities: frozenset[str] = frozenset()
    group: str | None = None
    deliveries: Sequence[Delivery] = ()
    timeout_s: float = 0.0
    may_wait: bool = True
    verdicts: dict[Delivery, Verdict] = field(default_factory=dict)
    _events: Sequence[Event[Any]] = ()
    _sealed: bool = True

    @property
    def events(self) -> Sequence[Event[Any]]:
        """The events with their payloads."""
        if self._sealed:
            raise PermissionError(
                "a middleware before Stage.CONTENT sees names and sizes, never a payload; "
                "declare stage = Stage.CONTENT to stand behind authorisation"
            )
        return self._events

    def unsealed(self) -> Hop:
        """The same hop with its events open. The chain itself calls this, behind authorisation."""
        return self._with(self.metas, self._events, sealed=False)

    def with_metas(self, metas: Sequence[EventMeta]) -> Hop:
        """The hop with other metas, payloads untouched: how tracing puts its context into the envelope."""
        pairs = zip(self._events, metas, strict=True)
        return self._with(metas, [Event.remade(event, meta) for event, meta in pairs], sealed=self._sealed)

    def _with(self, metas: Sequence[EventMeta], events: Sequence[Event[Any]], *, sealed: bool) -> Hop:
        # What every event passes; `replace` takes twice as long to find the same fields.
        return Hop(
            self.kind,
            metas,
            self.sizes,
            self.subject,
            self.capabilities,
            self.group,
            self.deliveries,
            self.timeout_s,
            self.may_wait,
            self.verdicts,
            events,
            sealed,
        )

    def with_events(self, events: Sequence[Event[Any]]) -> Hop:
        """The hop with other events in the same order: how redaction changes a payload.

        What authorisation decided on must stay: topic, space, band, actor and capabilities.
        """
        if len(events) != len(self.events):
            raise ValueError(f"a hop of {len(self.events)} events cannot become one of {len(events)}")
        for before, after in zip(self.metas, events, strict=True):
            for name in ("topic", "space_id", "band", "actor", "caps"):
                if getattr(before, name) != getattr(after.meta, name):
                    raise ValueError(f"meta.{name} was authorised and cannot be changed behind it")
        return replace(self, metas=[event.meta for event in events], _events=events)

    def without(self, settled: Mapping[int, Verdict]) -> Hop:
        """The hop without the deliveries at these indices, which end with the given verdicts.

        A middleware that settles all of them returns without calling the next one. Handle hops only: a
        publish is whole or refused.
        """
        for index, verdict in settled.items():
            self.verdicts[self.deliveries[index]] = verdict
        keep = [index for index in range(len(self.metas)) if index not in settled]
        return replace(
            self,
            metas=[self.metas[i] for i in keep],
            sizes=[self.sizes[i] for i in keep],
            deliveries=[self.deliveries[i] for i in keep],
            _events=[self._events[i] for i in keep],
        )


HopResult = Sequence[Receipt] | Verdict
"""What a crossing yields: the receipts of a publish, or the verdict of a handle."""

Next = Callable[[Hop], Awaitable[HopResult]]


class Middleware(Protocol):
    """Wraps every publish and every delivery. A plain async function with this signature will do.

    Optional attributes that the bus looks for: `stage` (a `Stage`; CONTENT without it), `before_checkpoint`
    (async, no arguments: make durable what must not be behind a group's checkpoint), `authorise` (see
    `Authoriser`), `attach` (called with the bus once its store is open, before `start`), `start`/`close` (async,
    with the bus; no arguments), `settled` (called with the `Settlement`s of each delivery), `forget_group` (async,
    called with the name of a group that was deleted).
    """

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult: ...


class Settlement(NamedTuple):
    """How one delivery ended for its group: told to every middleware's `settled`, which must neither block nor raise.

    `outcome` is `acked`, `retry` (it comes again), `dead`, or the reason of a skip. An event may end without having
    been delivered, as one that expired does. Times are of the wall clock, around the work of settling alone.
    """

    group: str
    space_id: str
    topic: str
    offset: int
    meta: EventMeta
    outcome: str
    reason: str | None
    started_ns: int
    ended_ns: int


class Authoriser(Protocol):
    """A middleware that also decides actions which cross no chain: subscribe, replay, dlq, admin."""

    def authorise(
        self,
        subject: str | None,
        action: Action,
        topic: str,
        space_id: str,
        meta: EventMeta | None = None,
        capabilities: frozenset[str] = frozenset(),
    ) -> None:
        """Return when allowed; raise `Denied` on a definite no, anything else when it could not decide.

        `meta` is given where one event is at stake, so that its band counts. `space_id` and `topic` may be
        patterns for subscribe, and then the action must be allowed for everything they cover.
        """
        ...
