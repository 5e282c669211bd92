"""The recorder: a handler that remembers, fails on request, and can be waited for."""

from __future__ import annotations

import anyio
import pytest

from events.bus import EventBus
from events.testing.clock import FakeClock
from events.testing.recording import Recorded, Recorder
from events.types import Nack
from tests.events.bus_support import an_event, settled, some_events


async def test_it_remembers_deliveries_in_order(event_bus: EventBus, recorder: Recorder) -> None:
    """Testing kit: where from, which attempt, which event; by group, too."""
    await event_bus.subscribe("actions", "first", recorder)
    await event_bus.subscribe("actions", "second", recorder)
    await event_bus.publish_many(some_events([1, 2]))
    await settled(event_bus)
    mine = recorder.of_group("first")
    assert [(one.space_id, one.topic, one.offset, one.attempt) for one in mine] == [
        ("home", "actions", 1, 1),
        ("home", "actions", 2, 1),
    ]
    assert sorted(recorder.offsets) == [1, 1, 2, 2]
    assert [payload["n"] for payload in recorder.payloads].count(2) == 2


async def test_its_verdict_decides_how_a_delivery_ends(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """Testing kit: return what a handler may return, or raise."""

    def verdict(recorded: Recorded) -> Nack | None:
        if recorded.attempt == 1:
            raise LookupError("first")
        return Nack(delay=0) if recorded.attempt == 2 else None

    recorder = Recorder(verdict)
    await timed_bus.subscribe("actions", "learner", recorder)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(60)
    assert [one.attempt for one in recorder.deliveries] == [1, 2, 3]


async def test_it_can_be_waited_for(event_bus: EventBus, recorder: Recorder) -> None:
    """Testing kit: until so many deliveries began, or a TimeoutError that says how many did."""
    await event_bus.subscribe("actions", "learner", recorder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(event_bus.publish_many, some_events(range(3)))
        await recorder.wait_for(3)
    with pytest.raises(TimeoutError, match="3 of 4"):
        await recorder.wait_for(4, timeout_s=0.01)
