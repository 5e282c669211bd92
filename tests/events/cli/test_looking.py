"""`events topics` and `events groups`."""

from __future__ import annotations

from pathlib import Path

from events.blocking import BlockingBus
from tests.events.cli.cli_support import an_event, keys, run, wait


def test_topics_are_listed_with_what_they_hold(filled: Path) -> None:
    """One line each, whole in a pipe."""
    lines = run("topics", workspace=filled).out.splitlines()
    assert lines[0].split() == ["space", "topic", "events", "offsets", "newest", "size", "files", "dead", "groups"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["home", "actions", "11", "1..11"],
        ["home", "perception", "1", "1..1"],
        ["work", "outcomes", "3", "1..3"],
    ]
    assert lines[1].endswith("3  actor, memory")


def test_topics_as_json(filled: Path) -> None:
    """Every key is there for every topic."""
    data = run("topics", "--json", workspace=filled).data
    assert keys(data) == {
        *("space_id", "topic", "first", "last", "events", "segments", "size_bytes", "last_at_ms"),
        *("withheld", "dead", "groups", "trouble"),
    }
    assert [(one["topic"], one["events"], one["dead"], one["groups"]) for one in data] == [
        ("actions", 11, 3, ["actor", "memory"]),
        ("perception", 1, 0, ["memory", "planner"]),
        ("outcomes", 3, 0, ["memory"]),
    ]


def test_topics_can_be_chosen(filled: Path) -> None:
    """By pattern and by space; nothing that matches is said, and is no error."""
    assert len(run("topics", "*", "--space", "home", "--json", workspace=filled).data) == 2
    assert len(run("topics", "out*", "--json", workspace=filled, expect=2).out) == 0
    assert run("topics", "nothing", workspace=filled).out == "No topic matches 'nothing'\n"


def test_what_is_not_proven_is_told_beside_the_data(filled: Path) -> None:
    """A process died before its mark: the lines are withheld, and the note on stderr says what to do."""
    segment = next(filled.rglob("outcomes.*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    next(filled.rglob(".outcomes.mark.json")).unlink()
    ran = run("topics", "outcomes", workspace=filled)
    assert f"note: {len(lines)} lines not proven durable yet" in ran.err
    assert "events repair" in ran.err


def test_groups_are_summed_over_their_logs(filled: Path) -> None:
    """Lag, retries, deferrals and dead letters of each group; stopped, since the bus ended in order."""
    data = {one["group"]: one for one in run("groups", "--json", workspace=filled).data}
    assert keys(list(data.values())) == {
        *("group", "pattern", "space", "condition", "logs", "lag", "lag_s", "oldest_at_ms", "in_flight", "retrying"),
        *("deferred", "dead", "settled_per_s", "trouble"),
    }
    actor, memory, planner = data["actor"], data["memory"], data["planner"]
    assert (actor["pattern"], actor["space"], actor["condition"], actor["logs"]) == ("actions", "home", "stopped", 1)
    assert (actor["lag"], actor["retrying"], actor["deferred"], actor["dead"], actor["in_flight"]) == (2, 1, 1, 3, 0)
    assert actor["lag_s"] > 0
    assert (memory["logs"], memory["lag"], memory["deferred"]) == (3, 1, 1)
    assert (planner["lag"], planner["lag_s"], planner["oldest_at_ms"]) == (0, 0.0, None)


def test_groups_for_people(filled: Path) -> None:
    """A line for each group, or with --each for each log."""
    lines = run("groups", workspace=filled).out.splitlines()
    assert lines[0].split() == ["group", "reads", "state", "lag", "age", "flight", "retry", "defer", "dead"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["actor", "home/actions", "stopped", "2"],
        ["memory", "*", "stopped", "1"],
        ["planner", "perception", "stopped", "0"],
    ]
    each = run("groups", "--each", "--group", "memory", workspace=filled).out.splitlines()
    assert [line.split()[:4] for line in each[1:]] == [
        ["memory", "home/actions", "9", "11"],
        ["memory", "home/perception", "1", "1"],
        ["memory", "work/outcomes", "3", "3"],
    ]


def test_groups_each_as_json(filled: Path) -> None:
    """One object for each group and log, with the oldest offset that is not settled."""
    data = run("groups", "--each", "--topic", "actions", "--json", workspace=filled).data
    assert [(one["group"], one["topic"], one["committed"], one["last"], one["oldest"]) for one in data] == [
        ("actor", "actions", 8, 11, 9),
        ("memory", "actions", 9, 11, 10),
    ]
    assert {"lag_s", "oldest_at_ms", "saved_ms", "condition"} <= keys(data)


def test_a_running_bus_shows_as_consuming(filled: Path, held: BlockingBus) -> None:
    """And what its group holds is in flight."""
    release: list[bool] = []
    held.subscribe("outcomes", "slow", lambda event: wait(lambda: bool(release)))

    def slow() -> dict[str, object]:
        data = run("groups", "--group", "slow", "--json", workspace=filled).data
        return dict(data[0])

    wait(lambda: slow()["in_flight"] == 3)
    assert slow()["condition"] == "consuming"
    release.append(True)
    held.publish(an_event("outcomes", 9, space="work"))
    wait(lambda: slow()["lag"] == 0)


def test_before_anybody_subscribed_that_is_said(tmp_path: Path) -> None:
    """Not an empty table."""
    run("publish", "actions", "n=1", workspace=tmp_path)
    assert run("groups", workspace=tmp_path).out == "No groups yet: nobody has subscribed.\n"
    assert run("groups", "--json", workspace=tmp_path).data == []


def test_a_log_that_cannot_be_read_is_a_note(filled: Path) -> None:
    """The other lines are shown."""
    for path in filled.rglob("outcomes.*.jsonl"):
        path.unlink()
    for command in ("topics", "groups"):
        ran = run(command, workspace=filled)
        assert "work/outcomes" in ran.err
        assert "missing" in ran.err
        assert "actions" in ran.out


def test_a_policy_decides_what_is_listed(ruled: Path) -> None:
    """Who may replay nothing sees nothing, and is told so with exit 3."""
    assert len(run("--as", "learner:x", "topics", "--json", workspace=ruled).data) == 3
    assert "DENIED" in run("--as", "observer:x", "topics", workspace=ruled, expect=3).err
