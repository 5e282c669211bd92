"""The one place that knows asyncio from trio: starting a root task, and waking the loop from a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from anyio import get_cancelled_exc_class


class Loop(Protocol):
    """An event loop, as another thread sees it."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run the function on the loop. Silently nothing once the loop is gone: nobody waits there any more."""
        ...


class _AsyncioLoop:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            return


class _TrioLoop:
    def __init__(self) -> None:
        import trio

        self._token = trio.lowlevel.current_trio_token()
        self._finished = trio.RunFinishedError

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._token.run_sync_soon(function, *args)
        except self._finished:
            return


def _runs_on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def current_loop() -> Loop:
    """The loop that runs the caller."""
    return _AsyncioLoop() if _runs_on_asyncio() else _TrioLoop()


def is_told_to_end() -> bool:
    """Whether the cancellation that the caller just met is its own, and not one that what it called let out."""
    task = asyncio.current_task() if _runs_on_asyncio() else None
    return task is None or task.cancelling() > 0  # trio lets none out


def sole_error(error: BaseException) -> BaseException:
    """What went wrong, where a task group has wrapped a single error; the group itself where there were several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


_roots: set[asyncio.Task[None]] = set()


def spawn_root(main: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[BaseException], None]) -> None:
    """Start a task that belongs to no caller, so that start, first use and close may be in different tasks.

    What it raises goes to `failed`. When the loop shuts down around it, it is cancelled.
    """

    async def guarded() -> None:
        try:
            await main()
        except get_cancelled_exc_class():
            raise
        except BaseException as error:
            failed(error)

    if _runs_on_asyncio():
        task = asyncio.get_running_loop().create_task(guarded(), name="events-bus")
        _roots.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(_roots.discard)
    else:
        import trio

        trio.lowlevel.spawn_system_task(guarded, context=contextvars.copy_context())
