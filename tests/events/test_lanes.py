"""Lanes and the queue of what may run: the urgent first, equals in order of arrival, nobody for ever last."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from events.cursor import Cursor
from events.lanes import Item, Lane, Place, ReadyQueue
from events.persistence.codec import Record


def _item(number: int, priority: int = 50, lane: Lane | None = None) -> Item:
    return Item(cast(Record, None), Place(number), cast(Cursor, None), lane, priority)


def _popped(queue: ReadyQueue) -> list[int]:
    found: list[int] = []
    while (item := queue.pop()) is not None:
        found.append(item.place.offset)
    return found


def test_equals_leave_in_order_of_arrival() -> None:
    """Step 7: a queue of one level is a queue."""
    queue = ReadyQueue()
    for number in range(100):
        queue.push(_item(number), 50)
    assert _popped(queue) == list(range(100))
    assert queue.pop() is None


def test_the_more_urgent_leave_first() -> None:
    """Step 7: levels count before arrival."""
    queue = ReadyQueue()
    for number, level in enumerate([10, 50, 90, 50, 10, 90]):
        queue.push(_item(number), level)
    assert _popped(queue) == [2, 5, 1, 3, 0, 4]


def test_an_item_entered_again_at_a_higher_level_leaves_once() -> None:
    """W5: a lane that becomes more urgent moves up; the entry it leaves behind is passed over."""
    queue = ReadyQueue()
    first, second = _item(1), _item(2)
    queue.push(first, 10)
    queue.push(second, 20)
    queue.push(first, 90)
    queue.push(first, 95)
    assert _popped(queue) == [1, 2]


def test_every_sixteenth_goes_to_whoever_waited_longest() -> None:
    """Step 7: an endless supply of urgent items does not keep a lesser one for ever."""
    queue = ReadyQueue()
    queue.push(_item(0), 1)
    for number in range(1, 100):
        queue.push(_item(number), 90)
    assert _popped(queue).index(0) < 16


def test_a_cleared_queue_is_empty() -> None:
    """Nothing is left of what was entered."""
    queue = ReadyQueue()
    queue.push(_item(1), 1)
    queue.push(_item(2), 2)
    queue.clear()
    assert queue.pop() is None
    queue.push(_item(3), 1)
    assert _popped(queue) == [3]


@given(st.lists(st.integers(0, 100), max_size=200))
def test_everything_that_enters_leaves_once(levels: list[int]) -> None:
    """L: whatever the levels, each item is handed out exactly once, equals in order."""
    queue = ReadyQueue()
    for number, level in enumerate(levels):
        queue.push(_item(number), level)
    popped = _popped(queue)
    assert sorted(popped) == list(range(len(levels)))
    for level in set(levels):
        same = [number for number in popped if levels[number] == level]
        assert same == sorted(same)


def test_a_lane_knows_what_blocks_it_and_when_it_may_be_forgotten() -> None:
    """W5: blocked while something is parked, empty when neither queued, parked nor running."""
    lane = Lane(cast(Any, None), "key")
    assert lane.is_empty
    assert not lane.is_blocked
    lane.parked.append(Place(1))
    assert lane.is_blocked
    assert not lane.is_empty
    lane.parked.clear()
    lane.queue.append(_item(2, 10, lane))
    lane.queue.append(_item(3, 80, lane))
    assert (lane.is_blocked, lane.is_empty, lane.urgency) == (False, False, 80)
    lane.queue.clear()
    lane.is_busy = True
    assert not lane.is_empty
