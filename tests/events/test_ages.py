"""Ages of unsettled events: never too low, close enough, and bounded however long the backlog."""

from __future__ import annotations

from events.ages import AppendTimes
from events.persistence.codec import Record, encode_line


def record(offset: int, at: int) -> Record:
    """A line that was appended at a time."""
    return Record(offset, encode_line(offset, b'"x":1', at, offset), 1, 0)


def test_an_event_is_as_old_as_the_batch_it_came_in() -> None:
    """Between two notes the earlier one counts: an age may be a little too high."""
    times = AppendTimes()
    times.note(record(1, 1000), 0)
    times.note(record(11, 2000), 0)
    assert [times.at_ms(offset) for offset in (1, 10, 11, 500)] == [1000, 1000, 2000, 2000]


def test_before_the_first_note_nothing_is_known() -> None:
    """A group that has read nothing yet has no ages to tell."""
    times = AppendTimes()
    assert times.at_ms(1) is None
    times.note(record(5, 1000), 4)
    assert times.at_ms(4) is None


def test_what_is_settled_needs_no_note() -> None:
    """Only the newest note at or below the first unsettled offset is kept of the old ones."""
    times = AppendTimes()
    for offset in range(1, 101):
        times.note(record(offset, offset * 10), offset - 1)
    assert len(times._offsets) <= 2
    assert times.at_ms(100) == 1000


def test_reading_again_adds_nothing() -> None:
    """A batch that was offered twice, or read again, does not bring the notes out of order."""
    times = AppendTimes()
    for offset in (1, 11, 1, 11, 5):
        times.note(record(offset, offset * 10), 0)
    assert times.at_ms(11) == 110
    assert times._offsets == [1, 11]


def test_a_long_backlog_is_noted_more_sparsely() -> None:
    """Memory stays bounded, and ages are still never too low."""
    times = AppendTimes()
    for offset in range(1, 10_001):
        times.note(record(offset, offset * 10), 0)
    assert len(times._offsets) <= 512
    for offset in (1, 17, 999, 5000, 10_000):
        at_ms = times.at_ms(offset)
        assert at_ms is not None
        assert at_ms <= offset * 10
    assert times.at_ms(1) == 10
