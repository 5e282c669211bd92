"""`events tail` and `events replay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.events.cli.cli_support import run


def test_the_latest_events_one_line_each(filled: Path) -> None:
    """When, where, what, the payload, and who said it."""
    lines = run("tail", "-n", "3", "--space", "home", "perception", workspace=filled).out.splitlines()
    assert len(lines) == 1
    assert ' home/perception/1 NOTED {"n":0,"text":"note 0"}' in lines[0]
    assert lines[0].endswith("key=ann actor=user:ann correlation=talk-1")
    assert len(run("tail", workspace=filled).out.splitlines()) == 10
    assert run("tail", "-n", "0", workspace=filled).out == ""


def test_events_as_json_lines(filled: Path) -> None:
    """Where it stands, and meta and payload as they were published."""
    (line,) = run("tail", "perception", "--json", workspace=filled).lines
    assert set(line) == {"space_id", "topic", "offset", "at_ms", "meta", "payload"}
    assert (line["space_id"], line["topic"], line["offset"]) == ("home", "perception", 1)
    assert line["payload"] == {"n": 0, "text": "note 0"}
    assert line["meta"]["correlation_id"] == "talk-1"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--where", "payload.n=4"), [4]),
        (("-q", "n>=3", "-q", "n<6"), [3, 4, 5]),
        (("-q", "n!=100", "-q", "n>7"), [8, 9]),
        (("-q", "text~note [12]$"), [1, 2]),
        (("-q", "priority=low"), [9]),
        (("-q", "meta.causation_id?"), [100]),
        (("--type", "NOTED", "-q", "n=0"), [0]),
        (("--type", "OTHER"), []),
        (("--filter", '{"any": [{"path": "payload.n", "value": 1}, {"path": "payload.n", "value": 2}]}'), [1, 2]),
    ],
)
@pytest.mark.parametrize("command", ["tail", "replay"])
def test_conditions_choose_events(filled: Path, command: str, options: tuple[str, ...], numbers: list[int]) -> None:
    """A path without a root means the meta if it has such a field, else the payload."""
    more = ("-n", "100") if command == "tail" else ()
    lines = run(command, "actions", *options, *more, "--json", workspace=filled).lines
    assert [line["payload"]["n"] for line in lines] == numbers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--filter", "{"), "--filter is no JSON"),
        (("--filter", '{"path": "payload.n", "opp": "eq"}'), "no such key beside 'path'"),
        (("--where", "n~("), "INVALID_MESSAGE"),
        (("--where", "=3"), "a condition is"),
    ],
)
def test_a_wrong_condition_is_named(filled: Path, options: tuple[str, ...], said: str) -> None:
    """Exit 2, and what would do."""
    assert said in run("tail", *options, workspace=filled, expect=2).err


def test_history_is_read_oldest_first_and_bounded(filled: Path) -> None:
    """By moments and by number; several topics are merged."""
    every = run("replay", "*", "--json", workspace=filled).lines
    assert len(every) == 15
    assert [line["at_ms"] for line in every] == sorted(line["at_ms"] for line in every)
    assert len(run("replay", "*", "--since", "yesterday", "--limit", "4", "--json", workspace=filled).lines) == 4
    ran = run("replay", "*", "--until", "yesterday", workspace=filled)
    assert ran.out == ""
    assert "nothing there that matches" in ran.err


def test_history_can_be_written_to_a_file(filled: Path, tmp_path: Path) -> None:
    """JSON lines, and how many."""
    file = tmp_path / "history.jsonl"
    assert run("replay", "actions", "-o", file, workspace=filled).out == f"11 events written to {file}\n"
    assert [json.loads(line)["offset"] for line in file.read_text().splitlines()] == list(range(1, 12))
    ran = run("replay", "actions", "-o", file, "--json", workspace=filled)
    assert ran.data == {"events": 11, "file": str(file)}


def test_history_goes_from_one_workspace_to_another(filled: Path, tmp_path: Path) -> None:
    """What `replay --json` prints `publish --stdin` takes, ids and all."""
    printed = run("replay", "*", "--json", workspace=filled)
    run("publish", "--stdin", workspace=tmp_path / "copy", input=printed.out)
    copied = run("replay", "*", "--json", workspace=tmp_path / "copy").lines
    ids = [line["meta"]["event_id"] for line in printed.lines]
    assert sorted(line["meta"]["event_id"] for line in copied) == sorted(ids)


def test_a_topic_that_is_not_there_is_a_problem(filled: Path) -> None:
    """Exit 1, with where to look."""
    assert "`events topics` lists" in run("replay", "nothing", workspace=filled, expect=1).err


def test_engines_are_named(filled: Path) -> None:
    """Today this process; another word is refused with the choices."""
    assert run("replay", "actions", "--engine", "local", "--json", workspace=filled).lines
    assert "'local'" in run("replay", "actions", "--engine", "abacus", workspace=filled, expect=2).err


def test_what_could_steer_a_terminal_is_shown_escaped(tmp_path: Path) -> None:
    """A payload is data, whatever it says."""
    run("publish", "actions", '{"text":"\x9b31m \u202e right to left"}', workspace=tmp_path)
    out = run("tail", workspace=tmp_path).out
    assert "\\x9b31m" in out
    assert "\\u202e" in out


def test_a_policy_decides_what_is_shown(ruled: Path) -> None:
    """Whole topics by the role, single events by their band."""
    run("publish", "actions", "secret=1", "-s", "home", "--meta", "band=RED", workspace=ruled)
    owner = run("replay", "actions", "--json", workspace=ruled).lines
    learner = run("--as", "learner:x", "replay", "actions", "--json", workspace=ruled).lines
    assert len(owner) == len(learner) + 1
    assert "DENIED" in run("--as", "agent:x", "replay", "actions", workspace=ruled, expect=3).err
    assert "DENIED" in run("--as", "agent:x", "tail", workspace=ruled, expect=3).err
