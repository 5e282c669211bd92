"""The pytest plugin: its fixtures work in a project of the user's own, on asyncio and on trio."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from events.bus import EventBus
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Nack
from tests.events.bus_support import an_event, settled

USERS_TEST = """
import pytest

from events import Event, EventMeta, Nack

pytestmark = pytest.mark.anyio


async def test_mine(timed_bus, fake_clock, recorder):
    await timed_bus.subscribe("notes", "mine", recorder)
    await timed_bus.publish(Event(EventMeta(topic="notes", type="NOTED", space_id="s"), {"a": 1}))
    await fake_clock.advance(1)
    assert recorder.payloads == [{"a": 1}]


async def test_in_memory(event_bus, make_bus):
    async with make_bus() as other:
        assert other is not event_bus
"""


def test_pytest_finds_the_plugin_by_itself(tmp_path: Path) -> None:
    """Testing kit: installing the package is enough; nothing has to be imported or configured."""
    (tmp_path / "test_mine.py").write_text(USERS_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout, "two tests, each on asyncio and trio"


async def test_the_bus_of_the_fixtures_is_the_real_one(event_bus: EventBus, recorder: Recorder) -> None:
    """Testing kit: the same code path as on disk, down to the dead letters."""
    await event_bus.subscribe("actions", "learner", Recorder(lambda recorded: Nack()), max_retries=0)
    await event_bus.subscribe("actions", "other", recorder)
    await event_bus.publish(an_event(1))
    await settled(event_bus)
    assert [dead.group for dead in await event_bus.dlq.list()] == ["learner"]
    assert recorder.offsets == [1]


async def test_the_timed_bus_runs_on_the_fake_clock(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """Testing kit: back-off without waiting."""
    recorder = Recorder(lambda recorded: Nack(delay=3600) if recorded.attempt == 1 else None)
    await timed_bus.subscribe("actions", "learner", recorder)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(3599)
    assert len(recorder.deliveries) == 1
    await fake_clock.advance(1)
    assert len(recorder.deliveries) == 2


async def test_a_bus_can_be_made_with_settings(make_bus: Callable[..., EventBus]) -> None:
    """Testing kit: arguments are those of `EventBus`."""
    notes: list[str] = []

    async def middleware(hop: object, call_next: Callable[[object], object]) -> object:
        notes.append(type(hop).__name__)
        return await call_next(hop)  # type: ignore[misc]

    async with make_bus(middlewares=[middleware]) as bus:
        await bus.publish(an_event(1))
    assert notes == ["Hop"]
