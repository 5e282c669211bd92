"""A clock that stands still until a test moves it."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import anyio
import anyio.lowlevel
from anyio import wait_all_tasks_blocked

from events.clock import free_of_jumps

_TURNS: Final = 32


async def all_blocked() -> None:
    """Return when every other task waits for something.

    On asyncio, anyio looks again a tenth of a second later where it found one that does not: so all get some turns
    first.
    """
    for _ in range(_TURNS):
        await anyio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()


class FakeClock:
    """Time for tests: `await clock.advance(30)` and everything that was due in between has run.

    `jump_wall` moves the wall clock alone, as an administrator or a bad NTP server would. `quiet` returns when every
    other task waits: an event loop of one's own may know that sooner than anyio does.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, *, quiet: Callable[[], Awaitable[None]] = all_blocked) -> None:
        self._start_ms = now_ms
        self._quiet = quiet
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._ids = count()
        self._drift_ms = 0
        self._jumps: list[tuple[int, int]] = []

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._elapsed

    def now_ms(self) -> int:
        """Milliseconds since the epoch; jumps of the wall clock do not show."""
        return self._start_ms + int(self._elapsed * 1000)

    def wall_ms(self) -> int:
        """What a wall clock would show, jumps and all."""
        return self.now_ms() + self._drift_ms

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._drift_ms += int(seconds * 1000)
        self._jumps.append((self.now_ms(), self._drift_ms))

    def corrected_ms(self, wall_ms: int, at_ms: int) -> int:
        """A wall-clock time that somebody noted around `at_ms`, free of the jumps."""
        return free_of_jumps(self._jumps, wall_ms, at_ms)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved so far."""
        await self._timer(seconds).wait()

    async def wait(self, event: anyio.Event, timeout_s: float | None) -> bool:
        """Wait for an event, or until the clock was moved so far; whether the event came."""
        if timeout_s is None:
            await event.wait()
            return True
        timer = self._timer(timeout_s)
        async with anyio.create_task_group() as tasks:

            async def until(one: anyio.Event) -> None:
                await one.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, event)
            tasks.start_soon(until, timer)
        return event.is_set()

    def _timer(self, seconds: float) -> anyio.Event:
        timer = anyio.Event()
        if seconds <= 0:
            timer.set()
        else:
            heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._ids), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at every sleeper on the way so that each sees the time it asked for."""
        target = self._elapsed + seconds
        await self._quiet()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, timer = heapq.heappop(self._sleepers)
            if not timer.statistics().tasks_waiting:
                continue  # whoever it was for was woken by something else
            self._elapsed = max(self._elapsed, due)
            timer.set()
            await self._quiet()
        self._elapsed = target
        await self._quiet()
