"""Workers: deadlines and what they do to a handler, time to live, handlers that block a thread, isolation."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.clock import AnchoredClock
from events.config import BusConfig
from events.contracts import Delivery
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, Nack, QoS
from tests.events.bus_support import (
    PATIENCE_S,
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    settled,
    some_events,
    until,
)

HOUR = 3600.0
DECADE = 10 * 365.25 * 86_400

# -- W8: the deadline ------------------------------------------------------------------------------------------------


async def test_a_handler_past_its_deadline_is_cancelled_and_the_attempt_failed(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W8: the deadline counts from the start of the handler; cleaning up is its own business."""
    notes: list[tuple[str, float]] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        notes.append((f"begin {delivery.attempt}", fake_clock.monotonic()))
        try:
            await anyio.sleep_forever()
        finally:
            notes.append((f"end {delivery.attempt}", fake_clock.monotonic()))

    await timed_bus.subscribe("actions", "learner", handler, ack_deadline_s=5, max_retries=1, backoff_base=0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(4.9)
    assert [note for note, _ in notes] == ["begin 1"]
    await fake_clock.advance(20)
    assert [note for note, _ in notes] == ["begin 1", "end 1", "begin 2", "end 2"]
    assert notes[1][1] == 5
    assert notes[3][1] - notes[2][1] == 5
    [dead] = await timed_bus.dlq.list()
    assert dead.errors == ("the ack deadline passed",) * 2
    assert timed_bus.health().ok


async def test_waiting_in_the_queue_does_not_count_against_the_deadline(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W8: an event that waits for a worker for an hour still has its whole deadline."""
    collector = Collector()

    async def handler(event: Event) -> None:
        await fake_clock.sleep(3)
        await collector(event)

    await timed_bus.subscribe("actions", "learner", handler, ack_deadline_s=5, workers=1)
    await timed_bus.publish_many(some_events(range(10)))
    await fake_clock.advance(60)
    assert collector.numbers == list(range(10))
    assert "failed" not in group_of(timed_bus, "learner")


async def test_a_handler_that_extends_its_deadline_is_not_run_twice(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W8: `extend` moves the deadline to that many seconds from now, any number of times."""
    runs: list[int] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        for _ in range(10):
            delivery.extend(5)
            await fake_clock.sleep(4)

    await timed_bus.subscribe("actions", "learner", handler, ack_deadline_s=2)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(100)
    await settled(timed_bus)
    assert runs == [1]


async def test_an_extension_may_also_bring_the_deadline_nearer_and_runs_out(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W8: once extended, the new moment counts, not the one from the settings."""
    ends: list[float] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        delivery.extend(1)
        try:
            await anyio.sleep_forever()
        finally:
            ends.append(fake_clock.monotonic())

    await timed_bus.subscribe("actions", "learner", handler, ack_deadline_s=50, max_retries=0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(100)
    assert ends == [1]


async def test_a_plain_function_may_extend_its_deadline_from_its_thread(tmp_path: Path) -> None:
    """W8: `extend` works from the worker thread too, so a long synchronous call is not run twice."""
    runs: list[int] = []

    def handler(event: Event, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        delivery.extend(60)
        time.sleep(0.15)

    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", handler, ack_deadline_s=0.05)
        await bus.publish(an_event(1))
        await settled(bus)
        assert "failed" not in group_of(bus, "learner")
    assert runs == [1]


async def test_an_extension_that_comes_too_late_moves_nobody_elses_deadline(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W8: a delivery that is over cannot keep the worker's next one alive."""
    deliveries: list[Delivery] = []
    ends: list[float] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        deliveries.append(delivery)
        if len(deliveries) == 2:
            deliveries[0].extend(1000)
            try:
                await anyio.sleep_forever()
            finally:
                ends.append(fake_clock.monotonic())

    await timed_bus.subscribe("actions", "learner", handler, ack_deadline_s=5, max_retries=0)
    await timed_bus.publish_many(some_events(range(2)))
    await fake_clock.advance(100)
    assert ends == [5]


async def test_a_handler_that_swallows_its_cancellation_has_failed_all_the_same(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W8: returning after the deadline is no ack, and the worker goes on with the next event."""
    seen: list[tuple[int, int]] = []

    async def stubborn(event: Event, delivery: Delivery) -> None:
        seen.append((event.payload["n"], delivery.attempt))
        if event.payload["n"] == 1:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                return  # swallowing it is what this test is about

    await timed_bus.subscribe("actions", "learner", stubborn, ack_deadline_s=5, max_retries=1, backoff_base=0)
    await timed_bus.publish_many(some_events([1, 2, 3]))
    await fake_clock.advance(60)
    await settled(timed_bus)
    assert sorted(seen) == [(1, 1), (1, 2), (2, 1), (3, 1)]
    assert [dead.offset for dead in await timed_bus.dlq.list()] == [1]


async def test_an_event_may_bring_its_own_deadline(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W8: `qos.ack_deadline_s` counts where the subscription has none."""
    recorder = Recorder()
    begun: list[int] = []

    async def handler(event: Event) -> None:
        begun.append(event.payload["n"])
        await anyio.sleep_forever()

    await timed_bus.subscribe("actions", "with", handler, ack_deadline_s=10, max_retries=0)
    await timed_bus.subscribe("actions", "without", handler, max_retries=0)
    await timed_bus.subscribe("actions", "quick", recorder)
    await timed_bus.publish(an_event(1, qos=QoS(ack_deadline_s=2)))
    await fake_clock.advance(5)
    assert [dead.group for dead in await timed_bus.dlq.list()] == ["without"]
    await fake_clock.advance(6)
    assert sorted(dead.group for dead in await timed_bus.dlq.list()) == ["with", "without"]


async def test_a_plain_function_past_its_deadline_keeps_its_worker_and_its_lane(tmp_path: Path) -> None:
    """W8: a thread cannot be cancelled. `health` reports it, followers of its key wait, other keys go on."""
    let_go = threading.Event()
    order: list[tuple[str, int]] = []

    def handler(event: Event, delivery: Delivery) -> None:
        if event.payload["n"] == 0 and delivery.attempt == 1:
            let_go.wait(PATIENCE_S)
        order.append((str(event.meta.key), event.payload["n"]))

    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", handler, ack_deadline_s=0.05, workers=2)
        await bus.publish_many([an_event(0, key="slow"), an_event(1, key="slow"), an_event(2, key="other")])
        await until(lambda: not bus.health().ok)
        assert bus.health().problems == ("group learner: 1 handlers are past their deadline",)
        assert group_of(bus, "learner")["late"] == 1
        await until(lambda: ("other", 2) in order)
        await bus.publish(an_event(3, key="other"))
        await until(lambda: ("other", 3) in order)
        assert order == [("other", 2), ("other", 3)]
        let_go.set()
        await settled(bus)
        assert bus.health().ok
        assert group_of(bus, "learner")["late"] == 0
    assert [number for key, number in order if key == "slow"] == [0, 0, 1]


async def test_an_exception_that_looks_like_a_cancellation_is_a_failure(
    timed_bus: EventBus, fake_clock: FakeClock, anyio_backend_name: str
) -> None:
    """W8: a handler whose own task was cancelled inside fails; the worker lives on."""
    seen: list[int] = []

    async def handler(event: Event) -> None:
        seen.append(event.payload["n"])
        if event.payload["n"] == 1:
            if anyio_backend_name == "trio":
                raise RuntimeError("trio lets nobody raise its Cancelled")
            raise anyio.get_cancelled_exc_class()("from inside")

    await timed_bus.subscribe("actions", "learner", handler, max_retries=0)
    await timed_bus.publish_many(some_events([1, 2]))
    await settled(timed_bus)
    assert seen == [1, 2]
    assert [dead.offset for dead in await timed_bus.dlq.list()] == [1]


async def test_more_handlers_than_threads_wait_their_turn(tmp_path: Path) -> None:
    """Plain functions share the bus's own threads; there are never more than the settings say."""
    running = 0
    peak = 0
    lock = threading.Lock()

    def handler(event: Event) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    async with disk_bus(tmp_path / "w", sync_handler_threads=3) as bus:
        await bus.subscribe("actions", "learner", handler, workers=10)
        await bus.publish_many(some_events(range(30)))
        await settled(bus)
    assert peak == 3


async def test_workers_of_a_group_run_side_by_side(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """Step 7: N workers are N handlers at a time, no more and no fewer."""
    held = Held()
    await timed_bus.subscribe("actions", "learner", held, workers=3)
    await timed_bus.publish_many(some_events(range(10)))
    await fake_clock.advance(0)
    assert held.begun == [0, 1, 2]
    held.let_go()
    await settled(timed_bus)
    assert sorted(held.ended) == list(range(10))


async def test_a_handler_that_never_awaits_leaves_room_for_others(event_bus: EventBus) -> None:
    """M: workers drain without a trip through the loop per event, but stay fair to everybody else on it."""
    collector = Collector()
    seen_by_others: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def other() -> None:
            while len(collector.numbers) < 5000:
                seen_by_others.append(len(collector.numbers))
                await anyio.lowlevel.checkpoint()

        await event_bus.subscribe("actions", "learner", collector, max_inflight=10_000)
        await event_bus.publish_many(some_events(range(5000)))
        tasks.start_soon(other)
        await settled(event_bus)
    assert len(set(seen_by_others)) > 10


async def test_a_worker_survives_whatever_its_handler_does(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """L: exceptions, exception groups and errors of the interpreter are failed attempts, each of them."""
    errors: list[Exception] = [
        ValueError("x"),
        ExceptionGroup("several", [KeyError("a"), TypeError("b")]),
        RecursionError("deep"),
        MemoryError(),
        StopIteration(),
        AssertionError(),
    ]

    async def handler(event: Event) -> None:
        number = event.payload["n"]
        if number < len(errors):
            raise errors[number]

    await timed_bus.subscribe("actions", "learner", handler, max_retries=0)
    await timed_bus.publish_many(some_events(range(len(errors) + 1)))
    await settled(timed_bus)
    stats = group_of(timed_bus, "learner")
    assert (stats["dead"], stats["acked"]) == (len(errors), 1)
    assert timed_bus.health().ok


# -- W9: time to live -----------------------------------------------------------------------------------------------


def _made_now(clock: FakeClock, number: int, ttl_sec: float) -> Event:
    made = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    return an_event(number, ttl_sec=ttl_sec, ts=made)


@pytest.mark.parametrize(
    ("on_expired", "expected", "count", "dead"),
    [("drop", [2], "expired", []), ("dlq", [2], "dead", [1]), ("deliver", [1, 2], "acked", [])],
)
async def test_an_event_that_is_too_old_before_its_first_attempt(
    fake_clock: FakeClock, on_expired: Any, expected: list[int], count: str, dead: list[int]
) -> None:
    """W9: dropped and counted, buried, or delivered all the same, as the subscription wants it."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.publish(_made_now(fake_clock, 1, 10))
    await fake_clock.advance(10.5)
    await bus.publish(_made_now(fake_clock, 2, 10))
    await bus.subscribe("actions", "learner", collector, on_expired=on_expired)
    await settled(bus)
    assert collector.numbers == expected
    assert group_of(bus, "learner")[count] >= 1
    found = await bus.dlq.list()
    assert [(one.offset, one.reason, one.attempts) for one in found] == [(offset, "expired", 0) for offset in dead]
    await bus.close(timeout_s=0)


async def test_an_event_at_the_end_of_its_time_is_still_delivered(fake_clock: FakeClock) -> None:
    """W9: expired means older than its time to live, not as old."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.publish(_made_now(fake_clock, 1, 10))
    await fake_clock.advance(10)
    await bus.subscribe("actions", "learner", collector)
    await settled(bus)
    assert collector.numbers == [1]
    await bus.close(timeout_s=0)


async def test_age_counts_from_when_the_event_was_made(fake_clock: FakeClock) -> None:
    """W9: an event that was made long before it was published is as old as that."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", collector)
    old = _made_now(fake_clock, 1, 10)
    await fake_clock.advance(20)
    await bus.publish(old)
    await bus.publish(_made_now(fake_clock, 2, 10))
    await settled(bus)
    assert collector.numbers == [2]
    await bus.close(timeout_s=0)


async def test_a_retry_does_not_expire(fake_clock: FakeClock) -> None:
    """W9: time to live counts before the first attempt only; what was begun is brought to an end."""
    recorder = Recorder(lambda recorded: Nack(delay=100) if recorded.attempt < 3 else None)
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", recorder)
    await bus.publish(_made_now(fake_clock, 1, 10))
    await fake_clock.advance(300)
    await settled(bus)
    assert [one.attempt for one in recorder.deliveries] == [1, 2, 3]
    await bus.close(timeout_s=0)


async def test_an_event_may_expire_while_it_waits_for_a_worker(fake_clock: FakeClock) -> None:
    """W9: what counts is the age when the handler would start."""
    held = Held()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", held)
    await bus.publish_many([_made_now(fake_clock, 1, 10), _made_now(fake_clock, 2, 10)])
    await fake_clock.advance(30)
    held.let_go()
    await settled(bus)
    assert held.ended == [1]
    assert group_of(bus, "learner")["expired"] == 1
    await bus.close(timeout_s=0)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DECADE, -DECADE])
@pytest.mark.parametrize("when", ["before", "between", "after"])
async def test_no_jump_of_the_wall_clock_expires_an_event(fake_clock: FakeClock, jump: float, when: str) -> None:
    """W9: in process, age is measured on the monotonic clock: what is young stays so, and what is old is dropped."""
    held = Held()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", held)
    if when == "before":
        fake_clock.jump_wall(jump)
    await fake_clock.advance(1)
    await bus.publish_many([_made_now(fake_clock, 1, 60), _made_now(fake_clock, 2, 60), _made_now(fake_clock, 3, 5)])
    await fake_clock.advance(0)
    if when == "between":
        fake_clock.jump_wall(jump)
    await fake_clock.advance(20)
    held.let_go()
    if when == "after":
        fake_clock.jump_wall(jump)
    await settled(bus)
    assert held.ended == [1, 2]
    assert group_of(bus, "learner")["expired"] == 1
    await bus.close(timeout_s=0)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, DECADE, -DECADE])
async def test_no_jump_of_the_real_clock_expires_an_event(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """W9: the same with the clock that is used in earnest, whose wall clock jumps under it."""
    shift_ns = 0
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + shift_ns)
    clock = AnchoredClock()
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=clock), config=BusConfig())

    def made_now(number: int) -> Event:
        return an_event(number, ttl_sec=60, ts=datetime.fromtimestamp(time.time_ns() / 1e9, UTC))

    await bus.publish(made_now(1))
    shift_ns = int(jump * 1e9)
    await bus.publish(made_now(2))
    shift_ns = 0
    await bus.publish(made_now(3))
    await bus.subscribe("actions", "learner", collector)
    await settled(bus)
    assert collector.numbers == [1, 2, 3]
    await bus.close()
