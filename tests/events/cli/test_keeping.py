"""`events verify`, `repair`, `compact` and `retention`."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.blocking import BlockingBus
from events.config import BusConfig
from events.persistence.wal import WalSettings
from tests.events.cli.cli_support import an_event, keys, run

SEGMENTED = BusConfig(wal=WalSettings(segment_lines=4, ballast_bytes=0), checkpoint_interval_s=0.01)


@pytest.fixture
def segmented(tmp_path: Path) -> Path:
    """A log of five segments, of which one group has settled everything and another nothing."""
    workspace = tmp_path / "segmented"
    with BlockingBus(workspace=workspace, config=SEGMENTED) as bus:
        bus.subscribe("actions", "slow", lambda event: None)
    consume(workspace, 16, "fast")
    consume(workspace, 2, "fast")
    return workspace


def consume(workspace: Path, number: int, *groups: str) -> None:
    """Publish some events, and have groups settle all there are.

    What a group has settled counts by the lower of its last two checkpoints: all but the events of the last call.
    """
    with BlockingBus(workspace=workspace, config=SEGMENTED) as bus:
        for group in groups:
            bus.subscribe("actions", group, lambda event: None)
        bus.publish_many([an_event("actions", index) for index in range(number)])
        assert bus.wait_settled(20)


def damage(workspace: Path, topic: str = "actions") -> Path:
    """Flip a byte in the middle of the first segment."""
    segment = min(workspace.rglob(f"wal/{topic}.*.jsonl"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x01
    segment.write_bytes(data)
    return segment


def tear(workspace: Path, topic: str = "outcomes") -> Path:
    """Half a line at the end of the last segment, as a crash leaves it."""
    segment = max(workspace.rglob(f"wal/{topic}.*.jsonl"))
    segment.write_bytes(segment.read_bytes() + b'{"offset":4,"meta":{"topic":"outc')
    return segment


def test_sound_logs_are_verified(filled: Path) -> None:
    """Every log and every dead-letter log, byte by byte."""
    data = run("verify", "--json", workspace=filled).data
    lines = run("verify", workspace=filled).out.splitlines()
    assert lines[-1].startswith(f"{len(data)} logs sound, ")
    assert keys(data) == {
        *(
            "space_id",
            "topic",
            "kind",
            "condition",
            "last_offset",
            "bytes_read",
            "surplus_bytes",
            "mark_damaged",
            "damage",
        )
    }
    found = [(one["topic"], one["kind"], one["condition"], one["last_offset"]) for one in data]
    assert set(found) >= {
        ("actions", "wal", "clean", 11),
        ("actions", "dlq", "clean", 3),
        ("perception", "wal", "clean", 1),
        ("outcomes", "wal", "clean", 3),
    }


def test_damage_is_found_and_is_exit_1(filled: Path) -> None:
    """File, byte, offsets, and what to do."""
    segment = damage(filled)
    ran = run("verify", workspace=filled, expect=1)
    assert f"{segment} is damaged at byte" in ran.out
    assert "events repair --accept-loss" in ran.out
    (found,) = [one for one in run("verify", "--json", workspace=filled, expect=1).data if one["damage"]]
    assert (found["condition"], found["damage"]["path"]) == ("corrupt", str(segment))


def test_a_torn_end_is_no_damage_and_heals(filled: Path) -> None:
    """Verify says so; repair keeps the bytes aside and cuts them off."""
    tear(filled)
    torn = [one for one in run("verify", "--json", workspace=filled).data if one["condition"] == "torn"]
    assert [(one["topic"], one["surplus_bytes"]) for one in torn] == [("outcomes", 33)]
    ran = run("repair", workspace=filled)
    assert "work/outcomes: healed a torn end, kept in " in ran.out
    assert ran.err == ""
    assert len(list((filled / ".bus" / "aside").iterdir())) == 1
    assert "torn" not in run("verify", workspace=filled).out
    assert run("repair", workspace=filled).out == "Nothing to repair.\n"


def test_a_torn_end_healed_as_json(filled: Path) -> None:
    """Where the bytes went."""
    tear(filled)
    data = run("repair", "--json", workspace=filled).data
    assert (data["repaired"], data["damage"]) == ([], None)
    assert [(one["topic"], Path(one["kept_aside"]).exists()) for one in data["healed"]] == [("outcomes", True)]


def test_damage_is_mended_only_when_the_loss_is_accepted(filled: Path) -> None:
    """Without that it is named, and every byte stays; with it, the loss is."""
    segment = damage(filled)
    before = segment.read_bytes()
    ran = run("repair", workspace=filled, expect=1)
    assert "is damaged at byte" in ran.out
    assert segment.read_bytes() == before
    assert run("repair", "--json", workspace=filled, expect=1).data["damage"]
    out = run("repair", "--accept-loss", workspace=filled).out
    assert "home/actions (wal): gave up 1 offset: " in out
    assert "the damaged files are kept: " in out
    assert run("verify", workspace=filled).code == 0
    assert len(run("replay", "actions", "--json", workspace=filled).lines) == 10


def test_compaction_waits_for_the_slowest_group(segmented: Path) -> None:
    """Then whole sealed files go, and never the last one."""
    assert "Nothing to delete" in run("compact", workspace=segmented).out
    consume(segmented, 0, "slow")
    consume(segmented, 1, "slow", "fast")
    assert run("compact", "--json", workspace=segmented).data == [
        {"space_id": "home", "topic": "actions", "first_before": 1, "first_now": 17, "robbed": []}
    ]
    assert [line["offset"] for line in run("replay", "actions", "--json", workspace=segmented).lines] == [17, 18, 19]


def test_retention_says_whom_it_robbed(segmented: Path) -> None:
    """By age or by size, settled or not."""
    out = run("retention", "--max-bytes", "1", "--yes", workspace=segmented).out.splitlines()
    assert out == [
        "home/actions: deleted 16 events, up to offset 16: they are beyond the limits",
        "  group slow had not settled 16 of them",
    ]
    assert "Nothing to delete" in run("retention", "--max-age", "7d", "--yes", workspace=segmented).out


def test_retention_as_json(segmented: Path) -> None:
    """The same as data."""
    (dropped,) = run("retention", "--max-bytes", "1", "--yes", "--json", workspace=segmented).data
    assert dropped["robbed"] == [{"group": "slow", "events": 16}]


def test_retention_takes_its_limits_from_the_policies(segmented: Path) -> None:
    """Without options those of topics.toml; without either there is nothing to do."""
    assert "no limit" in run("retention", "--yes", workspace=segmented, expect=2).err
    run("init", segmented)
    topics = segmented / "policies" / "topics.toml"
    topics.write_text('[topics."actions"]\nretention_bytes = 1\n# end of policy\n')
    assert "deleted 16 events" in run("retention", "--yes", workspace=segmented).out


def test_deleting_is_asked_for(segmented: Path) -> None:
    """Without a terminal to ask in, --yes must be said; nothing is deleted before."""
    assert "Say --yes" in run("retention", "--max-age", "0s", workspace=segmented, expect=2).err
    assert len(run("replay", "actions", "--json", workspace=segmented).lines) == 18


def test_a_log_that_is_not_there_is_refused(segmented: Path) -> None:
    """A misspelt topic must not pass for nothing to do."""
    for command in (("compact", "actoins"), ("retention", "actoins", "--max-age", "1s", "--yes")):
        assert "no log matches it" in run(*command, workspace=segmented, expect=2).err


def test_a_policy_guards_the_files(ruled: Path) -> None:
    """Mending and deleting are the administrator's."""
    for command in (("repair",), ("compact",), ("retention", "--max-age", "1s", "--yes")):
        assert "may not admin" in run("--as", "agent:planner", *command, workspace=ruled, expect=3).err
    assert run("compact", workspace=ruled).code == 0
