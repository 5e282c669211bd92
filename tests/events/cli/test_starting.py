"""`events init` and `events completion`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from events.settings import Settings
from policies.rbac import PolicyEngine
from tests.events.cli.cli_support import run


def test_a_workspace_with_files_to_edit(tmp_path: Path) -> None:
    """Settings that load, policies that are in force, and what to do next."""
    target = tmp_path / "mine"
    out = run("init", target).out
    assert f"A workspace in {target}:" in out
    assert f"events publish greetings text=hello -w {target}" in out
    settings = Settings.load(environ={}, workspace=target)
    assert (settings.policies, settings.subject) == (target / "policies", "user:owner")
    assert PolicyEngine.of_folder(target / "policies").decide("user:owner", "publish", "actions", "home").allowed
    names = {path.name for path in (target / "policies").iterdir()}
    assert names >= {"policy.csv", "model.conf", "topics.toml"}


def test_what_next_is_true(tmp_path: Path) -> None:
    """The commands that it prints work as printed."""
    lines = run("init", tmp_path / "mine").out.splitlines()
    commands = [line.split()[1:] for line in lines[lines.index("Next:") + 1 :]]
    assert len(commands) == 3
    for command in commands:
        run(*command)


def test_every_setting_in_the_comments_is_one(tmp_path: Path) -> None:
    """Taking a comment away gives a file that loads."""
    run("init", tmp_path)
    text = (tmp_path / "events.toml").read_text()
    bare = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    assert len(tomllib.loads(bare)) > 8
    (tmp_path / "events.toml").write_text(bare)
    Settings.load(environ={}, workspace=tmp_path)


def test_what_was_edited_is_not_replaced_unasked(tmp_path: Path) -> None:
    """Exit 2 without --force; nothing is written then."""
    run("init", tmp_path)
    (tmp_path / "events.toml").write_text("workers = 3\n")
    assert "--force replaces it" in run("init", tmp_path, expect=2).err
    assert (tmp_path / "events.toml").read_text() == "workers = 3\n"
    run("init", tmp_path, "--force")
    assert "subject" in (tmp_path / "events.toml").read_text()


def test_init_as_json(tmp_path: Path) -> None:
    """Where it is, and which files."""
    data = run("init", "--json", workspace=tmp_path).data
    assert data["workspace"] == str(tmp_path)
    assert all(Path(file).is_file() for file in data["files"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_a_shell(shell: str) -> None:
    """A script that asks the command itself."""
    out = run("completion", shell).out
    assert "_EVENTS_COMPLETE" in out
    assert "'bash'" in run("completion", "tcsh", expect=2).err


def test_completion_can_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shell looks for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    out = run("completion", "bash", "--install").out
    assert "bash completion installed in" in out
    assert any("events" in path.name for path in tmp_path.rglob("*") if path.is_file())
