"""`events trace`."""

from __future__ import annotations

from pathlib import Path

from tests.events.cli.cli_support import run


def test_the_tree_of_a_correlation(filled: Path) -> None:
    """Causes above their effects, and what each group made of each."""
    lines = run("trace", "talk-1", workspace=filled).out.splitlines()
    assert lines[0].startswith("talk-1: 2 events in 2 logs, from ")
    assert lines[1].startswith("NOTED  home/perception/1  +0ms")
    assert lines[1].endswith("✓ memory  ✓ planner")
    assert lines[2].startswith("└── NOTED  home/actions/11")
    assert lines[2].endswith("✓ actor  ✓ memory")


def test_the_tree_as_json(filled: Path) -> None:
    """Each event with its depth and its outcomes."""
    data = run("trace", "talk-1", "--json", workspace=filled).data
    assert data["correlation"] == "talk-1"
    assert [(one["topic"], one["offset"], one["depth"]) for one in data["events"]] == [
        ("perception", 1, 0),
        ("actions", 11, 1),
    ]
    assert data["events"][0]["groups"] == {"memory": "settled", "planner": "settled"}
    assert data["events"][1]["payload"] == {"n": 100, "text": "note 100"}


def test_what_is_not_settled_is_marked(filled: Path) -> None:
    """Deferred by the gate, dead in a group."""
    assert "⏲ actor deferred" in run("trace", "talk-2", workspace=filled).out
    dead = run("dlq", "list", "--each", "--json", workspace=filled).data[0]
    assert "✗ actor dead" in run("trace", dead["event_id"], workspace=filled).out


def test_payloads_are_shown_when_asked_for(filled: Path) -> None:
    """--full adds them below each event."""
    assert "note 100" not in run("trace", "talk-1", workspace=filled).out
    assert '{"n":100,"text":"note 100"}' in run("trace", "talk-1", "--full", workspace=filled).out


def test_an_id_that_nobody_has_is_a_problem(filled: Path) -> None:
    """Exit 1, one line."""
    ran = run("trace", "nobody", workspace=filled, expect=1)
    assert "no event has the correlation, trace or event id 'nobody'" in ran.err


def test_an_event_that_may_not_be_seen_shows_its_place_alone(ruled: Path) -> None:
    """The tree keeps its shape; the payload stays hidden."""
    run(
        "publish",
        "actions",
        "secret=xyzzy",
        "-s",
        "home",
        "--correlation",
        "talk-3",
        "--meta",
        "band=RED",
        workspace=ruled,
    )
    out = run("--as", "learner:x", "trace", "talk-3", "--full", workspace=ruled).out
    assert "(not yours to see)" in out
    assert "xyzzy" not in out
    assert run("--as", "learner:x", "trace", "talk-3", "--json", workspace=ruled).data["events"] == []
