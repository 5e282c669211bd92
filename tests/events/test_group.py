"""A group at work: order within a key, nothing held up by anything else, and everything bounded."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.attention_gate import Admit, Decision, Defer, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Delivery
from events.errors import QueueFull
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.testing.recording import Recorder
from events.types import Event, Nack
from tests.events.bus_support import (
    Collector,
    Held,
    an_event,
    disk_bus,
    group_of,
    settled,
    some_events,
    until,
)

# -- W5: order -------------------------------------------------------------------------------------------------------


class _Keyed:
    """A handler that fails at random, and notes for each key what it ended, and whether two ran at once."""

    def __init__(self, seed: int, clock: FakeClock | None = None) -> None:
        self._random = random.Random(seed)
        self._clock = clock
        self._running: set[str] = set()
        self.ended: dict[str, list[int]] = defaultdict(list)
        self.begun: dict[str, list[int]] = defaultdict(list)
        self.overlaps = 0
        self.failures = 0

    async def __call__(self, event: Event) -> Nack | None:
        key, number = str(event.meta.key), event.payload["n"]
        self.overlaps += key in self._running
        self._running.add(key)
        self.begun[key].append(number)
        try:
            for _ in range(self._random.randrange(3)):
                await anyio.lowlevel.checkpoint()
            if self._random.random() < 0.3:
                self.failures += 1
                return Nack("unlucky", delay=self._random.random() * 0.005)
        finally:
            self._running.discard(key)
        self.ended[key].append(number)
        return None


@pytest.mark.parametrize("seed", range(3))
async def test_each_key_is_worked_off_in_order_by_eight_workers(tmp_path: Path, seed: int) -> None:
    """W5: one delivery of a key at a time and in offset order, across failures and retries."""
    handler = _Keyed(seed)
    events = [an_event(number, key=f"key-{number % 7}") for number in range(400)]
    async with disk_bus(tmp_path / "w", max_retries=100) as bus:
        await bus.subscribe("actions", "learner", handler, workers=8, max_inflight=50)
        for start in range(0, len(events), 40):
            await bus.publish_many(events[start : start + 40])
        await settled(bus)
    assert handler.overlaps == 0
    assert handler.failures > 50
    for remainder in range(7):
        expected = [number for number in range(400) if number % 7 == remainder]
        assert handler.ended[f"key-{remainder}"] == expected
        # No later event of a key begins before the earlier one has ended.
        assert sorted(set(handler.begun[f"key-{remainder}"])) == expected
        assert handler.begun[f"key-{remainder}"] == sorted(handler.begun[f"key-{remainder}"])


async def test_order_holds_across_a_restart_in_the_middle(tmp_path: Path) -> None:
    """W5, S3: what was backing off when the bus closed comes before what stood behind it."""
    handler = _Keyed(7)
    events = [an_event(number, key=f"key-{number % 3}") for number in range(150)]
    for round in range(5):
        async with disk_bus(tmp_path / "w", max_retries=1000) as bus:
            await bus.subscribe("actions", "learner", handler, workers=8, max_inflight=20)
            await bus.publish_many(events[round * 30 : round * 30 + 30])
            if round == 4:
                await settled(bus)
    for remainder in range(3):
        assert handler.ended[f"key-{remainder}"] == [number for number in range(150) if number % 3 == remainder]


async def test_keys_are_apart_by_space_and_topic(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: the same key in another space or topic is another lane."""
    held = Held()
    await timed_bus.subscribe("*", "learner", held, workers=10)
    places = [("home", "actions"), ("work", "actions"), ("home", "notes")]
    for space, topic in places:
        await timed_bus.publish_many(some_events([1, 2], space=space, topic=topic, key="same"))
    await fake_clock.advance(0)
    assert held.begun == [1, 1, 1]
    held.let_go()


async def test_events_without_a_key_pass_each_other(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: no key, no promised order: a failing one holds up nobody."""
    recorder = Recorder(lambda recorded: Nack(delay=100) if recorded.offset == 1 else None)
    await timed_bus.subscribe("actions", "learner", recorder)
    await timed_bus.publish_many(some_events(range(5)))
    await fake_clock.advance(1)
    assert recorder.offsets == [1, 2, 3, 4, 5]
    assert group_of(timed_bus, "learner")["parked"] == 1


async def test_ordering_by_topic_makes_the_log_one_lane(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: `ordering="topic"`: whatever the keys and workers, one delivery at a time, in offset order."""
    fails = {3: 2, 5: 1}
    running = 0
    order: list[int] = []

    async def handler(event: Event) -> Nack | None:
        nonlocal running
        running += 1
        assert running == 1
        number = event.payload["n"]
        await fake_clock.sleep(0.01)
        running -= 1
        if fails.get(number):
            fails[number] -= 1
            return Nack(delay=1)
        order.append(number)
        return None

    await timed_bus.subscribe("actions", "learner", handler, workers=4, ordering="topic")
    await timed_bus.publish_many([an_event(number, key=f"key-{number}") for number in range(10)])
    await fake_clock.advance(30)
    assert order == list(range(10))


async def test_without_ordering_a_key_means_nothing(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: `ordering="none"`: events of one key run side by side."""
    held = Held()
    await timed_bus.subscribe("actions", "learner", held, workers=4, ordering="none")
    await timed_bus.publish_many(some_events(range(4), key="same"))
    await fake_clock.advance(0)
    assert held.begun == [0, 1, 2, 3]
    held.let_go()


async def test_a_batch_may_hold_several_events_of_a_key_in_order(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: a batch takes a run of a lane and fills up with others; no second batch of that lane runs beside it."""
    batches: list[list[tuple[str, int]]] = []
    go = anyio.Event()

    async def handler(events: list[Event]) -> None:
        batches.append([(str(event.meta.key), event.payload["n"]) for event in events])
        await go.wait()

    # Published first, so that the batches are drawn from all of it.
    await timed_bus.publish_many([an_event(number, key="ab"[number % 2]) for number in range(12)])
    await timed_bus.subscribe("actions", "learner", handler, workers=3, batch=4)
    await fake_clock.advance(0)
    assert [len(batch) for batch in batches] == [4, 4]
    assert {key for batch in batches for key, _ in batch} == {"a", "b"}
    go.set()
    await settled(timed_bus)
    for key in "ab":
        numbers = [number for batch in batches for one, number in batch if one == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 6


async def test_a_failed_batch_is_retried_event_by_event(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: one bad event among ten costs the others one attempt; then each runs by itself, in its key's order."""
    calls: list[list[int]] = []

    async def handler(events: list[Event]) -> None:
        numbers = [event.payload["n"] for event in events]
        calls.append(numbers)
        if 3 in numbers:
            raise LookupError("three")

    await timed_bus.publish_many([an_event(number, key="k" if number % 2 else None) for number in range(8)])
    await timed_bus.subscribe("actions", "learner", handler, batch=8, max_retries=2, backoff_base=0.1)
    await fake_clock.advance(60)
    await settled(timed_bus)
    assert sorted(calls[0]) == list(range(8))
    assert all(len(call) == 1 for call in calls[1:])
    assert [call[0] for call in calls[1:] if call[0] % 2] == [1, 3, 3, 5, 7]
    assert [dead.offset for dead in await timed_bus.dlq.list()] == [4]
    assert group_of(timed_bus, "learner")["acked"] == 7


async def test_what_failed_runs_by_itself_also_beside_fresh_batches(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5: a retried event shares no batch with new ones, so its next failure costs nobody else anything."""
    calls: list[list[int]] = []

    async def handler(events: list[Event]) -> None:
        numbers = [event.payload["n"] for event in events]
        calls.append(numbers)
        if 0 in numbers:
            raise LookupError("zero")

    await timed_bus.subscribe("actions", "learner", handler, batch=5, max_retries=3, backoff_base=1, backoff_mult=1)
    await timed_bus.publish_many(some_events(range(5)))
    for number in range(100, 400, 10):
        await fake_clock.advance(0.3)
        await timed_bus.publish_many(some_events(range(number, number + 10)))
    await fake_clock.advance(60)
    assert [call for call in calls[1:] if 0 in call] == [[0]] * 3
    assert group_of(timed_bus, "learner")["acked"] == 304


# -- nothing is held up ----------------------------------------------------------------------------------------------


class _Gate:
    """Defers a thousand events by an hour, once each."""

    def decide(self, event: Event, context: GateContext) -> Decision:
        if event.meta.key is None and not context.deferrals and event.payload["n"] >= 10_000:
            return Defer(3600)
        return Admit()


async def test_a_key_that_always_fails_holds_up_no_other(fake_clock: FakeClock) -> None:
    """W5, W7: a thousand followers of a failing key and a thousand deferred events; other keys keep flowing.

    Publishers do not stall, and what waits is parked as offsets, out of the window.
    """
    done: dict[str, list[int]] = defaultdict(list)

    async def handler(event: Event) -> None:
        if event.meta.key == "bad" and event.payload["n"] == 0:
            raise LookupError("never")
        done[str(event.meta.key)].append(event.payload["n"])

    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=_Gate())
    settings: dict[str, Any] = {"workers": 4, "max_inflight": 32, "max_retries": 1000, "backoff_base": 20.0}
    await bus.subscribe("actions", "learner", handler, **settings)
    await fake_clock.advance(0)
    for first in range(0, 1000, 50):
        numbers = range(first, first + 50)
        await bus.publish_many(some_events(numbers, key="bad"), timeout_s=0)
        await bus.publish_many(some_events(range(10_000 + first, 10_050 + first)), timeout_s=0)
        await bus.publish_many([an_event(number, key=f"good-{number % 10}") for number in numbers], timeout_s=0)
        await fake_clock.advance(0.1)
        stats = group_of(bus, "learner")
        assert stats["inflight"] <= 32
        assert sum(len(numbers) for key, numbers in done.items() if key.startswith("good")) == first + 50
    assert done["bad"] == []
    assert group_of(bus, "learner")["parked"] == 2000
    await fake_clock.advance(3601)
    assert len(done["None"]) == 1000
    assert group_of(bus, "learner")["parked"] == 1000
    await bus.close(timeout_s=0)


async def test_followers_of_a_key_go_on_in_order_when_it_recovers(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W5, W7: a lane of a thousand parked offsets is read again in order, a window at a time."""
    order: list[int] = []
    failing = True

    async def handler(event: Event) -> None:
        if failing and event.payload["n"] == 0:
            raise LookupError("not yet")
        order.append(event.payload["n"])

    await timed_bus.subscribe("actions", "learner", handler, max_inflight=16, max_retries=1000, workers=4)
    await fake_clock.advance(0)
    for first in range(0, 1000, 100):
        await timed_bus.publish_many(some_events(range(first, first + 100), key="k"))
        await fake_clock.advance(0)
    assert order == []
    failing = False
    await fake_clock.advance(60)
    await settled(timed_bus)
    assert order == list(range(1000))


async def test_the_number_of_parked_events_is_bounded(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W7: at `max_parked` the cursor stops; as soon as something leaves, it goes on."""
    failing = True
    done: list[int] = []

    async def handler(event: Event) -> Nack | None:
        if failing:
            return Nack(delay=10)
        done.append(event.payload["n"])
        return None

    settings: dict[str, Any] = {"max_parked": 20, "max_inflight": 4, "max_retries": 1000, "overflow": "spill"}
    await timed_bus.subscribe("actions", "learner", handler, **settings)
    await timed_bus.publish_many(some_events(range(200)))
    await fake_clock.advance(100)
    stats = group_of(timed_bus, "learner")
    assert stats["parked"] + stats["inflight"] <= 24
    assert stats["lag"] == 200
    failing = False
    await fake_clock.advance(100)
    await settled(timed_bus)
    assert sorted(done) == list(range(200))


async def test_a_group_with_all_that_it_may_park_holds_publishers_back(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W7, W12: with `overflow="block"` the bound on parked events reaches the publishers in the end."""
    recorder = Recorder(lambda recorded: Nack(delay=10))
    await timed_bus.subscribe("actions", "learner", recorder, max_parked=5, max_inflight=2, max_retries=1000)
    await fake_clock.advance(0)
    accepted = 0
    for number in range(50):
        try:
            await timed_bus.publish(an_event(number), timeout_s=0)
        except QueueFull:
            break
        accepted += 1
        await fake_clock.advance(0)
    assert 5 <= accepted <= 8


async def test_at_the_bound_defer_becomes_admit(fake_clock: FakeClock) -> None:
    """W7: a gate that defers everything cannot make a group hold more than `max_parked` events."""

    class Procrastinator:
        def decide(self, event: Event, context: GateContext) -> Decision:
            return Defer(3600)

    collector = Collector()
    config = BusConfig(maintenance_interval_s=1e9)
    bus = EventBus(store=MemoryStore(clock=fake_clock), gate=Procrastinator(), config=config)
    await bus.publish_many(some_events(range(40)))
    await bus.subscribe("actions", "learner", collector, max_parked=10, overflow="spill")
    await fake_clock.advance(1)
    assert group_of(bus, "learner")["parked"] <= 10
    assert collector.numbers == []
    await fake_clock.advance(3600 * 2)
    assert 0 < len(collector.numbers) < 30, "one who was deferred long enough makes room for another"
    await fake_clock.advance(3600 * 60)
    await settled(bus)
    assert sorted(collector.numbers) == list(range(40))
    await bus.close(timeout_s=0)


async def test_acked_ranges_are_bounded_too(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """W7: every second event held up leaves a hole; the holes count against `max_parked` as the parked do."""
    failing = True
    done: list[int] = []

    async def handler(event: Event) -> Nack | None:
        if failing and event.payload["n"] % 2 == 0:
            return Nack(delay=1000)
        done.append(event.payload["n"])
        return None

    settings: dict[str, Any] = {"max_parked": 30, "max_inflight": 4, "max_retries": 1000, "overflow": "spill"}
    await timed_bus.subscribe("actions", "learner", handler, **settings)
    await timed_bus.publish_many(some_events(range(400)))
    await fake_clock.advance(10)
    assert len(done) <= 35
    failing = False
    await fake_clock.advance(20_000)
    await settled(timed_bus)
    assert sorted(done) == list(range(400))


async def test_a_group_does_not_run_ahead_of_its_checkpoints(fake_clock: FakeClock) -> None:
    """W6: beyond `settle_span` events past the last checkpoint a group waits for the next one, and then goes on."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock), config=BusConfig(settle_span=10, checkpoint_interval_s=1000))
    await bus.publish_many(some_events(range(100)))
    await bus.subscribe("actions", "learner", collector)
    await fake_clock.advance(5)
    await settled(bus)
    assert collector.numbers == list(range(100))
    await bus.close(timeout_s=0)


async def test_a_group_that_cannot_checkpoint_any_further_waits_quietly(fake_clock: FakeClock) -> None:
    """W6, M: with nothing new to save at the bound it sleeps, and does not write checkpoints in a circle."""
    saves = 0

    class Counting(MemoryStore):
        async def save_checkpoint(self, *arguments: Any) -> None:
            nonlocal saves
            saves += 1
            await super().save_checkpoint(*arguments)

    held = Held()
    bus = EventBus(store=Counting(clock=fake_clock), config=BusConfig(settle_span=10, checkpoint_interval_s=0.1))
    await bus.publish_many(some_events(range(100)))
    await bus.subscribe("actions", "learner", held, max_inflight=50)
    await fake_clock.advance(60)
    assert saves <= 3
    held.let_go()
    await fake_clock.advance(5)
    await settled(bus)
    assert held.ended == list(range(100))
    await bus.close(timeout_s=0)


# -- priorities ------------------------------------------------------------------------------------------------------


async def test_the_urgent_go_first(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """Step 7: higher priorities first, in order of arrival among equals; names and numbers are one scale."""
    collector = Collector()
    priorities: list[Any] = [None, "low", 10, "critical", "high", 99, "normal", 0]
    await timed_bus.publish_many([an_event(number, priority=one) for number, one in enumerate(priorities)])
    await timed_bus.subscribe("actions", "learner", collector)
    await settled(timed_bus)
    levels = {None: 50, "low": 25, "normal": 50, "high": 75, "critical": 100}
    expected = sorted(range(8), key=lambda number: -levels.get(priorities[number], priorities[number]))
    assert collector.numbers == expected


async def test_a_lane_is_as_urgent_as_its_most_urgent_event_and_never_reordered(
    timed_bus: EventBus, fake_clock: FakeClock
) -> None:
    """W5: an urgent event pulls those before it in its key along, ahead of other keys, and stays behind them."""
    collector = Collector()
    events = [an_event(number, key="slow", priority="low") for number in range(3)]
    events += [an_event(10 + number, key="other") for number in range(3)]
    events += [an_event(3, key="slow", priority="critical")]
    await timed_bus.publish_many(events)
    await timed_bus.subscribe("actions", "learner", collector)
    await settled(timed_bus)
    assert collector.numbers == [0, 1, 2, 3, 10, 11, 12]


async def test_nothing_starves(timed_bus: EventBus, fake_clock: FakeClock) -> None:
    """Step 7: under a flood of urgent events the others still get their share."""
    order: list[str] = []
    flood = 400

    async def handler(event: Event) -> None:
        nonlocal flood
        order.append(str(event.meta.priority))
        if event.meta.priority == "critical" and flood:
            flood -= 1
            await timed_bus.publish(an_event(1, priority="critical"))

    await timed_bus.publish_many([*some_events(range(10), priority="low"), *some_events(range(5), priority="critical")])
    await timed_bus.subscribe("actions", "learner", handler)
    await settled(timed_bus)
    assert order.count("low") == 10
    assert "low" in order[:40]
    assert [index for index, one in enumerate(order) if one == "low"][-1] < 300


async def test_a_topic_may_have_a_priority(fake_clock: FakeClock) -> None:
    """Settings: an event without a priority has that of its topic's policy."""

    class Policies:
        def for_topic(self, topic: str) -> Any:
            return Policy() if topic == "alarms" else None

    class Policy:
        priority = "critical"

    held = Held()
    bus = EventBus(store=MemoryStore(clock=fake_clock), config=BusConfig(topics=Policies()))
    await bus.subscribe("*", "learner", held)
    await bus.publish(an_event(0))
    await fake_clock.advance(0)
    await bus.publish_many([an_event(1), an_event(2, priority="high"), an_event(3, topic="alarms")])
    await fake_clock.advance(0)
    held.let_go()
    await settled(bus)
    assert held.ended == [0, 3, 2, 1]
    await bus.close(timeout_s=0)


# -- what else a group does ------------------------------------------------------------------------------------------


async def test_many_logs_of_one_group_cost_no_task_each(tmp_path: Path, anyio_backend_name: str) -> None:
    """W15, M: a group over many spaces has one feeder and its workers, however many spaces there are."""
    collector = Collector()
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "learner", collector)
        before = len(anyio.get_running_tasks())
        await bus.publish_many([an_event(number, space=f"space {number}") for number in range(300)])
        await settled(bus)
        assert len(anyio.get_running_tasks()) <= before + 10
    assert sorted(collector.numbers) == list(range(300))


async def test_idle_logs_are_let_go_and_taken_up_again(fake_clock: FakeClock) -> None:
    """W15, M: of more than a thousand idle logs the group keeps no state in memory; each goes on where it was."""
    collector = Collector()
    bus = EventBus(store=MemoryStore(clock=fake_clock))
    await bus.subscribe("actions", "learner", collector)
    spaces = [f"space {number}" for number in range(1500)]
    for round in range(3):
        await bus.publish_many([an_event(round, space=space) for space in spaces])
        await settled(bus)
        await fake_clock.advance(1)
    group = bus._dispatcher.groups["learner"]
    assert len(group.cursors) <= 1024
    assert collector.numbers == [0] * 1500 + [1] * 1500 + [2] * 1500
    await bus.close(timeout_s=0)


async def test_deliveries_say_where_they_come_from(timed_bus: EventBus, recorder: Recorder) -> None:
    """Contracts: a delivery names space, topic, offset, group and attempt; its identity lasts for ever."""
    deliveries: list[Delivery] = []

    async def handler(event: Event, delivery: Delivery) -> None:
        deliveries.append(delivery)

    await timed_bus.subscribe("**", "learner", handler)
    await timed_bus.publish(an_event(space="home sweet home", topic="orders.paid"))
    await settled(timed_bus)
    [one] = deliveries
    assert (one.space_id, one.topic, one.offset, one.group, one.attempt, one.replayed) == (
        "home sweet home",
        "orders.paid",
        1,
        "learner",
        1,
        False,
    )
    assert one.identity == "home sweet home/orders.paid/1"
    assert "learner" in repr(one)


async def test_groups_do_not_disturb_each_other(tmp_path: Path) -> None:
    """W1: each group has a place of its own; one that fails or is slow changes nothing for another."""
    good, bad = Collector(), Recorder(lambda recorded: Nack())
    async with disk_bus(tmp_path / "w") as bus:
        await bus.subscribe("actions", "good", good)
        await bus.subscribe("actions", "bad", bad, max_retries=1)
        await bus.publish_many(some_events(range(20)))
        await settled(bus)
        assert {dead.group for dead in await bus.dlq.list()} == {"bad"}
        await until(lambda: len(list((tmp_path / "w").rglob("offsets/*.json"))) == 2)
    assert good.numbers == list(range(20))
