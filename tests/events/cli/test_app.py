"""The command as a whole: its help, its exit codes, and errors in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.blocking import BlockingBus
from events.cli.app import app
from tests.events.cli.cli_support import run

COMMANDS = {
    *("topics", "groups", "tail", "trace", "replay", "verify", "publish", "dlq", "repair", "compact", "retention"),
    *("demo", "init", "doctor", "policy", "attention", "completion"),
}


def test_the_help_fits_a_screen_and_names_every_command() -> None:
    """At most 40 lines of at most 80 columns, with the exit codes."""
    ran = run("--help")
    lines = ran.out.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    words = set(ran.out.split())
    assert words >= COMMANDS
    assert "3 locked or denied" in ran.out


def test_without_a_command_the_help_is_shown() -> None:
    """`events` alone is the question what it can do."""
    assert "Usage: events" in run().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str) -> None:
    """Each has help of its own, and -h will do."""
    assert f"events {command}" in run(command, "-h").out


def test_every_command_and_option_has_a_help_text() -> None:
    """Nothing is left for people to guess."""
    from typer.main import get_command

    waiting = [get_command(app)]
    while waiting:
        command = waiting.pop()
        assert command.help, command.name
        for parameter in command.params:
            assert getattr(parameter, "help", "") or parameter.name == "help", f"{command.name} {parameter.name}"
        waiting += getattr(command, "commands", {}).values()


def test_the_version_is_printed() -> None:
    """The one of the package."""
    import events

    assert run("--version").out.strip() == events.__version__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topcs",), "No such command 'topcs'"),
        (("topics", "--nope"), "No such option: --nope"),
        (("trace",), "Missing argument"),
        (("tail", "-n", "many"), "Invalid value"),
        (("topics", "no/topic"), "INVALID_TOPIC"),
        (("topics", "--space", ""), "INVALID_SPACE"),
        (("tail", "--where", "nonsense"), "a condition is PATH=VALUE"),
        (("replay", "*", "--since", "soon"), "a moment is"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(filled: Path, arguments: tuple[str, ...], said: str) -> None:
    """What was wrong, and where the help is."""
    ran = run(*arguments, workspace=filled, expect=2)
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("events: ")
    assert ran.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("publish", "actions", "n=1"),
        ("dlq", "retry", "--all"),
        ("dlq", "purge", "--older-than", "0s", "--yes"),
        ("repair",),
        ("compact",),
        ("retention", "--max-age", "1s", "--yes"),
    ],
)
def test_whatever_writes_says_who_holds_the_lock(filled: Path, held: BlockingBus, arguments: tuple[str, ...]) -> None:
    """Exit 3, with the process that has the workspace and what it was started as."""
    import os

    ran = run(*arguments, workspace=filled, expect=3)
    assert f"LOCKED: workspace {filled} is held by process {os.getpid()} (" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(("topics",), ("groups",), ("groups", "--each"), ("tail",), ("trace", "talk-1"), ("replay", "*")),
        *(("dlq", "list"), ("dlq", "show", "4"), ("verify",), ("doctor",), ("attention", "list")),
    ],
)
@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_whatever_reads_works_beside_a_running_bus(
    filled: Path, held: BlockingBus, arguments: tuple[str, ...], json_option: tuple[str, ...]
) -> None:
    """No lock is taken, and the bus does not notice."""
    assert run(*arguments, *json_option, workspace=filled).out
    assert held.health().ok


@pytest.mark.parametrize(
    "arguments",
    [("topics",), ("groups",), ("tail",), ("trace", "x"), ("replay", "x"), ("dlq", "list"), ("verify",), ("repair",)],
)
def test_a_folder_without_events_is_told_with_what_to_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Exit 2, and nothing is made by looking."""
    ran = run(*arguments, workspace=tmp_path / "nowhere", expect=2)
    assert "holds no events yet" in ran.err
    assert "events init" in ran.err
    assert not (tmp_path / "nowhere").exists()


def test_the_workspace_comes_from_option_environment_or_default(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """-w before or after the command, EVENTS_WORKSPACE, ./workspace."""
    listed = run("topics", "--json", workspace=filled).out
    assert run("-w", filled, "topics", "--json").out == listed
    assert run("topics", "--json", env={"EVENTS_WORKSPACE": str(filled)}).out == listed
    filled.rename(filled.parent / "workspace")
    monkeypatch.chdir(filled.parent)
    assert run("topics", "--json").out == listed


def test_settings_that_nobody_knows_are_refused(filled: Path) -> None:
    """Exit 2 with a suggestion, from the environment and from the file alike."""
    ran = run("topics", workspace=filled, env={"EVENTS_SYNK": "x"}, expect=2)
    assert "INVALID_SETTING: EVENTS_SYNK: no such setting 'EVENTS_SYNK'. Did you mean 'EVENTS_SYNC'?" in ran.err
    (filled / "events.toml").write_text("wrkers = 3\n")
    assert "Did you mean 'workers'?" in run("topics", workspace=filled, expect=2).err


def test_a_config_file_can_be_named(filled: Path, tmp_path: Path) -> None:
    """`--config` before the command."""
    file = tmp_path / "mine.toml"
    file.write_text("max_inflight = 3\n")
    settings = run("--config", file, "doctor", "--json", workspace=filled).data["settings"]
    assert {"name": "max_inflight", "value": 3, "source": f"{file}:1"} in settings


def test_a_log_that_lost_a_file_is_one_line_and_exit_4(filled: Path) -> None:
    """Storage that fails is told from a wrong argument."""
    for path in filled.rglob("actions.*.jsonl"):
        path.unlink()
    ran = run("tail", "actions", workspace=filled, expect=4)
    assert "CORRUPT" in ran.err
    assert ran.err.count("\n") == 1
