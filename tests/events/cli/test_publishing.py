"""`events publish`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.events.cli.cli_support import run


def published(workspace: Path) -> list[Any]:
    """What stands in the logs."""
    return run("replay", "*", "--json", workspace=workspace).lines


def test_words_become_a_payload(tmp_path: Path) -> None:
    """Values are JSON where they are some, else text; type and space go without saying."""
    ran = run("publish", "memory.write", "n=3", "ok=true", "text=hello there", "list=[1,2]", workspace=tmp_path)
    assert ran.out.startswith("published default/memory.write/1 ev-")
    (event,) = published(tmp_path)
    assert event["payload"] == {"n": 3, "ok": True, "text": "hello there", "list": [1, 2]}
    assert (event["meta"]["type"], event["meta"]["space_id"]) == ("MEMORY_WRITE", "default")


def test_json_and_files_become_a_payload(tmp_path: Path) -> None:
    """One object in quotes, or in a file."""
    file = tmp_path / "payload.json"
    file.write_text('{"from": "file"}')
    run("publish", "actions", '{"a": {"b": [1]}}', workspace=tmp_path / "w")
    run("publish", "actions", f"@{file}", workspace=tmp_path / "w")
    run("publish", "actions", workspace=tmp_path / "w")
    assert [event["payload"] for event in published(tmp_path / "w")] == [{"a": {"b": [1]}}, {"from": "file"}, {}]


def test_options_become_the_envelope(tmp_path: Path) -> None:
    """The usual fields by their own options, any other by --meta."""
    options = ["--type", "ACTION_DECISION", "-s", "home", "-k", "ann", "--priority", "high", "--ttl", "5m"]
    more = ["--correlation", "c", "--causation", "e", "--idem-key", "i", "--meta", "band=RED"]
    run("publish", "actions", "n=1", *options, *more, "--meta", 'headers={"a":"b"}', workspace=tmp_path)
    meta = published(tmp_path)[0]["meta"]
    del meta["event_id"], meta["ts"]
    assert meta == {
        "topic": "actions",
        "type": "ACTION_DECISION",
        "space_id": "home",
        "key": "ann",
        "priority": "high",
        "ttl_sec": 300.0,
        "correlation_id": "c",
        "causation_id": "e",
        "idem_key": "i",
        "band": "RED",
        "headers": {"a": "b"},
    }


def test_a_receipt_as_json(tmp_path: Path) -> None:
    """One line for each event."""
    (receipt,) = run("publish", "actions", "n=1", "--json", workspace=tmp_path).lines
    assert set(receipt) == {"space_id", "topic", "offset", "event_id"}
    assert (receipt["space_id"], receipt["topic"], receipt["offset"]) == ("default", "actions", 1)


def test_lines_of_stdin_are_payloads_or_whole_events(tmp_path: Path) -> None:
    """A line with meta and payload brings its own envelope, over what the options say."""
    lines = ['{"n": 1}', "", '{"meta": {"topic": "other", "type": "NOTED", "space_id": "work"}, "payload": {"n": 2}}']
    ran = run("publish", "actions", "--stdin", "-s", "home", workspace=tmp_path, input="\n".join(lines))
    assert "2 events published in" in ran.out
    assert "home/actions, work/other" in ran.out
    assert sorted((one["space_id"], one["topic"], one["payload"]["n"]) for one in published(tmp_path)) == [
        ("home", "actions", 1),
        ("work", "other", 2),
    ]


def test_many_lines_go_out_in_batches(tmp_path: Path) -> None:
    """In order, each acknowledged; nothing at all is fine too."""
    text = "".join(json.dumps({"n": number}) + "\n" for number in range(1_200))
    receipts = run("publish", "actions", "--stdin", "--json", workspace=tmp_path, input=text).lines
    assert [receipt["offset"] for receipt in receipts] == list(range(1, 1_201))
    assert [one["payload"]["n"] for one in published(tmp_path)] == list(range(1_200))
    assert "0 events published" in run("publish", "actions", "--stdin", workspace=tmp_path, input="").out


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "line 2 of stdin: "), ("[1]", "each line is a JSON object"), ('{"n": NaN}', "line 2 of stdin: ")],
)
def test_a_bad_line_is_named_and_what_went_out_before_it(tmp_path: Path, line: str, said: str) -> None:
    """Exit 2; nothing of its batch is published."""
    ran = run("publish", "actions", "--stdin", workspace=tmp_path, input=f'{{"n": 1}}\n{line}\n', expect=2)
    assert said in ran.err
    assert "0 events before it went out" in ran.err
    assert ran.err.count("\n") == 1


def test_a_dry_run_checks_and_writes_nothing(tmp_path: Path) -> None:
    """The event as it would stand in the log; no folder is made, and no lock taken."""
    ran = run("publish", "actions", "n=1", "--dry-run", workspace=tmp_path / "new")
    event, told = ran.out.splitlines()
    assert json.loads(event)["payload"] == {"n": 1}
    assert told == f"dry run: 1 event would be published to {tmp_path / 'new'}; nothing was written"
    assert not (tmp_path / "new").exists()
    assert len(run("publish", "actions", "n=1", "--dry-run", "--json", workspace=tmp_path / "new").lines) == 1
    assert "INVALID" in run("publish", "a/b", "n=1", "--dry-run", workspace=tmp_path / "new", expect=2).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("actions", '{"a":'), "payload: found"),
        (("actions", "[1]"), "NAME=VALUE"),
        (("actions", "n"), "NAME=VALUE"),
        (("actions", "@/nowhere"), "/nowhere: No such file"),
        (("actions", "n=1", "--meta", "prio=3"), "Did you mean 'priority'?"),
        (("actions", "n=1", "--priority", "101"), "a priority is"),
        (("actions", "n=1", "--ttl", "soon"), "--ttl: found 'soon'"),
        (("actions", "n=1", "--type", "lower"), "UPPER_SNAKE"),
        (("actions", "n=1", "-s", ""), "INVALID_SPACE"),
        ((), "no topic"),
        (("actions", "n=1", "--stdin"), "not from both"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """One line, and nothing is made."""
    expect = 4 if "@/nowhere" in arguments else 2
    ran = run("publish", *arguments, workspace=tmp_path / "new", expect=expect)
    assert said in ran.err
    assert not (tmp_path / "new").exists()


def test_too_large_a_payload_is_refused(tmp_path: Path) -> None:
    """By the limit of the settings."""
    env = {"EVENTS_MAX_EVENT_BYTES": "1kB"}
    ran = run("publish", "actions", f"text={'x' * 2000}", workspace=tmp_path, env=env, expect=2)
    assert "PAYLOAD_TOO_LARGE" in ran.err


def test_strict_topics_are_kept_to(tmp_path: Path) -> None:
    """The list of the settings, though nobody subscribes here."""
    env = {"EVENTS_STRICT_TOPICS": "actions"}
    run("publish", "actions", "n=1", workspace=tmp_path, env=env)
    assert "strict topology allows actions" in run("publish", "other", "n=1", workspace=tmp_path, env=env, expect=2).err
    assert run("publish", "other", "--dry-run", workspace=tmp_path, env=env, expect=2)


def test_a_policy_is_asked_and_the_actor_stamped(ruled: Path) -> None:
    """As the settings' subject, or as another; a refusal is exit 3, audited, and nothing is written."""
    run("publish", "greetings", "n=1", workspace=ruled)
    run("publish", "greetings", "n=2", "--as", "agent:planner", workspace=ruled)
    events = run("replay", "greetings", "--json", workspace=ruled).lines
    assert [event["meta"]["actor"] for event in events] == ["user:owner", "agent:planner"]
    ran = run("publish", "greetings", "n=3", "--as", "observer:x", workspace=ruled, expect=3)
    assert "DENIED: observer:x may not publish 'greetings'" in ran.err
    assert ran.err.count("\n") == 1
    assert "DENIED" in run("publish", "greetings", "--dry-run", "--as", "observer:x", workspace=ruled, expect=3).err
    assert len(run("replay", "greetings", "--json", workspace=ruled).lines) == 2
    audit = (ruled / ".bus" / "audit" / "audit.00000001.jsonl").read_text().splitlines()
    assert [json.loads(line)["subject"] for line in audit] == ["observer:x"]
