"""Memory, open files, tasks and threads stay bounded, whatever consumers do (promise M, rules W7, W12, W15)."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import psutil
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.errors import QueueFull
from events.persistence.log import Sync
from events.persistence.store import LogName
from events.persistence.wal import WalSettings
from events.types import Event, EventMeta
from tests.events.process_support import keep_quiet, lines_of, received, started

HOME = LogName("home", "facts")
PATIENCE_S = 120.0
MIB = 1024 * 1024


def event_of(number: int, space: str = HOME.space_id, **meta: Any) -> Event[Any]:
    return Event(EventMeta(topic=HOME.topic, type="NOTED", space_id=space, **meta), {"n": number})


class Figures(NamedTuple):
    """What a process holds at a moment."""

    files: int
    tasks: int
    threads: int
    rss_bytes: int

    def __str__(self) -> str:
        return f"{self.files} files, {self.tasks} tasks, {self.threads} threads, {self.rss_bytes / MIB:.0f} MiB"


def figures() -> Figures:
    """Of this process; the tasks are asyncio's."""
    gc.collect()
    return Figures(
        files=psutil.Process().num_fds(),
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        rss_bytes=psutil.Process().memory_info().rss,
    )


@pytest.fixture
def quick_workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace in memory where there is such a thing: a hundred thousand small files are not the point here."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else tmp_path))
    yield folder
    shutil.rmtree(folder)


def in_a_process(target: Callable[..., Awaitable[None]], *args: Any) -> list[Any]:
    """Run something by itself, so that its memory is its own; what it sent."""
    with started(_run, target, *args) as (process, connection):
        sent = list(received(connection))
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    return sent


def _run(connection: Connection, target: Callable[..., Awaitable[None]], *args: Any) -> None:
    keep_quiet()
    anyio.run(target, connection, *args)


async def never(event: Event[Any]) -> None:
    await anyio.sleep_forever()


# -- many of everything ------------------------------------------------------------------------------------------

SUBSCRIPTIONS, SPACES = 1_000, 10_000


async def many(connection: Connection, workspace: str) -> None:
    handled = 0

    async def handler(event: Event[Any]) -> None:
        nonlocal handled
        handled += 1

    config = BusConfig(wal=WalSettings(max_open_files=64))
    async with EventBus(workspace=workspace, config=config) as bus:
        connection.send(("open", figures()))
        for index in range(SUBSCRIPTIONS - 1):
            await bus.subscribe(f"topic-{index}", f"group-{index}", handler)
        await bus.subscribe("*", "everything", handler)
        connection.send(("subscribed", figures()))
        for first in range(0, SPACES, 200):
            await bus.publish_many([event_of(index, f"space {index}") for index in range(first, first + 200)])
            if first % 1000 == 0:
                connection.send(("publishing", figures()))
        assert await bus.wait_settled(PATIENCE_S), bus.statistics().groups["everything"]
        assert handled == SPACES
        connection.send(("settled", figures()))
        for index in range(200):
            await bus.publish(event_of(index, f"space {index * 50}"))
        assert await bus.wait_settled(PATIENCE_S)
        assert handled == SPACES + 200
        connection.send(("once more", figures()))
    connection.send(("closed", figures()))


@pytest.mark.slow
def test_a_thousand_subscriptions_and_ten_thousand_spaces(quick_workspace: Path) -> None:
    """W15, M: a subscription costs a few tasks and no file; a space costs neither a task nor a file, and a few
    kilobytes. Closing lets everything go.
    """
    began = time.monotonic()
    found: dict[str, list[Figures]] = {}
    for when, held in in_a_process(many, str(quick_workspace)):
        found.setdefault(when, []).append(held)
    opened, subscribed, closed = found["open"][0], found["subscribed"][0], found["closed"][0]
    busy = [*found["publishing"], *found["settled"], *found["once more"]]
    print(f"\nopen: {opened}\n{SUBSCRIPTIONS} subscriptions: {subscribed}\n{SPACES} spaces: {busy[-1]}")
    print(f"most on the way: {max(one.files for one in busy)} files, {max(one.tasks for one in busy)} tasks")
    print(f"closed: {closed}; {time.monotonic() - began:.0f} s")
    assert subscribed.files == opened.files
    assert subscribed.tasks - opened.tasks <= 5 * SUBSCRIPTIONS
    assert subscribed.rss_bytes - opened.rss_bytes < 100 * MIB
    # The cache of open files, the batch that is being published, and what the threads have in hand.
    assert max(one.files for one in busy) <= opened.files + 64 + 100
    assert max(one.tasks for one in busy) <= subscribed.tasks + 100
    assert max(one.threads for one in busy) <= opened.threads + 8
    assert busy[-1].rss_bytes - subscribed.rss_bytes < SPACES * 20_000
    assert closed.tasks == 1
    assert closed.files <= opened.files


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
async def test_open_files_in_every_sync_mode(quick_workspace: Path, sync: Sync) -> None:
    """M: a log that is not synced at once keeps its file open until it is; that does not add up over many logs."""
    config = BusConfig(wal=WalSettings(sync=sync, max_open_files=32))
    async with EventBus(workspace=quick_workspace, config=config) as bus:
        before, most = psutil.Process().num_fds(), 0
        for first in range(0, 500, 20):
            await bus.publish_many([event_of(index, f"space {index}") for index in range(first, first + 20)])
            most = max(most, psutil.Process().num_fds())
    print(f"\n500 logs, sync={sync}, a cache of 32 files: {most - before} open at the most")
    assert most - before <= 32 + 3 * 20


# -- a handler that has stopped ----------------------------------------------------------------------------------


async def test_a_blocked_publisher_stops_at_max_inflight(workspace: Path) -> None:
    """W12: with `overflow="block"` a publisher stops exactly where the window of a group that does nothing is full,
    before anything is written.
    """
    async with EventBus(workspace=workspace) as bus:
        await bus.subscribe(HOME.topic, "stopped", never, max_inflight=10)
        await bus.publish(event_of(0))
        for number in range(1, 10):
            await bus.publish(event_of(number), timeout_s=PATIENCE_S)
        for number in range(10, 13):
            with pytest.raises(QueueFull):
                await bus.publish(event_of(number), timeout_s=0.05)
        assert bus.statistics().groups["stopped"]["inflight"] == 10
        assert len(list(lines_of(workspace, HOME))) == 10
        await bus.close(timeout_s=0.0)
    assert len(list(lines_of(workspace, HOME))) == 10


MILLION = 1_000_000


async def spill(connection: Connection, workspace: str) -> None:
    config = BusConfig(wal=WalSettings(sync="never"))
    async with EventBus(workspace=workspace, config=config) as bus:
        await bus.subscribe(HOME.topic, "stopped", never, overflow="spill", max_inflight=64)
        await bus.subscribe(
            HOME.topic, "failing", fail, overflow="spill", max_inflight=64, max_parked=500, backoff_base=60
        )
        publisher = bus.publisher(HOME.topic, HOME.space_id, "NOTED")
        for first in range(0, MILLION, 2000):
            await publisher.publish_many([{"n": first + index} for index in range(2000)])
            if (first + 2000) % 100_000 == 0:
                connection.send((first + 2000, figures()))
        connection.send(("statistics", bus.statistics()))
        await bus.close(timeout_s=0.0)


async def fail(event: Event[Any]) -> None:
    raise ValueError("always")


@pytest.mark.slow
def test_spilling_a_million_events(quick_workspace: Path) -> None:
    """W12, W7, M: with `overflow="spill"` a publisher is not stopped by a group that does nothing, nor by one that
    always fails, and what they have not handled is on disk, not in memory.
    """
    began = time.monotonic()
    sent = in_a_process(spill, str(quick_workspace))
    took = time.monotonic() - began
    (_, statistics), marks = sent[-1], dict(sent[:-1])
    assert statistics.published == MILLION
    assert statistics.groups["stopped"]["inflight"] == 64
    # What is in the window when the bound is reached may still fail, and be parked as well.
    assert statistics.groups["failing"]["parked"] <= 500 + 64
    resident = [held.rss_bytes for held in marks.values()]
    print(
        f"\n{MILLION:,} events past two groups that stand still: {MILLION / took:,.0f} events/s; resident "
        f"{resident[0] / MIB:.1f} MiB after 100,000, {max(resident) / MIB:.1f} at the most, "
        f"{resident[-1] / MIB:.1f} at the end"
    )
    assert max(resident[1:]) - resident[1] < 16 * MIB


# -- opening and closing -----------------------------------------------------------------------------------------


async def open_and_close(connection: Connection, workspace: str) -> None:
    async def handler(event: Event[Any]) -> None:
        return None

    for turn in range(60):
        bus = EventBus(workspace=workspace)
        subscription = await bus.subscribe("*", "workers", handler, workers=3)
        await bus.publish_many([event_of(number, key=f"k{number % 3}") for number in range(20)])
        if turn % 3 == 0:
            assert await bus.wait_settled(PATIENCE_S)
        if turn % 3 == 1:
            await bus.unsubscribe(subscription)
        await bus.close()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(PATIENCE_S)  # they end once their queue is empty
        connection.send(figures())


def test_many_buses_leak_nothing(quick_workspace: Path) -> None:
    """M, W17: sixty buses, opened, used and closed one after the other: no thread, file or task is left over."""
    sent = in_a_process(open_and_close, str(quick_workspace))
    print(f"\nafter 1 bus: {sent[0]}; after {len(sent)}: {sent[-1]}")
    assert {(held.files, held.tasks, held.threads) for held in sent} == {(sent[0].files, 1, 1)}
    assert sent[-1].rss_bytes - sent[9].rss_bytes < 16 * MIB
