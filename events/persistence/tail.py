"""The most recent batches of all logs in memory, so that consumers at the head parse nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from events.persistence.codec import Record

Batch = Sequence[Record]


class Tail:
    """Batches by log, the oldest of any log out first once they take more than `max_bytes` together.

    Small on purpose: each record is a handful of objects that the garbage collector has to visit, and a tail of
    16 MiB cost a third of the throughput. Who is further behind than this reads the segments.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], tuple[Batch, int]] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def size_bytes(self) -> int:
        """The bytes of all lines that are held."""
        return self._bytes

    def add(self, log: int, batch: Batch, size: int) -> None:
        """Keep the newest batch of a log."""
        if size > self._max_bytes:
            return
        self._batches[log, batch[0].offset] = (batch, size)
        self._firsts.setdefault(log, []).append(batch[0].offset)
        self._bytes += size
        while self._bytes > self._max_bytes:
            (owner, first), (_, freed) = self._batches.popitem(last=False)
            self._bytes -= freed
            firsts = self._firsts[owner]
            del firsts[: bisect_right(firsts, first)]
            if not firsts:
                del self._firsts[owner]

    def find(self, log: int, offset: int) -> Batch:
        """The records from `offset` to the end of the batch that holds it; nothing when it is gone."""
        firsts = self._firsts.get(log)
        if not firsts or offset < firsts[0]:
            return ()
        first = firsts[bisect_right(firsts, offset) - 1]
        batch, _ = self._batches[log, first]
        if offset > batch[-1].last:
            return ()
        return batch[offset - first :] if offset > first else batch
