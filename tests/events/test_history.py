"""Reading history from outside: merged, bounded, filtered, followed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.errors import InvalidMessage
from events.history import Follower, read_history, read_latest, wanted_by
from events.inspection import Inspector
from events.persistence.retention import retain
from events.persistence.wal import WalSettings
from events.replay import ReplayRecord
from events.types import Event
from filters import SimpleFilter
from tests.events.bus_support import HOME, PATIENCE_S, an_event, disk_bus, some_events, until


async def publish(workspace: Path, number: int = 30, *, wal: WalSettings | None = None) -> None:
    """Events on two topics in turn, numbered as published."""
    async with disk_bus(workspace, wal=wal) as bus:
        for start in range(0, number, 10):
            await bus.publish_many(some_events(range(start, start + 5)))
            await bus.publish_many(some_events(range(start + 5, start + 10), topic="other"))


async def followed(follower: Follower, number: int) -> list[ReplayRecord]:
    """What a follower reads until it has so many."""
    found: list[ReplayRecord] = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < number:
            found += follower.read()
            await anyio.sleep(0.01)
    return found


async def test_logs_are_merged_by_the_time_of_their_append(workspace: Path) -> None:
    """Oldest first across topics; within a topic in offset order."""
    await publish(workspace)
    inspector = Inspector(workspace)
    records = list(read_history(inspector.reader, inspector.names()))
    assert len(records) == 30
    assert [record.at_ms for record in records] == sorted(record.at_ms for record in records)
    for topic in ("actions", "other"):
        assert [record.offset for record in records if record.topic == topic] == list(range(1, 16))


async def test_offsets_and_moments_bound_it(workspace: Path) -> None:
    """From `start` on, up to and not including `stop`."""
    await publish(workspace)
    reader = Inspector(workspace).reader
    assert [record.offset for record in read_history(reader, [HOME], start=4, stop=8)] == [4, 5, 6, 7]
    assert list(read_history(reader, [HOME], start="latest")) == []
    now = datetime.now(UTC)
    assert len(list(read_history(reader, [HOME], start=now - timedelta(days=1), stop=now + timedelta(days=1)))) == 15
    assert list(read_history(reader, [HOME], start=now + timedelta(days=1))) == []
    assert list(read_history(reader, [HOME], stop=now - timedelta(days=1))) == []


async def test_only_what_is_wanted_is_handed_out(workspace: Path) -> None:
    """All filters must match; one that needs an event loop is refused by name."""
    await publish(workspace)
    reader = Inspector(workspace).reader
    wanted = wanted_by([SimpleFilter("payload.n", 10, "ge"), SimpleFilter("payload.n", 22, "lt")])
    found = [record.event.payload["n"] for record in read_history(reader, [HOME], wanted=wanted)]
    assert found == [10, 11, 12, 13, 14, 20, 21]

    with pytest.raises(InvalidMessage, match="needs a bus"):
        list(read_history(reader, [HOME], wanted=wanted_by([Asynchronous()])))


class Asynchronous:
    """A filter that cannot answer at once."""

    cost = 1

    async def matches(self, event: Event[Any]) -> bool:
        return True

    def describe(self) -> Mapping[str, Any]:
        return {}


async def test_the_latest_are_found_from_the_end(workspace: Path) -> None:
    """Also where the filter matches seldom, and where there are fewer than asked for."""
    await publish(workspace, 600)
    inspector = Inspector(workspace)
    latest = read_latest(inspector.reader, inspector.names(), 4)
    assert [record.event.payload["n"] for record in latest] == [596, 597, 598, 599]
    seldom = wanted_by([SimpleFilter("payload.n", [0, 1, 590], "in")])
    assert [r.event.payload["n"] for r in read_latest(inspector.reader, [HOME], 5, wanted=seldom)] == [0, 1, 590]
    assert read_latest(inspector.reader, inspector.names(), 0) == []


async def test_a_follower_reads_on_beside_the_writer(workspace: Path) -> None:
    """Each event once, in logs that were there and in one that appears."""
    async with disk_bus(workspace) as bus:
        await bus.publish_many(some_events(range(3)))
        inspector = Inspector(workspace)
        await until(lambda: inspector.reader.log(HOME).prove().durable == 3)
        follower = Follower(inspector.reader, inspector.names)
        follower.skip_to_end()
        assert follower.read() == []
        await bus.publish(an_event(3))
        await bus.publish(an_event(4, topic="other"))
        found = await followed(follower, 2)
        assert sorted(record.event.payload["n"] for record in found) == [3, 4]
        assert follower.read() == []


async def test_a_follower_counts_what_retention_took(workspace: Path) -> None:
    """It goes on with what is left."""
    async with disk_bus(workspace, wal=WalSettings(segment_lines=2, ballast_bytes=0)) as bus:
        await bus.publish_many(some_events(range(3)))
        inspector = Inspector(workspace)
        follower = Follower(inspector.reader, inspector.names)
        await followed(follower, 3)
        await bus.publish_many(some_events(range(3, 12)))
        await retain(bus._store, HOME, now_ms=2**50, max_age_s=0)
        first = (await bus._store.log(HOME)).first_offset
        assert first > 4
        left = [record.offset for record in await followed(follower, 13 - first)]
        assert left == list(range(first, 13))
        assert follower.lost == first - 4


async def test_many_logs_keep_no_file_open(workspace: Path) -> None:
    """A thousand spaces do not cost a thousand open files while they are merged."""
    async with disk_bus(workspace) as bus:
        await bus.publish_many([an_event(number, space=f"s{number}") for number in range(60)])
        await bus.publish_many([an_event(number, space=f"s{number}") for number in range(60)])
    inspector = Inspector(workspace)
    opened = 0
    for _ in read_history(inspector.reader, inspector.names()):
        opened = max(opened, sum(1 for path in Path("/proc/self/fd").iterdir() if _is_log(path)))
    assert opened <= 2


def _is_log(path: Path) -> bool:
    try:
        return path.readlink().name.endswith(".jsonl")
    except OSError:
        return False
