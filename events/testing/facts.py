"""What the files of a workspace say, read without the code that is to be proven.

A second, slow and simple reader of the formats in `events.persistence`: lines and documents count if their CRC fits,
a log ends at its first bad line. What it finds is what the bus must find after the same crash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from zlib import crc32

from events.persistence.store import LogName
from events.persistence.workspace import Layout

_TRAILER_BYTES: Final = 19
_MAX_SPARED: Final = 3
_NUMBER: Final = re.compile(r"\.(\d{8})\.jsonl\Z")


class Place(NamedTuple):
    """An event in a log."""

    log: LogName
    offset: int


class Kept(NamedTuple):
    """An event as a line of the log has it."""

    event_id: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Held:
    """What a checkpoint says of an event's attempts."""

    count: int
    running: bool
    alone: bool
    spared: int
    has_failed: bool

    @property
    def charged(self) -> int:
        """The attempts that count for the next process.

        One that the last process died during counts if it ran alone, or after it was let off three times (rule W6).
        """
        if self.running and not self.alone and self.spared < _MAX_SPARED:
            return self.count - 1
        return self.count


class Death(NamedTuple):
    """A line of the dead-letter log that buries an event."""

    place: Place
    group: str
    round: int
    attempts: int
    event: Kept


class Note(NamedTuple):
    """A line of the dead-letter log that begins or ends another round: `op` is `retry` or `ended`."""

    op: str
    place: Place
    group: str
    round: int


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: the offsets that are settled, and the attempts at those that are not, by (offset, round)."""

    committed: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    attempts: Mapping[tuple[int, int], Held] = field(default_factory=dict)

    def covers(self, offset: int) -> bool:
        """Whether an offset is settled."""
        return offset <= self.committed or any(first <= offset <= last for first, last in self.ranges)

    @property
    def highest(self) -> int:
        """The highest offset that it names."""
        return max([self.committed, *(last for _, last in self.ranges), *(offset for offset, _ in self.attempts)])


@dataclass(slots=True)
class Facts:
    """Everything that counts in a workspace. `ends` are the starts of groups that began at the end of their logs."""

    logs: dict[LogName, dict[int, Kept]] = field(default_factory=dict)
    dead_letters: dict[LogName, list[Death | Note]] = field(default_factory=dict)
    checkpoints: dict[tuple[str, LogName], Saved] = field(default_factory=dict)
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def first(self, log: LogName) -> int:
        """The first offset that is still there; 1 for an empty log."""
        return min(self.logs.get(log, ()), default=1)

    def settled(self, group: str, log: LogName) -> set[int]:
        """What a group has durably settled of the events that a log holds: acked or skipped, and dead."""
        saved = self.checkpoints.get((group, log), Saved())
        return {offset for offset in self.logs.get(log, ()) if saved.covers(offset)} | self.dead(group, log)

    def dead(self, group: str, log: LogName) -> set[int]:
        """What a group has buried of a log."""
        lines = self.dead_letters.get(log, ())
        return {line.place.offset for line in lines if isinstance(line, Death) and line.group == group}

    def rounds(self, group: str) -> dict[Place, tuple[int, bool]]:
        """The dead letters of a group that need somebody: the latest round of each, and whether it is under way."""
        found: dict[Place, tuple[int, bool]] = {}
        for lines in self.dead_letters.values():
            for line in lines:
                if line.group != group:
                    continue
                if isinstance(line, Death):
                    found[line.place] = (line.round, False)
                elif line.op == "retry":
                    found[line.place] = (line.round, True)
                else:
                    found.pop(line.place, None)
        return found


def read_facts(files: Mapping[str, bytes], workspace: str, logs: Iterable[LogName], groups: Iterable[str]) -> Facts:
    """Read a workspace from the contents of its files by path."""
    layout, facts, groups = Layout(workspace), Facts(), list(groups)
    for group in groups:
        record = _document(files, layout.group(group))
        if record is not None:
            facts.groups[group] = record
    for log in logs:
        events = _lines(files, os.path.join(layout.folder(log.space_id, "wal"), log.topic))
        if events:
            facts.logs[log] = {offset: Kept(line["meta"]["event_id"], line["payload"]) for offset, line in events}
        dead = _lines(files, os.path.join(layout.folder(log.space_id, "dlq"), f"{log.topic}.dlq"))
        if dead:
            facts.dead_letters[log] = [_dead_letter(log, line) for _, line in dead]
        for group in groups:
            document = _document(files, layout.checkpoint(*log, group))
            if document is not None:
                facts.checkpoints[group, log] = _saved(document)
    return facts


def _lines(files: Mapping[str, bytes], stem: str) -> list[tuple[int, Any]]:
    """The lines of a log in order, up to the first that is bad."""
    found: list[tuple[int, Any]] = []
    segments = {int(match[1]) if match else 1: path for path, match in _segments(files, stem)}
    numbers = sorted(segments)
    for number in numbers:
        if number != numbers[0] and number - 1 not in segments:
            break
        for raw in files[segments[number]].splitlines(keepends=True):
            line = _checked(raw)
            if line is None or (found and line["offset"] != found[-1][0] + 1):
                return found
            found.append((line["offset"], line))
    return found


def _segments(files: Mapping[str, bytes], stem: str) -> Iterable[tuple[str, re.Match[str] | None]]:
    for path in files:
        if path == f"{stem}.jsonl":
            yield path, None
        elif path.startswith(f"{stem}.") and (match := _NUMBER.fullmatch(path, len(stem))):
            yield path, match


def _checked(raw: bytes) -> Any:
    """A line or a document, if its CRC fits."""
    body = raw[:-_TRAILER_BYTES]
    if not raw.endswith(b"\n") or raw[-_TRAILER_BYTES:] != b',"crc":"%08x"}\n' % crc32(body):
        return None
    return json.loads(raw)


def _document(files: Mapping[str, bytes], path: str) -> Mapping[str, Any] | None:
    """The current copy, or the one before it."""
    for one in (path, path + ".prev"):
        raw = files.get(one, b"")
        body = raw[:-_TRAILER_BYTES] + b"}"
        if raw[-_TRAILER_BYTES:] == b',"crc":"%08x"}\n' % crc32(body):
            data: Mapping[str, Any] = json.loads(raw)
            return data
    return None


def _dead_letter(log: LogName, line: Mapping[str, Any]) -> Death | Note:
    if "dlq" in line:
        note = line["dlq"]
        return Note(note["op"], Place(log, note["offset"]), note["group"], note["round"])
    dead = line["dead"]
    event = Kept(line["meta"]["event_id"], line["payload"])
    return Death(Place(log, dead["offset"]), dead["group"], dead["round"], dead["attempts"], event)


def _saved(document: Mapping[str, Any]) -> Saved:
    attempts = {(int(offset), 0): _held(held) for offset, held in document["attempts"].items()}
    attempts |= {(offset, round_): _held(held) for offset, round_, _, held in document["retries"]}
    return Saved(document["committed"], tuple((first, last) for first, last in document["ranges"]), attempts)


def _held(held: Mapping[str, Any]) -> Held:
    return Held(held["count"], held["running"], held.get("alone", False), held.get("spared", 0), bool(held["errors"]))
