"""The tail in memory: the newest batches of all logs, within a bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from events.persistence.codec import Record, decode_line, encode_line
from events.persistence.tail import Tail
from tests.events.persistence.logs import members


def batch(first: int, count: int, size: int = 10) -> list[Record]:
    """Records in a row, as a commit makes them."""
    return [decode_line(encode_line(offset, members(offset, size), 0, first)) for offset in range(first, first + count)]


def bytes_of(records: list[Record]) -> int:
    """What a batch takes."""
    return sum(len(record.line) for record in records)


def test_the_newest_batches_are_found_from_any_offset_in_them() -> None:
    """Consumers at the head parse nothing: from each offset on, the rest of its batch is in memory."""
    tail = Tail(10**6)
    for first, count in ((1, 3), (4, 1), (5, 2)):
        records = batch(first, count)
        tail.add(7, records, bytes_of(records))
    assert [[record.offset for record in tail.find(7, offset)] for offset in range(9)] == [
        [],
        [1, 2, 3],
        [2, 3],
        [3],
        [4],
        [5, 6],
        [6],
        [],
        [],
    ]
    assert tail.find(8, 1) == ()


def test_what_is_too_old_is_gone() -> None:
    """M: the tail holds at most its bytes, all logs together; the oldest batch of any log goes first."""
    one = bytes_of(batch(1, 1))
    tail = Tail(3 * one)
    for log, first in ((1, 1), (2, 1), (1, 2), (2, 2)):
        tail.add(log, batch(first, 1), one)
    assert tail.find(1, 1) == ()
    assert [len(tail.find(log, offset)) for log, offset in ((2, 1), (1, 2), (2, 2))] == [1, 1, 1]
    assert (len(tail), tail.size_bytes) == (3, 3 * one)


def test_a_batch_that_is_larger_than_the_tail_is_not_kept() -> None:
    """M: one huge batch neither stays nor drives the others out."""
    tail = Tail(500)
    small = batch(1, 1)
    tail.add(1, small, bytes_of(small))
    tail.add(1, batch(2, 100), 10_000)
    assert len(tail.find(1, 1)) == 1
    assert tail.find(1, 2) == ()
    after = batch(102, 1)
    tail.add(1, after, bytes_of(after))
    assert len(tail.find(1, 102)) == 1
    assert tail.find(1, 50) == ()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=30), st.integers(50, 1500))
def test_the_tail_agrees_with_a_list(adds: list[tuple[int, int]], limit: int) -> None:
    """M: whatever is added, a find gives the right records or none, and the newest batch is there if it fits."""
    tail = Tail(limit)
    next_offsets = {1: 1, 2: 1, 3: 1}
    for log, count in adds:
        records = batch(next_offsets[log], count)
        next_offsets[log] += count
        tail.add(log, records, bytes_of(records))
        assert tail.size_bytes <= limit
        if bytes_of(records) <= limit:
            assert tail.find(log, records[0].offset) == records
        for other, end in next_offsets.items():
            for offset in range(1, end):
                found = tail.find(other, offset)
                assert [record.offset for record in found] == list(range(offset, offset + len(found)))
    if not len(tail):
        assert tail.size_bytes == 0
