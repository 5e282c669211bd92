"""Closing: drains, saves, lets go; whoever calls it, whenever, however often (rule W17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.errors import BusClosed, error_code_of
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, Nack
from tests.events.bus_support import (
    PATIENCE_S,
    Collector,
    Held,
    an_event,
    disk_bus,
    history,
    killed,
    settled,
    some_events,
    until,
)


async def test_close_lets_what_is_in_flight_finish(tmp_path: Path) -> None:
    """W17: queued and running events are worked off before the bus lets go, and stay settled."""
    held = Held()
    bus = disk_bus(tmp_path / "w")
    await bus.subscribe("actions", "learner", held, workers=2)
    await bus.publish_many(some_events(range(10)))
    await until(lambda: len(held.begun) == 2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bus.close)
        await until(lambda: bus.health().state == "closing")
        held.let_go()
    assert sorted(held.ended) == list(range(10))
    again = Collector()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", again)
        await settled(bus)
    assert again.numbers == []


async def test_a_closed_bus_refuses_by_code(tmp_path: Path) -> None:
    """BUS_CLOSED (W18): publish, subscribe, replay and the rest say so, and why not."""
    bus = disk_bus(tmp_path / "w")
    await bus.start()
    publisher = bus.publisher(topic="actions", type="NOTED", space_id="home")
    await bus.close()
    calls: list[Any] = [
        lambda: bus.publish(an_event()),
        lambda: bus.publish_many([an_event()]),
        lambda: publisher.publish({}),
        lambda: bus.subscribe("actions", "learner", Collector()),
        lambda: bus.delete_group("learner"),
        lambda: history(bus),
        lambda: bus.wait_settled(),
        lambda: bus.start(),
    ]
    for call in calls:
        with pytest.raises(BusClosed) as refused:
            await call()
        assert error_code_of(refused.value) == "BUS_CLOSED"


async def test_closing_twice_and_from_many_tasks_is_one_close(tmp_path: Path) -> None:
    """W17: everybody who calls `close` returns when the workspace is free, the second time at once."""
    bus = disk_bus(tmp_path / "w")
    await bus.publish(an_event())
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(bus.close)
    await bus.close()
    async with disk_bus(tmp_path / "w") as other:
        assert len(await history(other)) == 1


async def test_closing_while_others_publish_loses_no_receipt(tmp_path: Path) -> None:
    """W17, S1: a publish beside a close either returns and is there, or is refused as closed."""
    bus = disk_bus(tmp_path / "w")
    await bus.subscribe("actions", "learner", Collector())
    receipts: list[int] = []
    refusals: list[str | None] = []

    async def publish() -> None:
        try:
            while True:
                receipts.append((await bus.publish(an_event())).offset)
        except Exception as error:
            refusals.append(error_code_of(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(publish)
        await until(lambda: len(receipts) > 50)
        await bus.close()
    assert refusals == ["BUS_CLOSED"] * 20
    async with disk_bus(tmp_path / "w") as other:
        there = [record.offset for record in await history(other)]
    assert there == list(range(1, len(there) + 1))
    assert set(receipts) <= set(there)


async def test_closing_while_publishers_wait_for_room(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W17, W12: a publisher that waits for room is let go; what it got a receipt for is there."""
    held = Held()
    await timed_bus.subscribe("actions", "learner", held, max_inflight=1)
    await fake_clock.advance(0)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    outcomes: list[Any] = []

    async def publish() -> None:
        try:
            outcomes.append(await timed_bus.publish(an_event(2)))
        except BusClosed as closed:
            outcomes.append(closed.code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        await fake_clock.advance(0)
        assert outcomes == []
        tasks.start_soon(timed_bus.close, 0)
        await fake_clock.advance(1)
    assert len(outcomes) == 1
    assert timed_bus.health().state == "closed"


async def test_a_handler_may_close_the_bus(tmp_path: Path) -> None:
    """W17: from inside a handler `close` returns at once and happens behind it; the event counts as handled."""
    bus = disk_bus(tmp_path / "w")
    seen: list[int] = []

    async def last(event: Event) -> None:
        seen.append(event.payload["n"])
        await bus.close()

    await bus.subscribe("actions", "learner", last)
    await bus.publish(an_event(1))
    await until(lambda: seen)
    with anyio.fail_after(PATIENCE_S):
        await bus.close()
    assert seen == [1]
    again = Collector()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", again)
        await settled(bus)
    assert again.numbers == []


async def test_what_does_not_finish_in_time_is_released_without_charge(tmp_path: Path) -> None:
    """W17: at the timeout handlers are cancelled; their events come again, as if never attempted."""
    held = Held()
    bus = disk_bus(tmp_path / "w")
    await bus.subscribe("actions", "learner", held, workers=3, max_retries=0)
    await bus.publish_many(some_events(range(5)))
    await until(lambda: len(held.begun) == 3)
    await bus.close(timeout_s=0.05)
    assert held.ended == []
    recorder = Recorder()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", recorder, max_retries=0)
        await settled(bus)
        assert await bus.dlq.list() == []
    assert [(one.offset, one.attempt) for one in recorder.deliveries] == [(offset, 1) for offset in range(1, 6)]


async def test_a_release_after_a_crash_charges_nothing_either(tmp_path: Path) -> None:
    """W6, W17: attempts that were written down before their handler started are taken back by a clean close."""
    held = Held()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", held, workers=2)
        await bus.publish_many(some_events(range(2)))
        await until(lambda: len(held.begun) == 2)
        copy = killed(tmp_path / "w")
        held.let_go()
    again = Held()
    bus = disk_bus(copy)
    await bus.subscribe("actions", "learner", again, workers=2)
    await until(lambda: len(again.begun) == 2)
    await bus.close(timeout_s=0.02)
    recorder = Recorder()
    async with disk_bus(copy) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await settled(bus)
    assert sorted((one.offset, one.attempt) for one in recorder.deliveries) == [(1, 1), (2, 1)]


async def test_close_does_not_wait_for_what_backs_off(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W17: draining is about what is queued or running; a retry that is due in an hour is left to the next start."""

    async def fail(event: Event) -> Nack:
        return Nack(delay=3600)

    await timed_bus.subscribe("actions", "learner", fail)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(1)
    with anyio.fail_after(PATIENCE_S):
        await timed_bus.close()
    assert timed_bus.health().state == "closed"


async def test_what_falls_due_during_a_close_is_left_alone(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W17: while the bus drains nothing new is read, and it does not spin over what is due."""
    held = Held()
    failures: list[int] = []

    async def fail(event: Event) -> Nack | None:
        failures.append(event.payload["n"])
        return Nack(delay=2)

    await timed_bus.subscribe("actions", "holds", held)
    await timed_bus.subscribe("actions", "fails", fail)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    assert failures == [1]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(timed_bus.close)
        with anyio.fail_after(PATIENCE_S):
            await fake_clock.advance(5)
        assert failures == [1]
        assert timed_bus.health().state == "closing"
        held.let_go()
    assert held.ended == [1]


async def test_a_handler_may_publish_while_the_bus_closes(tmp_path: Path) -> None:
    """W17: what a running handler still has to say is taken, so that it can finish; others are refused."""
    bus = disk_bus(tmp_path / "w")
    go = anyio.Event()
    begun = anyio.Event()

    async def handler(event: Event) -> None:
        begun.set()
        await go.wait()
        await bus.publish(an_event(2, topic="results"))

    await bus.subscribe("actions", "worker", handler)
    await bus.publish(an_event(1))
    await begun.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bus.close)
        await until(lambda: bus.health().state == "closing")
        with pytest.raises(BusClosed):
            await bus.publish(an_event(3))
        with pytest.raises(BusClosed):
            await bus.subscribe("actions", "late", Collector())
        go.set()
    async with disk_bus(tmp_path / "w") as other:
        assert [record.event.payload["n"] for record in await history(other, "results")] == [2]


async def test_subscribing_beside_a_close_is_refused_or_closed_with_the_rest(tmp_path: Path) -> None:
    """W17: a subscription that races with a close leaves no group running and nothing half done."""
    for round in range(10):
        bus = disk_bus(tmp_path / "w")
        await bus.start()
        refused: list[str | None] = []

        async def subscribe(bus: EventBus = bus, refused: list[str | None] = refused) -> None:
            try:
                await bus.subscribe("actions", "learner", Collector())
            except Exception as error:
                refused.append(error_code_of(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(subscribe)
            for _ in range(round):
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(bus.close)
        assert bus.health().problems == ()
        assert set(refused) <= {"BUS_CLOSED"}


async def test_leaving_the_block_by_an_error_closes_the_bus(tmp_path: Path) -> None:
    """`async with`: an error in the block does not keep the workspace locked, and stays the error."""
    bus = disk_bus(tmp_path / "w")

    async def break_off() -> None:
        async with bus:
            await bus.publish(an_event(1))
            raise LookupError("mine")

    with pytest.raises(LookupError):
        await break_off()
    assert bus.health().state == "closed"


async def test_a_cancelled_close_still_closes(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W17: whoever stops waiting for `close` does not stop it."""
    held = Held()
    await timed_bus.subscribe("actions", "learner", held)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(timed_bus.close)
            await fake_clock.advance(0)
            scope.cancel()
    assert timed_bus.health().state == "closing"
    held.let_go()
    await timed_bus.close()
    assert held.ended == [1]
    assert timed_bus.health().state == "closed"


async def test_a_handler_of_one_bus_may_run_and_close_another(tmp_path: Path) -> None:
    """W17: only the bus that runs the handler closes behind it; any other is closed when `close` returns."""
    done: list[int] = []

    async def handler(event: Event) -> None:
        for _ in range(2):
            async with disk_bus(tmp_path / "inner") as inner:
                await inner.publish(an_event(1))
        done.append(event.payload["n"])

    config = BusConfig(max_retries=0)
    async with EventBus(store=MemoryStore(), config=config) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(an_event(1))
        await settled(bus)
    assert done == [1]


async def test_whoever_waits_for_the_bus_to_settle_hears_of_its_end(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W17: `wait_settled` neither hangs on a bus that closes nor calls it settled; on a group that left, it goes on."""
    held = Held()
    leaving = await timed_bus.subscribe("actions", "leaving", held)
    await timed_bus.publish(an_event(1))
    outcomes: list[str] = []

    async def wait() -> None:
        try:
            await timed_bus.wait_settled()
            outcomes.append("settled")
        except BusClosed as closed:
            outcomes.append(closed.code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await fake_clock.advance(0)
        await timed_bus.unsubscribe(leaving)
        await fake_clock.advance(0)
        assert outcomes == ["settled"]
        await timed_bus.subscribe("actions", "staying", held)
        await fake_clock.advance(0)
        tasks.start_soon(wait)
        await fake_clock.advance(0)
        await timed_bus.close(timeout_s=0)
    assert outcomes == ["settled", "BUS_CLOSED"]
