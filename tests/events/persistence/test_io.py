"""Where blocking work runs: in threads that come back to the loop, or inline for a simulation."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest
from anyio import wait_all_tasks_blocked

from events.persistence.io import InlineIo, Io, IoThreads


@pytest.fixture(params=[IoThreads, InlineIo])
def io(request: pytest.FixtureRequest) -> Iterator[Io]:
    """Each of the two."""
    made: Io = request.param()
    yield made
    made.stop()


async def test_a_result_comes_back(io: Io) -> None:
    """What the work returns or raises is what the caller gets."""
    io.start()
    assert await io.run(lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        await io.run(lambda: 1 // 0)


async def test_done_is_called_on_the_loop(io: Io) -> None:
    """Callbacks run where the loop runs, whichever thread did the work."""
    io.start()
    finished = anyio.Event()
    seen: list[tuple[object, BaseException | None, int]] = []

    def done(result: object, error: BaseException | None) -> None:
        seen.append((result, error, threading.get_ident()))
        if len(seen) == 2:
            finished.set()

    io.submit(lambda: "fine", done)
    io.submit(lambda: [][1], done)
    await finished.wait()
    assert {ident for _, _, ident in seen} == {threading.get_ident()}
    assert [type(error) for _, error, _ in sorted(seen, key=lambda one: one[0] is None)] == [type(None), IndexError]


async def test_work_does_not_block_the_loop() -> None:
    """Other tasks run while a thread waits for the disk."""
    io = IoThreads(2)
    io.start()
    gate = threading.Event()
    results: list[bool] = []

    async def work() -> None:
        results.append(await io.run(lambda: gate.wait(10)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await wait_all_tasks_blocked()
        assert results == []
        gate.set()
    assert results == [True]
    io.stop()


async def test_there_are_never_more_threads_than_allowed() -> None:
    """M: threads are started when the others are busy, up to a limit; the rest waits in line and is done too."""
    io = IoThreads(3)
    io.start()
    gate = threading.Barrier(3, timeout=10)
    threads: set[int] = set()

    def work() -> None:
        threads.add(threading.get_ident())
        gate.wait()

    async with anyio.create_task_group() as tasks:
        for _ in range(12):  # each needs two others at the same time
            tasks.start_soon(io.run, work)
    assert len(threads) == 3
    io.stop()


async def test_one_at_a_time_needs_one_thread() -> None:
    """M: work that is awaited one by one is done by one thread."""
    io = IoThreads(8)
    io.start()
    threads = {await io.run(threading.get_ident) for _ in range(20)}
    assert len(threads) <= 2  # a thread is idle only after it handed its result over
    io.stop()
    io.stop()


async def test_a_cancelled_caller_waits_for_its_work() -> None:
    """Cancelling leaves no thread behind that still touches files which the caller goes on to use."""
    io = IoThreads(1)
    io.start()
    gate, done = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(10)
        done.set()

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(io.run, work)
            await wait_all_tasks_blocked()
            scope.cancel()
            threading.Timer(0.05, gate.set).start()
    assert done.is_set()
    io.stop()


def test_threads_outlive_a_loop_that_is_gone() -> None:
    """W17: a result for a loop that has ended goes nowhere, quietly."""
    io = IoThreads(1)
    gate, done = threading.Event(), threading.Event()

    async def leave() -> None:
        io.start()
        io.submit(lambda: gate.wait(10), lambda result, error: pytest.fail("there is no loop to tell"))
        io.submit(done.set, lambda result, error: None)

    anyio.run(leave)
    gate.set()
    assert done.wait(10)
    io.stop()


def test_inline_work_that_submits_more_does_not_grow_the_stack() -> None:
    """A chain of ten thousand pieces of work, each submitted by the end of the last, runs flat and in order."""
    io = InlineIo()
    order: list[int] = []

    def go_on(number: int) -> None:
        order.append(number)
        if number < 10_000:
            io.submit(lambda: number + 1, lambda result, error: go_on(result))

    io.submit(lambda: 0, lambda result, error: go_on(result))
    assert order == list(range(10_001))
