"""The audit trail: one line per fact, bounded, durable when asked, and never in the way of a denial."""

import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from middleware.audit import AuditRecord, AuditTrail, JsonlAuditSink, LoggingAuditSink
from policies.files import END
from policies.rbac import Decision, PolicyEngine
from policies.topics import TopicPolicies

AT = datetime(2026, 11, 18, 8, 0, 0, 123456, tzinfo=UTC)


def record(**about: Any) -> AuditRecord:
    """A denial."""
    return AuditRecord(at=AT, fact="denied", **about)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Every fact on disk, oldest first."""
    files = sorted(folder.glob("audit.*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().split("\n") if line]


def test_a_fact_is_one_line_of_json(tmp_path: Path) -> None:
    """What applies is in the line, in a fixed order; what does not is left out."""
    sink = JsonlAuditSink(tmp_path)
    sink.write(record(subject="alice", action="publish", topic="t", space_id="s", offset=3, reason="no"))
    sink.close()
    expected = (
        '{"at":"2026-11-18T08:00:00.123Z","fact":"denied","subject":"alice","action":"publish",'
        '"topic":"t","space_id":"s","offset":3,"reason":"no"}\n'
    )
    assert (tmp_path / "audit.00000001.jsonl").read_text() == expected


@pytest.mark.parametrize("name", ["a\nb", 'a"}', "\x1b[2J", "\u202e", "\ud800", "é\u2028", "x" * 5_000])
def test_no_name_breaks_out_of_its_line(tmp_path: Path, name: str) -> None:
    """A hostile name is escaped and bounded, in the file and in the log."""
    sink = JsonlAuditSink(tmp_path)
    sink.write(record(subject=name))
    sink.write(record(subject="next"))
    data = (tmp_path / "audit.00000001.jsonl").read_bytes()
    assert data.isascii()
    assert data.count(b"\n") == 2
    assert len(data) < 6_500
    assert [line["subject"] for line in lines(tmp_path)] == [name[:1_000], "next"]
    sink.close()


def test_files_are_bounded_in_size_and_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full file is followed by the next; the oldest goes, and the log says so."""
    sink = JsonlAuditSink(tmp_path, max_bytes=300, keep=3)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            sink.write(record(offset=number, reason="x" * 20))
    sink.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 300 for file in files)
    kept = [line["offset"] for line in lines(tmp_path)]
    assert kept == list(range(kept[0], 100))
    assert "is deleted to make room" in caplog.text


def test_a_fact_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    """The bound is for files, not for facts: none is cut or lost."""
    sink = JsonlAuditSink(tmp_path, max_bytes=1, keep=10)
    for number in range(3):
        sink.write(record(offset=number))
    sink.close()
    assert [line["offset"] for line in lines(tmp_path)] == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_torn_line_does_not_swallow_the_next_fact(tmp_path: Path) -> None:
    """After a crash in mid-line the next fact starts on a line of its own, in the same file."""
    sink = JsonlAuditSink(tmp_path)
    sink.write(record(offset=1))
    sink.close()
    path = tmp_path / "audit.00000001.jsonl"
    path.write_bytes(path.read_bytes() + b'{"at":"20')
    sink.write(record(offset=2))
    sink.close()
    sink.close()
    assert json.loads(path.read_text().split("\n")[2])["offset"] == 2


def test_files_are_private_and_links_are_not_followed(tmp_path: Path) -> None:
    """Only the owner reads the audit, and it cannot be led elsewhere."""
    folder = tmp_path / ".bus" / "audit"
    trail = AuditTrail.of_workspace(tmp_path)
    trail.denied(Decision(False, "no"), subject="alice")
    trail.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "audit.00000001.jsonl").stat().st_mode & 0o777 == 0o600
    (folder / "audit.00000001.jsonl").unlink()
    (folder / "audit.00000001.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        JsonlAuditSink(folder).write(record())
    assert not (tmp_path / "elsewhere").exists()


def test_a_failed_sync_is_never_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the disk may pretend: the sink does not ask it again, and goes on failing."""
    sink = JsonlAuditSink(tmp_path)
    trail = AuditTrail(sink)
    trail.consumed(subject="alice")
    trail.sync()
    assert not trail.unsynced
    trail.consumed(subject="bob")

    def fail(_: int) -> None:
        raise OSError("EIO")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="EIO"):
            trail.sync()
    with pytest.raises(OSError, match="EIO"):
        trail.sync()
    assert trail.unsynced
    with pytest.raises(OSError, match="EIO"):
        sink.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fact that the system takes piece by piece is still one line."""
    sink = JsonlAuditSink(tmp_path)
    whole_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole_write(descriptor, bytes(data)[:7]))
    sink.write(record(subject="alice"))
    sink.close()
    assert [line["subject"] for line in lines(tmp_path)] == ["alice"]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    """Facts from several threads, across rotations, are each whole and all there."""
    sink = JsonlAuditSink(tmp_path, max_bytes=2_000, keep=1_000)

    def work(start: int) -> None:
        for number in range(start, start + 100):
            sink.write(record(offset=number))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 800, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert sorted(line["offset"] for line in lines(tmp_path)) == list(range(800))


def test_bounds_must_make_sense(tmp_path: Path) -> None:
    """A trail of no files would keep nothing."""
    for wrong in ({"keep": 0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="at least one"):
            JsonlAuditSink(tmp_path, **wrong)


def test_facts_as_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Denials and rejected policies are warnings, the rest is information."""
    sink = LoggingAuditSink()
    with caplog.at_level(logging.INFO, logger="events.audit"):
        sink.write(record(subject="alice"))
        sink.write(AuditRecord(at=AT, fact="consumed", subject="bob"))
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "INFO"]
    assert json.loads(caplog.records[0].message)["subject"] == "alice"


class Broken:
    """A sink that cannot write."""

    def write(self, record: AuditRecord) -> None:
        raise RuntimeError("sink broken")

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_broken_sink_stops_neither_a_denial_nor_the_other_sinks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A denial goes to the sinks that work, and to the log; something consumed must be recorded by all."""
    trail = AuditTrail(Broken(), JsonlAuditSink(tmp_path))
    trail.denied(Decision(False, "no"), subject="alice")
    assert [line["subject"] for line in lines(tmp_path)] == ["alice"]
    assert "an audit sink failed" in caplog.text
    with pytest.raises(RuntimeError, match="sink broken"):
        trail.consumed(subject="alice")
    trail.close()


def test_policy_changes_are_facts(tmp_path: Path) -> None:
    """A change says what came and went; a rejected file says why; a reload of the same says nothing."""
    policy, topics = tmp_path / "policy.csv", tmp_path / "topics.toml"
    policy.write_text(f"p, alice, *, a, publish, allow\n{END}\n")
    topics.write_text(f"{END}\n")
    engine = PolicyEngine(policy, topics=TopicPolicies(topics))
    assert engine.topics is not None
    trail = AuditTrail(JsonlAuditSink(tmp_path / "audit"))
    engine.on_change(trail.policy_changed)
    engine.topics.on_change(trail.policy_changed)
    engine.reload()
    policy.write_text("".join(f"p, user:{n}, *, a, publish, allow\n" for n in range(150)) + f"{END}\n")
    engine.reload()
    policy.write_text("P, mallory")
    engine.reload()
    topics.write_text(f"[topics.a]\nmax_retries = 1\n{END}\n")
    engine.topics.reload()
    trail.close()
    changed, rejected, topics_changed = lines(tmp_path / "audit")
    assert changed["fact"] == "policy_changed"
    assert changed["removed"] == ["p, alice, *, a, publish, allow"]
    assert len(changed["added"]) == 101
    assert changed["added"][-1] == "and 50 more"
    assert changed["before"] != changed["after"]
    assert rejected["fact"] == "policy_rejected"
    assert rejected["before"] == changed["after"]
    assert "policy.csv" in rejected["reason"]
    assert topics_changed["files"] == [str(topics)]
    assert "added" not in topics_changed
