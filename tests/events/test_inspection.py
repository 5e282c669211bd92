"""Topics, groups and dead letters as their files tell them, beside a running bus and without one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.attention_gate import AttentionGate
from events.bus import EventBus
from events.inspection import GroupState, Inspector
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.types import Event, Nack
from tests.events.bus_support import HOME, an_event, disk_bus, killed, settled, some_events, until


class Chatter(AttentionGate):
    """Defers what is of low priority for a long time."""

    defer_s = 600.0

    def defer(self, event: Event[Any]) -> bool:
        return event.meta.priority == "low"


async def acks(event: Event[Any]) -> None:
    """A handler without complaints."""


async def raises(event: Event[Any]) -> None:
    """A handler that never manages."""
    raise KeyError("city")


def the_group(inspector: Inspector, group: str = "actor", **selection: str) -> GroupState:
    """The state of a group that has one log."""
    (state,) = inspector.group_states(group=group, **selection)
    return state


async def test_a_topic_is_seen_with_its_size_and_its_groups(workspace: Path) -> None:
    """Offsets, bytes, segments, the newest event, and who reads it."""
    async with disk_bus(workspace, wal=WalSettings(segment_lines=4, ballast_bytes=0)) as bus:
        await bus.subscribe("actions", "actor", acks)
        await bus.subscribe("*", "memory", acks, space="home")
        await bus.publish_many(some_events(range(10)))
        await bus.publish(an_event(topic="other", space="work"))
        await settled(bus)
    inspector = Inspector(workspace)
    records = inspector.group_records()
    home, work = (inspector.topic_state(name, records) for name in inspector.names())
    assert (home.space_id, home.topic, home.first, home.last, home.events) == ("home", "actions", 1, 10, 10)
    assert home.segments == 3
    assert home.size_bytes == sum(path.stat().st_size for path in workspace.rglob("actions.*.jsonl"))
    assert home.last_at_ms is not None
    assert abs(home.last_at_ms / 1000 - time.time()) < 3600
    assert home.groups == ("actor", "memory")
    assert (work.topic, work.groups) == ("other", ())
    assert inspector.names("oth*", "work") == []
    assert inspector.names("other", "work") == [LogName("work", "other")]


async def test_a_group_that_has_settled_everything_has_no_lag(workspace: Path) -> None:
    """Stopped in order, at the end of its log."""
    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "actor", acks)
        await bus.publish_many(some_events(range(7)))
        await settled(bus)
    state = the_group(Inspector(workspace))
    assert (state.condition, state.committed, state.last, state.lag, state.lag_s) == ("stopped", 7, 7, 0, 0.0)
    assert (state.oldest, state.oldest_at_ms, state.in_flight, state.dead) == (None, None, 0, 0)
    assert state.saved_ms is not None


async def test_what_nobody_consumes_grows_old(workspace: Path) -> None:
    """Lag counts events, and its age is that of the oldest one, by the given clock."""
    async with disk_bus(workspace) as bus:
        subscription = await bus.subscribe("actions", "actor", acks)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
        await bus.unsubscribe(subscription)
        await bus.publish_many(some_events(range(4)))
    found = Inspector(workspace)
    oldest_ms = the_group(found).oldest_at_ms
    assert oldest_ms is not None
    state = the_group(Inspector(workspace, now_ms=lambda: oldest_ms + 90_000))
    assert (state.lag, state.oldest, state.lag_s, state.in_flight) == (4, 4, 90.0, 0)


async def test_beside_a_running_bus_a_group_is_seen_at_work(workspace: Path) -> None:
    """Consuming, with what is queued or running in flight, bounded by what a group may hold."""
    release = anyio.Event()

    async def waits(event: Event[Any]) -> None:
        await release.wait()

    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "actor", waits)
        await bus.publish_many(some_events(range(5)))
        await until(lambda: the_group(Inspector(workspace)).last == 5)
        state = the_group(Inspector(workspace))
        assert (state.condition, state.lag, state.in_flight) == ("consuming", 5, 5)
        assert the_group(Inspector(workspace, max_inflight=2)).in_flight == 2
        release.set()
        await settled(bus)
        await until(lambda: the_group(Inspector(workspace)).lag == 0)


async def test_retries_and_deferrals_are_told_apart(workspace: Path) -> None:
    """What waits for another attempt, what the gate put off, and what is neither."""

    async def later(event: Event[Any]) -> Nack | None:
        return Nack("not now", delay=600) if event.payload["n"] == 1 else None

    async with EventBus(workspace=workspace, config=disk_bus(workspace).config, gate=Chatter()) as bus:
        await bus.subscribe("actions", "actor", later)
        await bus.publish_many([an_event(0), an_event(1), an_event(2, priority="low"), an_event(3)])
        await until(lambda: the_group(Inspector(workspace)).lag == 2 and the_group(Inspector(workspace)).retrying == 1)
        state = the_group(Inspector(workspace))
        assert (state.committed, state.oldest) == (1, 2)
        assert (state.retrying, state.deferred, state.in_flight) == (1, 1, 0)
        assert Inspector(workspace).outcomes(HOME, 2) == {"actor": "retrying"}
        assert Inspector(workspace).outcomes(HOME, 3) == {"actor": "deferred"}
        assert Inspector(workspace).outcomes(HOME, 4) == {"actor": "settled"}
        await bus.close(timeout_s=0)


async def test_a_killed_process_leaves_its_group_interrupted(workspace: Path) -> None:
    """The record still says held, and nobody has the lock."""
    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "actor", acks)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
        left = killed(workspace)
    assert the_group(Inspector(left)).condition == "interrupted"
    assert the_group(Inspector(workspace)).condition == "stopped"


async def test_dead_letters_settle_their_events_and_are_counted(workspace: Path) -> None:
    """Per group, until a retry or a purge ends them; a second look reads only what is new."""
    async with disk_bus(workspace, max_retries=1) as bus:
        await bus.subscribe("actions", "actor", raises)
        await bus.subscribe("actions", "memory", acks)
        await bus.publish_many(some_events(range(2)))
        await settled(bus)
        inspector = Inspector(workspace)
        await until(lambda: len(inspector.dead_letters()) == 2)
        letters = inspector.dead_letters(group="actor")
        assert {(one.offset, one.attempts, one.errors[-1]) for one in letters} == {
            (1, 2, "KeyError: 'city'"),
            (2, 2, "KeyError: 'city'"),
        }
        assert [one.died_ms for one in letters] == sorted((one.died_ms for one in letters), reverse=True)
        assert all(one.event.payload == {"n": one.offset - 1} for one in letters)
        assert inspector.dead_letters(group="memory") == []
        assert inspector.outcomes(HOME, 1) == {"actor": "dead", "memory": "settled"}
        await bus.publish(an_event(7))
        await settled(bus)
        await until(lambda: len(inspector.dead_letters()) == 3)
        assert await bus.dlq.purge(older_than_s=0) == 3
        await until(lambda: not inspector.dead_letters())
    state = the_group(Inspector(workspace))
    assert (state.lag, state.dead) == (0, 0)


async def test_a_dead_letter_counts_before_its_checkpoint(workspace: Path) -> None:
    """W10: the death is durable first; a kill right after it leaves no lag behind."""
    async with disk_bus(workspace, max_retries=0, checkpoint_interval_s=600) as bus:
        await bus.subscribe("actions", "actor", raises)
        await bus.publish(an_event())
        await settled(bus)
        await until(lambda: len(Inspector(workspace).dead_letters()) == 1)
        left = killed(workspace)
    assert not list(left.rglob("actions__actor.json"))
    state = the_group(Inspector(left))
    assert (state.lag, state.dead, state.committed) == (0, 1, 1)


@pytest.mark.parametrize(
    ("start", "lag"), [("earliest", 4), ("latest", 0), (3, 2), (datetime(2020, 1, 1, tzinfo=UTC), 4)]
)
async def test_a_group_that_never_ran_begins_where_its_record_says(workspace: Path, start: Any, lag: int) -> None:
    """W4: earliest, latest, an offset, a moment."""

    async def waits(event: Event[Any]) -> None:
        await anyio.sleep_forever()

    async with disk_bus(workspace, checkpoint_interval_s=600) as bus:
        await bus.publish_many(some_events(range(4)))
        await bus.subscribe("actions", "actor", waits, space="home", start=start)
        await until(lambda: Inspector(workspace).reader.log(HOME).prove().durable == 4)
        left = killed(workspace)
        await bus.close(timeout_s=0)
    assert not list(left.rglob("actions__actor.json"))
    state = the_group(Inspector(left))
    assert (state.lag, state.saved_ms) == (lag, None)


async def test_a_checkpoint_of_another_log_is_not_believed(workspace: Path) -> None:
    """A log that was deleted and made anew has another id; its old checkpoints mean nothing."""
    async with disk_bus(workspace) as bus:
        await bus.subscribe("actions", "actor", acks)
        await bus.publish_many(some_events(range(5)))
        await settled(bus)
    for path in [*workspace.rglob("actions.*.jsonl"), *workspace.rglob(".actions.mark.json")]:
        path.unlink()
    for path in workspace.rglob("actions__actor.json*"):
        path.rename(path.with_name(path.name + ".kept"))
    async with disk_bus(workspace) as bus:
        await bus.publish_many(some_events(range(2)))
    for path in workspace.rglob("*.kept"):
        path.rename(path.with_name(path.name.removesuffix(".kept")))
    assert the_group(Inspector(workspace)).lag == 2


async def test_a_log_that_cannot_be_read_is_named_and_hides_no_other(workspace: Path) -> None:
    """A missing segment is a trouble of that topic and its groups alone."""
    async with disk_bus(workspace) as bus:
        await bus.subscribe("*", "actor", acks)
        await bus.publish(an_event())
        await bus.publish(an_event(topic="other"))
        await settled(bus)
    next(workspace.rglob("actions.*.jsonl")).unlink()
    inspector = Inspector(workspace)
    states = {name.topic: inspector.topic_state(name, {}) for name in inspector.names()}
    assert states["actions"].trouble is not None
    assert "missing" in states["actions"].trouble
    assert states["other"].trouble is None
    groups = {state.topic: state for state in inspector.group_states()}
    assert groups["actions"].trouble is not None
    assert groups["other"].trouble is None


def test_an_empty_folder_has_nothing(workspace: Path) -> None:
    """No topics, no groups, no dead letters, and nothing is made by looking."""
    inspector = Inspector(workspace)
    assert inspector.names() == []
    assert list(inspector.group_states()) == []
    assert inspector.dead_letters() == []
    assert list(workspace.iterdir()) == []
