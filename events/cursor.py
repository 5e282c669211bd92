"""One group's place in one log: what it has settled, what it holds, and where it reads next."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from events.ages import AppendTimes
from events.attention_gate import Admit, Boost
from events.deadletters import Death, Ended, Retry, read_entries
from events.lanes import Lane, Place
from events.persistence.store import Attempts, Checkpoint, Deferral, GroupRecord, LogName, Store, StoreLog
from events.settled import SettledOffsets


class Cursor:
    """State without behaviour: `Group` moves it, `Checkpointer` saves it."""

    def __init__(self, log: StoreLog, start: int, checkpoint: Checkpoint | None) -> None:
        self.log = log
        self.name = log.name
        if checkpoint is None:
            checkpoint = Checkpoint(log_id=log.log_id, committed=start - 1)
        self.settled = SettledOffsets(checkpoint.committed, checkpoint.ranges)
        self.next = checkpoint.committed + 1
        self.attempts: dict[Place, Attempts] = {Place(offset): held for offset, held in checkpoint.attempts.items()}
        self.retries: dict[Place, Attempts] = {Place(*key): held for key, held in checkpoint.retries.items()}
        self.deferrals: dict[int, Deferral] = dict(checkpoint.deferrals)
        self.dead_letters = checkpoint.dead_letters
        # What the gate let in, so that it is not asked again when the event was parked in between (rule W13).
        self.admitted: dict[int, Admit | Boost] = {}
        self.lanes: dict[str, Lane] = {}
        self.saved_highest = self.settled.highest
        self.suspects_through = 0
        self.solo: set[Place] = set()
        self.is_stale = False  # the dead letters say more than the checkpoint does
        self.is_behind = False
        self.is_live = False
        self.is_reading = False
        self.saving = anyio.Lock()
        self.save_calls = 0
        self.saved_calls = 0
        self.appended = AppendTimes()

    @property
    def lag(self) -> int:
        """How many events of the log the group has not settled."""
        settled_above = sum(last - first + 1 for first, last in self.settled.ranges())
        # A group that begins at an offset still to come has settled more than there is.
        return max(0, self.log.next_offset - 1 - self.settled.committed - settled_above)

    def age_s(self, offset: int, now_ms: int) -> float:
        """How long ago an event was appended; 0 for one that is still to come."""
        at_ms = self.appended.at_ms(offset) if offset < self.log.next_offset else None
        return 0.0 if at_ms is None else max(0, now_ms - at_ms) / 1000

    @property
    def is_idle(self) -> bool:
        """Whether everything is settled, so that the checkpoint alone says all there is to say."""
        return (
            not (self.lanes or self.attempts or self.retries or self.deferrals)
            and self.settled.committed == self.log.next_offset - 1
            and not self.is_reading
        )

    def held_attempts(self, place: Place) -> Attempts | None:
        """What is known of earlier attempts at an event."""
        return (self.retries if place.round else self.attempts).get(place)

    def hold_attempts(self, place: Place, attempts: Attempts) -> None:
        """Remember attempts until the event settles."""
        (self.retries if place.round else self.attempts)[place] = attempts

    def settle(self, place: Place, last: int | None = None) -> None:
        """An event is done with, for this group."""
        if place.round:
            self.retries.pop(place, None)
        else:
            self.settled.add(place.offset, last)
            if self.attempts:
                self.attempts.pop(place, None)
            if self.deferrals:
                self.deferrals.pop(place.offset, None)
            if self.admitted:
                self.admitted.pop(place.offset, None)

    def is_settled(self, place: Place) -> bool:
        """Whether an event needs nothing more from this group."""
        return place not in self.retries if place.round else place.offset in self.settled

    def snapshot(self) -> Checkpoint:
        """What to write down now."""
        return Checkpoint(
            log_id=self.log.log_id,
            committed=self.settled.committed,
            ranges=self.settled.ranges(),
            attempts={place.offset: held for place, held in self.attempts.items()},
            deferrals=dict(self.deferrals),
            retries={(place.offset, place.round, place.entry): held for place, held in self.retries.items()},
            dead_letters=self.dead_letters,
        )


async def open_cursor(store: Store, name: LogName, group: GroupRecord, *, careful: bool, span: int) -> Cursor:
    """Take up a log where the group left it. `careful` after an unclean end (rule W6)."""
    log = await store.log(name)
    checkpoint = await store.load_checkpoint(name, group.name)
    cursor = Cursor(log, await _start_of(log, group), checkpoint)
    await read_dead_letters(store, cursor, group.name)
    cursor.solo = {place for place, held in _all_attempts(cursor).items() if held.running}
    if careful:
        cursor.suspects_through = min(log.next_offset - 1, cursor.settled.highest + span)
    return cursor


def _all_attempts(cursor: Cursor) -> Mapping[Place, Attempts]:
    return {**cursor.attempts, **cursor.retries}


async def _start_of(log: StoreLog, group: GroupRecord) -> int:
    """The first offset that a group without a checkpoint gets (rule W4)."""
    match group.start:
        case "latest":
            return group.ends.get(log.name.space_id, {}).get(log.name.topic, 1)
        case "timestamp":
            return await log.offset_at(group.start_value)
        case "offset":
            return group.start_value
        case _:
            return log.first_offset


async def read_dead_letters(store: Store, cursor: Cursor, group: str) -> None:
    """Dead letters settle first: a crash may have come between theirs and the checkpoint (rule W10)."""
    if not await store.has_dead_letters(cursor.name):
        return
    dead_letters = await store.dead_letters(cursor.name)
    async for entry in read_entries(dead_letters, cursor.dead_letters + 1):
        cursor.dead_letters = entry.line
        if entry.group != group:
            continue
        cursor.is_stale = True
        match entry:
            case Death(round=0):
                cursor.settle(Place(entry.offset))
            case Retry():
                cursor.retries.setdefault(Place(entry.offset, entry.round, entry.entry), Attempts())
            case Death() | Ended():
                for place in [place for place in cursor.retries if place[:2] == (entry.offset, entry.round)]:
                    cursor.settle(place)
