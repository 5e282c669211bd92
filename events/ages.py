"""How old the events are that a group has not settled: a note per batch of when it was appended."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from events.persistence.codec import Record

_MAX_NOTES: Final = 512


class AppendTimes:
    """When some of a log's events were appended, the newest note last.

    An event between two notes counts as old as the earlier one, so an age may be a little too high, never too low.
    """

    __slots__ = ("_offsets", "_times")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []

    def note(self, first: Record, settled: int) -> None:
        """A batch was taken up that begins with this record; all offsets through `settled` need no age any more."""
        offsets, times = self._offsets, self._times
        if offsets and first.offset <= offsets[-1]:
            return
        useless = bisect_right(offsets, settled + 1) - 1
        if useless > 0:
            del offsets[:useless], times[:useless]
        if len(offsets) >= _MAX_NOTES:
            del offsets[1::2], times[1::2]
        offsets.append(first.offset)
        times.append(first.at)

    def at_ms(self, offset: int) -> int | None:
        """About when an event was appended; None where nothing is known."""
        index = bisect_right(self._offsets, offset) - 1
        return self._times[index] if index >= 0 else None
