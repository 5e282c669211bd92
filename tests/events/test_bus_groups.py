"""Groups that exist durably: how they begin, who may join, what they cover, and what forgets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.errors import (
    BusError,
    GroupConflict,
    InvalidGroup,
    InvalidMessage,
    InvalidSpace,
    InvalidTopic,
    UnknownGroup,
    error_code_of,
)
from events.persistence.memory import MemoryStore
from events.persistence.wal import WalSettings
from events.subscription import Subscription
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, EventType
from filters import SimpleFilter
from tests.events.bus_support import (
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    killed,
    settled,
    some_events,
    until,
)

# -- W3: a group exists on disk ------------------------------------------------------------------------------------


async def test_a_group_is_on_disk_when_subscribe_returns(tmp_path: Path) -> None:
    """W3: a crash right after `subscribe(start="latest")` and a publish loses nothing of what was published since."""
    async with disk_bus(tmp_path / "w") as bus:
        await bus.publish_many(some_events([1, 2]))
        held = Held()
        await bus.subscribe("actions", "learner", held, start="latest")
        at_once = killed(tmp_path / "w", "at-once")
        await bus.publish(an_event(3))
        later = killed(tmp_path / "w", "later")
        held.let_go()
    for copy, expected in ((at_once, [4]), (later, [3, 4])):
        collector = Collector()
        async with disk_bus(copy) as bus:
            await bus.publish(an_event(4))
            await bus.subscribe("actions", "learner", collector, start="latest")
            await settled(bus)
        assert collector.numbers == expected


async def test_latest_begins_behind_what_there_is_and_at_the_start_of_what_comes(event_bus: EventBus) -> None:
    """W3: `latest` fixes the end of every log there is; a log that appears later starts at 1."""
    collector = Collector()
    await event_bus.publish_many([an_event(1), an_event(2, space="work")])
    await event_bus.subscribe("actions", "learner", collector, start="latest")
    await event_bus.publish_many([an_event(3), an_event(4, space="work"), an_event(5, space="new")])
    await settled(event_bus)
    assert sorted(collector.numbers) == [3, 4, 5]


async def test_subscribing_again_joins_with_more_workers(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W3: the same patterns and filters mean the same group; its events are shared, not copied."""
    held = Held()
    await timed_bus.subscribe("actions", "learner", held)
    await timed_bus.publish_many(some_events(range(5)))
    await fake_clock.advance(0)
    assert held.begun == [0]
    await timed_bus.subscribe("actions", "learner", held, workers=2)
    await fake_clock.advance(0)
    assert held.begun == [0, 1, 2]
    held.let_go()
    await settled(timed_bus)
    assert sorted(held.ended) == list(range(5))


async def test_many_may_join_at_once(event_bus: EventBus) -> None:
    """W3: subscriptions of one group that arrive together all come to work, on any scheduler."""
    collector = Collector()
    for _ in range(20):
        await event_bus.subscribe("actions", "learner", collector)
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(event_bus.subscribe, "actions", "learner", collector)
            tasks.start_soon(event_bus.subscribe, "actions", "other", collector)
    await event_bus.publish_many(some_events(range(50)))
    await settled(event_bus)
    assert sorted(collector.numbers) == sorted([*range(50), *range(50)])


async def test_each_subscription_of_a_group_brings_its_own_handler(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W3: two modules in one group share its events; each is called by its own workers, and none after it left."""
    first, second = Held(), Held()
    staying = await timed_bus.subscribe("actions", "learner", first)
    leaving = await timed_bus.subscribe("actions", "learner", second)
    await timed_bus.publish_many(some_events(range(2)))
    await fake_clock.advance(0)
    assert sorted(first.begun + second.begun) == [0, 1]
    assert len(first.begun) == len(second.begun) == 1
    second.let_go()
    await fake_clock.advance(0)
    await timed_bus.unsubscribe(leaving)
    second.begun.clear()
    first.let_go()
    await timed_bus.publish_many(some_events(range(2, 6)))
    await settled(timed_bus)
    assert second.begun == []
    assert first.begun[1:] == [2, 3, 4, 5]
    assert (staying.is_active, leaving.is_active) == (True, False)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"topic": "notes"}, "topic"),
        ({"topic": "*"}, "topic"),
        ({"space": "home"}, "space"),
        ({"filters": [SimpleFilter("payload.n", 1, "exact")]}, "filters"),
        ({"filters": []}, None),
        ({"workers": 3, "max_retries": 0}, None),
    ],
)
async def test_a_group_is_one_thing(tmp_path: Path, changes: dict[str, Any], setting: str | None) -> None:
    """GROUP_CONFLICT (W3): other patterns or filters are refused, while it runs and after a restart."""
    wanted: dict[str, Any] = {"topic": "actions", "group": "learner", "handler": Collector(), **changes}

    async def attempt(bus: EventBus) -> None:
        if setting is None:
            await bus.unsubscribe(await bus.subscribe(**wanted))
            return
        with pytest.raises(GroupConflict) as refused:
            await bus.subscribe(**wanted)
        assert (refused.value.code, refused.value.setting) == ("GROUP_CONFLICT", setting)

    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", Collector())
        await attempt(bus)
        assert bus.health().ok
    async with disk_bus(tmp_path / "w") as bus:
        await attempt(bus)


async def test_filters_that_describe_alike_are_the_same(event_bus: EventBus) -> None:
    """W3: what a filter says of itself counts, not which object it is."""

    def high() -> SimpleFilter:
        return SimpleFilter("meta.priority", "high", "exact")

    collector = Collector()
    await event_bus.subscribe("actions", "learner", collector, filters=[high()])
    await event_bus.subscribe("actions", "learner", collector, filters=[high()])
    with pytest.raises(GroupConflict):
        await event_bus.subscribe("actions", "learner", collector, filters=[high(), high()])


async def test_unsubscribing_keeps_the_group_and_its_place(tmp_path: Path) -> None:
    """W3: `unsubscribe` stops consuming, twice as well as once; the next subscriber goes on where it stood."""
    first, second = Collector(), Collector()
    async with disk_bus(tmp_path / "w") as bus:
        subscription = await bus.subscribe("actions", "learner", first)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
        await bus.unsubscribe(subscription)
        await bus.unsubscribe(subscription)
        assert not subscription.is_active
        assert "learner" not in bus.statistics().groups
        await bus.publish_many(some_events(range(3, 6)))
        await bus.subscribe("actions", "learner", second)
        await settled(bus)
    assert (first.numbers, second.numbers) == ([0, 1, 2], [3, 4, 5])


async def test_unsubscribing_releases_what_runs_without_charging_it(
    timed_bus: EventBus, fake_clock: FakeClock, recorder: Recorder
) -> None:
    """W3, W17: what a handler had begun is delivered again, as its first attempt."""
    held = Held()
    subscription = await timed_bus.subscribe("actions", "learner", held)
    await timed_bus.publish(an_event(1))
    await fake_clock.advance(0)
    assert held.begun == [1]
    await timed_bus.unsubscribe(subscription)
    assert held.ended == []
    await timed_bus.subscribe("actions", "learner", recorder)
    await settled(timed_bus)
    assert [(one.offset, one.attempt) for one in recorder.deliveries] == [(1, 1)]


async def test_a_handler_may_unsubscribe_its_own_group(tmp_path: Path) -> None:
    """W3: a handler that has seen enough says so from inside, and nothing hangs."""
    seen: list[int] = []
    async with disk_bus(tmp_path / "w") as bus:

        async def once(event: Event) -> None:
            seen.append(event.payload["n"])
            await bus.unsubscribe(subscription)

        subscription = await bus.subscribe("actions", "learner", once)
        await bus.publish_many(some_events(range(200)))
        await until(lambda: "learner" not in bus.statistics().groups)
        assert seen == [0]
        assert not subscription.is_active
        collector = Collector()
        await bus.subscribe("actions", "learner", collector)
        await settled(bus)
    assert collector.numbers[-199:] == list(range(1, 200))


async def test_a_handler_may_delete_its_own_group(tmp_path: Path) -> None:
    """W3: `delete_group` from inside a handler of that group does not wait for itself."""
    async with disk_bus(tmp_path / "w") as bus:

        async def once(event: Event) -> None:
            await bus.delete_group("learner")

        await bus.subscribe("actions", "learner", once)
        await bus.publish(an_event(1))
        await until(lambda: "learner" not in bus.statistics().groups)
        await until(lambda: not (tmp_path / "w" / ".bus" / "groups" / "learner.json").exists())
        assert bus.health().ok


async def test_deleting_a_group_forgets_it(tmp_path: Path) -> None:
    """W3: only `delete_group` forgets; a group of that name is a new one then, with patterns of its own."""
    first, second = Collector(), Collector()
    async with disk_bus(tmp_path / "w") as bus:
        subscription = await bus.subscribe("actions", "learner", first)
        await bus.publish_many(some_events(range(3)))
        await settled(bus)
        await bus.delete_group("learner")
        assert not subscription.is_active
        assert not list((tmp_path / "w").rglob("*__learner.json*"))
        with pytest.raises(UnknownGroup) as unknown:
            await bus.delete_group("learner")
        assert unknown.value.code == "UNKNOWN_GROUP"
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("*", "learner", second)
        await settled(bus)
    assert (first.numbers, second.numbers) == ([0, 1, 2], [0, 1, 2])


async def test_a_group_that_nobody_consumes_with_can_be_deleted(tmp_path: Path) -> None:
    """W3: forgetting needs no subscriber."""
    async with disk_bus(tmp_path / "w") as bus:
        await bus.unsubscribe(await bus.subscribe("actions", "learner", Collector()))
        await bus.delete_group("learner")
        assert await bus.store.groups() == []


# -- W4: where a group begins --------------------------------------------------------------------------------------


async def test_a_group_may_begin_at_an_offset(event_bus: EventBus) -> None:
    """W4: of an exact topic in one space, an offset is the first event that the group gets."""
    collector = Collector()
    await event_bus.publish_many(some_events(range(1, 8)))
    await event_bus.subscribe("actions", "learner", collector, space="home", start=5)
    await settled(event_bus)
    assert collector.numbers == [5, 6, 7]


async def test_a_group_may_begin_at_an_offset_that_is_still_to_come(tmp_path: Path) -> None:
    """W4: until then it gets nothing, holds nobody up, and a restart changes nothing about it."""
    collector = Collector()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", collector, space="home", start=4, max_inflight=1)
        await bus.publish_many(some_events([1, 2]))
        await settled(bus)
        assert group_of(bus, "learner")["lag"] == 0
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", collector, space="home", start=4, max_inflight=1)
        await bus.publish_many(some_events([3, 4, 5]))
        await settled(bus)
    assert collector.numbers == [4, 5]


async def test_a_group_may_begin_at_a_time(fake_clock: FakeClock) -> None:
    """W4: the first event appended at that time or later is where it starts, in every log."""
    collector = Collector()
    async with EventBus(store=MemoryStore(clock=fake_clock)) as bus:
        for number in range(5):
            await bus.publish_many([an_event(number), an_event(10 + number, space="work")])
            await fake_clock.advance(10)
        moment = datetime.fromtimestamp(fake_clock.now_ms() / 1000, UTC) - timedelta(seconds=25)
        await bus.subscribe("actions", "learner", collector, start=moment)
        await settled(bus)
        assert sorted(collector.numbers) == [3, 4, 13, 14]
        await bus.close(timeout_s=0)


@pytest.mark.parametrize(
    ("topic", "space", "start"),
    [
        ("*", "home", 5),
        ("actions", "*", 5),
        ("actions", "home", 0),
        ("actions", "home", True),
        ("actions", "home", "yesterday"),
        ("actions", "home", datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone is what is refused
    ],
)
async def test_a_start_that_means_nothing_is_refused(event_bus: EventBus, topic: str, space: str, start: Any) -> None:
    """W4: an offset needs one log, a time needs a zone; nothing is left behind by the refusal."""
    with pytest.raises(InvalidMessage):
        await event_bus.subscribe(topic, "learner", Collector(), space=space, start=start)
    assert await event_bus.store.groups() == []


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_from_replay_to_live_nothing_is_lost_or_repeated(tmp_path: Path, start: Any) -> None:
    """W4: a group that begins in the middle of a stream of publishes gets each offset once and in order."""
    wal = WalSettings(ballast_bytes=0, tail_bytes=2_000, segment_bytes=20_000)
    recorders = [Recorder() for _ in range(3)]
    async with disk_bus(tmp_path / "w", wal=wal, read_bytes=3_000) as bus:
        await bus.publish_many(some_events(range(300)))
        firsts: list[int] = []

        async def publish() -> None:
            for number in range(200):
                await bus.publish_many(some_events([number, number, number]))

        async def subscribe(index: int) -> None:
            for _ in range(index * 20):
                await anyio.lowlevel.checkpoint()
            firsts.append(bus.statistics().published)
            await bus.subscribe("actions", f"group-{index}", recorders[index], start=start, max_inflight=16 + index)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            for index in range(len(recorders)):
                tasks.start_soon(subscribe, index)
        await settled(bus)
    for recorder in recorders:
        first = recorder.offsets[0]
        assert recorder.offsets == list(range(first, 901))
        assert first == 1 if start == "earliest" else first > 300


# -- W15: topics and spaces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders.paid", {"orders.paid"}),
        ("orders.*", {"orders.paid", "orders.sent"}),
        ("orders.**", {"orders", "orders.paid", "orders.sent", "orders.sent.late"}),
        ("*.sent", {"orders.sent"}),
        ("*", {"orders", "orders.paid", "orders.sent", "orders.sent.late", "notes"}),
    ],
)
async def test_a_glob_covers_present_and_future_topics(
    event_bus: EventBus, recorder: Recorder, pattern: str, expected: set[str]
) -> None:
    """W15: `*` is one segment, `**` any number, a lone `*` everything."""
    topics = ["orders", "orders.paid", "orders.sent", "orders.sent.late", "notes"]
    await event_bus.publish_many([an_event(topic=topic) for topic in topics[:3]])
    await event_bus.subscribe(pattern, "learner", recorder)
    await event_bus.publish_many([an_event(topic=topic) for topic in topics[3:]])
    await settled(event_bus)
    assert {one.topic for one in recorder.deliveries} == expected
    assert len(recorder.deliveries) == len(expected)


async def test_a_group_gets_a_later_space_from_its_first_event(tmp_path: Path) -> None:
    """W15: `*` means all spaces, present and future, and a crash between the two changes nothing about that."""
    recorder = Recorder()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.publish(an_event(space="old"))
        await bus.subscribe("actions", "learner", recorder, start="latest")
        for number in range(20):
            await bus.publish_many([an_event(space=f"new {number}"), an_event(space=f"new {number}")])
        await settled(bus)
        copy = killed(tmp_path / "w")
    assert sorted((one.space_id, one.offset) for one in recorder.deliveries) == sorted(
        (f"new {number}", offset) for number in range(20) for offset in (1, 2)
    )
    again = Recorder()
    async with disk_bus(copy) as bus:
        await bus.publish(an_event(space="born later"))
        await bus.subscribe("actions", "learner", again, start="latest")
        await settled(bus)
    assert ("born later", 1) in [(one.space_id, one.offset) for one in again.deliveries]
    assert "old" not in [one.space_id for one in again.deliveries]


async def test_a_group_in_one_space_sees_no_other(event_bus: EventBus, recorder: Recorder) -> None:
    """W15: a space is a border; a name that merely begins alike lies beyond it."""
    await event_bus.subscribe("actions", "learner", recorder, space="home")
    await event_bus.publish_many([an_event(space=space) for space in ("home", "home2", "Home", "work", "*")])
    await settled(event_bus)
    assert [one.space_id for one in recorder.deliveries] == ["home"]


async def test_an_event_type_is_a_topic(event_bus: EventBus, recorder: Recorder) -> None:
    """E2: what is published under an `EventType` is consumed under it, or under its name."""
    await event_bus.subscribe(EventType.HIPPO_ENCODE, "first", recorder)
    await event_bus.subscribe("HIPPO_ENCODE", "second", recorder)
    await event_bus.publish(an_event(), EventType.HIPPO_ENCODE)
    await settled(event_bus)
    assert sorted(one.group for one in recorder.deliveries) == ["first", "second"]


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 0},
        {"max_inflight": 0},
        {"max_parked": 0},
        {"batch": 0},
        {"batch": 1.5},
        {"ordering": "sometimes"},
        {"overflow": "drop"},
        {"on_expired": "keep"},
        {"backoff_base": -1},
        {"backoff_base": float("nan")},
        {"backoff_mult": float("inf")},
        {"backoff_max": float("nan")},
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"ack_deadline_s": -1},
        {"ack_deadline_s": float("nan")},
    ],
)
async def test_a_setting_that_makes_no_sense_is_refused(event_bus: EventBus, settings: dict[str, Any]) -> None:
    """INVALID_MESSAGE: the setting is named, and no group comes into being."""
    with pytest.raises(InvalidMessage) as refused:
        await event_bus.subscribe("actions", "learner", Collector(), **settings)
    assert next(iter(settings)) in str(refused.value)
    assert await event_bus.store.groups() == []


@pytest.mark.parametrize(
    ("topic", "group", "space", "error"),
    [
        ("../up", "learner", "*", InvalidTopic),
        ("a.**b", "learner", "*", InvalidTopic),
        ("actions", "a__b", "*", InvalidGroup),
        ("actions", "", "*", InvalidGroup),
        ("actions", "learner", "", InvalidSpace),
        ("actions", "learner", "a\nb", InvalidSpace),
    ],
)
async def test_names_are_checked_before_a_group_exists(
    event_bus: EventBus, topic: str, group: str, space: str, error: type[BusError]
) -> None:
    """F3, W18: a name outside the grammar is refused by its own code."""
    with pytest.raises(error) as refused:
        await event_bus.subscribe(topic, group, Collector(), space=space)
    assert error_code_of(refused.value) == error.code


async def test_a_setting_that_nobody_knows_is_refused() -> None:
    """A registry takes settings by name; a misspelt one is an error at the start, not silence."""
    subscription = Subscription("actions", "learner", Collector(), settings={"worker": 2})
    async with EventBus(store=MemoryStore()) as bus:
        with pytest.raises(InvalidMessage, match="workers"):
            await bus.subscribe_as(bus._identity, subscription)


async def test_policies_by_topic_stand_between_arguments_and_defaults(fake_clock: FakeClock) -> None:
    """Settings: `subscribe` arguments over the topic's policy over `BusConfig`."""

    class Policies:
        def for_topic(self, topic: str) -> Any:
            return Policy() if topic == "actions" else None

    class Policy:
        workers = 3
        max_inflight = None

    config = BusConfig(topics=Policies(), workers=2)
    bus = EventBus(store=MemoryStore(clock=fake_clock), config=config)
    held = {name: Held() for name in ("argument", "policy", "default")}
    await bus.subscribe("actions", "argument", held["argument"], workers=1)
    await bus.subscribe("actions", "policy", held["policy"])
    await bus.subscribe("notes", "default", held["default"])
    await bus.publish_many([*some_events(range(5)), *some_events(range(5), topic="notes")])
    await fake_clock.advance(0)
    assert {name: len(one.begun) for name, one in held.items()} == {"argument": 1, "policy": 3, "default": 2}
    await bus.close(timeout_s=0)
