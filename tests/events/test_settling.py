"""How deliveries end: retries and what they wait, giving up, and what each end is called."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import DeadLetter, Delivery, Hop, HopResult, Next, Settlement, Skip
from events.errors import InvalidMessage
from events.persistence.memory import MemoryStore
from events.persistence.store import Store
from events.testing.clock import FakeClock
from events.testing.faulty import FaultyStore
from events.testing.recording import Recorded, Recorder
from events.types import Ack, Event, Nack, QoS
from tests.events.bus_support import Collector, an_event, disk_bus, group_of, settled, some_events, until


def _has(found: list[int], number: int) -> bool:
    return len(found) == number


async def _delays(
    bus: EventBus, clock: FakeClock, times: int, nack: Nack | None = None, **settings: Any
) -> list[float]:
    """How long each of some retries was waited for."""
    moments: list[float] = []

    async def fail(event: Event, delivery: Delivery) -> Nack | None:
        moments.append(clock.monotonic())
        assert delivery.attempt == len(moments)
        if len(moments) > times:
            return None
        if nack is not None:
            return nack
        raise LookupError("again")

    await bus.subscribe("actions", "learner", fail, **settings)
    await bus.publish(an_event())
    await clock.advance(10_000)
    assert len(moments) == times + 1
    return [after - before for before, after in pairwise(moments)]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_retries_wait_with_full_jitter_and_a_ceiling(
    timed_bus: EventBus, fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """W6: after failure i the wait is drawn from 0 to min(base * mult**i, max): 0.5, 1, 2, 4, 8, 16, 30, 30 s."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low + share * (high - low))
    delays = await _delays(timed_bus, fake_clock, 8, max_retries=10)
    assert delays == pytest.approx([share * ceiling for ceiling in (0.5, 1, 2, 4, 8, 16, 30, 30)], abs=0.002)


async def test_retries_wait_at_random(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W6: real draws stay below the ceiling and differ from each other."""
    settings: dict[str, Any] = {"backoff_base": 10.0, "backoff_mult": 1.0, "backoff_max": 10.0, "max_retries": 50}
    delays = await _delays(timed_bus, fake_clock, 40, **settings)
    assert all(0 <= delay <= 10.001 for delay in delays)
    assert len({round(delay, 2) for delay in delays}) > 20


@pytest.mark.parametrize("settings", [{"backoff_mult": 1e9}, {"backoff_base": 1e300, "backoff_mult": 1e300}])
async def test_no_number_of_failures_overflows_the_exponent(
    timed_bus: EventBus, fake_clock: FakeClock, settings: dict[str, Any]
) -> None:
    """W6: the exponent is capped, so the hundredth failure waits as the tenth did."""
    delays = await _delays(timed_bus, fake_clock, 100, max_retries=200, backoff_max=3.0, **settings)
    assert max(delays) <= 3.001


async def test_after_the_last_retry_the_event_is_dead(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W6: `max_retries` retries after the first attempt, and every attempt's error is kept."""
    recorder = Recorder(lambda recorded: Nack(f"no {recorded.attempt}"))
    await timed_bus.subscribe("actions", "learner", recorder, max_retries=3)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(100)
    assert [one.attempt for one in recorder.deliveries] == [1, 2, 3, 4]
    [dead] = await timed_bus.dlq.list()
    assert (dead.reason, dead.attempts, dead.errors) == (
        "retries exhausted",
        4,
        ("no 1", "no 2", "no 3", "no 4"),
    )
    assert (group_of(timed_bus, "learner")["failed"], group_of(timed_bus, "learner")["dead"]) == (4, 1)


async def test_without_retries_the_first_failure_is_the_end(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W6: `max_retries=0` means one attempt."""
    recorder = Recorder(lambda recorded: Nack())
    await timed_bus.subscribe("actions", "learner", recorder, max_retries=0)
    await timed_bus.publish(an_event(1))
    await settled(timed_bus)
    assert [dead.errors for dead in await timed_bus.dlq.list()] == [("nack",)]
    assert recorder.offsets == [1]


async def test_a_producer_may_ask_for_fewer_retries_but_not_for_more(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W6: `qos.max_retries` is a wish; the subscription's own limit comes first."""
    recorder = Recorder(lambda recorded: Nack())
    await timed_bus.subscribe("actions", "learner", recorder, max_retries=2)
    await timed_bus.publish(an_event(1, qos=QoS(max_retries=0)))
    await timed_bus.publish(an_event(2, qos=QoS(max_retries=99)))
    await fake_clock.advance(100)
    assert sorted(recorder.offsets) == [1, 2, 2, 2]


async def test_a_nack_may_say_how_long_to_wait(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W6: `Nack(delay=)` replaces the back-off, also beyond its maximum."""
    assert await _delays(timed_bus, fake_clock, 3, Nack(delay=120.0)) == [120.0] * 3


async def test_a_nack_may_be_free_of_charge(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W6: `Nack(count=False)` charges no attempt, so waiting for something else never ends in the DLQ."""
    recorder = Recorder(lambda recorded: Nack("not yet", delay=1, count=False) if fake_clock.monotonic() < 50 else None)
    await timed_bus.subscribe("actions", "learner", recorder, max_retries=1)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(60)
    await settled(timed_bus)
    assert len(recorder.deliveries) == 51
    assert {one.attempt for one in recorder.deliveries} == {1}
    assert await timed_bus.dlq.list() == []


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf"), "soon"])
async def test_a_wait_that_makes_no_sense_is_a_failed_attempt(
    timed_bus: EventBus, fake_clock: FakeClock, delay: Any
) -> None:
    """E4: a handler cannot stop the bus by the number that it puts into its Nack."""
    with pytest.raises(InvalidMessage):
        Nack(delay=delay)
    attempts: list[int] = []

    async def handler(event: Event, delivery: Delivery) -> Nack | None:
        attempts.append(delivery.attempt)
        return Nack(delay=delay) if len(attempts) == 1 else None

    await timed_bus.subscribe("actions", "learner", handler)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(100)
    assert attempts == [1, 2]
    assert timed_bus.health().ok


async def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    """W6: the count, the errors and the wait go on where they were; a third process does not start over."""
    attempts: list[int] = []

    def verdict(recorded: Recorded) -> Nack:
        attempts.append(recorded.attempt)
        return Nack(f"failure {recorded.attempt}", delay=0 if len(attempts) % 2 else 3600)

    async with disk_bus(tmp_path / "w") as bus:
        await bus.publish(an_event(1))
    for failures in (2, 4):
        async with disk_bus(tmp_path / "w") as bus:
            await bus.subscribe("actions", "learner", Recorder(verdict), max_retries=4)
            await until(partial(_has, attempts, failures))
        await _end_waits(tmp_path / "w")
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", Recorder(verdict), max_retries=4)
        await settled(bus)
        [dead] = await bus.dlq.list()
    assert attempts == [1, 2, 3, 4, 5]
    assert dead.errors == tuple(f"failure {number}" for number in range(1, 6))


async def _end_waits(workspace: Path) -> None:
    """Rewrite the checkpoint as if the hour were over: it outlives a restart."""
    from dataclasses import replace

    from events.persistence.store import LogName
    from events.persistence.wal import WalStore

    store = WalStore(workspace)
    await store.open(lambda log, records: None)
    name = LogName("home", "actions")
    checkpoint = await store.load_checkpoint(name, "learner")
    assert checkpoint is not None
    held = {offset: replace(one, due_ms=0) for offset, one in checkpoint.attempts.items()}
    assert held
    await store.save_checkpoint(name, "learner", replace(checkpoint, attempts=held))
    await store.close()


async def test_a_wait_goes_on_after_a_restart_and_is_never_longer_than_it_was() -> None:
    """W6, RELIABILITY: what is left of a wait is waited; no clock makes it longer than the original."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    moments: list[float] = []

    async def fail(event: Event) -> Nack | None:
        moments.append(clock.monotonic())
        return Nack(delay=100) if len(moments) == 1 else None

    bus = EventBus(store=store)
    await bus.subscribe("actions", "learner", fail)
    await bus.publish(an_event(1))
    await clock.advance(30)
    await bus.close(timeout_s=0)
    bus = EventBus(store=store)
    await bus.subscribe("actions", "learner", fail)
    await clock.advance(1000)
    await bus.close(timeout_s=0)
    assert moments == [0, 100]
    # Another process, whose wall clock went back ten years: the wait is a hundred seconds again, and no more.
    moments.clear()
    bus = EventBus(store=store)
    await bus.subscribe("actions", "learner", fail)
    await bus.publish(an_event(2))
    await clock.advance(30)
    await bus.close(timeout_s=0)
    store.clock = later = FakeClock(now_ms=clock.now_ms() - 10 * 365 * 86_400_000)
    bus = EventBus(store=store)
    again: list[float] = []

    async def note(event: Event) -> None:
        again.append(later.monotonic())

    await bus.subscribe("actions", "learner", note)
    await later.advance(1000)
    await bus.close(timeout_s=0)
    assert again == [100]


async def test_a_handler_must_return_a_verdict_or_nothing(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """E4: None and Ack settle; anything unknown is a failed attempt that says what it was."""
    results: dict[int, Any] = {1: None, 2: Ack(), 3: "done", 4: True}

    async def handler(event: Event) -> Any:
        return results[event.payload["n"]]

    await timed_bus.subscribe("actions", "learner", handler, max_retries=0)
    await timed_bus.publish_many(some_events(results))
    await settled(timed_bus)
    assert {dead.offset: dead.errors for dead in await timed_bus.dlq.list()} == {
        3: ("the handler returned str; it may return Ack(), Nack() or None",),
        4: ("the handler returned bool; it may return Ack(), Nack() or None",),
    }


async def test_a_verdict_may_settle_with_a_reason_or_bury_at_once(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W11: `Skip` settles and counts its reason; `DeadLetter` needs no retries."""
    results = {1: Skip("duplicate"), 2: DeadLetter("not for us"), 3: Skip("denied")}

    async def handler(event: Event) -> Any:
        return results[event.payload["n"]]

    await timed_bus.subscribe("actions", "learner", handler)
    await timed_bus.publish_many(some_events(results))
    await settled(timed_bus)
    stats = group_of(timed_bus, "learner")
    assert (stats["duplicate"], stats["denied"], stats["dead"]) == (1, 1, 1)
    assert [(dead.offset, dead.reason, dead.attempts) for dead in await timed_bus.dlq.list()] == [(2, "not for us", 0)]


async def test_long_errors_are_cut(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """What a handler raises may be a megabyte; what is kept of it is bounded."""

    async def handler(event: Event) -> None:
        raise LookupError("x" * 1_000_000)

    await timed_bus.subscribe("actions", "learner", handler, max_retries=1)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(10)
    [dead] = await timed_bus.dlq.list()
    assert [len(error) for error in dead.errors] == [500, 500]


async def test_a_dead_letter_that_cannot_be_written_keeps_the_event(fake_clock: FakeClock) -> None:
    """W10: no dead letter, no settling: the event stays, is tried again, and dies once the disk lets it."""
    broken = True

    def trouble(operation: str) -> None:
        if broken and operation == "dead_letter":
            raise OSError(5, "injected")

    store = FaultyStore(MemoryStore(clock=fake_clock), trouble)
    bus = EventBus(store=cast(Store, store))
    recorder = Recorder(lambda recorded: Nack() if recorded.offset == 1 else None)
    await bus.subscribe("actions", "learner", recorder, max_retries=0, max_inflight=1)
    await bus.publish(an_event(1))
    await fake_clock.advance(5)
    assert "dead" not in group_of(bus, "learner")
    assert group_of(bus, "learner")["lag"] == 1
    await bus.publish(an_event(2), timeout_s=0)
    broken = False
    await fake_clock.advance(5)
    await settled(bus)
    assert [dead.offset for dead in await bus.dlq.list()] == [1]
    await bus.close(timeout_s=0)


@pytest.mark.parametrize("on_expired", ["dlq", "drop"])
async def test_dead_letters_that_fail_in_the_middle_of_a_batch_lose_nothing(
    fake_clock: FakeClock, on_expired: Any
) -> None:
    """W10, W5: a batch of one key whose members end in different ways, on a disk that refuses dead letters."""
    broken = True

    def trouble(operation: str) -> None:
        if broken and operation == "dead_letter":
            raise OSError(5, "injected")

    ends = {1: DeadLetter("first"), 2: None, 3: Nack("again"), 4: None}

    async def middleware(hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            return await call_next(hop)
        for delivery, event in zip(hop.deliveries, hop.events, strict=True):
            hop.verdicts[delivery] = ends[event.payload["n"]] if delivery.attempt == 1 or broken else None
        return await call_next(hop)

    collector = Collector()
    store = FaultyStore(MemoryStore(clock=fake_clock), trouble)
    bus = EventBus([middleware], store=cast(Store, store))
    await bus.publish_many(some_events(ends, key="k"))
    await bus.subscribe("actions", "learner", collector, batch=4, on_expired=on_expired)
    await fake_clock.advance(3)
    assert bus.health().ok
    broken = False
    await fake_clock.advance(200)
    await settled(bus)
    stats = group_of(bus, "learner")
    assert (stats["inflight"], stats["parked"], stats["lag"]) == (0, 0, 0)
    assert stats["acked"] + stats.get("dead", 0) >= 4
    await bus.close(timeout_s=0)


async def test_the_end_of_a_retried_dead_letter_that_cannot_be_written_is_tried_again(fake_clock: FakeClock) -> None:
    """W10: a disk that fails when a round ends neither stops the bus nor loses the round."""
    trouble_at: set[str] = set()

    def trouble(operation: str) -> None:
        if operation in trouble_at:
            raise OSError(5, "injected")

    fails = True
    recorder = Recorder(lambda recorded: Nack() if fails else None)
    bus = EventBus(store=cast(Store, FaultyStore(MemoryStore(clock=fake_clock), trouble)))
    await bus.subscribe("actions", "learner", recorder, max_retries=0)
    await bus.publish(an_event(1))
    await settled(bus)
    fails = False
    assert await bus.dlq.retry() == 1
    trouble_at.add("dead_letter")
    await fake_clock.advance(3)
    assert bus.health().ok
    trouble_at.clear()
    await fake_clock.advance(3)
    await settled(bus)
    assert await bus.dlq.list() == []
    await bus.close(timeout_s=0)


async def test_middleware_hears_how_each_delivery_ended(fake_clock: FakeClock) -> None:
    """`settled` tells outcome, reason and place of every event; a middleware that raises there changes nothing."""

    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[int, str, str | None]] = []

        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        def settled(self, settlements: Sequence[Settlement]) -> None:
            self.heard += [(one.offset, one.outcome, one.reason) for one in settlements]
            raise RuntimeError("and I break things")

    listener = Listener()
    results: dict[int, Any] = {1: None, 2: Skip("denied"), 3: DeadLetter("no"), 4: Nack("later", delay=1)}

    async def handler(event: Event) -> Any:
        return results.pop(event.payload["n"], None)

    bus = EventBus([listener], store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", handler)
    await bus.publish_many(some_events([1, 2, 3, 4]))
    await fake_clock.advance(10)
    assert listener.heard == [
        (1, "acked", None),
        (2, "denied", None),
        (3, "dead", "no"),
        (4, "retry", "later"),
        (4, "acked", None),
    ]
    await bus.close(timeout_s=0)


async def test_each_failed_attempt_is_logged_once(
    timed_bus: EventBus, fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The last attempt too, and then that the event was given up."""
    recorder = Recorder(lambda recorded: Nack("no"))
    await timed_bus.subscribe("actions", "learner", recorder, max_retries=2)
    with caplog.at_level(logging.INFO, logger="events"):
        await timed_bus.publish(an_event(1))
        await fake_clock.advance(100)
    attempts = [vars(record)["attempt"] for record in caplog.records if hasattr(record, "attempt")]
    assert attempts == [1, 2, 3]
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1


def test_defaults_are_those_of_the_design() -> None:
    """W6: 0.5 s, doubled each time, at most 30 s, five retries."""
    config = BusConfig()
    assert (config.backoff_base, config.backoff_mult, config.backoff_max, config.max_retries) == (0.5, 2.0, 30.0, 5)
