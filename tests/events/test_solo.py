"""One alone or many together: how what was running in a crash is tried again by itself."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from events.contracts import Delivery
from events.solo import Solo
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event
from tests.events.bus_support import Held, an_event, disk_bus, killed, settled, some_events, until


async def test_many_run_together(fake_clock: FakeClock) -> None:
    """W6: on a clean run nobody waits for anybody."""
    solo = Solo(fake_clock)
    for _ in range(3):
        await solo.enter_shared()
    for _ in range(3):
        solo.leave()
    assert not solo.is_taken


async def test_one_alone_waits_for_the_others_and_they_for_it(fake_clock: FakeClock) -> None:
    """W6: it begins when the last of them has left; who comes later waits until it has left."""
    solo = Solo(fake_clock)
    order: list[str] = []

    async def alone() -> None:
        assert await solo.enter_alone()
        order.append("alone begins")
        await fake_clock.sleep(1)
        order.append("alone ends")
        solo.leave_alone()

    async def shared(name: str) -> None:
        await solo.enter_shared()
        order.append(name)
        await fake_clock.sleep(1)
        order.append(f"{name} leaves")
        solo.leave()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared, "early")
        await fake_clock.advance(0)
        tasks.start_soon(alone)
        await fake_clock.advance(0)
        tasks.start_soon(shared, "late")
        await fake_clock.advance(0)
        assert order == ["early"]
        await fake_clock.advance(10)
    assert order == ["early", "early leaves", "alone begins", "alone ends", "late", "late leaves"]


async def test_alone_is_not_for_ever(fake_clock: FakeClock) -> None:
    """W6, L: who runs alone too long is joined by the others, so that nobody can wait for somebody who waits."""
    solo = Solo(fake_clock)
    await solo.enter_alone()
    began: list[float] = []

    async def shared() -> None:
        await solo.enter_shared()
        began.append(fake_clock.monotonic())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shared)
        await fake_clock.advance(4)
        assert began == []
        await fake_clock.advance(2)
    assert began == [5]


async def test_somebody_who_never_leaves_does_not_keep_one_from_its_turn(fake_clock: FakeClock) -> None:
    """W6, L: who wants to be alone beside a handler that hangs goes ahead after a while, and knows that it was not."""
    solo = Solo(fake_clock)
    await solo.enter_shared()
    outcome: list[bool] = []

    async def alone() -> None:
        outcome.append(await solo.enter_alone())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alone)
        await fake_clock.advance(60)
    assert outcome == [False]


async def test_who_is_cancelled_while_it_waits_holds_up_nobody(fake_clock: FakeClock) -> None:
    """W17: a group that is stopped leaves no trace here."""
    solo = Solo(fake_clock)
    await solo.enter_shared()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(solo.enter_alone)
            await fake_clock.advance(0)
            scope.cancel()
    assert not solo.is_taken
    solo.leave()
    with anyio.fail_after(5):
        await solo.enter_shared()


@pytest.mark.parametrize("batch", [1, 5])
async def test_what_ran_in_a_crash_runs_alone_in_the_next_process(tmp_path: Path, batch: int) -> None:
    """W6: after a kill during a careful run the events that were in a handler are tried one at a time.

    So an event that kills the process is charged with it, and its neighbours are not; in batches, too.
    """
    held = Held()

    async def holding(given: Event | list[Event]) -> None:
        for event in given if isinstance(given, list) else [given]:
            held.begun.append(event.payload["n"])
        await anyio.sleep_forever()

    bus = disk_bus(tmp_path / "w")
    await bus.subscribe("actions", "learner", holding, workers=3, batch=batch)
    await bus.publish_many(some_events(range(3)))
    await until(lambda: len(held.begun) == 3)
    first = killed(tmp_path / "w", "first")
    await bus.close(timeout_s=0)
    # The second process is careful: each attempt is on disk before its handler starts.
    held.begun.clear()
    bus = disk_bus(first)
    await bus.subscribe("actions", "learner", holding, workers=3, batch=batch)
    await until(lambda: len(held.begun) == 3)
    second = killed(first, "second")
    await bus.close(timeout_s=0)
    running = 0
    together: list[int] = []
    attempts: list[tuple[int, int]] = []

    async def watching(given: Event | list[Event], delivery: Delivery | list[Delivery]) -> None:
        nonlocal running
        events = given if isinstance(given, list) else [given]
        deliveries = delivery if isinstance(delivery, list) else [delivery]
        running += 1
        together.append(max(running, len(events)))
        attempts.extend((one.offset, one.attempt) for one in deliveries)
        await anyio.sleep(0.01)
        running -= 1

    async with disk_bus(second) as bus:
        await bus.subscribe("actions", "learner", watching, workers=3, batch=batch)
        await settled(bus)
    assert together == [1, 1, 1]
    assert sorted(offset for offset, _ in attempts) == [1, 2, 3]


async def test_a_clean_run_writes_nothing_down_before_a_handler(tmp_path: Path, recorder: Recorder) -> None:
    """W6: the care costs nothing where the last process ended in order."""
    async with disk_bus(tmp_path / "w", checkpoint_interval_s=60) as bus:
        await bus.subscribe("actions", "learner", recorder)
    async with disk_bus(tmp_path / "w", checkpoint_interval_s=60) as bus:
        await bus.subscribe("actions", "learner", recorder)
        await bus.publish(an_event(1))
        await settled(bus)
        assert not list((tmp_path / "w").rglob("offsets/*.json"))
    assert recorder.offsets == [1]
