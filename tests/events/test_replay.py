"""Replay: history without a group, merged by time, filtered, authorised, in bounded memory."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.contracts import Hop, HopResult, Next
from events.errors import Denied, InvalidMessage, InvalidSpace, InvalidTopic
from events.persistence.memory import MemoryStore
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.types import Event, EventMeta, SecurityBand
from filters import CustomFunctionFilter, SimpleFilter
from tests.events.bus_support import Collector, an_event, disk_bus, group_of, history, settled, some_events


def _numbers(records: list[Any]) -> list[int]:
    return [record.event.payload["n"] for record in records]


async def test_history_comes_oldest_first_with_where_it_stands(tmp_path: Path) -> None:
    """Replay: offset, space, topic, time and event of each record; across segments and restarts."""
    wal = WalSettings(ballast_bytes=0, segment_lines=7)
    async with disk_bus(tmp_path / "w", wal=wal) as bus:
        for number in range(30):
            await bus.publish(an_event(number))
    async with disk_bus(tmp_path / "w", wal=wal) as bus:
        records = await history(bus, "actions", space="home")
    assert [record.offset for record in records] == list(range(1, 31))
    assert _numbers(records) == list(range(30))
    assert {(record.space_id, record.topic) for record in records} == {("home", "actions")}
    assert [record.at_ms for record in records] == sorted(record.at_ms for record in records)


async def test_several_logs_are_merged_by_the_time_of_their_append(fake_clock: FakeClock) -> None:
    """Replay: a glob over topics and all spaces give one stream."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    for number in range(30):
        await bus.publish(an_event(number, space=f"space {number % 3}", topic=f"orders.t{number % 2}"))
        await fake_clock.advance(1)
    assert _numbers(await history(bus, "orders.*")) == list(range(30))
    assert _numbers(await history(bus, "orders.t1")) == list(range(1, 30, 2))
    assert _numbers(await history(bus, "**", space="space 2")) == list(range(2, 30, 3))
    assert await history(bus, "nothing") == []
    await bus.close(timeout_s=0)


async def test_a_replay_may_begin_and_end_anywhere(fake_clock: FakeClock) -> None:
    """Replay: from an offset or a time, up to and not including another."""
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    for number in range(1, 11):
        await bus.publish(an_event(number))
        await fake_clock.advance(10)
    begin = datetime.fromtimestamp(fake_clock.now_ms() / 1000, UTC) - timedelta(seconds=100)

    def at(index: int) -> datetime:
        return begin + timedelta(seconds=10 * index)

    one: dict[str, Any] = {"space": "home"}
    assert _numbers(await history(bus, "actions", start=4, **one)) == list(range(4, 11))
    assert _numbers(await history(bus, "actions", start=4, stop=7, **one)) == [4, 5, 6]
    assert _numbers(await history(bus, "actions", start=at(2), stop=at(5))) == [3, 4, 5]
    assert _numbers(await history(bus, "actions", stop=3)) == [1, 2]
    assert await history(bus, "actions", start="latest") == []
    assert await history(bus, "actions", start=99, **one) == []
    await bus.close(timeout_s=0)


@pytest.mark.parametrize(
    ("topic", "selection", "error"),
    [
        ("../up", {}, InvalidTopic),
        ("actions", {"space": ""}, InvalidSpace),
        ("actions", {"start": 5}, InvalidMessage),
        ("actions", {"start": "yesterday"}, InvalidMessage),
        ("actions", {"start": datetime(2026, 1, 1)}, InvalidMessage),  # noqa: DTZ001 - what is refused
    ],
)
async def test_a_selection_that_means_nothing_is_refused(
    event_bus: EventBus, topic: str, selection: dict[str, Any], error: type[Exception]
) -> None:
    """Replay: the same rules as for the start of a group (W4)."""
    with pytest.raises(error):
        await history(event_bus, topic, **selection)


async def test_a_replay_ends_at_what_was_durable_when_it_began(event_bus: EventBus) -> None:
    """Replay: publishing beside it, even from inside the loop, does not make it endless."""
    await event_bus.publish_many(some_events(range(5)))
    seen: list[int] = []
    async for record in event_bus.replay("actions"):
        seen.append(record.event.payload["n"])
        await event_bus.publish(an_event(99))
    assert seen == list(range(5))


async def test_a_replay_takes_filters(event_bus: EventBus) -> None:
    """Replay: declarative and custom ones, the same as a group's."""
    await event_bus.publish_many([an_event(number, priority=number * 10) for number in range(8)])

    async def slowly(event: Event) -> bool:
        await anyio.lowlevel.checkpoint()
        return bool(event.payload["n"] != 6)

    filters = [SimpleFilter("meta.priority", 40, "gt"), CustomFunctionFilter(slowly, name="slowly")]
    assert _numbers(await history(event_bus, "actions", filters=filters)) == [5, 7]


async def test_a_replay_settles_nothing(event_bus: EventBus) -> None:
    """Replay: groups do not notice it, and it has no group."""
    collector = Collector()
    await event_bus.publish_many(some_events(range(5)))
    assert len(await history(event_bus)) == 5
    await event_bus.subscribe("actions", "learner", collector)
    await settled(event_bus)
    assert collector.numbers == list(range(5))
    assert group_of(event_bus, "learner")["lag"] == 0
    assert len(await event_bus.store.groups()) == 1


async def test_a_replay_may_be_left_at_any_point(event_bus: EventBus) -> None:
    """Replay: `break` is enough; on neither event loop does anything have to be closed by hand."""
    await event_bus.publish_many(some_events(range(50)))
    await event_bus.publish_many(some_events(range(50), space="work"))
    async for record in event_bus.replay("actions"):
        if record.offset == 3:
            break
    del record
    gc.collect()
    stream = event_bus.replay("actions", space="home")
    assert (await anext(stream)).offset == 1
    assert (await anext(stream)).offset == 2
    assert aiter(stream) is stream
    del stream
    gc.collect()
    await anyio.lowlevel.checkpoint()


async def test_who_may_not_see_an_event_does_not_replay_it() -> None:
    """Replay: `replay` is an action of its own, asked for the pattern and again for each event's meta."""

    class Clearance:
        async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
            return await call_next(hop)

        def authorise(
            self,
            subject: str | None,
            action: str,
            topic: str,
            space: str,
            meta: EventMeta | None = None,
            capabilities: frozenset[str] = frozenset(),
        ) -> None:
            if meta is not None and meta.band == SecurityBand.RED and subject != "chief":
                raise Denied(str(subject), action, topic, space)
            if topic == "secrets" and subject != "chief":
                raise Denied(str(subject), action, topic, space)

    async with EventBus([Clearance()], store=MemoryStore()) as bus:
        bands = [SecurityBand.GREEN, SecurityBand.RED, SecurityBand.AMBER]
        await bus.publish_many([an_event(number, band=band) for number, band in enumerate(bands)])
        await bus.publish(an_event(9, topic="secrets"))
        assert _numbers(await history(bus, "actions", subject="clerk")) == [0, 2]
        assert _numbers([record async for record in bus.bind("clerk").replay("actions")]) == [0, 2]
        assert _numbers(await history(bus, "actions", subject="chief")) == [0, 1, 2]
        with pytest.raises(Denied):
            await history(bus, "secrets", subject="clerk")


async def test_much_history_is_replayed_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M: what is held at a time is bounded, however long the log and however many of them."""
    monkeypatch.setattr("events.replay._BUFFER_BYTES", 4_000)
    monkeypatch.setattr("events.replay._MIN_BUFFER_BYTES", 500)
    wal = WalSettings(ballast_bytes=0, tail_bytes=0, segment_bytes=10_000)
    async with disk_bus(tmp_path / "w", wal=wal) as bus:
        for space in range(5):
            await bus.publish_many(some_events(range(200), space=f"space {space}"))
        by_space: dict[str, list[int]] = {}
        async for record in bus.replay("actions"):
            by_space.setdefault(record.space_id, []).append(record.offset)
    assert by_space == {f"space {space}": list(range(1, 201)) for space in range(5)}
