"""An event loop that a simulation runs one step at a time, and that knows when everybody waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_MAX_ROUNDS: Final = 10_000


class SteppedLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in the order in which it became so: with file work inline and a fake clock, every time alike.

    The one room beside `events.runtime` that names a backend: only the loop itself can say that nothing is ready,
    and asking the tasks over and over would cost a simulation most of its time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Count, and schedule."""
        self._turns += 1
        return super().call_soon(callback, *args, context=context)

    async def quiet(self) -> None:
        """Return when every other task waits for something that only the caller can bring about."""
        for _ in range(_MAX_ROUNDS):
            before = self._turns
            await asyncio.sleep(0)
            if self._turns == before + 1:  # the caller's own turn, and nobody else's
                return
        raise RuntimeError(f"tasks were still busy after {_MAX_ROUNDS} rounds of the loop")

    def step(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start some work and run until everybody waits. The task may be one of those that do."""

        async def stepped() -> asyncio.Task[T]:
            task = asyncio.get_running_loop().create_task(work)
            await self.quiet()
            return task

        return self.run_until_complete(stepped())

    def end(self, *names: str) -> None:
        """Cancel the tasks of these names, or all, and run until they are gone: the end of a simulated process."""

        async def ended() -> None:
            this = asyncio.current_task()
            for task in asyncio.all_tasks():
                if task is not this and (not names or task.get_name() in names):
                    task.cancel()
            await self.quiet()

        self.run_until_complete(ended())
