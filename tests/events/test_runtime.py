"""The one place that knows asyncio from trio."""

from __future__ import annotations

import threading

import anyio
import pytest

from events.runtime import current_loop, sole_error, spawn_root
from tests.events.bus_support import until


async def test_a_root_task_outlives_the_task_that_started_it() -> None:
    """Two runtimes: start, first use and close may be in different tasks."""
    go = anyio.Event()
    notes: list[str] = []

    async def root() -> None:
        await go.wait()
        notes.append("done")

    async def starter() -> None:
        spawn_root(root, lambda error: None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(starter)
    assert notes == []
    go.set()
    await until(lambda: notes == ["done"])


async def test_what_a_root_task_raises_is_told_and_harms_nobody() -> None:
    """Two runtimes: an error goes to whoever started it, not to the loop."""
    failures: list[BaseException] = []

    async def root() -> None:
        raise LookupError("mine")

    spawn_root(root, failures.append)
    await until(lambda: failures)
    assert isinstance(failures[0], LookupError)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_end_of_the_loop_cancels_a_root_task(backend: str) -> None:
    """Two runtimes: it cleans up while the loop still runs, and the cancellation is no failure."""
    notes: list[str] = []
    failures: list[BaseException] = []

    async def root() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                notes.append("cleaned up")

    async def main() -> None:
        spawn_root(root, failures.append)
        await anyio.sleep(0.01)

    anyio.run(main, backend=backend)
    assert (notes, failures) == (["cleaned up"], [])


async def test_a_thread_reaches_the_loop() -> None:
    """Two runtimes: a call from a thread runs on the loop's own thread."""
    loop, reached = current_loop(), anyio.Event()
    threads: list[int] = []

    def arrive() -> None:
        threads.append(threading.get_ident())
        reached.set()

    threading.Thread(target=lambda: loop.call_soon(arrive)).start()
    with anyio.fail_after(5):
        await reached.wait()
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_to_a_loop_that_is_gone_is_nothing(backend: str) -> None:
    """Two runtimes: a thread that finishes after the loop's end must not fail for it."""

    async def main() -> object:
        return current_loop()

    loop = anyio.run(main, backend=backend)
    loop.call_soon(pytest.fail)  # type: ignore[attr-defined]


def test_a_single_error_is_taken_out_of_its_group() -> None:
    """W18: what a task group wraps once is the error; several are a group."""
    error = LookupError("x")
    assert sole_error(error) is error
    assert sole_error(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    several = ExceptionGroup("a", [error, ValueError()])
    assert sole_error(several) is several
