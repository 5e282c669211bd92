"""What a bus may and must do, written down apart from it: the promises S1 to S5 and L as bookkeeping.

`Ledger` is what the world knows for certain, whatever crashes: what was published, what was seen, what was promised.
`Consumer` is what one group in one process may be given next. Neither knows how the bus does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from events.names import topic_matches
from events.persistence.store import LogName
from events.testing.facts import Death, Facts, Held, Kept, Place, Saved

Outcome = Literal["acked", "failed", "put off", "buried", "interrupted"]
ANY: Final = -1
_ALONE_S: Final = 5.0


class Violation(AssertionError):
    """A promise was broken; the text begins with the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group as a simulation subscribes it. A `plain` handler takes the event alone, a `batch` handler lists."""

    name: str
    topic: str
    space: str = "*"
    shape: Literal["delivery", "plain", "batch"] = "delivery"
    start: Literal["earliest", "latest"] = "earliest"
    ordering: Literal["key", "topic", "none"] = "key"
    max_retries: int = 2
    ack_deadline_s: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, log: LogName) -> bool:
        """Whether the group consumes a log."""
        return self.space in ("*", log.space_id) and topic_matches(self.topic, log.topic)


class Sent(NamedTuple):
    """An event that somebody tried to publish."""

    event_id: str
    log: LogName
    key: str | None
    payload: Mapping[str, Any]


class Journal:
    """Changes of dictionaries with the moment of each, so that a crash in the past can take the later ones back."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._changes: list[tuple[int, dict[Any, Any], Any, Any]] = []

    def put(self, mapping: dict[Any, Any], key: Any, value: Any = None) -> None:
        """Set an entry, as of now."""
        self._changes.append((self._now(), mapping, key, mapping.get(key, self)))
        mapping[key] = value

    def rewind(self, moment: int) -> None:
        """Take back what came after a moment."""
        for at, mapping, key, before in reversed(self._changes):
            if at <= moment:
                break
            if before is self:
                del mapping[key]
            else:
                mapping[key] = before

    def forget(self) -> None:
        """Nothing of this is taken back any more."""
        self._changes.clear()


class Seen(NamedTuple):
    """What somebody was told of an offset, and when: `published`, `delivered`, or `recovered`."""

    event_id: str
    at_s: float
    how: str


Round = tuple[str, Place, int]  # a group, an event, and which time it is tried: 0 is the first


class Ledger:
    """What is known across all processes. Everything but `sent` may be taken back by a crash in the past."""

    def __init__(self, plans: Sequence[GroupPlan], logs: Sequence[LogName], now: Callable[[], int]) -> None:
        self.plans = {plan.name: plan for plan in plans}
        self.logs = logs
        self.journal = Journal(now)
        self.sent: dict[str, Sent] = {}
        self.refused: dict[str, None] = {}
        self.seen: dict[Place, Seen] = {}
        self.where: dict[str, Place] = {}
        self.subscribed: dict[str, None] = {}
        self.starts: dict[str, Mapping[LogName, int]] = {}
        self.ended: dict[tuple[str, Place], str] = {}
        self.buried: dict[Round, int] = {}
        self.finished: dict[Round, None] = {}
        self.retried: dict[Round, None] = {}
        self.saved: dict[tuple[str, Place], None] = {}
        self.saved_attempts: dict[Round, int] = {}

    # -- what happens ------------------------------------------------------------------------------------------

    def saw(self, place: Place, event_id: str, at_s: float, how: str) -> None:
        """S4: somebody was told what an offset names, and no offset ever names two events, nor two offsets one."""
        known, elsewhere = self.seen.get(place), self.where.get(event_id)
        if known is not None and known.event_id != event_id:
            raise Violation(f"S4: {place} named {known.event_id} and now names {event_id}")
        if elsewhere not in (None, place):
            raise Violation(f"S4: {event_id} was at {elsewhere} and is now at {place} too")
        if known is None or how == "published":
            self.journal.put(self.seen, place, Seen(event_id, at_s, how))
            self.journal.put(self.where, event_id, place)

    def first_starts(self, plan: GroupPlan, facts: Facts) -> Mapping[LogName, int]:
        """Where a group begins that is subscribed for the first time now: what was compacted before is not for it."""
        if plan.start == "latest":
            return {log: max(events) + 1 for log, events in facts.logs.items() if plan.covers(log)}
        return {log: first for log in facts.logs if plan.covers(log) and (first := facts.first(log)) > 1}

    def saw_saved(self, group: str, progress: Progress) -> None:
        """What a group did in this process is on disk by now: that was promised."""
        for place in progress.settled:
            self.journal.put(self.saved, (group, place))
        for identity, count in progress.attempts.items():
            self.journal.put(self.saved_attempts, identity, count)

    # -- what must be true of the disk between two processes ---------------------------------------------------

    def check(self, facts: Facts, *, known_s: float) -> None:
        """Check what the end of a process left. Everything that was seen up to `known_s` must still be there."""
        self.journal.forget()
        self._check_groups(facts)
        self._check_events(facts)
        self._check_seen(facts, known_s)
        self._check_dead_letters(facts)
        for group in self.starts:
            self._check_settled(facts, group)
        self._check_promises(facts)
        self._forget_what_did_not_last(facts)

    def _check_groups(self, facts: Facts) -> None:
        """W3: a group whose subscribe returned exists, and begins where it began."""
        for group in self.subscribed:
            if group not in facts.groups:
                raise Violation(f"W3: group {group} is gone")
        known, self.starts = self.starts, {}
        for group, record in facts.groups.items():
            found = _starts_of(record, self.logs)
            self.starts[group] = known.get(group, found or self.first_starts(self.plans[group], facts))
            if self.plans[group].start == "latest" and found != self.starts[group]:
                raise Violation(f"W3: group {group} began at {self.starts[group]} and now begins at {found}")

    def _check_events(self, facts: Facts) -> None:
        """S4, S5: what is in a log was published there, once, and is whole."""
        places: dict[str, Place] = {}
        for log, events in facts.logs.items():
            for offset, kept in events.items():
                place = Place(log, offset)
                sent = self.sent.get(kept.event_id)
                if sent is None or kept.payload != sent.payload or sent.log != log:
                    raise Violation(f"S5: {place} holds what nobody published: {kept}")
                if kept.event_id in self.refused:
                    raise Violation(f"W2: {kept} was refused and stands at {place}")
                if kept.event_id in places:
                    raise Violation(f"S4: {kept.event_id} stands at {place} and at {places[kept.event_id]}")
                places[kept.event_id] = place
                known = self.seen.get(place)
                if known is not None and known.event_id != kept.event_id:
                    raise Violation(f"S4: {place} named {known.event_id} and now names {kept.event_id}")

    def _check_seen(self, facts: Facts, known_s: float) -> None:
        """S1: what was published or delivered is there, or was settled by every group and then compacted away."""
        for place, (event_id, at_s, how) in list(self.seen.items()):
            if place.offset in facts.logs.get(place.log, {}):
                continue
            if place.offset < facts.first(place.log):
                self._check_compacted(place)
                continue
            if at_s <= known_s:
                raise Violation(f"S1: {event_id} was {how} at {place} and is gone")
            del self.seen[place], self.where[event_id]
            self.refused[event_id] = None  # it was lost for good, and may not come back

    def _check_compacted(self, place: Place) -> None:
        """F5: a segment is deleted only when every registered group has settled it."""
        groups = [group for group in self.starts if self.plans[group].covers(place.log)]
        for group in groups:
            if (group, place) not in self.ended and place.offset >= self.starts[group].get(place.log, 1):
                raise Violation(f"F5: {place} was deleted and group {group} had not settled it")
        if not groups:
            raise Violation(f"F5: {place} was deleted though there is no group")

    def _check_settled(self, facts: Facts, group: str) -> None:
        """S2: what is durably settled was delivered and acked, or is dead; F7: and is in the log."""
        for log in self.logs:
            start = self.starts[group].get(log, 1)
            dead = facts.dead(group, log)
            for offset in facts.settled(group, log):
                how = self.ended.get((group, Place(log, offset)))
                if offset >= start and how is None:
                    raise Violation(f"S2: group {group} has settled {Place(log, offset)} and never got it")
                if how == "dead" and offset not in dead:
                    raise Violation(f"W10: group {group} gave {Place(log, offset)} up, and there is no dead letter")
            saved = facts.checkpoints.get((group, log))
            end = max(facts.logs.get(log, ()), default=0)
            if saved is not None and saved.highest > end:
                raise Violation(f"F7: group {group} names offset {saved.highest} of {log}, which ends at {end}")

    def _check_dead_letters(self, facts: Facts) -> None:
        """W10: a dead letter is whole, its attempts were spent, and there is one a round; acked is not dead."""
        buried: set[Round] = set()
        for lines in facts.dead_letters.values():
            for line in lines:
                identity = (line.group, line.place, line.round)
                if not isinstance(line, Death):
                    if line.op == "ended" and identity not in self.finished:
                        raise Violation(f"W10: round {identity} ended, and nobody acked it")
                    continue
                sent = self.sent[line.event.event_id]
                if line.event != Kept(sent.event_id, sent.payload):
                    raise Violation(f"W10: the dead letter {identity} is not the event that died")
                if identity in buried:
                    raise Violation(f"W10: {identity} is dead twice")
                if identity not in self.buried:
                    state = "was acked" if self.ended.get(identity[:2]) == "acked" else "may still be tried"
                    raise Violation(f"W10: {identity} is dead and {state}")
                if self.buried[identity] not in (line.attempts, ANY):
                    raise Violation(f"W6: {identity} died of {line.attempts} attempts, not {self.buried[identity]}")
                buried.add(identity)

    def _check_promises(self, facts: Facts) -> None:
        """W1, W6, W10: what was said to be on disk is."""
        settled = {(group, log): facts.settled(group, log) for group in self.starts for log in self.logs}
        for group, place in self.saved:
            if place.offset in facts.logs.get(place.log, {}) and place.offset not in settled[group, place.log]:
                raise Violation(f"W1: group {group} had settled {place} durably, and forgot it")
        alive = {identity for group in self.starts for identity in _alive(self, facts, group)}
        for (group, place, number), count in self.saved_attempts.items():
            saved = facts.checkpoints.get((group, place.log), Saved())
            held = saved.attempts.get((place.offset, number))
            if (group, place, number) in alive and (held is None or held.charged < count):
                raise Violation(f"W6: group {group} had spent {count} attempts on {place}, and forgot them: {held}")
        notes = {
            (line.group, line.place, line.round)
            for lines in facts.dead_letters.values()
            for line in lines
            if not isinstance(line, Death) and line.op == "retry"
        }
        for identity in self.retried:
            if identity not in notes:
                raise Violation(f"W10: the retry {identity} had begun, and is forgotten")

    def _forget_what_did_not_last(self, facts: Facts) -> None:
        """An ack, a death or an end that the crash took may be followed by another one."""
        dead = {(line.group, line.place, line.round) for lines in facts.dead_letters.values() for line in lines}
        self.ended = {
            (group, place): how
            for (group, place), how in self.ended.items()
            if place.offset < facts.first(place.log) or place.offset in facts.settled(group, place.log)
        }
        self.buried = {identity: count for identity, count in self.buried.items() if identity in dead}
        self.finished = {identity: None for identity in self.finished if identity in dead}


def _starts_of(record: Mapping[str, Any], logs: Iterable[LogName]) -> Mapping[LogName, int]:
    ends = {log: record["ends"].get(log.space_id, {}).get(log.topic, 1) for log in logs}
    return {log: end for log, end in ends.items() if end > 1}


def _alive(ledger: Ledger, facts: Facts, group: str) -> set[Round]:
    """The rounds of a group that are not over yet."""
    found: set[Round] = {
        (group, place, number) for place, (number, under_way) in facts.rounds(group).items() if under_way
    }
    for log, events in facts.logs.items():
        if ledger.plans[group].covers(log):
            settled = facts.settled(group, log)
            found.update((group, Place(log, offset), 0) for offset in events if offset not in settled)
    return found


class Progress(NamedTuple):
    """What a group did in one process: the events that it settled, and the attempts that it failed at."""

    settled: frozenset[Place]
    attempts: Mapping[Round, int]


class Handed(NamedTuple):
    """An event in the hands of a handler. A plain handler is not told which attempt it is."""

    place: Place
    round: int
    attempt: int | None
    key: str | None


@dataclass(eq=False, slots=True)
class Running:
    """A delivery that a handler has not returned from."""

    consumer: Consumer
    items: Sequence[Handed]
    started_s: float


class Consumer:
    """One group in one process: what it may be given, as the disk and its own verdicts say."""

    def __init__(self, ledger: Ledger, plan: GroupPlan, facts: Facts, starts: Mapping[LogName, int]) -> None:
        self.plan = plan
        self.starts = starts
        self.is_stopping = False
        self.running: list[Running] = []
        self._ledger = ledger
        name = plan.name
        self.settled = {Place(log, offset) for log in facts.logs for offset in facts.settled(name, log)}
        self.rounds = facts.rounds(name)
        self.counts: dict[Round, int] = {}
        self._settled_here: set[Place] = set()
        self._failed_here: set[Round] = set()
        self.failed: set[Round] = set()  # they come again, alone and when they are due
        self.suspects: set[Round] = set()  # they were running when the last process ended
        self.doomed: set[Round] = set()  # they were running once too often, and end unheard
        alive = _alive(ledger, facts, name)
        for log in facts.logs:
            for (offset, number), held in facts.checkpoints.get((name, log), Saved()).attempts.items():
                identity = (name, Place(log, offset), number)
                if identity in alive:
                    self._restore(identity, held)

    def _restore(self, identity: Round, held: Held) -> None:
        count = self.counts[identity] = held.charged
        if held.has_failed:
            self.failed.add(identity)
        if held.running:
            self.suspects.add(identity)
            if count > self.plan.max_retries:
                self.doomed.add(identity)
                self._ledger.journal.put(self._ledger.ended, identity[:2], "dead")
                self._ledger.journal.put(self._ledger.buried, identity, count)

    @property
    def progress(self) -> Progress:
        """What it did since it was subscribed; only that is saved when it is told to save."""
        attempts = {identity: self.counts[identity] for identity in self._failed_here if identity in self.counts}
        return Progress(frozenset(self._settled_here), attempts)

    def unsettled(self, present: Mapping[LogName, Mapping[int, str]]) -> Iterator[Place]:
        """The events that the group has still to get."""
        for log, events in present.items():
            if self.plan.covers(log):
                for offset in events:
                    place = Place(log, offset)
                    if place not in self.settled and offset >= self.starts.get(log, 1):
                        yield place

    def round_of(self, place: Place) -> int:
        """The round that a delivery belongs to, for a handler that is not told."""
        number, under_way = self.rounds.get(place, (0, False))
        return number if under_way else 0

    # -- a delivery begins -------------------------------------------------------------------------------------

    def begin(
        self,
        items: Sequence[Handed],
        present: Mapping[LogName, Mapping[int, str]],
        others: Sequence[Running],
        now_s: float,
    ) -> Running:
        """Check whether a group may be given these events now; `others` are all deliveries under way anywhere."""
        for item in items:
            self._check_wanted(item)
            self._check_order(item, items, present)
            self._check_attempt(item, alone=len(items) == 1)
        if any((self.plan.name, item.place, item.round) in self.suspects for item in items):
            beside = [other for other in others if now_s - other.started_s < _ALONE_S]
            if len(items) > 1 or (beside and now_s < _ALONE_S):
                raise Violation(f"W6: {items} ran when the last process ended, and does not run alone")
        running = Running(self, items, now_s)
        self.running.append(running)
        return running

    def _check_wanted(self, item: Handed) -> None:
        """S3: nothing that is settled comes again; W3: nothing from before the start; W10: only rounds that began."""
        name, place = self.plan.name, item.place
        if not self.plan.covers(place.log) or place.offset < self.starts.get(place.log, 1):
            raise Violation(f"W3: group {name} is given {place}, which is not for it")
        if item.round:
            if self.rounds.get(place) != (item.round, True):
                raise Violation(f"W10: group {name} is given round {item.round} of {place}: {self.rounds.get(place)}")
        elif place in self.settled or (name, place, 0) in self.doomed:
            raise Violation(f"S3: group {name} is given {place}, which it has settled")

    def _check_order(self, item: Handed, batch: Sequence[Handed], present: Mapping[LogName, Mapping[int, str]]) -> None:
        """W5: one delivery of a lane at a time, and in order of offsets, also across retries."""
        lane = self._lane(item.place, item.key)
        if lane is None:
            return
        name = self.plan.name
        for running in self.running:
            for other in running.items:
                if self._lane(other.place, other.key) == lane:
                    raise Violation(f"W5: group {name} is given {item} while {other} runs")
        if item.round:
            return
        in_batch = [other.place for other in batch[: batch.index(item)]]
        for offset, event_id in present[item.place.log].items():
            place = Place(item.place.log, offset)
            if (
                offset < item.place.offset
                and offset >= self.starts.get(place.log, 1)
                and self._lane(place, self._ledger.sent[event_id].key) == lane
                and place not in self.settled
                and (name, place, 0) not in self.doomed
                and place not in in_batch
            ):
                raise Violation(f"W5: group {name} is given {item} before {place} of the same lane")

    def _lane(self, place: Place, key: str | None) -> tuple[LogName, str] | None:
        if self.plan.ordering == "topic":
            return place.log, ""
        return (place.log, key) if self.plan.ordering == "key" and key is not None else None

    def _check_attempt(self, item: Handed, *, alone: bool) -> None:
        """W6: attempts are counted on, over restarts too; W5: what failed in a batch is tried again by itself."""
        identity = (self.plan.name, item.place, item.round)
        expected = self.counts.get(identity, 0) + 1
        if item.attempt not in (None, expected):
            raise Violation(f"W6: {identity} is told that it is attempt {item.attempt}; it is attempt {expected}")
        if not alone and identity in self.failed:
            raise Violation(f"W5: {identity} failed before and is given again in a batch")

    # -- and ends ----------------------------------------------------------------------------------------------

    def conclude(self, running: Running, outcome: Outcome) -> None:
        """A handler returned, raised, or was interrupted by its deadline or by the end of its group."""
        self.running.remove(running)
        for item in running.items:
            identity = (self.plan.name, item.place, item.round)
            if outcome == "interrupted":
                continue
            self.suspects.discard(identity)
            if outcome == "acked":
                self._settle(identity)
            elif outcome == "buried":
                self._bury(identity, ANY)
            else:
                self.failed.add(identity)
                if outcome == "failed":
                    self._failed_here.add(identity)
                    self.counts[identity] = self.counts.get(identity, 0) + 1
                    if self.counts[identity] > self.plan.max_retries:
                        self._bury(identity, self.counts[identity])

    def _settle(self, identity: Round) -> None:
        _, place, number = identity
        self._over(identity)
        if number:
            self.rounds.pop(place, None)
            self._ledger.journal.put(self._ledger.finished, identity)
        else:
            self.settled.add(place)
            self._settled_here.add(place)
            self._ledger.journal.put(self._ledger.ended, identity[:2], "acked")

    def _bury(self, identity: Round, attempts: int) -> None:
        name, place, number = identity
        self._ledger.journal.put(self._ledger.buried, identity, attempts)
        self._over(identity)
        self.rounds[place] = (number, False)
        if not number:
            self.settled.add(place)
            self._settled_here.add(place)
            self._ledger.journal.put(self._ledger.ended, (name, place), "dead")

    def _over(self, identity: Round) -> None:
        self.counts.pop(identity, None)
        self.failed.discard(identity)

    def retry(self, place: Place) -> None:
        """A dead letter gets another round, with fresh attempts."""
        self.rounds[place] = (self.rounds[place][0] + 1, True)

    def retried(self, place: Place, number: int) -> None:
        """That it does is on disk now."""
        self._ledger.journal.put(self._ledger.retried, (self.plan.name, place, number))

    def learn_deaths(self, facts: Facts) -> None:
        """What ran once too often when a process ended is buried without being given to anybody."""
        rounds = facts.rounds(self.plan.name)
        for identity in list(self.doomed):
            _, place, number = identity
            if rounds.get(place) == (number, False):
                self.doomed.discard(identity)
                self.suspects.discard(identity)
                self._over(identity)
                self.rounds[place] = (number, False)
                if not number:
                    self.settled.add(place)
