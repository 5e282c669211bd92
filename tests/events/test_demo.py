"""The tour: it runs, it checks itself, and it says so when something does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from events.demo import run
from events.demo.stage import Stage
from events.errors import InvalidMessage
from events.inspection import Inspector
from events.persistence.repair import verify
from tests.events.cli.cli_support import environment

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The tour in a process of its own, as `make demo` runs it; its workspace and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    ran = subprocess.run(
        [sys.executable, "-m", "events.demo"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(TMPDIR=str(folder)),
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return next(folder.iterdir()), ran.stdout


def test_every_act_is_told_and_every_claim_holds(toured: tuple[Path, str]) -> None:
    """In plain lines where there is no terminal: no colour, no screen control."""
    _, told = toured
    acts = [line for line in told.splitlines() if line[:1].isdigit() and line[1:3] == ". "]
    assert [line[3:] for line in acts] == [
        "An agent at work",
        "A tool is down for a while",
        "One event cannot be handled",
        "Not everything deserves attention",
        "The process is killed",
        "Yesterday, once more",
        "And the files",
    ]
    assert told.count("✓") == 10
    assert "10 of 10 claims held" in told
    assert "250 acknowledged before the kill, 0 lost" in told
    assert "\x1b" not in told


def test_it_leaves_a_workspace_to_look_at(toured: tuple[Path, str]) -> None:
    """Sound files, groups, history; the bus's own log beside them, which names no payload."""
    workspace, told = toured
    assert str(workspace) in told
    assert all(one.is_sound for one in verify(workspace))
    assert set(Inspector(workspace).group_records()) == {"planner", "actor", "memory", "listener", "worker"}
    log = (workspace / "demo.log").read_text()
    assert "failed in group actor: ConnectionError [" in log
    assert "does not answer" not in log


def test_the_commands_that_it_names_work(toured: tuple[Path, str]) -> None:
    """As they are printed."""
    _, told = toured
    commands = told[told.index("Try next:") :].splitlines()[1:]
    assert len(commands) == 5
    for command in commands:
        _, *arguments = command.split()
        ran = subprocess.run(
            [sys.executable, "-m", "events", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(),
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout


def test_it_can_be_run_from_the_command_and_report_as_json(tmp_path: Path) -> None:
    """`events demo --json`: the claims and the numbers measured in that run."""
    ran = subprocess.run(
        [sys.executable, "-m", "events", "demo", "--json", "-w", str(tmp_path / "tour")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    report = json.loads(ran.stdout)
    assert set(report) == {"workspace", "ok", "seconds", "claims", "measured"}
    assert report["ok"] is True
    assert all(claim["holds"] for claim in report["claims"])
    assert report["measured"]["lost"] == 0
    assert report["measured"]["acknowledged"] >= 250


def test_a_claim_that_does_not_hold_is_said_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tour must not be able to lie: one false claim, and it ends badly."""
    stage = Stage(tmp_path)
    stage.claim("water is wet", True)
    stage.claim("nothing was lost", False)
    assert stage.finish() is False
    told = capsys.readouterr().out
    assert "✗ NOT SO: nothing was lost" in told
    assert "1 of 2 claims held" in told


def test_it_wants_a_folder_of_its_own(toured: tuple[Path, str]) -> None:
    """Counting would be wrong where something is counted already."""
    workspace, _ = toured
    with pytest.raises(InvalidMessage, match="without a bus"):
        run(workspace)
