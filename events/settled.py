"""Which offsets of a log a group has settled: everything up to one of them, and ranges above it."""

from __future__ import annotations

from bisect import bisect_right


class SettledOffsets:
    """A set of offsets that mostly grows at its lower end, kept as ranges. Adding one twice is harmless."""

    __slots__ = ("_ends", "_starts", "committed")

    def __init__(self, committed: int = 0, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        self.committed = committed
        self._starts = [first for first, _ in ranges]
        self._ends = [last for _, last in ranges]
        self._absorb()

    def __contains__(self, offset: int) -> bool:
        if offset <= self.committed:
            return True
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset <= self._ends[index]

    @property
    def highest(self) -> int:
        """The highest offset that is settled."""
        return self._ends[-1] if self._ends else self.committed

    @property
    def range_count(self) -> int:
        """How many ranges stand above `committed`."""
        return len(self._starts)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges above `committed`, inclusive, in order and apart."""
        return tuple(zip(self._starts, self._ends, strict=True))

    def add(self, first: int, last: int | None = None) -> None:
        """Settle an offset, or all from `first` through `last`."""
        last = first if last is None else last
        if first <= self.committed + 1:
            if last > self.committed:
                self.committed = last
                if self._starts:
                    self._absorb()
            return
        starts, ends = self._starts, self._ends
        if not starts or first > ends[-1] + 1:
            starts.append(first)
            ends.append(last)
            return
        # The ranges from `low` up to `high` touch the new one and become part of it.
        low = bisect_right(ends, first - 2)
        high = bisect_right(starts, last + 1)
        if low < high:
            first, last = min(first, starts[low]), max(last, ends[high - 1])
        starts[low:high] = [first]
        ends[low:high] = [last]

    def _absorb(self) -> None:
        merged = 0
        while merged < len(self._starts) and self._starts[merged] <= self.committed + 1:
            self.committed = max(self.committed, self._ends[merged])
            merged += 1
        if merged:
            del self._starts[:merged], self._ends[:merged]
