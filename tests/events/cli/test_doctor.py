"""`events doctor`: what it finds, what it advises, and the settings it prints."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from events.blocking import BlockingBus
from events.cli import checks
from events.cli.checks import Check, check_machine, check_workspace, file_system_of, measure_syncs
from events.inspection import Inspector
from events.settings import KEYS, Settings
from tests.events.cli.cli_support import keys, run


def examine(workspace: Path, **settings: str) -> dict[str, Check]:
    """Every check of a workspace by its name."""
    found = Settings.load(
        environ={f"EVENTS_{name.upper()}": value for name, value in settings.items()}, workspace=workspace
    )
    every = [*check_machine(found), *check_workspace(found, Inspector(workspace))]
    return {one.name: one for one in every}


def test_a_healthy_workspace_passes(filled: Path) -> None:
    """Exit 0; the dead letters are a warning with the command that lists them."""
    ran = run("doctor", workspace=filled)
    assert f"workspace {filled}" in ran.out
    assert " ! dead letters  3" in ran.out
    assert "→ `events dlq list` shows what they died of" in ran.out
    assert "mind the warnings" in ran.out


def test_the_report_as_json(filled: Path) -> None:
    """Checks with verdict and advice; every setting with its value and its source."""
    data = run("doctor", "--json", workspace=filled, env={"EVENTS_SYNC": "interval"}).data
    assert data["workspace"] == str(filled)
    assert keys(data["checks"]) == {"name", "verdict", "found", "advice"}
    assert {one["name"] for one in data["checks"]} >= {
        *("python", "file system", "free space", "fsync", "open files", "lock", "permissions", "clock", "stale files"),
        *("set aside", "logs", "withheld", "groups", "dead letters"),
    }
    assert [one["name"] for one in data["settings"]] == list(KEYS)
    sources = {one["name"]: (one["value"], one["source"]) for one in data["settings"]}
    assert sources["sync"] == ("interval", "EVENTS_SYNC")
    assert sources["workers"] == (1, "default")
    assert sources["workspace"] == (str(filled), "argument")


def test_settings_are_printed_with_where_they_came_from(ruled: Path) -> None:
    """Those that somebody set; with --all the defaults too."""
    out = run("doctor", workspace=ruled, env={"EVENTS_BATCH": "3"}).out
    assert f"settings in force, with {ruled / 'events.toml'}" in out
    assert "EVENTS_BATCH" in out
    assert f"{ruled / 'events.toml'}:5" in out
    assert "max_inflight" not in out
    assert "max_inflight" in run("doctor", "--all", workspace=ruled).out


def test_a_folder_without_events_is_examined_too(tmp_path: Path) -> None:
    """The machine under it can be judged before anything is published; nothing is left behind."""
    target = tmp_path / "new"
    ran = run("doctor", workspace=target)
    assert "holds no events yet" in ran.out
    assert "fsync" in ran.out
    assert list(tmp_path.iterdir()) == []


def test_looking_leaves_nothing_behind(filled: Path) -> None:
    """Not a byte of the workspace changes, not a file is added."""
    before = {path: path.stat().st_mtime_ns for path in filled.rglob("*") if path.is_file()}
    run("doctor", workspace=filled)
    assert {path: path.stat().st_mtime_ns for path in filled.rglob("*") if path.is_file()} == before


def test_the_holder_of_the_lock_is_named(filled: Path, held: BlockingBus) -> None:
    """Process and command, so that one knows whom to ask."""
    lock = examine(filled)["lock"]
    assert lock.verdict == "info"
    assert f"held by process {os.getpid()} (" in lock.found


def test_files_that_others_may_read_are_a_warning(filled: Path) -> None:
    """With the command that closes them."""
    assert examine(filled)["permissions"].verdict == "ok"
    segment = next(filled.rglob("actions.*.jsonl"))
    segment.chmod(0o644)
    found = examine(filled)["permissions"]
    assert (found.verdict, str(segment) in found.found) == ("warn", True)
    assert "chmod -R go=" in found.advice


def test_files_of_another_owner_are_a_failure(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus could not write them. Exit 1."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert examine(filled)["permissions"].verdict == "fail"
    assert "Something must be done" in run("doctor", workspace=filled, expect=1).out


def test_what_a_crash_left_is_named(filled: Path) -> None:
    """Temporary files, bytes set aside, lines not proven, groups that were interrupted."""
    (filled / ".bus" / "groups" / "actor.json.tmp").touch(mode=0o600)
    (filled / ".bus" / "aside" / "actions.00000001.jsonl.17").write_bytes(b"torn")
    next(filled.rglob(".outcomes.mark.json")).unlink()
    found = examine(filled)
    assert "actor.json.tmp" in found["stale files"].found
    assert "1 file, 4 B" in found["set aside"].found
    assert (found["withheld"].verdict, found["withheld"].found) == ("warn", "3 lines not proven durable")
    assert "events repair" in found["withheld"].advice


def test_an_interrupted_group_is_named(filled: Path) -> None:
    """Its record says held, and nobody has the lock."""
    from events.persistence.documents import read_document, write_document
    from events.persistence.files import OsFileSystem

    path = str(filled / ".bus" / "groups" / "actor.json")
    document, _ = read_document(OsFileSystem(), path)
    assert document is not None
    write_document(OsFileSystem(), path, {**document.data, "held": True}, document.generation + 1)
    found = examine(filled)["groups"]
    assert (found.verdict, found.found) == ("warn", "interrupted: actor")


def test_a_log_that_lost_a_file_is_a_failure(filled: Path) -> None:
    """With the commands that say more and mend."""
    next(filled.rglob("outcomes.*.jsonl")).unlink()
    found = examine(filled)["log"]
    assert found.verdict == "fail"
    assert "work/outcomes" in found.found


def test_a_clock_that_was_set_back_is_a_warning(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest event is in the future then."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    found = examine(filled)["clock"]
    assert found.verdict == "warn"
    assert "in the future" in found.found


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("ext4", "ok"),
        ("nfs4", "warn"),
        ("fuse.sshfs", "warn"),
        ("tmpfs", "warn"),
        ("overlay", "warn"),
        ("unknown", "info"),
    ],
)
def test_file_systems_are_judged(filled: Path, monkeypatch: pytest.MonkeyPatch, kind: str, verdict: str) -> None:
    """Those that may not keep the promises are warned of."""
    monkeypatch.setattr(checks, "file_system_of", lambda place: (kind, "/mnt"))
    assert examine(filled)["file system"].verdict == verdict


def test_the_file_system_is_the_one_of_the_nearest_mount() -> None:
    """As the kernel lists them."""
    assert file_system_of(Path("/proc/self"))[0] == "proc"
    assert file_system_of(Path("/"))[1] == "/"


@pytest.mark.parametrize(
    ("seconds", "sync", "verdict"),
    [(0.001, "always", "ok"), (0.05, "always", "warn"), (0.000_001, "always", "warn"), (0.001, "never", "warn")],
)
def test_sync_latency_is_judged(
    filled: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, sync: str, verdict: str
) -> None:
    """Too slow, too fast to be true, or turned off."""
    monkeypatch.setattr(checks, "measure_syncs", lambda place: [seconds] * 3)
    assert examine(filled, sync=sync)["fsync"].verdict == verdict


def test_a_place_that_cannot_be_written_is_a_failure(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else matters then."""

    def refuse(place: Path) -> list[float]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checks, "measure_syncs", refuse)
    assert examine(filled)["fsync"].verdict == "fail"


def test_syncs_are_really_measured(tmp_path: Path) -> None:
    """As many as asked for, each of them some time, and no file stays."""
    times = measure_syncs(tmp_path, 5)
    assert len(times) == 5
    assert all(one > 0 for one in times)
    assert list(tmp_path.iterdir()) == []


def test_too_few_open_files_are_a_warning(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit against what the log's settings ask for."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (300, 4096))
    found = examine(filled)["open files"]
    assert found.verdict == "warn"
    assert "ulimit -n" in found.advice
    assert examine(filled, max_open_files="64")["open files"].verdict == "ok"


def test_little_space_is_a_warning(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and inodes, with what frees some."""

    class Facts:
        f_bavail, f_frsize, f_files, f_favail = 10, 4096, 1000, 5

    def statvfs(place: Any) -> Any:
        return Facts()

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = examine(filled)
    assert "events compact" in found["free space"].advice
    assert found["free inodes"].verdict == "warn"
