"""`events attention list|explain|what-if`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.events.cli.cli_support import keys, run


def decided(workspace: Path) -> list[Any]:
    """What is on record: event 9, of low priority, was deferred for both groups that it reached."""
    found: list[Any] = run("attention", "list", "--json", workspace=workspace).data
    return found


def test_decisions_are_listed_with_their_reasons(filled: Path) -> None:
    """What was no plain admit, for people and as data."""
    data = decided(filled)
    assert {"event_id", "group", "offset", "decision", "reason", "score", "parts", "policy"} <= keys(data)
    assert {(one["group"], one["offset"], one["decision"]) for one in data} == {
        ("actor", 10, "defer"),
        ("memory", 10, "defer"),
    }
    lines = run("attention", "list", "--group", "actor", workspace=filled).out.splitlines()
    assert lines[0].split() == ["when", "decision", "score", "group", "log", "event", "reason"]
    assert "defer 600s" in lines[1]
    assert "home/actions/10" in lines[1]
    assert "Nothing was dropped" in run("attention", "list", "outcomes", workspace=filled).out


def test_a_decision_is_explained(filled: Path) -> None:
    """For each group, with what it was based on."""
    event_id = decided(filled)[0]["event_id"]
    out = run("attention", "explain", event_id, workspace=filled).out
    assert out.startswith(f"{event_id}: NOTED at offset 10 of 'actions' in 'home'")
    assert "group actor: defer 600s" in out
    assert "group memory: defer 600s" in out
    data = run("attention", "explain", event_id, "--group", "actor", "--json", workspace=filled).data
    assert [one["group"] for one in data["decisions"]] == ["actor"]


def test_an_event_that_was_plainly_admitted_has_nothing_on_record(filled: Path) -> None:
    """Exit 1, and why that may be."""
    assert "nothing but plain admits" in run("attention", "explain", "ev-none", workspace=filled, expect=1).out
    assert run("attention", "explain", "ev-none", "--json", workspace=filled, expect=1).data["decisions"] == []


def test_a_policy_is_tried_on_the_recorded_past(filled: Path, tmp_path: Path) -> None:
    """Which events would have been treated differently; what is not simulated is said."""
    run("init", tmp_path / "files")
    policy = tmp_path / "files" / "policies" / "attention.toml"
    data = run("attention", "what-if", policy, "--json", workspace=filled).data
    assert {"policy", "decisions", "events", "changed", "outcomes", "changes", "notes"} <= set(data)
    assert {(one["before"]["decision"], one["after"]["decision"]) for one in data["changes"]} == {("defer", "admit")}
    out = run("attention", "what-if", policy, "--group", "actor", workspace=filled).out
    assert "would have been treated differently" in out
    assert "is not simulated" in out
    assert (
        run("attention", "what-if", policy, "--until", "yesterday", "--json", workspace=filled).data["decisions"] == 0
    )


def test_what_is_wrong_is_named(filled: Path, tmp_path: Path) -> None:
    """A file that is not there, and one that cannot be taken."""
    assert "there is no file" in run("attention", "what-if", tmp_path / "none.toml", workspace=filled, expect=2).err
    bad = tmp_path / "bad.toml"
    bad.write_text("[scores]\n# end of policy\n")
    assert "INVALID_POLICY" in run("attention", "what-if", bad, workspace=filled, expect=2).err
