"""Lets one handler run alone in the whole process: what was running when it died is tried again by itself."""

from __future__ import annotations

from typing import Final

import anyio

from events.clock import Clock

_GIVE_UP_S: Final = 5.0
_GIVE_WAY_S: Final = 60.0


class Solo:
    """Many may run together, or one alone.

    Alone is not for ever: after five seconds the others go on, so that a handler which waits for one of them is not
    waited for by all of them. Those that are to run alone as well give way for a minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running = 0
        self._alone = 0
        self._alone_since = 0.0
        self._changed = anyio.Event()

    @property
    def is_taken(self) -> bool:
        """Whether somebody runs alone, so that others must wait before they start."""
        return self._alone > 0

    def enter(self) -> None:
        """Start to run among others, where nobody runs alone."""
        self._running += 1

    async def enter_shared(self) -> bool:
        """Start to run among others: not alone, says the answer."""
        if self._alone:
            await self._wait_turn(_GIVE_UP_S)
        self._running += 1
        return False

    def leave(self) -> None:
        """Stop running among others."""
        self._running -= 1
        if self._alone:
            self._notify()

    async def _wait_turn(self, patience_s: float) -> None:
        """Wait until nobody runs alone, or has done so for too long."""
        while self._alone:
            left = self._alone_since + patience_s - self._clock.monotonic()
            if left <= 0 or not await self._clock.wait(self._changed, left):
                return

    async def enter_alone(self) -> bool:
        """Wait until nobody else runs, and keep it so; whether that came about."""
        await self._wait_turn(_GIVE_WAY_S)
        self._alone += 1
        self._alone_since = self._clock.monotonic()
        until = self._alone_since + _GIVE_UP_S
        try:
            while self._running and await self._clock.wait(self._changed, until - self._clock.monotonic()):
                pass
        except BaseException:
            self.leave_alone()
            raise
        return self._running == 0 and self._alone == 1

    def leave_alone(self) -> None:
        """Let the others go on."""
        self._alone -= 1
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
