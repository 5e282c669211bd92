"""Working memory: bounded, fading, in step with the bus, and the same again when it is rebuilt from the log."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from events.bus import EventBus
from events.cognitive_events import WorkingMemoryUpdate
from events.config import BusConfig
from events.types import Event, EventMeta
from events.working_memory import Buffer, WorkingMemory
from tests.events.bus_support import settled

START = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


def update(
    payload: dict[str, Any], at_s: float = 0.0, space: str = "home", type: str = "WORKING_MEMORY_UPDATE"
) -> Event:
    """An update, made at some second."""
    ts = START + timedelta(seconds=at_s)
    return Event(EventMeta(topic="workspace", type=type, space_id=space, ts=ts), payload)


def held(memory: WorkingMemory, at_s: float = 0.0, space: str = "home") -> list[tuple[str, float]]:
    """What is in mind at some second, with its strength."""
    return [(item.item_id, round(item.strength, 3)) for item in memory.items(space, START + timedelta(seconds=at_s))]


def fed(*events: Event, **settings: Any) -> WorkingMemory:
    """A working memory that has taken in some events, as if from one log."""
    memory = WorkingMemory(**settings)
    for offset, event in enumerate(events, 1):
        memory.take(event, "workspace", offset)
    return memory


def test_items_fade_and_are_forgotten() -> None:
    """Half the strength with every half-life, and gone below the floor."""
    memory = fed(update({"op": "add", "item_id": "a"}), half_life_s=10, floor=0.1)
    assert [held(memory, at_s) for at_s in (0, 10, 20, 33, 34)] == [
        [("a", 1.0)],
        [("a", 0.5)],
        [("a", 0.25)],
        [("a", 0.102)],
        [],
    ]


def test_only_so_much_is_in_mind() -> None:
    """M: when there is no room the weakest goes, by its strength at that time and not by its age."""
    memory = fed(
        update({"item_id": "strong", "strength": 0.9}, 0),
        update({"item_id": "weak", "strength": 0.2}, 1),
        update({"item_id": "newest", "strength": 0.5}, 2),
        capacity=2,
        half_life_s=1_000,
    )
    assert [name for name, _ in held(memory, 2)] == ["strong", "newest"]


def test_refreshing_strengthens_what_is_there() -> None:
    """An item that is named again is as strong as the stronger of the two; what was forgotten stays forgotten."""
    memory = fed(
        update({"item_id": "a", "strength": 0.4, "summary": "first", "tags": ["x"], "room": "hall"}, 0),
        update({"op": "refresh", "item_id": "a", "strength": 0.8, "room": "kitchen"}, 10),
        update({"op": "refresh", "item_id": "b"}, 10),
        update({"op": "refresh", "item_id": "a", "strength": 0.1}, 10),
        half_life_s=10,
    )
    assert held(memory, 10) == [("a", 0.8)]
    (item,) = memory.items("home", START + timedelta(seconds=10))
    assert (item.summary, item.tags, item.content) == ("first", ("x",), {"room": "kitchen"})


def test_items_can_be_removed_and_the_mind_cleared() -> None:
    """By name, or all at once; in their own space."""
    events = [update({"item_id": name}) for name in "abc"]
    other = update({"item_id": "elsewhere"}, space="work")
    memory = fed(*events, update({"op": "remove", "item_id": "b"}), other)
    assert [name for name, _ in held(memory)] == ["a", "c"]
    memory.take(update({"op": "clear"}), "workspace", 99)
    assert held(memory) == []
    assert [name for name, _ in held(memory, space="work")] == ["elsewhere"]


def test_what_says_nothing_changes_nothing() -> None:
    """Other types, and updates that cannot be understood, are passed over; an unnamed item is named by its event."""
    unnamed = update({"summary": "a thought"})
    memory = fed(update({"op": "shout"}), update({"item_id": "x"}, type="WORKSPACE_BROADCAST"), unnamed)
    assert held(memory) == [(unnamed.meta.event_id, 1.0)]


def test_an_event_is_taken_in_once() -> None:
    """What comes again from the same log, by its offset, changes nothing."""
    memory = fed(update({"item_id": "a", "strength": 0.5}), update({"op": "remove", "item_id": "a"}, 1))
    memory.take(update({"item_id": "a", "strength": 0.5}), "workspace", 1)
    assert held(memory) == []


@pytest.mark.parametrize("settings", [{"capacity": 0}, {"half_life_s": 0}, {"floor": 0}, {"floor": 1}])
def test_bad_settings_are_refused_at_once(settings: dict[str, Any]) -> None:
    """A memory that cannot hold, fade or forget is no working memory."""
    with pytest.raises(ValueError, match="working memory"):
        WorkingMemory(**settings)


def test_time_that_goes_back_does_not_strengthen() -> None:
    """An event with an earlier time than the one before it neither revives nor ages what is there."""
    buffer = Buffer(capacity=3, half_life_s=10, floor=0.01)
    buffer.apply(WorkingMemoryUpdate(op="add", strength=0.5), "a", START_MS + 10_000, {})
    buffer.apply(WorkingMemoryUpdate(op="refresh", strength=0.5), "a", START_MS, {})
    (item,) = buffer.items(START_MS + 10_000)
    assert item.strength == 0.5


def random_updates(seed: int, number: int) -> list[Event]:
    """Updates of every sort, one after the other in time."""
    chance = Random(seed)
    ops = ["add"] * 24 + ["refresh"] * 12 + ["remove"] * 8 + [None] * 4 + ["clear"]

    def one(index: int) -> Event:
        said = {"op": chance.choice(ops), "item_id": chance.choice("abcdefgh"), "strength": round(chance.random(), 3)}
        return update(said, at_s=index + chance.random(), space=chance.choice(["home", "work"]))

    return [one(index) for index in range(number)]


async def test_following_live_and_rebuilding_come_to_the_same(workspace: Path) -> None:
    """Followed from the first event on, joined in the middle, restarted, or rebuilt at the end: the same memory."""
    events = random_updates(seed=1, number=120)
    config = BusConfig(checkpoint_interval_s=0.01)
    settings: dict[str, Any] = {"capacity": 4, "half_life_s": 30.0}
    live = WorkingMemory(**settings)
    async with EventBus(workspace=workspace, config=config) as bus:
        await live.follow(bus)
        for event in events[:50]:
            await bus.publish(event)
        await settled(bus)
    restarted, joined = WorkingMemory(**settings), WorkingMemory(**settings)
    async with EventBus(workspace=workspace, config=config) as bus:
        await bus.publish_many(events[50:60])  # while nobody followed
        await restarted.follow(bus)
        await bus.publish_many(events[60:90])
        await joined.follow(bus, group="another-follower")
        await bus.publish_many(events[90:])
        await settled(bus)
        rebuilt = WorkingMemory(**settings)
        await rebuilt.rebuild(bus)
    expected = WorkingMemory(**settings)
    for offset, event in enumerate(events, 1):
        expected.take(event, "workspace", offset)
    for space in ("home", "work"):
        at_s = 125
        assert held(rebuilt, at_s, space) == held(expected, at_s, space)
        assert held(restarted, at_s, space) == held(joined, at_s, space) == held(expected, at_s, space)
    assert held(expected, 125)
