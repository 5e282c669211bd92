"""Keeps what is unsafe away from handlers: by checks of the content, and by signals that hold a topic, actor or event.

A signal is an ordinary event on the signals' topic, so it is authorised, durable and audited like any other:

    {"hold": {"actor": "agent:planner"}, "reason": "prompt injection"}
    {"release": {"actor": "agent:planner"}}

It holds from the moment its publish returns, and after a restart, until it is released. What is held goes to the
dead-letter queue with the reason, and can be retried from there once it is released.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from events.contracts import DeadLetter, Hop, HopResult, Next, Stage, Verdict
from events.errors import InvalidMessage
from events.names import check_topic_pattern, topic_matches
from events.types import Actor, Event, EventMeta

if TYPE_CHECKING:
    from events.bus import EventBus

Kind = Literal["topic", "actor", "event_id"]
Check = Callable[[Event[Any]], str | Awaitable[str | None] | None]
"""Says why an event is unsafe, or None. One that raises fails the attempt; the event is not handled unchecked."""

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_READ_BYTES: Final = 1024 * 1024
_RULE: Final = 'a signal is {"hold": {"topic" | "actor" | "event_id": "..."}, "reason": "..."}, or "release" alike'
log = logging.getLogger(__name__)


class Hold(NamedTuple):
    """One thing that is held. `value` may be a glob where it is a topic."""

    kind: Kind
    value: str


class QuarantineMiddleware:
    """Sends to the dead-letter queue what a check or a hold is against.

    `signals` is the topic that signals come on; None takes none from the bus, and leaves `hold` and `release`, which
    last as long as this object. Events on the signals' topic are never held. At most `max_holds` are in force: a
    further one is refused rather than one forgotten.
    """

    stage = Stage.CONTENT

    def __init__(
        self, checks: Sequence[Check] = (), *, signals: str | None = "quarantine", max_holds: int = 100_000
    ) -> None:
        self._checks, self._signals, self._max_holds = tuple(checks), signals, max_holds
        self._holds: OrderedDict[Hold, str] = OrderedDict()
        self._topics: list[Hold] = []
        self._bus: EventBus | None = None

    @property
    def holds(self) -> Mapping[Hold, str]:
        """What is held now, and why."""
        return dict(self._holds)

    def hold(self, kind: Kind, value: str, reason: str = "held") -> None:
        """Hold a topic (or glob), an actor, or an event from now on. Holding it again changes the reason."""
        one = _checked_hold(kind, value)
        self._check_room({one})
        self._holds[one] = reason
        if kind == "topic":
            self._topics = [held for held in self._holds if held.kind == "topic"]

    def release(self, kind: Kind, value: str) -> None:
        """Hold it no more. Releasing what is not held is harmless."""
        self._holds.pop(_checked_hold(kind, value), None)
        if kind == "topic":
            self._topics = [held for held in self._holds if held.kind == "topic"]

    def _check_room(self, wanted: set[Hold]) -> None:
        new = wanted - self._holds.keys()
        if new and len(self._holds) + len(new) > self._max_holds:
            raise InvalidMessage("hold", len(wanted), f"{self._max_holds} holds are in force, and no more are taken")

    # -- signals -----------------------------------------------------------------------------------------------

    def attach(self, bus: EventBus) -> None:
        """Take signals from this bus."""
        self._bus = bus

    async def start(self) -> None:
        """Read the signals of earlier days, in the order in which they were published."""
        if self._bus is None or self._signals is None:
            return
        store, past = self._bus.store, []
        for name in await store.log_names():
            if name.topic == self._signals:
                signals = await store.log(name)
                offset = signals.first_offset
                while records := await signals.read(offset, _READ_BYTES):
                    past += [(record.at, record.event) for record in records if not record.is_gap]
                    offset = records[-1].last + 1
        for _, event in sorted(past, key=lambda dated: dated[0]):
            self._obey(event)

    def _obey(self, event: Event[Any]) -> None:
        """Do what a signal that is in the log says. One that makes no sense was let in before we were there."""
        try:
            for verb, one, reason in _read_signal(event):
                if verb == "hold":
                    self.hold(one.kind, one.value, reason)
                else:
                    self.release(one.kind, one.value)
        except InvalidMessage as error:
            log.warning("a quarantine signal was passed over: %s", error, extra={"event_id": event.meta.event_id})

    # -- hops --------------------------------------------------------------------------------------------------

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            return await self._publish(hop, call_next)
        held: dict[int, Verdict] = {}
        for index, event in enumerate(hop.events):
            reason = await self._against(event)
            if reason is not None:
                held[index] = DeadLetter(f"quarantined: {reason}")
        if not held:
            return await call_next(hop)
        if len(hop.metas) == 1:
            return held[0]
        rest = hop.without(held)
        return await call_next(rest) if rest.metas else held[0]

    async def _publish(self, hop: Hop, call_next: Next) -> HopResult:
        if self._signals is None or all(meta.topic != self._signals for meta in hop.metas):
            return await call_next(hop)
        signals = [event for event in hop.events if event.meta.topic == self._signals]
        # What is wrong with a signal is said now, and then nothing is written.
        self._check_room({one for event in signals for verb, one, _ in _read_signal(event) if verb == "hold"})
        result = await call_next(hop)
        for event in signals:
            self._obey(event)
        return result

    async def _against(self, event: Event[Any]) -> str | None:
        meta = event.meta
        if self._signals is not None and meta.topic == self._signals:
            return None
        if self._holds and (reason := self._held(meta)) is not None:
            return reason
        for check in self._checks:
            found = check(event)
            reason = await found if inspect.isawaitable(found) else found
            if reason is not None:
                return reason
        return None

    def _held(self, meta: EventMeta) -> str | None:
        for topic in self._topics:
            if topic_matches(topic.value, meta.topic):
                return f"topic {topic.value}: {self._holds[topic]}"
        for one in (Hold("event_id", meta.event_id), *(Hold("actor", name) for name in _names_of(meta.actor))):
            if one in self._holds:
                return f"{one.kind} {one.value}: {self._holds[one]}"
        return None


def _checked_hold(kind: str, value: object) -> Hold:
    if kind not in _KINDS:
        raise InvalidMessage("hold", kind, f"held are {', '.join(_KINDS)}")
    if not isinstance(value, str) or not value:
        raise InvalidMessage(f"hold.{kind}", value, _RULE)
    return Hold(kind, check_topic_pattern(value) if kind == "topic" else value)


def _read_signal(event: Event[Any]) -> list[tuple[str, Hold, str]]:
    payload = event.payload
    unknown = [name for name in payload if name not in ("hold", "release", "reason")]
    if unknown or not isinstance(payload.get("reason", ""), str):
        raise InvalidMessage("signal", unknown[0] if unknown else payload["reason"], _RULE)
    found = []
    for verb in ("release", "hold"):
        named = payload.get(verb, {})
        if not isinstance(named, dict):
            raise InvalidMessage(f"signal.{verb}", named, _RULE)
        found += [(verb, _checked_hold(kind, value), payload.get("reason", "held")) for kind, value in named.items()]
    if not found:
        raise InvalidMessage("signal", payload, _RULE)
    return found


def _names_of(actor: str | Actor | None) -> Sequence[str]:
    """Every name that a hold may know an actor by: `planner`, and `agent:planner` too."""
    if actor is None:
        return ()
    if isinstance(actor, str):
        return (actor,) if ":" not in actor else (actor, actor.split(":", 1)[1])
    named = (("agent", actor.agent_id), ("user", actor.user_id))
    return [name for kind, who in named if who is not None for name in (who, f"{kind}:{who}")]
