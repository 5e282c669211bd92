"""Fixtures for people who test what they built on the bus; pytest finds this module by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from events.bus import EventBus
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that stands still until `await fake_clock.advance(seconds)`."""
    return FakeClock()


@pytest.fixture
def recorder() -> Recorder:
    """A handler that remembers its deliveries."""
    return Recorder()


@pytest.fixture
async def event_bus() -> AsyncIterator[EventBus]:
    """A running bus on an in-memory store: the real bus, nothing on disk."""
    async with EventBus(store=MemoryStore()) as bus:
        yield bus


@pytest.fixture
async def timed_bus(fake_clock: FakeClock) -> AsyncIterator[EventBus]:
    """A running bus on an in-memory store whose time is `fake_clock`: back-off and deferral without waiting."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.start()
    yield bus
    await bus.close(timeout_s=0)


@pytest.fixture
def make_bus() -> Callable[..., EventBus]:
    """A bus on an in-memory store, with the arguments of `EventBus`; start and close it yourself."""

    def make(**arguments: Any) -> EventBus:
        return EventBus(**{"store": MemoryStore(), **arguments})

    return make
