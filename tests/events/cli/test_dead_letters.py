"""`events dlq list|show|retry|purge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from events.blocking import BlockingBus
from events.fingerprints import fingerprint
from events.types import Event
from tests.events.cli.cli_support import CONFIG, keys, run, wait

GOALS = fingerprint("KeyError: 'goal-3'")
SLOW = fingerprint("TimeoutError: tool took 5.0 s")


def letters(workspace: Path) -> list[Any]:
    """Every dead letter there is."""
    found: list[Any] = run("dlq", "list", "--each", "--json", workspace=workspace).data
    return found


def consume(workspace: Path, group: str = "actor") -> list[int]:
    """Run the group once, with a handler that has learnt better; the numbers it was given."""
    given: list[int] = []
    with BlockingBus(workspace=workspace, config=CONFIG) as bus:
        bus.subscribe("actions", group, lambda event: given.append(event.payload["n"]), space="home")
        bus.wait_settled(0.5)  # one event is deferred for long: not everything settles
    return given


def test_dead_letters_are_grouped_by_what_went_wrong(filled: Path) -> None:
    """The most frequent first; what varies is taken out where there is more than one."""
    lines = run("dlq", "list", workspace=filled).out.splitlines()
    assert lines[0].split() == ["fingerprint", "count", "group", "topics", "last", "died", "error"]
    assert lines[1].split()[:4] == [GOALS, "2", "actor", "actions"]
    assert lines[1].endswith("ago  KeyError: '…'")
    assert lines[2].split()[:4] == [SLOW, "1", "actor", "actions"]
    assert lines[2].endswith("TimeoutError: tool took 5.0 s")
    assert "events dlq retry FINGERPRINT" in lines[-1]


def test_kinds_as_json(filled: Path) -> None:
    """With the offsets of each kind."""
    data = run("dlq", "list", "--json", workspace=filled).data
    assert keys(data) == {
        *("fingerprint", "error", "group", "topics", "count", "retrying"),
        *("first_died_ms", "last_died_ms", "offsets"),
    }
    assert [(one["fingerprint"], one["count"], sorted(one["offsets"])) for one in data] == [
        (GOALS, 2, [4, 8]),
        (SLOW, 1, [6]),
    ]


def test_each_dead_letter_can_be_listed(filled: Path) -> None:
    """With its place, its attempts and its error."""
    data = letters(filled)
    assert {
        *("space_id", "topic", "group", "offset", "round", "event_id", "reason", "errors", "attempts", "died_ms"),
        *("appended_ms", "is_retrying", "fingerprint", "meta"),
    } == keys(data)
    assert {one["offset"]: one["errors"] for one in data} == {
        4: ["KeyError: 'goal-3'"] * 2,
        6: ["TimeoutError: tool took 5.0 s"] * 2,
        8: ["KeyError: 'goal-7'"] * 2,
    }
    shown = run("dlq", "list", "actions", "--each", workspace=filled).out
    assert "home/actions/4" in shown
    assert "KeyError: 'goal-3'" in shown
    assert len(run("dlq", "list", "--each", "--limit", "1", "--json", workspace=filled).data) == 1


def test_none_is_good_news(filled: Path) -> None:
    """Where nothing died, that is said."""
    assert run("dlq", "list", "perception", workspace=filled).out == "No dead letters.\n"
    assert run("dlq", "list", "--group", "memory", "--json", workspace=filled).data == []


def test_one_is_shown_whole(filled: Path) -> None:
    """By offset, by event id, by fingerprint: the envelope, the payload, and every attempt's error."""
    by_offset = run("dlq", "show", "6", workspace=filled).out
    assert "home/actions/6 died in group actor at " in by_offset
    assert by_offset.count("TimeoutError: tool took 5.0 s") == 2
    assert '"text": "note 5"' in by_offset
    event_id = next(one["event_id"] for one in letters(filled) if one["offset"] == 6)
    assert run("dlq", "show", event_id, workspace=filled).out == by_offset
    assert run("dlq", "show", SLOW, workspace=filled).out == by_offset
    both = run("dlq", "show", GOALS, workspace=filled).out
    assert "1 more like it: home/actions/" in both
    data = run("dlq", "show", GOALS, "--json", workspace=filled).data
    assert sorted(one["payload"]["n"] for one in data) == [3, 7]


def test_what_is_not_there_is_a_problem(filled: Path) -> None:
    """Exit 1, with the command that lists them."""
    assert "`events dlq list` shows them" in run("dlq", "show", "12345678", workspace=filled, expect=1).err
    assert "no dead letter" in run("dlq", "retry", "99", workspace=filled, expect=1).err


def test_a_kind_is_retried_and_delivered_when_the_group_next_consumes(filled: Path) -> None:
    """Only that kind, and only to its group."""
    assert run("dlq", "retry", GOALS, workspace=filled).out == "2 dead letters will be delivered again\n"
    kinds = {one["fingerprint"]: one["retrying"] for one in run("dlq", "list", "--json", workspace=filled).data}
    assert kinds == {GOALS: 2, SLOW: 0}
    assert "(2 retrying)" in run("dlq", "list", workspace=filled).out
    assert {3, 7} <= set(consume(filled))
    assert [one["offset"] for one in letters(filled)] == [6]


def test_all_that_the_options_cover_are_retried(filled: Path) -> None:
    """--all says so; what is being retried already is left alone."""
    assert run("dlq", "retry", "--all", "--group", "memory", "--json", workspace=filled).data == {"retried": 0}
    assert run("dlq", "retry", "--all", "--json", workspace=filled).data == {"retried": 3}
    assert run("dlq", "retry", "--all", "--json", workspace=filled).data == {"retried": 0}


def test_a_dry_run_shows_which(filled: Path) -> None:
    """And changes nothing."""
    data = run("dlq", "retry", GOALS, "--dry-run", "--json", workspace=filled).data
    assert sorted(one["offset"] for one in data) == [4, 8]
    assert not any(one["is_retrying"] for one in letters(filled))


def test_which_must_be_said(filled: Path) -> None:
    """Neither nothing nor both."""
    assert "say which" in run("dlq", "retry", workspace=filled, expect=2).err
    assert "say which" in run("dlq", "retry", GOALS, "--all", workspace=filled, expect=2).err


def test_purging_forgets_what_is_old_enough(filled: Path) -> None:
    """By age and group, with --yes where there is no terminal to ask in; the events stay in the log."""
    assert "Say --yes" in run("dlq", "purge", "--older-than", "0s", workspace=filled, expect=2).err
    assert run("dlq", "purge", "--older-than", "1h", "--yes", workspace=filled).out == "0 dead letters forgotten\n"
    assert run("dlq", "purge", "--older-than", "0s", "--yes", "--json", workspace=filled).data == {"purged": 3}
    assert letters(filled) == []
    assert run("dlq", "purge", "--older-than", "0s", workspace=filled).out == "0 dead letters forgotten\n"
    assert len(run("replay", "actions", "--json", workspace=filled).lines) == 11


def test_beside_a_running_bus_the_dead_are_listed_as_they_die(filled: Path, held: BlockingBus) -> None:
    """Reading needs no lock."""

    def fails(event: Event[Any]) -> None:
        raise RuntimeError("no luck")

    held.subscribe("outcomes", "unlucky", fails)
    held.wait_settled(20)

    def dead() -> list[tuple[str, int]]:
        found = run("dlq", "list", "--group", "unlucky", "--json", workspace=filled).data
        return [(one["error"], one["count"]) for one in found]

    wait(lambda: dead() == [("RuntimeError: no luck", 3)])  # the mark follows within a tenth of a second


def test_a_policy_guards_the_dead(ruled: Path) -> None:
    """Reading and retrying them is an action of its own."""
    assert letters(ruled)
    for command in (("list",), ("show", "4"), ("retry", "--all")):
        assert "may not dlq" in run("--as", "agent:planner", "dlq", *command, workspace=ruled, expect=3).err
