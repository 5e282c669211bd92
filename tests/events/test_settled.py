"""The set of settled offsets: ranges that stay apart, and a lower end that absorbs them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from events.settled import SettledOffsets


def test_settling_in_order_needs_one_number() -> None:
    """W1: the common case keeps no range at all."""
    settled = SettledOffsets()
    for offset in range(1, 1000):
        settled.add(offset)
    assert (settled.committed, settled.range_count, settled.highest) == (999, 0, 999)


def test_a_hole_that_closes_joins_what_lay_beyond_it() -> None:
    """W1: ranges above `committed` become part of it as soon as they touch it."""
    settled = SettledOffsets()
    for offset in (3, 4, 6, 2):
        settled.add(offset)
    assert (settled.committed, settled.ranges()) == (0, ((2, 4), (6, 6)))
    settled.add(1)
    assert (settled.committed, settled.ranges(), settled.highest) == (4, ((6, 6),), 6)
    settled.add(5)
    assert (settled.committed, settled.ranges()) == (6, ())


def test_a_checkpoint_whose_ranges_touch_is_taken_in() -> None:
    """W1: what a checkpoint says is normalised when it is read."""
    settled = SettledOffsets(3, ((4, 5), (9, 9)))
    assert (settled.committed, settled.ranges()) == (5, ((9, 9),))
    assert [offset for offset in range(1, 12) if offset in settled] == [1, 2, 3, 4, 5, 9]


_SPANS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=60)


@given(st.integers(0, 10), _SPANS)
def test_it_is_a_set(committed: int, spans: list[tuple[int, int]]) -> None:
    """W1: whatever is added in whatever order, it holds those offsets, in ranges that are in order and apart."""
    settled = SettledOffsets(committed)
    model = set(range(1, committed + 1))
    for first, more in spans:
        settled.add(first, first + more)
        model |= set(range(first, first + more + 1))
        ranges = settled.ranges()
        flat = [bound for span in ranges for bound in span]
        assert flat == sorted(flat)
        assert all(start > settled.committed + 1 for start, _ in ranges[:1])
        assert all(later > earlier + 1 for (_, earlier), (later, _) in pairwise(ranges))
        assert settled.range_count == len(ranges)
    assert {offset for offset in range(1, 80) if offset in settled} == model
    assert settled.highest == max(model, default=0)
    assert SettledOffsets(settled.committed, settled.ranges()).ranges() == settled.ranges()
