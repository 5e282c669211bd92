"""The window: pure bookkeeping of what is queued, running and parked; checked against a model, step by step."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from events.cursor import Cursor
from events.lanes import Item, Lane, Place
from events.persistence.codec import Record
from events.persistence.memory import MemoryLog
from events.persistence.store import LogName
from events.types import EventMeta
from events.window import Window


class _Log:
    name = LogName("home", "actions")
    log_id = "x"
    next_offset = 1_000_000


def _cursor() -> Cursor:
    return Cursor(cast(MemoryLog, _Log()), 1, None)


def _record(offset: int, key: str | None = None) -> Record:
    record = Record(offset, b"", 1, 0)
    record._meta = EventMeta(topic="actions", type="NOTED", space_id="home", key=key)
    return record


def _window(ordering: Any = "key", max_inflight: int = 100, max_parked: int = 100) -> Window:
    return Window(max_inflight=max_inflight, max_parked=max_parked, ordering=ordering)


def _enter(window: Window, cursor: Cursor, *places: tuple[int, str | None], priority: int = 50) -> None:
    for offset, key in places:
        window.enter(cursor, _record(offset, key), Place(offset), priority)


def _offsets(items: list[Item]) -> list[int]:
    return [item.place.offset for item in items]


def _take_all(window: Window, limit: int = 1) -> list[list[int]]:
    taken: list[list[int]] = []
    while items := window.take(limit):
        taken.append(_offsets(items))
        for item in items:
            window.finish(item)
    return taken


def test_a_lane_is_taken_one_at_a_time() -> None:
    """W5: the second event of a key is not to be had before the first is finished."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"), (3, "b"))
    [first] = window.take(1)
    [other] = window.take(1)
    assert (first.place.offset, other.place.offset) == (1, 3)
    assert window.take(1) == []
    window.finish(first)
    assert _offsets(window.take(1)) == [2]
    assert window.inflight == 2


def test_finished_lanes_are_forgotten() -> None:
    """M: a million keys leave nothing behind."""
    window, cursor = _window(max_inflight=10_000), _cursor()
    _enter(window, cursor, *((offset, f"key-{offset}") for offset in range(1, 1001)))
    _take_all(window)
    assert (cursor.lanes, window.inflight, window.parked) == ({}, 0, 0)


def test_parking_takes_the_whole_lane_out_of_the_window() -> None:
    """W7: the failed event and all that stands behind it take no room until it is due."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"), (3, "a"), (4, "b"))
    [item] = window.take(1)
    window.park(item, 10.0)
    assert (window.inflight, window.parked) == (1, 3)
    assert window.blocks(cursor, _record(5, "a")) is not None
    window.park_new(cursor, _record(5, "a"), Place(5), 0.0)
    assert _take_all(window) == [[4]]
    assert window.next_due == 10.0
    assert window.pop_due(9.9) is None
    lane = window.pop_due(10.0)
    assert lane is not None
    assert [place.offset for place in lane.parked] == [1, 2, 3, 5]


def _unpark_all(window: Window, lane: Lane, now: float = 0.0) -> None:
    while lane.parked:
        window.unpark(lane, _record(lane.parked[0].offset, lane.key), 50)
    window.put_down(lane, now)


def test_a_parked_lane_comes_back_in_order() -> None:
    """W5, W7: read again when due, and what arrived meanwhile stands behind."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"))
    [item] = window.take(1)
    window.park(item, 1.0)
    window.park_new(cursor, _record(3, "a"), Place(3), 0.0)
    lane = window.pop_due(1.0)
    assert lane is not None
    window.park_new(cursor, _record(4, "a"), Place(4), 0.0)
    _unpark_all(window, lane)
    _enter(window, cursor, (5, "a"))
    assert _take_all(window) == [[1], [2], [3], [4], [5]]
    assert (window.inflight, window.parked, cursor.lanes) == (0, 0, {})


def test_a_lane_that_is_being_read_is_not_handed_out_twice() -> None:
    """W5: two timers of one lane, or a timer that goes off while it is read, mean one reader."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"))
    [item] = window.take(1)
    window.park(item, 1.0)
    lane = window.pop_due(5.0)
    assert lane is not None
    assert window.pop_due(5.0) is None
    window.put_down(lane, 6.0)
    assert window.pop_due(5.0) is None
    assert window.pop_due(6.0) is lane


def test_a_batch_takes_a_run_of_a_lane_and_then_others() -> None:
    """W5: in order within the key, and never more than the limit."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"), (3, None), (4, "b"), (5, "a"))
    assert _offsets(window.take(3)) == [1, 2, 5]
    assert _offsets(window.take(3)) == [3, 4]
    assert window.take(3) == []


def test_the_rest_of_a_batch_keeps_the_lane_until_all_of_it_is_finished() -> None:
    """W5: members may be settled one by one; the next in the lane waits for the last of them."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"), (3, "a"))
    first, second = window.take(2)
    window.finish(second)
    assert window.take(2) == []
    window.finish(first)
    assert _offsets(window.take(2)) == [3]


def test_a_failed_member_parks_what_is_left_of_the_batch_too() -> None:
    """W5: the acked ones are gone, the failed ones and the followers wait together, in order."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, *((offset, "a") for offset in range(1, 6)))
    first, second, third = window.take(3)
    window.finish(second)
    window.park(first, 5.0)
    window.park(third, 9.0)
    assert (window.inflight, window.parked) == (0, 4)
    lane = window.pop_due(5.0)
    assert lane is not None
    assert [place.offset for place in lane.parked] == [1, 3, 4, 5]


def test_what_runs_singly_shares_no_batch() -> None:
    """W5: neither as the first of a batch, nor as a follower, nor picked up on the way."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, None), (2, "a"), (3, "b"))
    for item in window.take(3):
        window.park(item, float(item.place.offset))
    for now in (1.0, 2.0, 3.0):
        lane = window.pop_due(now)
        assert lane is not None
        window.unpark(lane, _record(lane.parked[0].offset, lane.key), 50, singly=now == 2.0)
        window.put_down(lane, 0.0)
    _enter(window, cursor, (4, "a"), (5, None))
    batches = _take_all(window, 10)
    assert [2] in batches
    assert sorted(offset for batch in batches for offset in batch) == [1, 2, 3, 4, 5]


def test_what_runs_singly_is_not_overtaken_for_ever() -> None:
    """L: put back by one batch, it is the first of the next."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, None))
    [item] = window.take(1)
    window.park(item, 0.0)
    _enter(window, cursor, *((offset, None) for offset in range(10, 12)))
    lane = window.pop_due(0.0)
    assert lane is not None
    window.unpark(lane, _record(1), 50, singly=True)
    window.put_down(lane, 0.0)
    _enter(window, cursor, *((offset, None) for offset in range(20, 60)))
    batches = _take_all(window, 5)
    assert [1] in batches[:3]


@pytest.mark.parametrize(("ordering", "expected"), [("topic", [[1]]), ("none", [[1], [2], [3]]), ("key", [[1], [3]])])
def test_ordering_decides_what_is_a_lane(ordering: Any, expected: list[list[int]]) -> None:
    """W5: one lane a key, one for the whole log, or none at all."""
    window, cursor = _window(ordering), _cursor()
    _enter(window, cursor, (1, "a"), (2, "a"), (3, None))
    taken: list[list[int]] = []
    while items := window.take(1):
        taken.append(_offsets(items))
    assert taken == expected


def test_a_deferred_event_holds_the_events_of_its_key_behind_it() -> None:
    """W5: a deferral is a wait like any other."""
    window, cursor = _window(), _cursor()
    window.park_new(cursor, _record(1, "a"), Place(1), 7.0)
    assert window.blocks(cursor, _record(2, "a")) is not None
    assert window.blocks(cursor, _record(2, "b")) is None
    assert window.blocks(cursor, _record(2)) is None
    window.park_new(cursor, _record(2, "a"), Place(2), 0.0)
    assert window.next_due == 7.0


def test_a_deferral_behind_a_running_lane_waits_for_both() -> None:
    """W5: a lane that still runs when its parked head is due is read when it has finished."""
    window, cursor = _window(), _cursor()
    _enter(window, cursor, (1, "a"))
    [item] = window.take(1)
    window.park_new(cursor, _record(2, "a"), Place(2), 3.0)
    assert window.pop_due(10.0) is None
    window.finish(item)
    lane = window.pop_due(10.0)
    assert lane is not None
    assert [place.offset for place in lane.parked] == [2]


def test_discarding_a_parked_event_makes_room() -> None:
    """W11: what is dropped or lost while parked is neither counted nor brought back."""
    window, cursor = _window(max_parked=2), _cursor()
    window.park_new(cursor, _record(1, "a"), Place(1), 0.0)
    window.park_new(cursor, _record(2, "a"), Place(2), 0.0)
    assert window.is_parked_full
    lane = window.pop_due(0.0)
    assert lane is not None
    window.discard(lane, Place(1))
    assert (window.parked, window.is_parked_full) == (1, False)
    window.discard(lane, Place(2))
    window.put_down(lane, 0.0)
    assert cursor.lanes == {}


@pytest.mark.parametrize("state", ["free", "queued", "parked"])
def test_a_dead_letters_round_joins_the_lane_of_its_key(state: str) -> None:
    """W10: behind what the lane holds, queued or parked, and one at a time like the others."""
    window, cursor = _window(), _cursor()
    if state != "free":
        _enter(window, cursor, (8, "a"))
    if state == "parked":
        window.park(window.take(1)[0], 100.0)
    place = Place(3, 1, 1)
    window.park_retry(cursor, place, 0.0)
    lane = window.pop_due(0.0)
    assert lane is not None
    window.join(lane, _record(3, "a"), 50)
    window.put_down(lane, 0.0)
    taken = [one for batch in _take_all(window) for one in batch]
    assert taken == {"free": [3], "queued": [8, 3], "parked": []}[state]
    if state == "parked":
        key_lane = window.pop_due(100.0)
        assert key_lane is not None
        assert list(key_lane.parked) == [Place(8), place]


class _Steps(RuleBasedStateMachine):
    """Any sequence of arrivals, deliveries, failures and returns keeps the counts right and each key in order."""

    def __init__(self) -> None:
        super().__init__()
        self.window = _window(max_inflight=10_000, max_parked=10_000)
        self.cursor = _cursor()
        self.now = 0.0
        self.next = 1
        self.keys: dict[int, str | None] = {}
        self.done: list[int] = []
        self.held: list[list[Item]] = []

    @rule(key=st.sampled_from(["a", "b", None]), priority=st.sampled_from([10, 50, 90]), wait=st.sampled_from([0, 2]))
    def arrive(self, key: str | None, priority: int, wait: int) -> None:
        """An event comes: it enters, is parked behind its lane, or is deferred."""
        offset, record = self.next, _record(self.next, key)
        self.next += 1
        self.keys[offset] = key
        if self.window.blocks(self.cursor, record):
            self.window.park_new(self.cursor, record, Place(offset), 0.0)
        elif wait:
            self.window.park_new(self.cursor, record, Place(offset), self.now + wait)
        else:
            self.window.enter(self.cursor, record, Place(offset), priority)

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        """A worker takes what it may run together."""
        items = self.window.take(limit)
        running = {self.keys[item.place.offset] for held in self.held for item in held}
        assert not {self.keys[item.place.offset] for item in items} & running - {None}, (
            "one delivery of a key at a time"
        )
        assert len(items) == 1 or not any(item.runs_singly for item in items)
        if items:
            self.held.append(items)

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 100), failing=st.sets(st.integers(0, 3)), wait=st.sampled_from([0.0, 1.0, 3.0]))
    def conclude(self, choice: int, failing: set[int], wait: float) -> None:
        """A delivery ends: some members are settled, then the others fail."""
        items = self.held.pop(choice % len(self.held))
        for index, item in enumerate(items):
            if index not in failing:
                self.window.finish(item)
                self.done.append(item.place.offset)
        for index, item in enumerate(items):
            if index in failing:
                self.window.park(item, self.now + wait)

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]), most=st.integers(1, 3))
    def read_again(self, seconds: float, most: int) -> None:
        """Time passes, and what is due is read again, some events at a time."""
        self.now += seconds
        while (lane := self.window.pop_due(self.now)) is not None:
            for _ in range(min(most, len(lane.parked))):
                self.window.unpark(lane, _record(lane.parked[0].offset, lane.key), 50, singly=most == 1)
            self.window.put_down(lane, 0.0)

    @invariant()
    def counts(self) -> None:
        """Queued, running and parked add up to everything that is not done."""
        assert self.window.inflight + self.window.parked + len(self.done) == self.next - 1
        assert self.window.inflight >= sum(len(items) for items in self.held)

    def teardown(self) -> None:
        """L: once the faults stop everything runs, each key in order among what is left."""
        left = set(self.keys) - set(self.done)
        order = [offset for items in self.held for offset in _offsets(items)]
        for items in self.held:
            for item in items:
                self.window.finish(item)
        for _ in range(10_000):
            self.now += 10
            self.read_again(0.0, 3)
            items = self.window.take(2)
            for item in items:
                self.window.finish(item)
                order.append(item.place.offset)
            if not items and self.window.next_due is None:
                break
        assert set(order) == left
        assert (self.window.inflight, self.window.parked, self.cursor.lanes) == (0, 0, {})
        for key in ("a", "b"):
            mine = [offset for offset in order if self.keys[offset] == key]
            assert mine == sorted(mine)


TestSteps = _Steps.TestCase
TestSteps.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 100)), max_size=60))
def test_no_priority_reorders_a_lane(arrivals: list[tuple[str, int]]) -> None:
    """W5: whatever the priorities, each key leaves in the order it came."""
    window, cursor = _window(), _cursor()
    for offset, (key, priority) in enumerate(arrivals, 1):
        window.enter(cursor, _record(offset, key), Place(offset), priority)
    order = [offset for batch in _take_all(window) for offset in batch]
    for key in "abc":
        mine = [offset for offset in order if arrivals[offset - 1][0] == key]
        assert mine == [offset for offset, (one, _) in enumerate(arrivals, 1) if one == key]
