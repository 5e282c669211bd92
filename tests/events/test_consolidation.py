"""When consolidation is due: by count, by age, by quiet; told once, and again if nobody can know that it was told."""

from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.cognitive_events import CONSOLIDATION_DUE, standard
from events.consolidation import ConsolidationPolicy, Consolidator, Reason
from events.episodic import Waiting
from events.episodic_sqlite import SqliteEpisodicStore
from events.errors import StorageFull
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from tests.events.bus_support import history
from tests.events.test_episodic_sqlite import memory

POLICY = ConsolidationPolicy(count=5, age_s=60, idle_s=20)


@pytest.mark.parametrize(
    ("waiting", "now_s", "reason"),
    [
        (Waiting(0, 0, 0, 0, 0), 1_000, None),
        (Waiting(4, 0, 4, 0, 10_000), 11, None),
        (Waiting(5, 0, 5, 0, 10_000), 11, "count"),
        (Waiting(2, 0, 2, 0, 59_000), 60, "age"),
        (Waiting(1, 0, 1, 0, 0), 20, "idle"),
        (Waiting(1, 0, 1, 0, 0), 19, None),
    ],
)
def test_when_it_is_due(waiting: Waiting, now_s: int, reason: Reason | None) -> None:
    """Enough of them, one of them old enough, or quiet for long enough; never without anything that waits."""
    assert POLICY.due(waiting, now_s * 1000) == reason
    assert ConsolidationPolicy(count=None, age_s=None, idle_s=None).due(waiting, now_s * 1000) is None


async def due(bus: EventBus) -> list[dict[str, Any]]:
    """What was told, in order."""
    return [one.event.payload for one in await history(bus, "hippo") if one.event.meta.type == CONSOLIDATION_DUE]


async def test_each_memory_is_told_of_once(fake_clock: FakeClock) -> None:
    """The event names the range that waits; what it named is not told of again."""
    memories = SqliteEpisodicStore(None)
    consolidator = Consolidator(memories, POLICY)
    async with EventBus(store=MemoryStore(clock=fake_clock)) as bus:
        for number in range(12):
            await memories.remember(memory(number), fake_clock.now_ms())
            await consolidator.look(bus, "home")
        assert await due(bus) == [
            {"reason": "count", "count": 5, "after": 0, "through": 5},
            {"reason": "count", "count": 5, "after": 5, "through": 10},
        ]
        event = (await history(bus, "hippo"))[0].event
        assert standard().fault(event) is None
    await memories.close()


async def test_time_alone_is_enough(fake_clock: FakeClock) -> None:
    """`run` looks at every space now and then: quiet and age are noticed without a write."""
    memories = SqliteEpisodicStore(None)
    async with EventBus(store=MemoryStore(clock=fake_clock)) as bus:
        await memories.remember(memory(1), fake_clock.now_ms())
        await memories.remember(memory(2, space="work"), fake_clock.now_ms())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Consolidator(memories, POLICY, every_s=5).run, bus)
            while len(await due(bus)) < 2:
                await fake_clock.advance(5)
                await anyio.sleep(0.001)  # SQLite answers from a thread, which no fake clock can hurry
            tasks.cancel_scope.cancel()
        assert {payload["reason"] for payload in await due(bus)} == {"idle"}
    await memories.close()


class Forgetful(SqliteEpisodicStore):
    """A store whose process dies before it can note that consolidation was asked for."""

    async def mark_consolidating(self, space_id: str, through: int) -> None:
        raise StorageFull("memories", 0.0)


async def test_a_crash_before_the_note_repeats_and_loses_nothing(fake_clock: FakeClock) -> None:
    """Told first and noted afterwards: in between nobody can know, so it is told again, with the same beginning."""
    memories = Forgetful(None)
    consolidator = Consolidator(memories, POLICY)
    async with EventBus(store=MemoryStore(clock=fake_clock)) as bus:
        for number in range(5):
            await memories.remember(memory(number), fake_clock.now_ms())
        for _ in range(2):
            with pytest.raises(StorageFull):
                await consolidator.look(bus, "home")
        events = [one.event for one in await history(bus, "hippo")]
    assert [event.payload["after"] for event in events] == [0, 0]
    assert len({event.meta.idem_key for event in events}) == 1
    await memories.close()
