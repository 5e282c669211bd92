"""What a workspace holds, seen from outside: topics, groups and how far they are, dead letters.

Everything here is read off the files (checkpoints, group records, marks, dead letters) by the rules of the outside
reader, so it needs no lock and works beside a running bus. A checkpoint follows its group within a tenth of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from events.deadletters import Death, OpenDeaths, decode_entry
from events.dlq import DeadLetterInfo
from events.errors import BusError
from events.names import topic_matches
from events.persistence.checkpoints import checkpoint_from
from events.persistence.documents import read_document
from events.persistence.files import opened
from events.persistence.mark import read_mark
from events.persistence.named import read_groups
from events.persistence.reader import LogReader, Proof, WorkspaceReader
from events.persistence.retention import groups_of
from events.persistence.store import Checkpoint, GroupRecord, LogName
from events.persistence.workspace import wal_naming
from events.settled import SettledOffsets

GroupCondition = Literal["consuming", "stopped", "interrupted"]
Outcome = Literal["settled", "pending", "retrying", "deferred", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One log. `first` to `last` can be read; `withheld` lines behind them are not proven durable yet."""

    space_id: str
    topic: str
    first: int
    last: int
    segments: int
    size_bytes: int
    last_at_ms: int | None
    withheld: int
    dead: int
    groups: tuple[str, ...]
    trouble: str | None = None

    @property
    def events(self) -> int:
        """How many offsets can be read."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """One group's place in one log. `lag` counts what it has not settled; of that:

    `retrying` waits for another attempt, `deferred` was put off by the gate, `in_flight` is queued, running, or stands
    behind another event of its key, and the rest has not been read yet. `oldest` is the first unsettled offset,
    `oldest_at_ms` when it was appended. `dead` are dead letters that nobody retried or purged.
    """

    group: str
    space_id: str
    topic: str
    condition: GroupCondition
    committed: int
    last: int
    lag: int
    lag_s: float
    oldest: int | None
    oldest_at_ms: int | None
    in_flight: int
    retrying: int
    deferred: int
    dead: int
    saved_ms: int | None
    trouble: str | None = None


@dataclass(slots=True)
class _Place:
    """What a group has settled of a log, and holds of it."""

    settled: SettledOffsets
    checkpoint: Checkpoint | None
    saved_ms: int | None = None


@dataclass(slots=True)
class _Deaths:
    """The dead letters of a log as far as they were read, so that a second look reads only what is new."""

    found: OpenDeaths = field(default_factory=OpenDeaths)
    next_line: int = 1


class Inspector:
    """Looks at one workspace. Keeps what it has read of the dead letters; everything else is read anew each time.

    `max_inflight` bounds what a group can hold at once: its own setting is known only to the process that consumes.
    """

    def __init__(
        self,
        workspace: str | Path | WorkspaceReader,
        *,
        max_inflight: int = 1024,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.reader = workspace if isinstance(workspace, WorkspaceReader) else WorkspaceReader(workspace)
        self._max_inflight = max_inflight
        self._now_ms = now_ms
        self._deaths: dict[LogName, _Deaths] = {}

    def names(self, topic: str = "*", space: str = "*") -> list[LogName]:
        """The logs that a topic pattern and a space cover, in order."""
        every = sorted(self.reader.names())
        return [name for name in every if space in ("*", name.space_id) and topic_matches(topic, name.topic)]

    def group_records(self) -> Mapping[str, GroupRecord]:
        """Every group that was ever subscribed and not deleted."""
        return read_groups(self.reader.fs, self.reader.layout)

    # -- topics ------------------------------------------------------------------------------------------------

    def topic_state(self, name: LogName, records: Mapping[str, GroupRecord]) -> TopicState:
        """What one log holds; `records` are those of `group_records`."""
        log = self.reader.log(name)
        groups = tuple(sorted(record.name for record in groups_of(name, records.values())))
        try:
            proof = log.prove()
            last_at_ms = self._at(log, proof.durable) if proof.durable >= proof.first else None
            dead = len(self._open_deaths(name).deaths)
            size = self._size(name, proof)
        except (BusError, OSError) as error:
            proof, last_at_ms, dead, size = Proof(1, 0, 0, [], 0, 0), None, 0, 0
            trouble: str | None = str(error)
        else:
            trouble = None
        return TopicState(
            space_id=name.space_id,
            topic=name.topic,
            first=proof.first,
            last=proof.durable,
            segments=len(proof.numbers),
            size_bytes=size,
            last_at_ms=last_at_ms,
            withheld=proof.withheld_lines,
            dead=dead,
            groups=groups,
            trouble=trouble,
        )

    def _size(self, name: LogName, proof: Proof) -> int:
        folder, naming, fs = self.reader.layout.folder(name.space_id, "wal"), wal_naming(name.topic), self.reader.fs
        size = 0
        for number in proof.numbers:
            with opened(fs, os.path.join(folder, naming.segment(number))) as handle:
                size += fs.size(handle)
        return size

    def _at(self, log: LogReader, offset: int) -> int | None:
        return next((record.at for record in log.read(offset, through=offset)), None)

    # -- groups ------------------------------------------------------------------------------------------------

    def group_states(self, topic: str = "*", space: str = "*", group: str | None = None) -> Iterator[GroupState]:
        """Each group in each log that it covers; a group that covers none yet has no line here."""
        records = self.group_records()
        is_held = self.reader.is_held()
        for name in self.names(topic, space):
            for record in sorted(groups_of(name, records.values()), key=lambda one: one.name):
                if group in (None, record.name):
                    yield self.group_state(name, record, is_held=is_held)

    def group_state(self, name: LogName, record: GroupRecord, *, is_held: bool) -> GroupState:
        """How far one group is in one log."""
        condition: GroupCondition = "stopped" if not record.held else "consuming" if is_held else "interrupted"
        log = self.reader.log(name)
        trouble, last, oldest, oldest_at_ms = None, 0, None, None
        place, dead = _Place(SettledOffsets(), None), 0
        try:
            # The place first: what it names was durable when it was written, so the proof covers it.
            place = self._place(name, record)
            proof = log.prove()
            last = proof.durable
            dead = sum(key[0] == record.name for key in self._open_deaths(name).deaths)
            oldest = max(place.settled.committed + 1, proof.first)
            oldest_at_ms = self._at(log, oldest) if oldest <= last else None
        except (BusError, OSError) as error:
            trouble = str(error)
        lag = self._lag(place.settled, oldest, last) if oldest is not None else 0
        checkpoint = place.checkpoint
        deferred = len(checkpoint.deferrals) if checkpoint else 0
        waiting = [one for one in checkpoint.attempts.values() if not one.running] if checkpoint else []
        pending = max(0, lag - len(waiting) - deferred)
        return GroupState(
            group=record.name,
            space_id=name.space_id,
            topic=name.topic,
            condition=condition,
            committed=place.settled.committed,
            last=last,
            lag=lag,
            lag_s=max(0, self._now_ms() - oldest_at_ms) / 1000 if oldest_at_ms is not None and lag else 0.0,
            oldest=oldest if lag else None,
            oldest_at_ms=oldest_at_ms if lag else None,
            in_flight=min(pending, self._max_inflight) if condition == "consuming" else 0,
            retrying=len(waiting) + (len(checkpoint.retries) if checkpoint else 0),
            deferred=deferred,
            dead=dead,
            saved_ms=place.saved_ms,
            trouble=trouble,
        )

    @staticmethod
    def _lag(settled: SettledOffsets, oldest: int, last: int) -> int:
        above = sum(min(end, last) - max(first, oldest) + 1 for first, end in settled.ranges() if oldest <= end)
        return max(0, last - oldest + 1 - max(0, above))

    def outcomes(self, name: LogName, offset: int) -> dict[str, Outcome]:
        """What became of one event, by group."""
        deaths = self._open_deaths(name)
        found: dict[str, Outcome] = {}
        for record in groups_of(name, self.group_records().values()):
            place = self._place(name, record)
            checkpoint = place.checkpoint
            if (record.name, offset) in deaths.deaths:
                found[record.name] = "retrying" if (record.name, offset) in deaths.retrying else "dead"
            elif offset in place.settled:
                found[record.name] = "settled"
            elif checkpoint is not None and offset in checkpoint.deferrals:
                found[record.name] = "deferred"
            elif checkpoint is not None and offset in checkpoint.attempts:
                found[record.name] = "retrying"
            else:
                found[record.name] = "pending"
        return found

    def _place(self, name: LogName, record: GroupRecord) -> _Place:
        fs, layout = self.reader.fs, self.reader.layout
        document, _ = read_document(fs, layout.checkpoint(*name, record.name))
        mark, _ = read_mark(fs, os.path.join(layout.folder(name.space_id, "wal"), wal_naming(name.topic).mark()))
        checkpoint = checkpoint_from(document.data) if document is not None else None
        if checkpoint is None or document is None or (mark is not None and checkpoint.log_id != mark.log_id):
            place = _Place(SettledOffsets(self._start(name, record) - 1), None)
        else:
            saved_ms = int(datetime.fromisoformat(document.data["ts"]).timestamp() * 1000)
            place = _Place(SettledOffsets(checkpoint.committed, checkpoint.ranges), checkpoint, saved_ms)
        self._settle_the_dead(name, record.name, place)
        return place

    def _start(self, name: LogName, record: GroupRecord) -> int:
        """The first offset that a group without a checkpoint will get (rule W4)."""
        match record.start:
            case "latest":
                return record.ends.get(name.space_id, {}).get(name.topic, 1)
            case "timestamp":
                return self.reader.log(name).offset_at(record.start_value)
            case "offset":
                return record.start_value
            case _:
                return self.reader.log(name).prove().first

    def _settle_the_dead(self, name: LogName, group: str, place: _Place) -> None:
        """A death settles its event, also before the checkpoint that says so (rule W10)."""
        reflected = place.checkpoint.dead_letters if place.checkpoint is not None else 0
        for death in self._open_deaths(name).deaths.values():
            if death.line > reflected and death.group == group:
                place.settled.add(death.offset)

    # -- dead letters ------------------------------------------------------------------------------------------

    def dead_letters(self, topic: str = "*", space: str = "*", group: str | None = None) -> list[DeadLetterInfo]:
        """The dead letters that still need somebody, the latest first."""
        found = [
            _info(name, death, is_retrying=key in deaths.retrying)
            for name in self.names(topic, space)
            for deaths in [self._open_deaths(name)]
            for key, death in deaths.deaths.items()
            if group in (None, death.group)
        ]
        return sorted(found, key=lambda info: (info.died_ms, info.offset), reverse=True)

    def _open_deaths(self, name: LogName) -> OpenDeaths:
        known = self._deaths.setdefault(name, _Deaths())
        log = self.reader.dead_letters(name)
        proof = log.prove()
        if proof.durable >= known.next_line:
            for record in log.read(max(known.next_line, proof.first), through=proof.durable):
                entry = decode_entry(record)
                if entry is not None:
                    known.found.add(entry)
            known.next_line = proof.durable + 1
        return known.found


def _info(name: LogName, death: Death, *, is_retrying: bool) -> DeadLetterInfo:
    return DeadLetterInfo(
        space_id=name.space_id,
        topic=name.topic,
        group=death.group,
        offset=death.offset,
        round=death.round,
        event_id=death.event_id,
        reason=death.reason,
        errors=death.errors,
        attempts=death.attempts,
        died_ms=death.died_ms,
        appended_ms=death.appended_ms,
        is_retrying=is_retrying,
        event=death.event,
    )
