"""What another policy would have decided: the recorded events, each in the context that was recorded with it.

Load, focus and times are those of the record (rule W13), and so is what had been met and spent. What is not simulated
is how other decisions would have changed them: with more events dropped the load would have been lower, and the level
with it. The report says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from events.attention.history import Ask, History, JournalKey, decode_run
from events.attention_gate import Boost, Decision, Defer, Gate, treatment, version_of
from events.persistence.codec import Record
from events.settled import SettledOffsets
from events.units import show_moment

NOT_SIMULATED: Final = (
    "Load, focus, times, familiarity and spent budgets are the recorded ones: "
    "how other decisions would have changed them is not simulated."
)
_WORDS: Final = ("admit", "boost", "defer", "drop")


def word_of(decision: Decision) -> str:
    """`admit`, `boost`, `defer` or `drop`."""
    return type(decision).__name__.lower()


def shown_decision(decision: Decision) -> str:
    """A decision with what belongs to it: `defer 5s`, `boost to 90`."""
    match decision:
        case Defer(seconds=seconds):
            return f"defer {seconds:g}s"
        case Boost(priority=priority):
            return f"boost to {priority}"
    return word_of(decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An event that would have been treated differently: the first decision about it that comes out otherwise."""

    space_id: str
    topic: str
    group: str
    offset: int
    event_id: str
    type: str
    at_ms: int
    deferrals: int
    before: Decision
    after: Decision

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "space_id": self.space_id,
            "topic": self.topic,
            "group": self.group,
            "offset": self.offset,
            "event_id": self.event_id,
            "type": self.type,
            "at_ms": self.at_ms,
            "deferrals": self.deferrals,
            "before": _decision_data(self.before),
            "after": _decision_data(self.after),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The report: what was looked at, what would have changed, and what it does not say."""

    policy: str
    decisions: int
    events: int
    changes: tuple[Change, ...]
    outcomes: Mapping[tuple[str, str], int]
    gone: int
    unjudged: int
    recorded_policies: Mapping[str, int]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for a program."""
        return {
            "policy": self.policy,
            "decisions": self.decisions,
            "events": self.events,
            "changed": len(self.changes),
            "outcomes": [
                {"before": before, "after": after, "decisions": count}
                for (before, after), count in sorted(self.outcomes.items())
            ],
            "gone": self.gone,
            "unjudged": self.unjudged,
            "recorded_policies": dict(self.recorded_policies),
            "changes": [change.as_dict() for change in self.changes],
            "notes": list(self.notes),
        }

    def table(self, limit: int = 50) -> str:
        """As text, for a person: from what to what, then the events."""
        lines = [
            f"policy {self.policy}: {len(self.changes)} of {self.events} events would have been treated differently",
            "",
            f"{'recorded':>10} {'now':>8} {'decisions':>10}",
        ]
        for before in _WORDS:
            for after in _WORDS:
                count = self.outcomes.get((before, after), 0)
                if count:
                    lines.append(f"{before:>10} {after:>8} {count:>10}")
        if self.changes:
            lines += ["", f"{'offset':>8}  {'recorded':<12} {'now':<12} {'score':>7}  event"]
        for change in self.changes[:limit]:
            score = "-" if change.after.score is None else f"{change.after.score:.4f}"
            event = f"{change.type} {change.event_id} at {show_moment(change.at_ms)} ({change.topic}, {change.group})"
            before, after = shown_decision(change.before), shown_decision(change.after)
            lines.append(f"{change.offset:>8}  {before:<12} {after:<12} {score:>7}  {event}")
        if len(self.changes) > limit:
            lines.append(f"{'':>8}  and {len(self.changes) - limit} more")
        return "\n".join([*lines, "", *self.notes])


@dataclass(slots=True)
class _Tally:
    decisions: int = 0
    gone: int = 0
    unjudged: int = 0
    events: int = 0
    offsets: dict[JournalKey, SettledOffsets] = field(default_factory=dict)
    changes: dict[tuple[JournalKey, int], Change] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    unknown_budgets: set[str] = field(default_factory=set)


class Range:
    """Which decisions count: by the time they were made, or by the offset of the event; `stop` is not included."""

    def __init__(self, start: datetime | int | None = None, stop: datetime | int | None = None) -> None:
        self._bounds = (start, stop)

    def covers(self, ask: Ask) -> bool:
        """Whether a decision lies within."""
        start, stop = self._bounds
        return (start is None or _place(ask, start) >= _bound(start)) and (
            stop is None or _place(ask, stop) < _bound(stop)
        )


def _place(ask: Ask, bound: datetime | int) -> int:
    return ask.context.now_ms if isinstance(bound, datetime) else ask.context.offset


def _bound(bound: datetime | int) -> int:
    return int(bound.timestamp() * 1000) if isinstance(bound, datetime) else bound


async def what_if(history: History, keys: Iterable[JournalKey], gate: Gate, within: Range) -> WhatIf:
    """Ask a gate about everything that is on record. Nothing is learnt and nothing is written."""
    tally = _Tally()
    budgets = set(getattr(getattr(gate, "policy", None), "budgets", ()))
    for key in keys:
        async for line in history.lines(key):
            asks = [ask for ask in decode_run(line, key) if within.covers(ask)]
            records = await history.events(key.log, sorted({ask.context.offset for ask in asks}))
            for ask in asks:
                tally.unknown_budgets |= budgets - {name for name, _ in ask.context.spent}
                _reconsider(gate, key, ask, records.get(ask.context.offset), tally)
    return WhatIf(
        policy=version_of(gate),
        decisions=tally.decisions,
        events=tally.events,
        changes=tuple(tally.changes[at] for at in sorted(tally.changes)),
        outcomes=dict(tally.outcomes),
        gone=tally.gone,
        unjudged=tally.unjudged,
        recorded_policies=dict(tally.policies),
        notes=tuple(_notes(tally, version_of(gate))),
    )


def _reconsider(gate: Gate, key: JournalKey, ask: Ask, record: Record | None, tally: _Tally) -> None:
    if ask.failed:
        tally.unjudged += 1
        return
    if record is None:
        tally.gone += 1
        return
    context = ask.context._replace(appended_ms=record.at)
    after = treatment(gate.decide(record.event, context), context)
    at = (key, context.offset)
    tally.decisions += 1
    seen = tally.offsets.setdefault(key, SettledOffsets())  # as ranges, since there may be millions
    if context.offset not in seen:
        seen.add(context.offset)
        tally.events += 1
    tally.policies[ask.policy] += 1
    tally.outcomes[word_of(ask.treated), word_of(after)] += 1
    if at in tally.changes or is_same(ask.treated, after):
        return  # from the first difference on, the record tells of another course of things
    meta = record.meta
    tally.changes[at] = Change(
        space_id=key.space_id,
        topic=key.topic,
        group=key.group,
        offset=context.offset,
        event_id=meta.event_id,
        type=str(meta.type),
        at_ms=context.now_ms,
        deferrals=context.deferrals,
        before=ask.treated,
        after=after,
    )


def is_same(before: Decision, after: Decision) -> bool:
    """Whether two decisions treat an event alike; score and reason may differ."""
    match before, after:
        case Defer(seconds=one), Defer(seconds=other):
            return one == other
        case Boost(priority=first), Boost(priority=second):
            return first == second
    return type(before) is type(after)


def _notes(tally: _Tally, version: str) -> Iterable[str]:
    yield NOT_SIMULATED
    others = sorted(policy for policy in tally.policies if policy != version)
    if others:
        yield f"The recorded decisions were made under {', '.join(others)}."
    if tally.unknown_budgets:
        names = ", ".join(sorted(tally.unknown_budgets))
        yield f"For some events nothing is on record of these budgets, which count as unspent: {names}."
    if tally.gone:
        yield f"{tally.gone} decisions are about events that the log no longer holds."
    if tally.unjudged:
        yield f"{tally.unjudged} decisions were none: the gate had failed, and the event was processed."


def _decision_data(decision: Decision) -> dict[str, Any]:
    data: dict[str, Any] = {
        "decision": word_of(decision),
        "score": decision.score,
        "reason": decision.reason,
        "parts": dict(decision.parts),
    }
    if isinstance(decision, Defer):
        data["seconds"] = decision.seconds
    elif isinstance(decision, Boost):
        data["to"] = decision.priority
    return data
