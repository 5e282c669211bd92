"""Handlers of every shape, filters before them, and what they are given."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from events.bus import EventBus
from events.contracts import Delivery
from events.errors import InvalidMessage
from events.handlers import Delivered, HandlerShape
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Ack, Event
from filters import CompoundFilter, CustomFunctionFilter, JSONPathFilter, SimpleFilter
from tests.events.bus_support import Collector, an_event, group_of, settled, some_events


class Reading(BaseModel):
    """A payload of a user's own."""

    n: int


SEEN: list[Any] = []


async def plain_async(event: Event) -> None:
    """An async function."""
    SEEN.append(event.payload["n"])


def plain_sync(event: Event) -> Ack:
    """A plain function; it runs in a worker thread."""
    assert threading.current_thread() is not threading.main_thread()
    SEEN.append(event.payload["n"])
    return Ack()


async def with_delivery(event: Event, delivery: Delivery) -> None:
    """An async function that takes the delivery."""
    SEEN.append((event.payload["n"], delivery.offset))


def sync_with_delivery(event: Event, delivery: Delivery) -> None:
    """A plain function that takes the delivery."""
    SEEN.append((event.payload["n"], delivery.offset))


class Callables:
    """Bound methods, class methods, static methods, and the object itself."""

    async def __call__(self, event: Event) -> None:
        SEEN.append(event.payload["n"])

    async def method(self, event: Event) -> None:
        """A bound method."""
        SEEN.append(event.payload["n"])

    def sync_method(self, event: Event, delivery: Delivery) -> None:
        """A plain bound method."""
        SEEN.append((event.payload["n"], delivery.offset))

    @classmethod
    async def of_class(cls, event: Event) -> None:
        """A class method."""
        SEEN.append(event.payload["n"])

    @staticmethod
    async def of_nobody(event: Event) -> None:
        """A static method."""
        SEEN.append(event.payload["n"])


class SyncCallable:
    """An object with a plain `__call__`."""

    def __call__(self, event: Event) -> None:
        SEEN.append(event.payload["n"])


async def with_state(state: list[Any], event: Event) -> None:
    """A function whose first argument is bound before."""
    state.append(event.payload["n"])


async def typed_with_state(state: list[Any], event: Event[Reading]) -> None:
    """The same with a typed event."""
    state.append(event.payload.n)


async def with_default(event: Event, suffix: str = "!") -> None:
    """A second argument with a default is not the delivery."""
    SEEN.append(f"{event.payload['n']}{suffix}")


async def with_keyword(event: Event, *, verbose: bool = False) -> None:
    """Keywords of its own."""
    SEEN.append(event.payload["n"])


async def starred(*arguments: Any) -> None:
    """Takes whatever it is given: the event alone."""
    SEEN.append(len(arguments))


async def typed(event: Event[Reading]) -> None:
    """The payload as a model."""
    SEEN.append(event.payload.n)


def typed_sync(event: Event[Reading], delivery: Delivery) -> None:
    """The payload as a model, in a thread."""
    SEEN.append((event.payload.n, delivery.offset))


@functools.cache
def decorated() -> Callable[..., Any]:
    """A function in a decorator that keeps its signature."""

    @functools.wraps(with_delivery)
    async def wrapper(*arguments: Any) -> None:
        await with_delivery(*arguments)

    return wrapper


SHAPES = [
    (plain_async, 7),
    (plain_sync, 7),
    (with_delivery, (7, 1)),
    (sync_with_delivery, (7, 1)),
    (Callables(), 7),
    (Callables().method, 7),
    (Callables().sync_method, (7, 1)),
    (Callables.of_class, 7),
    (Callables.of_nobody, 7),
    (SyncCallable(), 7),
    (functools.partial(with_state, SEEN), 7),
    (functools.partial(typed_with_state, SEEN), 7),
    (functools.partial(with_default, suffix="?"), "7?"),
    (functools.partial(Callables()), 7),
    (functools.partial(SyncCallable()), 7),
    (with_default, "7!"),
    (with_keyword, 7),
    (starred, 1),
    (typed, 7),
    (typed_sync, (7, 1)),
    (decorated(), (7, 1)),
    (lambda event: SEEN.append(event.payload["n"]), 7),
    (lambda event: plain_async(event), 7),
]


@pytest.mark.parametrize(("handler", "expected"), SHAPES)
async def test_a_handler_may_be_any_callable(event_bus: EventBus, handler: Any, expected: object) -> None:
    """Contracts: async or plain, function, method, object or partial; with or without the delivery."""
    SEEN.clear()
    await event_bus.subscribe("actions", "learner", handler, max_retries=0)
    await event_bus.publish(an_event(7))
    await settled(event_bus)
    assert [dead.errors for dead in await event_bus.dlq.list()] == []
    assert [expected] == SEEN


async def batch_async(events: list[Event]) -> None:
    """A batch."""
    SEEN.append([event.payload["n"] for event in events])


def batch_sync(events: list[Event], deliveries: list[Delivery]) -> None:
    """A batch and its deliveries, in a thread."""
    SEEN.append([(event.payload["n"], one.offset) for event, one in zip(events, deliveries, strict=True)])


async def batch_typed(events: list[Event[Reading]]) -> None:
    """A batch of typed events."""
    SEEN.append([event.payload.n for event in events])


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(batch_async, [1, 2, 3]), (batch_sync, [(1, 1), (2, 2), (3, 3)]), (batch_typed, [1, 2, 3])],
)
async def test_a_batch_is_a_list(event_bus: EventBus, handler: Any, expected: list[Any]) -> None:
    """Contracts: with `batch=n` events and deliveries come as lists, up to n, also when there is one alone."""
    SEEN.clear()
    await event_bus.publish_many(some_events([1, 2, 3]))
    await event_bus.subscribe("actions", "learner", handler, batch=3, max_retries=0)
    await settled(event_bus)
    assert [expected] == SEEN
    await event_bus.publish(an_event(9))
    await settled(event_bus)
    assert len(SEEN[1]) == 1


@pytest.mark.parametrize(
    "handler",
    [
        "not callable",
        None,
        lambda: None,
        lambda a, b, c: None,
        lambda *, event: None,
    ],
)
async def test_what_cannot_be_called_with_an_event_is_refused(event_bus: EventBus, handler: Any) -> None:
    """INVALID_MESSAGE: at once, and no group comes into being."""
    with pytest.raises(InvalidMessage):
        await event_bus.subscribe("actions", "learner", handler)
    assert await event_bus.store.groups() == []


def test_a_builtin_is_taken_as_it_is() -> None:
    """Contracts: `list.append` and the like take the event."""
    found: list[Any] = []
    shape = HandlerShape.of(found.append, batch=1)
    assert (shape.is_async, shape.takes_delivery) == (False, False)


def test_annotations_that_cannot_be_resolved_are_no_obstacle() -> None:
    """Contracts: names that only a type checker knows mean a plain event."""

    async def handler(event: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Annotated with what is not there."""

    assert HandlerShape.of(handler, batch=1).event_class is Event


async def test_a_payload_that_does_not_fit_the_model_is_a_failed_attempt(event_bus: EventBus) -> None:
    """E3: the handler's annotation is checked per delivery; what does not fit ends in the DLQ with the reason."""
    await event_bus.subscribe("actions", "learner", typed, max_retries=0)
    await event_bus.publish(Event(an_event().meta, {"n": "seven"}))
    await settled(event_bus)
    [dead] = await event_bus.dlq.list()
    assert "payload.n" in dead.errors[0]
    assert "Reading" in dead.errors[0]


# -- W11: filters ------------------------------------------------------------------------------------------------------


async def test_filtered_events_are_settled_with_the_reason(event_bus: EventBus) -> None:
    """W11: what a filter refuses is counted and never comes again."""
    collector = Collector()
    filters = [SimpleFilter("payload.n", 2, "gt"), SimpleFilter("meta.priority", "high", "exact")]
    await event_bus.subscribe("actions", "learner", collector, filters=filters)
    await event_bus.publish_many([an_event(number, priority="high" if number % 2 else "low") for number in range(8)])
    await settled(event_bus)
    assert collector.numbers == [3, 5, 7]
    stats = group_of(event_bus, "learner")
    assert (stats["filtered"], stats["acked"], stats["lag"]) == (5, 3, 0)


async def test_a_batch_is_filtered_event_by_event(event_bus: EventBus) -> None:
    """W11: the handler gets what is left, as one batch, or is not called at all."""
    SEEN.clear()
    only_even = CustomFunctionFilter(lambda event: event.payload["n"] % 2 == 0, name="even")
    await event_bus.publish_many(some_events([1, 2, 3, 4]))
    await event_bus.subscribe("actions", "learner", batch_async, filters=[only_even], batch=4)
    await settled(event_bus)
    await event_bus.publish_many(some_events([5, 7]))
    await settled(event_bus)
    assert SEEN == [[2, 4]]
    assert group_of(event_bus, "learner")["filtered"] == 4


@pytest.mark.parametrize(
    "hostile",
    [
        SimpleFilter("payload.n", "a", "contains"),
        SimpleFilter("payload.missing.deeper", 1, "gt"),
        SimpleFilter("payload.text", 5, "lt"),
        JSONPathFilter("$.payload.n[?@.x > 1]"),
        CompoundFilter("AND", [SimpleFilter("payload.n", 1, "gt"), SimpleFilter("payload.n", 1, "exact")]),
    ],
)
async def test_a_declarative_filter_that_meets_a_wrong_type_does_not_match(event_bus: EventBus, hostile: Any) -> None:
    """W11: it never raises: the event is filtered, not failed."""
    await event_bus.subscribe("actions", "learner", Collector(), filters=[hostile], max_retries=0)
    await event_bus.publish(Event(an_event().meta, {"n": {"deep": None}, "text": "words"}))
    await settled(event_bus)
    assert group_of(event_bus, "learner")["filtered"] == 1
    assert await event_bus.dlq.list() == []


async def test_a_custom_filter_that_raises_is_a_failed_attempt(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W11: an error while deciding never settles: it is retried, and dies of its errors like any other."""
    calls = 0

    def moody(event: Event) -> bool:
        nonlocal calls
        calls += 1
        if event.payload["n"] == 1 or calls == 1:
            raise LookupError("cannot say")
        return True

    collector = Collector()
    only = CustomFunctionFilter(moody, name="moody")
    await timed_bus.subscribe("actions", "learner", collector, filters=[only], max_retries=1)
    await timed_bus.publish(an_event(0))
    await fake_clock.advance(10)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(10)
    assert collector.numbers == [0]
    [dead] = await timed_bus.dlq.list()
    assert (dead.offset, dead.errors) == (2, ("LookupError: cannot say",) * 2)


async def test_a_filter_may_be_async_and_cheap_ones_are_asked_first(event_bus: EventBus) -> None:
    """Contracts: filters answer at once or later; cost decides the order."""
    asked: list[str] = []

    class Probe:
        def __init__(self, name: str, cost: int, answer: bool) -> None:
            self.name, self.cost, self.answer = name, cost, answer

        async def matches(self, event: Event) -> bool:
            asked.append(self.name)
            return self.answer

        def describe(self) -> dict[str, Any]:
            return {"probe": self.name}

    probes = [Probe("dear", 100, True), Probe("cheap", 1, False), Probe("middling", 10, True)]
    collector = Collector()
    await event_bus.subscribe("actions", "learner", collector, filters=probes)
    await event_bus.publish(an_event(1))
    await settled(event_bus)
    assert (asked, collector.numbers) == (["cheap"], [])


def test_a_delivery_knows_its_round() -> None:
    """W14: a dead letter's retry has an identity of its own."""
    first = Delivered("home", "actions", 7, 0, "learner", 1, lambda seconds: None)
    retry = Delivered("home", "actions", 7, 2, "learner", 1, lambda seconds: None)
    assert (first.identity, first.replayed) == ("home/actions/7", False)
    assert (retry.identity, retry.replayed) == ("home/actions/7#2", True)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_deadline_is_not_extended_by_nonsense(seconds: float) -> None:
    """W8: the error is raised where the mistake is."""
    with pytest.raises(InvalidMessage):
        Delivered("home", "actions", 7, 0, "learner", 1, lambda seconds: None).extend(seconds)


async def test_one_handler_may_serve_many_groups(event_bus: EventBus, recorder: Recorder) -> None:
    """Contracts: a handler has no state of the bus's; the delivery says for whom it is called."""
    for group in ("first", "second", "third"):
        await event_bus.subscribe("actions", group, recorder)
    await event_bus.publish(an_event(1))
    await settled(event_bus)
    assert sorted(one.group for one in recorder.deliveries) == ["first", "second", "third"]
