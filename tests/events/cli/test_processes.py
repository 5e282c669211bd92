"""The command as real processes: the script, pipes, signals, a terminal, and a bus in another process."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.events.cli.cli_support import COMMAND, environment

PATIENCE_S = 60.0
SERVER = """
import sys, anyio
from events import Event, EventBus, EventMeta

async def main():
    async with EventBus(workspace=sys.argv[1]) as bus:
        async def handle(event): pass
        await bus.subscribe("ticks", "clock", handle)
        number = 0
        while True:
            await bus.publish(Event(EventMeta(topic="ticks", type="TICK", space_id="home"), {"n": number}))
            if number == 0:
                print("ready", flush=True)
            number += 1
            await anyio.sleep(0.01)

anyio.run(main)
"""


@contextmanager
def serving(workspace: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a bus that publishes and consumes."""
    command = [sys.executable, "-c", SERVER, str(workspace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield server
        finally:
            server.kill()


def events(*arguments: str | Path, input: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person's script would."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=input,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(**variables),
        check=False,
    )


class Terminal:
    """A command in a terminal of its own, whose screen can be read and whose keys can be pressed."""

    def __init__(self, *arguments: str | Path) -> None:
        self.screen = ""
        self._master, slave = pty.openpty()
        size = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(**size),
            start_new_session=True,
        )
        os.close(slave)

    def wait_for(self, text: str) -> None:
        """Read until the text was shown."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.screen:
            assert time.monotonic() < deadline, self.screen
            if not self._read():
                break
        assert text in self.screen, self.screen

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 1.0)
        data = b""
        with suppress(OSError):  # the other side is closed
            data = os.read(self._master, 65536) if ready else b" "
        self.screen += data.decode("utf-8", "replace")
        return bool(data)

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        """Wait until it ends by itself; its exit code."""
        while self._process.poll() is None:
            self._read()
        os.close(self._master)
        return self._process.wait(PATIENCE_S)


@pytest.fixture
def workspace_with_ticks(tmp_path: Path) -> Path:
    """A workspace that a bus in another process wrote, before it was killed."""
    with serving(tmp_path / "ticks"):
        pass
    return tmp_path / "ticks"


def test_the_script_is_installed_and_answers() -> None:
    """`events`, and `python -m events`, are the same."""
    script = Path(sys.executable).parent / "events"
    if script.exists():  # an environment that was made before there was one is told by `make venv`
        ran = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, env=environment())
        assert ran.stdout == events("--version").stdout
    assert events("--version").returncode == 0


def test_reading_beside_another_process_and_being_refused_to_write(tmp_path: Path) -> None:
    """Lag, events and checks are read; a publish names the process that holds the lock."""
    with serving(tmp_path / "ticks") as server:
        where = ("-w", tmp_path / "ticks")
        groups = json.loads(events("groups", "--json", *where).stdout)
        assert [(one["group"], one["condition"]) for one in groups] == [("clock", "consuming")]
        assert events("tail", *where).stdout.count(" TICK ") >= 1
        assert events("verify", *where).returncode == 0
        refused = events("publish", "ticks", "n=1", *where)
        assert refused.returncode == 3
        assert f"held by process {server.pid} (python" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert server.poll() is None


def test_after_a_kill_the_workspace_is_free_and_nothing_is_lost(workspace_with_ticks: Path) -> None:
    """The group shows as interrupted; the first command that writes recovers what was withheld."""
    where = ("-w", workspace_with_ticks)
    groups = json.loads(events("groups", "--json", *where).stdout)
    assert [one["condition"] for one in groups] == ["interrupted"]
    assert events("repair", *where).returncode == 0
    receipt = json.loads(events("publish", "ticks", "n=-1", "-s", "home", "--json", *where).stdout)
    numbers = [
        json.loads(line)["payload"]["n"] for line in events("replay", "ticks", "--json", *where).stdout.splitlines()
    ]
    assert numbers == [*range(receipt["offset"] - 1), -1]


def test_a_pipe_that_closes_early_is_no_error(workspace_with_ticks: Path) -> None:
    """`events replay ... | head -1`."""
    many = "".join(json.dumps({"n": number, "text": "x" * 100}) + "\n" for number in range(5_000))
    assert events("publish", "many", "--stdin", "-w", workspace_with_ticks, input=many).returncode == 0
    command = f"{' '.join(COMMAND)} replay many --json -w {workspace_with_ticks} | head -n 2"
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 2


def test_following_shows_what_is_published_until_it_is_interrupted(tmp_path: Path) -> None:
    """`events tail --follow`, ended by Ctrl-C with exit 0."""
    with serving(tmp_path / "ticks"):
        terminal = Terminal("tail", "ticks", "--follow", "-n", "0", "-w", tmp_path / "ticks")
        terminal.wait_for("TICK")
        terminal.interrupt()
        assert terminal.end() == 0
    assert "Traceback" not in terminal.screen


def test_watching_groups_in_a_terminal(tmp_path: Path) -> None:
    """A live screen with rates, ended by Ctrl-C with exit 0."""
    with serving(tmp_path / "ticks"):
        terminal = Terminal("groups", "--watch", "--interval", "0.1", "-w", tmp_path / "ticks")
        terminal.wait_for("consuming")
        terminal.wait_for("settled/s")
        terminal.interrupt()
        assert terminal.end() == 0
    assert "Traceback" not in terminal.screen


def test_watching_as_json_lines(tmp_path: Path) -> None:
    """One line for each look, for a program to follow."""
    with serving(tmp_path / "ticks"):
        command = [*COMMAND, "groups", "--watch", "--json", "--interval", "0.1", "-w", str(tmp_path / "ticks")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as watching:
            assert watching.stdout is not None
            looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE_S) == 0
    assert [look["groups"][0]["group"] for look in looks] == ["clock"] * 3
    assert looks[1]["groups"][0]["settled_per_s"] is not None


def test_a_terminal_is_asked_before_something_is_forgotten(workspace_with_ticks: Path) -> None:
    """No is the default, and ends with 130; nothing was done."""
    run = ("retention", "--max-age", "1d", "-w", workspace_with_ticks)
    terminal = Terminal(*run)
    terminal.wait_for("[y/N]")
    terminal.press("\n")
    assert terminal.end() == 130
    agreeing = Terminal(*run)
    agreeing.wait_for("[y/N]")
    agreeing.press("y\n")
    assert agreeing.end() == 0
    assert "Nothing to delete" in agreeing.screen


def test_completion_answers_the_shell(tmp_path: Path) -> None:
    """What bash asks for when Tab is pressed: commands, and the names in the workspace."""
    events("publish", "actions", "n=1", "-w", tmp_path)
    asked = {"_EVENTS_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "events to"}
    assert subprocess.run(
        [*COMMAND], capture_output=True, text=True, env=environment(**asked), check=False
    ).stdout.split() == ["topics"]
    topics = {**asked, "COMP_CWORD": "2", "COMP_WORDS": "events tail ac", "EVENTS_WORKSPACE": str(tmp_path)}
    ran = subprocess.run([*COMMAND], capture_output=True, text=True, env=environment(**topics), check=False)
    assert ran.stdout.split() == ["actions"]
