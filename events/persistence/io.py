"""Where blocking file work runs: a few threads of our own, or inline for a simulation.

A hand-off through our own queue costs half of what the event loop's thread pool does, and every publish that is
awaited alone pays for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol, TypeVar

import anyio

from events.runtime import Loop, current_loop

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]


class Io(Protocol):
    """Runs blocking functions off the event loop."""

    def start(self) -> None:
        """Called on the event loop that results are to return to."""
        ...

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work`, then call `done(result, error)` on the event loop. Never waits."""
        ...

    async def run(self, work: Callable[[], T]) -> T: ...

    def stop(self) -> None:
        """Let the threads end once their queue is empty. Safe to call twice."""
        ...


class IoThreads:
    """Up to `max_threads` daemon threads, started when the others are busy."""

    def __init__(self, max_threads: int = 8) -> None:
        self._max_threads = max_threads
        self._queue: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._idle = 0
        self._lock = Lock()
        self._loop: Loop | None = None

    def start(self) -> None:
        self._loop = current_loop()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif len(self._threads) < self._max_threads:
                thread = Thread(target=self._work, name=f"events-io-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put((work, done))

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None, "start() comes before the first submit()"
        while True:
            job = self._queue.get()
            if job is None:
                return
            work, done = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # whoever waits must hear of it, whatever it is
                error = raised
            with self._lock:
                self._idle += 1
            loop.call_soon(done, result, error)
            del job, work, done, result, error

    async def run(self, work: Callable[[], T]) -> T:
        return await _awaited(self, work)

    def stop(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, []
            self._idle = 0
        for _ in threads:
            self._queue.put(None)


class InlineIo:
    """Runs everything at once, in the caller: what a simulation needs to be repeatable.

    Work that is submitted while other work ends waits for that, so that a long chain does not fill the stack.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()
        self._is_running = False

    def start(self) -> None:
        pass

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self._waiting.append((work, done))
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._run_one(*self._waiting.popleft())
        finally:
            self._is_running = False

    def _run_one(self, work: Callable[[], Any], done: Done) -> None:
        try:
            result = work()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    def stop(self) -> None:
        pass


async def _awaited(io: Io, work: Callable[[], T]) -> T:
    finished = anyio.Event()
    outcome: list[Any] = []

    def done(result: Any, error: BaseException | None) -> None:
        outcome.extend((result, error))
        finished.set()

    io.submit(work, done)
    # A cancelled caller must not leave while the work still touches files that it may go on to use.
    with anyio.CancelScope(shield=True):
        await finished.wait()
    result, error = outcome
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
