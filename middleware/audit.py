"""The audit trail: who was denied what, how the policy changed, and what was consumed under privacy review.

A fact is one line of JSON, and never holds anything of a payload:

    {"at":"2026-11-18T08:00:00.000Z","fact":"denied","subject":"agent:planner","action":"publish", ...}

On disk it goes to `<workspace>/.bus/audit/audit.00000001.jsonl`; a full file is followed by the next number, and
the oldest is deleted when there are more than `keep`. Facts survive the process at once and the machine after
`sync`, which the bus calls before a group's checkpoint: nothing is settled whose audit could still be lost.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal, Protocol

from policies.files import Change
from policies.rbac import Decision, Policy
from policies.topics import TopicTables

Fact = Literal["denied", "consumed", "policy_changed", "policy_rejected"]
_LISTED_LINES: Final = 100
_MAX_CHARACTERS: Final = 1_000
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One fact. What does not apply is None, and left out of the line."""

    at: datetime
    fact: Fact
    subject: str | None = None
    action: str | None = None
    topic: str | None = None
    space_id: str | None = None
    band: str | None = None
    event_id: str | None = None
    group: str | None = None
    offset: int | None = None
    attempt: int | None = None
    reason: str | None = None
    files: tuple[str, ...] | None = None
    before: str | None = None
    after: str | None = None
    added: tuple[str, ...] | None = None
    removed: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """The fact as one line without its newline: ASCII, so that no name can disturb a terminal or a parser."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        shown = {name: _bounded(value) for name, value in values.items() if value is not None}
        return json.dumps(shown, separators=(",", ":"))


class AuditSink(Protocol):
    """Where facts go. Called from any thread, and from the event loop: it must not block for long."""

    def write(self, record: AuditRecord) -> None:
        """Take one fact. Raise if it could not be taken."""
        ...

    def sync(self) -> None:
        """Return when every fact taken so far survives a crash of the machine."""
        ...

    def close(self) -> None:
        """Let go of files. May be called twice."""
        ...


class LoggingAuditSink:
    """Facts as log lines, denials and rejected policies as warnings."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("events.audit")

    def write(self, record: AuditRecord) -> None:
        level = logging.WARNING if record.fact in ("denied", "policy_rejected") else logging.INFO
        self._logger.log(level, "%s", record.to_json())

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class JsonlAuditSink:
    """Facts as lines of JSON in numbered files of bounded size and number."""

    def __init__(self, folder: str | os.PathLike[str], *, max_bytes: int = 16 * 2**20, keep: int = 8) -> None:
        if max_bytes < 1 or keep < 1:
            raise ValueError("an audit trail keeps at least one file of at least one byte")
        self._folder, self._max_bytes, self._keep = Path(folder), max_bytes, keep
        self._lock = Lock()
        self._descriptor: int | None = None
        self._number, self._size, self._unsynced = 0, 0, False
        self._failure: OSError | None = None

    def write(self, record: AuditRecord) -> None:
        line = record.to_json().encode("ascii") + b"\n"
        with self._lock:
            descriptor = self._room_for(len(line))
            self._unsynced = True
            while line:
                written = os.write(descriptor, line)
                self._size += written
                line = line[written:]

    def sync(self) -> None:
        with self._lock:
            self._sync()

    def close(self) -> None:
        with self._lock:
            self._end_file()

    def _room_for(self, size: int) -> int:
        if self._descriptor is None:
            self._open(max(self._numbers(), default=1))
        elif self._size and self._size + size > self._max_bytes:
            following = self._number + 1
            self._end_file()
            self._open(following)
        assert self._descriptor is not None
        return self._descriptor

    def _open(self, number: int) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path(number), flags, 0o600)
        self._number, self._size = number, os.fstat(self._descriptor).st_size
        # What a crash tore must not swallow the next fact.
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._size += os.write(self._descriptor, b"\n")
        for old in self._numbers():
            if old <= number - self._keep:
                log.warning("audit file %s is deleted to make room", self._path(old))
                self._path(old).unlink(missing_ok=True)
        self._unsynced = True
        _sync_folder(self._folder)

    def _end_file(self) -> None:
        if self._descriptor is not None:
            try:
                self._sync()
            finally:
                os.close(self._descriptor)
                self._descriptor = None

    def _sync(self) -> None:
        # After a failed fsync the kernel may have dropped the bytes and then report success: never asked again.
        if self._failure is not None:
            raise self._failure
        if self._unsynced and self._descriptor is not None:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                self._failure = error
                raise
            self._unsynced = False

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        parts = [name.split(".") for name in names if name.startswith("audit.") and name.endswith(".jsonl")]
        return [int(part[1]) for part in parts if len(part) == 3 and part[1].isdecimal()]

    def _path(self, number: int) -> Path:
        return self._folder / f"audit.{number:08}.jsonl"


class AuditTrail:
    """Turns what happened into facts, and hands each to every sink."""

    def __init__(self, *sinks: AuditSink, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._sinks, self._clock = sinks or (LoggingAuditSink(),), clock
        self.unsynced = False

    @classmethod
    def of_workspace(cls, workspace: str | os.PathLike[str]) -> AuditTrail:
        """The usual trail: files beside the log, and log lines."""
        return cls(JsonlAuditSink(Path(workspace) / ".bus" / "audit"), LoggingAuditSink())

    def denied(self, decision: Decision, **about: Any) -> None:
        """A definite no. It stays a no if it cannot be recorded."""
        self._try("denied", reason=str(decision), **about)

    def consumed(self, **about: Any) -> None:
        """Something is about to be handed out under review. Raises if a sink cannot record it."""
        record = AuditRecord(at=self._clock(), fact="consumed", **about)
        self.unsynced = True
        for sink in self._sinks:
            sink.write(record)

    def policy_changed(self, change: Change[Policy] | Change[TopicTables]) -> None:
        """A reload put other rules in force, or was rejected. Fits `Reloading.on_change`."""
        if change.error is not None:
            self._try("policy_rejected", files=change.files, before=change.before.digest, reason=str(change.error))
        elif change.before.digest != change.after.digest:
            before, after = _lines(change.before), _lines(change.after)
            self._try(
                "policy_changed",
                files=change.files,
                before=change.before.digest,
                after=change.after.digest,
                added=_listed([line for line in after if line not in before]),
                removed=_listed([line for line in before if line not in after]),
            )

    def sync(self) -> None:
        """Make every fact durable. If that fails, it is still owed."""
        self.unsynced = False
        try:
            for sink in self._sinks:
                sink.sync()
        except BaseException:
            self.unsynced = True
            raise

    def close(self) -> None:
        """Close the sinks. May be called twice."""
        for sink in self._sinks:
            sink.close()

    def _try(self, fact: Fact, **about: Any) -> None:
        record = AuditRecord(at=self._clock(), fact=fact, **about)
        self.unsynced = True
        for sink in self._sinks:
            try:
                sink.write(record)
            except Exception:
                log.exception("an audit sink failed; the fact was %s", record.to_json())


def _bounded(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value[:_MAX_CHARACTERS] if isinstance(value, str) else value


def _lines(content: Policy | TopicTables) -> dict[str, None]:
    return dict.fromkeys(map(str, content.rules)) if isinstance(content, Policy) else {}


def _listed(lines: list[str]) -> tuple[str, ...] | None:
    more = len(lines) - _LISTED_LINES
    return (*lines[:_LISTED_LINES], *([f"and {more} more"] if more > 0 else [])) or None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
