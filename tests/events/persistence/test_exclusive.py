"""One writer a workspace: between processes, after a fork, and within one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.errors import BusError, WorkspaceLocked
from events.persistence.files import OsFileSystem
from events.persistence.reader import WorkspaceReader
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from tests.events.persistence.processes import FORKS, started

RACES = 200
CONTENDERS = 4
NAME = LogName("home", "notes")
ENTRY = Entry(b'"meta":{"topic":"notes","type":"NOTED","space_id":"home"},"payload":{}')


async def opened(workspace: str | Path) -> WalStore:
    """A store that has the workspace."""
    store = WalStore(workspace, WalSettings(ballast_bytes=0))
    await store.open(lambda log, records: None)
    return store


# -- processes that race -----------------------------------------------------------------------------------------


def contend(connection: Connection, workspace: str, gate: Barrier) -> None:
    """Race for the workspace again and again: say how it went, and let go when told to."""

    async def attempt() -> None:
        try:
            store = await opened(workspace)
        except WorkspaceLocked as refused:
            connection.send(("refused", refused.pid))
            connection.recv()
            return
        log = await store.log(NAME)
        [offset] = await log.append([ENTRY], timeout_s=10)
        connection.send(("won", offset))
        connection.recv()
        await store.close()

    while True:
        gate.wait()
        anyio.run(attempt)
        connection.send(("ready", None))


class Contender:
    """One of the processes that race, as the referee sees it."""

    def __init__(self, workspace: Path, gate: Barrier) -> None:
        self._life = ExitStack()
        process, self._connection = self._life.enter_context(started(contend, str(workspace), gate))
        assert process.pid is not None
        self.pid = process.pid

    def answer(self) -> tuple[str, Any]:
        """What it says next."""
        assert self._connection.poll(30), f"process {self.pid} says nothing"
        kind, value = self._connection.recv()
        return kind, value

    def let_go(self) -> None:
        """Have it close what it holds and get ready for the next race."""
        self._connection.send("let go")
        assert self.answer() == ("ready", None)

    def kill(self) -> None:
        """End it as it is."""
        self._life.close()


def test_of_several_processes_one_gets_the_workspace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LOCKED: of four processes that open a workspace at one moment one gets it; the others learn its pid.

    200 races. In every tenth the winner is killed instead of closing, and the lock is free all the same.
    """
    gate = FORKS.Barrier(CONTENDERS + 1)
    workspace = tmp_path / "workspace"
    winners: Counter[int] = Counter()
    began = time.monotonic()
    contenders = [Contender(workspace, gate) for _ in range(CONTENDERS)]
    try:
        for race in range(1, RACES + 1):
            gate.wait(timeout=30)
            answers = {contender: contender.answer() for contender in contenders}
            won = [contender for contender, (kind, _) in answers.items() if kind == "won"]
            assert len(won) == 1, f"race {race}: {len(won)} winners"
            [winner] = won
            winners[winner.pid] += 1
            assert answers.pop(winner) == ("won", race), "each winner appends one event, right behind the last"
            assert set(answers.values()) == {("refused", winner.pid)}, f"race {race}: {winner.pid} has it"
            for contender in answers:
                contender.let_go()
            if race % 10:
                winner.let_go()
            else:
                winner.kill()
                contenders[contenders.index(winner)] = Contender(workspace, gate)
    finally:
        for contender in contenders:
            contender.kill()
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{RACES} races of {CONTENDERS} processes, one winner each ({len(winners)} in turn): {took:.1f} s")


# -- a fork ------------------------------------------------------------------------------------------------------


def fork_while_open(connection: Connection, workspace: str) -> None:
    """Open the workspace and fork. The child says what became of its attempts to write; both live on."""

    async def main() -> None:
        store = await opened(workspace)
        log = await store.log(NAME)
        await log.append([ENTRY], timeout_s=10)
        if os.fork() == 0:
            await _attempt_all(connection, store, log)
            fresh = threading.Thread(target=anyio.run, args=(_attempt_all, connection, store, log))
            fresh.start()
            fresh.join()
            connection.send(("child", os.getpid()))
        while True:
            time.sleep(60)  # noqa: ASYNC251 - nothing else is to run here: the test will kill both

    anyio.run(main)


async def _attempt_all(connection: Connection, store: WalStore, log: StoreLog) -> None:
    for attempt, call in _attempts(store, log).items():
        connection.send((attempt, await _code_of(call)))


def _attempts(store: WalStore, log: StoreLog) -> dict[str, Callable[[], Awaitable[object]]]:
    checkpoint = Checkpoint(log_id=log.log_id, committed=1)
    group = GroupRecord(name="readers", topic="*", space="*")
    return {
        "append": lambda: log.append([ENTRY], timeout_s=10),
        "sync": log.sync,
        "drop": lambda: log.drop_before(2),
        "open a log": lambda: store.log(LogName("home", "others")),
        "dead letters": lambda: store.dead_letters(NAME),
        "save a group": lambda: store.save_group(group),
        "delete a group": lambda: store.delete_group("readers"),
        "save a checkpoint": lambda: store.save_checkpoint(NAME, "readers", checkpoint),
        "seek": lambda: log.offset_at(0),
        "close": store.close,
        "append after close": lambda: log.append([ENTRY], timeout_s=10),
    }


async def _code_of(call: Callable[[], Awaitable[object]]) -> str | None:
    try:
        await call()
    except BusError as error:
        return error.code
    return None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the descriptor in /proc")
def test_a_forked_child_cannot_write_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    """FORKED: each way to write is refused in a fork's child, and the child holds no copy of the lock.

    So it is on the event loop that the fork interrupted, and on a new one. When the parent is killed while the
    child lives, the workspace is free for a third process.
    """
    workspace = tmp_path / "workspace"
    with started(fork_while_open, str(workspace)) as (parent, connection):
        said: dict[str, Any] = {}
        while "child" not in said:
            assert connection.poll(20), f"the child hangs after {list(said)}"
            attempt, outcome = connection.recv()
            said.setdefault(attempt, []).append(outcome)
        [child] = said.pop("child")
        try:
            open_files = [os.readlink(link) for link in Path(f"/proc/{child}/fd").iterdir()]
            assert str(workspace / ".bus/lock") not in open_files
            assert said.pop("close") == [None, None], "closing what is the parent's does nothing"
            assert all(codes == ["FORKED", "FORKED"] for codes in said.values()), said
            with pytest.raises(WorkspaceLocked) as refused:
                anyio.run(opened, workspace)
            assert refused.value.pid == parent.pid, "the parent still has it, whatever its child closed"

            parent.kill()
            parent.join()
            os.kill(child, 0)  # raises if the child were gone too
            anyio.run(_holds_one_event, workspace)
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


async def _holds_one_event(workspace: Path) -> None:
    store = await opened(workspace)
    log = await store.log(NAME)
    assert log.next_offset == 2
    assert await store.groups() == []
    await store.close()


# -- one process -------------------------------------------------------------------------------------------------


async def test_a_process_cannot_open_a_workspace_twice(workspace: Path) -> None:
    """LOCKED: a second store in the same process is refused, with its own pid, and the first goes on."""
    store = await opened(workspace)
    log = await store.log(NAME)
    with pytest.raises(WorkspaceLocked) as refused:
        await opened(workspace)
    assert refused.value.pid == os.getpid()
    assert await log.append([ENTRY], timeout_s=10) == [1]
    await store.close()
    again = await opened(workspace)
    await again.close()


def test_of_several_threads_one_gets_the_workspace(tmp_path: Path) -> None:
    """LOCKED: threads of one process that open a workspace at one moment are told apart too; 50 races."""
    for race in range(50):
        gate = threading.Barrier(CONTENDERS)
        outcomes: list[str] = []
        threads = [
            threading.Thread(target=_race_in_thread, args=(tmp_path / "workspace", gate, outcomes))
            for _ in range(CONTENDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused"] * (CONTENDERS - 1) + ["won"], f"race {race}"


def _race_in_thread(workspace: Path, gate: threading.Barrier, outcomes: list[str]) -> None:
    async def attempt() -> None:
        gate.wait()
        try:
            store = await opened(workspace)
        except WorkspaceLocked as refused:
            outcomes.append("refused" if refused.pid == os.getpid() else f"refused, held by {refused.pid}")
            gate.wait()
            return
        outcomes.append("won")
        gate.wait()
        await store.close()

    anyio.run(attempt)


async def test_a_failed_opening_gives_the_lock_back(workspace: Path) -> None:
    """LOCKED: whatever goes wrong behind the lock, the next attempt of the same process finds it free."""

    class Refusing(OsFileSystem):
        def mkdir(self, path: str) -> None:
            if path.endswith("groups"):
                raise PermissionError(13, "not allowed", path)
            super().mkdir(path)

    store = WalStore(workspace, WalSettings(ballast_bytes=0), fs=Refusing())
    with pytest.raises(PermissionError):
        await store.open(lambda log, records: None)
    again = await opened(workspace)
    await again.close()


async def test_asking_whether_a_workspace_is_held_changes_nothing(tmp_path: Path) -> None:
    """F6: a reader may ask who holds a workspace: it creates nothing, and takes nothing from a writer."""
    reader = WorkspaceReader(tmp_path / "nowhere")
    assert not reader.is_held()
    assert not (tmp_path / "nowhere").exists()

    store = await opened(tmp_path / "workspace")
    note = (tmp_path / "workspace/.bus/lock").read_bytes()
    reader = WorkspaceReader(tmp_path / "workspace")
    assert reader.is_held()
    assert (tmp_path / "workspace/.bus/lock").read_bytes() == note
    await store.close()
    assert not reader.is_held()


def test_asking_whether_a_workspace_is_held_never_keeps_a_writer_out(tmp_path: Path) -> None:
    """F6: read-only openers never break a writer: 200 openings beside one that asks all the time."""
    stop = threading.Event()

    def ask() -> None:
        with WorkspaceReader(tmp_path / "workspace") as reader:
            while not stop.is_set():
                reader.is_held()

    async def open_and_close() -> None:
        store = await opened(tmp_path / "workspace")
        await store.close()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            anyio.run(open_and_close)
    finally:
        stop.set()
        asking.join()
