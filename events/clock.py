"""Time as the bus sees it: one that never jumps, and one that people can read.

`now_ms` is the wall clock as it was when the bus started, carried forward by the monotonic clock. It orders and
dates everything that this process does; a jump of the wall clock changes it for the next process only.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import anyio

_JUMP_MS: Final = 500
_NEAR_MS: Final = 1000
_MAX_JUMPS: Final = 64


class Clock(Protocol):
    """What the bus asks about time. Tests put one of their own here."""

    def monotonic(self) -> float: ...
    def now_ms(self) -> int: ...
    def corrected_ms(self, wall_ms: int, at_ms: int) -> int: ...
    async def sleep(self, seconds: float) -> None: ...
    async def wait(self, event: anyio.Event, timeout_s: float | None) -> bool: ...


def free_of_jumps(jumps: Iterable[tuple[int, int]], wall_ms: int, at_ms: int) -> int:
    """A wall-clock time that somebody noted around `at_ms`, by a clock whose jumps (since when, how far) are known.

    Close to a jump it cannot be told which side of it the time was noted on: then it is the later one, so that
    nothing is older than it might be.
    """
    before = 0
    near: list[int] = []
    for since, drift in jumps:
        if since <= at_ms - _NEAR_MS:
            before = drift
        elif since <= at_ms + _NEAR_MS:
            near.append(drift)
    return wall_ms - min([before, *near])


class AnchoredClock:
    """A clock over two sources; the wall clock is only asked again to notice that it jumped."""

    def __init__(self) -> None:
        self._anchor_ms = self._wall_ms()
        self._anchor = self.monotonic()
        # When (in now_ms) the wall clock was seen to run ahead or behind, and by how much since then.
        self._jumps: deque[tuple[int, int]] = deque([(self._anchor_ms, 0)], maxlen=_MAX_JUMPS)

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()

    def _wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by a wall clock that cannot jump while this process lives."""
        now = self._anchor_ms + int((self.monotonic() - self._anchor) * 1000)
        drift = self._wall_ms() - now
        if abs(drift - self._jumps[-1][1]) > _JUMP_MS:
            self._jumps.append((now, drift))
        return now

    def corrected_ms(self, wall_ms: int, at_ms: int) -> int:
        """A wall-clock time that somebody noted around `at_ms`, free of the jumps seen in this process."""
        return free_of_jumps(self._jumps, wall_ms, at_ms)

    async def sleep(self, seconds: float) -> None:
        """Wait; other tasks run."""
        await anyio.sleep(seconds)

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> bool:
        """Wait for an event, at most so long; whether it came."""
        if timeout_s is None or timeout_s == math.inf:
            await event.wait()
            return True
        with anyio.move_on_after(max(0.0, timeout_s)):
            await event.wait()
        return event.is_set()
