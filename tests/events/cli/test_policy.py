"""`events policy check|explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.events.cli.cli_support import keys, run


def test_the_packaged_policies_are_sound() -> None:
    """Without a folder those that ship are checked."""
    lines = run("policy", "check").out.splitlines()
    assert lines[0] == "ok  policies/policy.csv: 13 rules"
    assert all(line.startswith("ok ") for line in lines)


def test_a_folder_is_checked_file_by_file(tmp_path: Path) -> None:
    """A file that cannot be taken is named with its line; exit 1; the others are checked too."""
    run("init", tmp_path)
    policy = tmp_path / "policies" / "policy.csv"
    lines = policy.read_text().splitlines()
    lines[22] = "p, role:agent, *, **, publsh, allow"
    policy.write_text("\n".join([*lines, ""]))
    ran = run("policy", "check", workspace=tmp_path, expect=1)
    assert f"bad {policy}:23: 'publsh' is no action" in ran.out
    assert "Did you mean 'publish'?" in ran.out
    assert f"ok  {tmp_path / 'policies' / 'topics.toml'}" in ran.out
    data = run("policy", "check", "--policies", tmp_path / "policies", "--json", expect=1).data
    assert keys(data) == {"file", "ok", "says", "line"}
    assert [(one["ok"], one["line"]) for one in data][:2] == [(False, 23), (True, None)]


def test_yes_with_the_line_that_decided(tmp_path: Path) -> None:
    """And the lines that it rests on; exit 0."""
    run("init", tmp_path)
    lines = run(
        "policy", "explain", "agent:planner", "publish", "actions", "-s", "home", workspace=tmp_path
    ).out.splitlines()
    assert lines[0] == "yes: agent:planner publish 'actions' in 'home': allowed, with clearance up to RED"
    assert "policy.csv:24: p, role:agent, *, **, publish|consume|ack, allow" in lines[1]
    assert lines[2].strip().startswith("because ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("agent:planner", "replay", "actions"), "no line allows it"),
        (("observer:x", "consume", "actions", "-s", "private:1"), "a line denies it"),
        (("agent:planner", "consume", "actions", "--band", "black"), "the band is BLACK, and the clearance there RED"),
        (("agent:planner", "consume", "actions", "--needs", "tools"), "capabilities that are not held: tools"),
        (("anonymous", "publish", "actions"), "no line allows it"),
        (("role:owner", "publish", "actions"), "a role is not a subject"),
        (("agent:planner", "read", "actions"), "is no action"),
    ],
)
def test_no_with_the_reason(arguments: tuple[str, ...], reason: str) -> None:
    """Exit 3, so that a script can ask."""
    ran = run("policy", "explain", *arguments, expect=3)
    assert ran.out.startswith("no: ")
    assert reason in ran.out
    assert "by the packaged policy" in ran.out


def test_capabilities_that_are_held_count() -> None:
    """What the event needs against what the subscription holds."""
    arguments = ("policy", "explain", "agent:planner", "consume", "actions", "--needs", "tools")
    assert run(*arguments, "--holds", "tools").code == 0


def test_an_explanation_as_json() -> None:
    """The request, the answer, the lines."""
    data = run("policy", "explain", "agent:planner", "publish", "actions", "--json").data
    assert set(data) == {"subject", "action", "topic", "space_id", "allowed", "reason", "line", "because"}
    assert data["allowed"] is True
    assert data["line"]["number"] == 24


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    """A band that is none, a folder that is none."""
    assert "a band is GREEN" in run("policy", "explain", "a", "consume", "b", "--band", "PINK", expect=2).err
    assert "there is no folder" in run("policy", "check", "--policies", tmp_path / "none", expect=2).err
