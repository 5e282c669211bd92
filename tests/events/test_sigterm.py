"""An application that is told to end: SIGTERM leads to an orderly close (rule W17)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.contracts import Delivery
from events.persistence.named import read_groups
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName
from events.persistence.wal import WalStore
from events.persistence.workspace import Layout
from events.types import Event, EventMeta
from tests.events.process_support import Note, checkpoint_of, read_journal

HOME = LogName("home", "actions")
GROUP = "workers"
PATIENCE_S = 60

APPLICATION = """
import signal, sys
import anyio
from events.bus import EventBus
from events.config import BusConfig
from events.types import Event, EventMeta
from tests.events.process_support import Journal

async def main(backend, workspace, journal, seconds, timeout_s):
    journal = Journal(journal)
    async with EventBus(workspace=workspace, config=BusConfig(max_inflight=4)) as bus:
        async def handler(event, delivery):
            journal.note("begin", offset=delivery.offset, attempt=delivery.attempt)
            begun.append(delivery.offset)
            if len(begun) == 2:
                while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                    await anyio.sleep(0.01)
                print("ready", flush=True)
            await anyio.sleep(float(seconds))
            journal.note("end", offset=delivery.offset)

        begun = []
        await bus.subscribe("actions", "workers", handler, workers=2)
        if not await has_events(bus):
            meta = EventMeta(topic="actions", type="ACTED", space_id="home")
            await bus.publish_many([Event(meta.replace(event_id=f"ev-{n}"), {"n": n}) for n in range(1, 11)])
        await bus.run_until_terminated(timeout_s=float(timeout_s))
    print("closed", flush=True)

async def has_events(bus):
    return [record async for record in bus.replay("actions")] != []

anyio.run(main, *sys.argv[1:], backend=sys.argv[1])
"""


@contextmanager
def application(*args: Any) -> Iterator[subprocess.Popen[str]]:
    """The application in a process of its own, when two of its handlers have begun."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ended(process: subprocess.Popen[str], how: signal.Signals) -> tuple[int, str]:
    """Send a signal and wait for the end: exit code and last words."""
    process.send_signal(how)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output


def offsets(notes: list[Note], kind: str) -> list[int]:
    return sorted(note.offset for note in notes if note.kind == kind)


def is_let_go(workspace: Path) -> bool:
    """Whether nobody holds the workspace, or claims to."""
    layout = Layout(workspace)
    with WorkspaceReader(workspace) as reader:
        groups = read_groups(reader.fs, layout)
        return not reader.is_held() and Path(layout.lock).read_bytes() == b"" and not groups[GROUP].held


async def deliveries(workspace: Path) -> list[tuple[int, int]]:
    """What the next process is given: offsets and attempts."""
    seen: list[tuple[int, int]] = []

    async def handler(event: Event[Any], delivery: Delivery) -> None:
        seen.append((delivery.offset, delivery.attempt))

    async with EventBus(workspace=workspace) as bus:
        await bus.subscribe(HOME.topic, GROUP, handler)
        assert await bus.wait_settled(PATIENCE_S)
    return seen


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(anyio_backend_name: str, workspace: Path, tmp_path: Path, how: signal.Signals) -> None:
    """W17: on SIGTERM and SIGINT what is queued or running is finished and nothing more is begun; then all is
    saved, lock and groups are let go, and the application ends with 0. The next process gets the rest.
    """
    with application(anyio_backend_name, workspace, tmp_path / "journal", 0.3, 30) as process:
        assert ended(process, how) == (0, "closed\n")
    notes, _ = read_journal(tmp_path / "journal")
    assert offsets(notes, "begin") == offsets(notes, "end") == [1, 2, 3, 4], "the window, and nothing else"
    checkpoint = checkpoint_of(workspace, HOME, GROUP)
    assert checkpoint is not None
    assert (checkpoint.committed, dict(checkpoint.attempts)) == (4, {})
    assert is_let_go(workspace)
    assert await deliveries(workspace) == [(offset, 1) for offset in range(5, 11)]


async def test_what_does_not_finish_in_time_is_not_charged(
    anyio_backend_name: str, workspace: Path, tmp_path: Path
) -> None:
    """W17: a handler that is still running when the time is up is cancelled and its event released: no attempt is
    charged, and it is no unclean end.
    """
    with application(anyio_backend_name, workspace, tmp_path / "journal", 1000, 0.2) as process:
        assert ended(process, signal.SIGTERM) == (0, "closed\n")
    notes, _ = read_journal(tmp_path / "journal")
    assert (offsets(notes, "begin"), offsets(notes, "end")) == ([1, 2], [])
    assert is_let_go(workspace)
    assert await deliveries(workspace) == [(offset, 1) for offset in range(1, 11)]


async def test_nor_after_a_crash(anyio_backend_name: str, workspace: Path, tmp_path: Path) -> None:
    """W6, W17: also after an unclean end, where attempts are written down before they begin: an orderly close takes
    them back.
    """
    with application(anyio_backend_name, workspace, tmp_path / "first", 1000, 30) as process:
        assert ended(process, signal.SIGKILL)[0] == -signal.SIGKILL
    with WorkspaceReader(workspace) as reader:
        assert read_groups(reader.fs, Layout(workspace))[GROUP].held
    for life in ("second", "third"):
        with application(anyio_backend_name, workspace, tmp_path / life, 1000, 0.2) as process:
            written = checkpoint_of(workspace, HOME, GROUP)
            assert written is not None or life == "third", "an attempt began that is not on disk"
            assert ended(process, signal.SIGTERM) == (0, "closed\n")
        notes, _ = read_journal(tmp_path / life)
        assert [(note.offset, note.attempt) for note in notes if note.kind == "begin"] == [(1, 1), (2, 1)]
        checkpoint = checkpoint_of(workspace, HOME, GROUP)
        assert checkpoint is not None
        assert {(held.count, held.running) for held in checkpoint.attempts.values()} <= {(0, False)}
        assert is_let_go(workspace)
    assert await deliveries(workspace) == [(offset, 1) for offset in range(1, 11)]


async def test_it_ends_with_the_bus(workspace: Path) -> None:
    """`run_until_terminated` returns when somebody else closed the bus, here a handler."""
    bus = EventBus(workspace=workspace)

    async def handler(event: Event[Any]) -> None:
        await bus.close()

    await bus.subscribe(HOME.topic, GROUP, handler)
    await bus.publish(Event(EventMeta(topic=HOME.topic, type="ACTED", space_id=HOME.space_id), {}))
    with anyio.fail_after(PATIENCE_S):
        await bus.run_until_terminated()
    assert is_let_go(workspace)


class Failing(WalStore):
    """A store whose housekeeping breaks."""

    async def run(self) -> None:
        await anyio.sleep(0.05)
        raise OSError("broken")


async def test_it_ends_when_the_bus_breaks(workspace: Path) -> None:
    """`run_until_terminated` does not wait for a signal on a bus that has stopped: it raises what stopped it."""
    bus = EventBus(store=Failing(workspace))
    with anyio.fail_after(PATIENCE_S), pytest.raises(OSError, match="broken"):
        await bus.run_until_terminated()
