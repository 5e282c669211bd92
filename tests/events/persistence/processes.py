"""Worker processes for the tests that kill them: they start in milliseconds, from a parent that is already warm.

The parent is `multiprocessing`'s fork server. It has imported what a worker needs and opened no workspace, and it
runs no thread, so that forking from it is safe however many threads the test's own process has.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "anyio._backends._asyncio", "events.persistence.wal", "events.serialization"])


@contextmanager
def started(target: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process that runs `target(connection, *args)`, and our end of the connection.

    It is killed when the block ends, if it still lives. Our copy of its end is closed, so that reading the
    connection comes to an end when the process does.
    """
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def received(connection: Connection) -> Iterator[Any]:
    """Everything that the process sent before it ended. A message that its death cut in two is not there."""
    while True:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return
