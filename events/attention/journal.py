"""The journal of a gate: what it decided about a log for a group, when, and knowing what (rule W13).

    spaces/<space>/gate/<topic>__<group>.00000001.jsonl     the same codec, rotation and recovery as a log

A line is a run of decisions under one policy and in one situation, and stands for itself, so that old segments can
be deleted without taking sense from the rest:

    {"offset":7,"gate":{
       "policy":"9a5264cf12f6","max_inflight":1024,"now_ms":1763455200000,
       "situation":{"level":"strained","load":0.71,"focus":[{"id":..,"weight":1.0,"until_ms":..,"filter":{..}}]},
       "admitted":[[1201,0,50,12,0,3,0.5], ..],
       "decided":[{"offset":1202,"event_id":"ev-..","type":"..","decision":"defer","seconds":5.0,"reason":"..",
                   "score":0.21,"parts":{"priority":0.12,..},"now_ms":..,..}, ..]},
     "at":..,"batch":..,"crc":".."}

A plain admit is an array: its offset, the milliseconds since `now_ms`, priority, inflight, backlog, flags (1 it was
fresh, 2 it could have been deferred), familiarity, and what its budgets had spent where there are any. Every other
decision has names, its score with the parts, and the reason.

Decisions are noted in memory and written before the checkpoint that settles them, never before the log is synced
through what they name (rule F7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from events.attention_gate import Admit, Boost, Decision, Defer, GateContext, Situation
from events.cursor import Cursor
from events.persistence.store import Entry, LogName, Store

FOLDER: Final = "gate"
GATE_FAILED: Final = "the gate failed; what it cannot judge is processed"
FRESH, MAY_DEFER = 1, 2
_MEMBER: Final = b'"gate":'
_MAX_ADMITTED: Final = 1024
_MAX_DECIDED: Final = 128
_TRIMS: Final = 16


def journal_name(topic: str, group: str) -> str:
    """What the journal of a group on a topic is called."""
    return f"{topic}__{group}"


class _Run:
    """Consecutive decisions under one policy, in one situation."""

    __slots__ = ("admitted", "decided", "max_inflight", "now_ms", "policy", "situation")

    def __init__(self, policy: str, context: GateContext) -> None:
        self.policy = policy
        self.situation = context.situation
        self.max_inflight = context.max_inflight
        self.now_ms = context.now_ms
        self.admitted: list[tuple[Any, ...]] = []
        self.decided: list[dict[str, Any]] = []

    def takes(self, policy: str, context: GateContext) -> bool:
        return (
            self.situation is context.situation
            and self.policy == policy
            and self.max_inflight == context.max_inflight
            and len(self.admitted) < _MAX_ADMITTED
            and len(self.decided) < _MAX_DECIDED
        )

    def entry(self) -> Entry:
        data = {
            "policy": self.policy,
            "max_inflight": self.max_inflight,
            "now_ms": self.now_ms,
            "situation": _situation_to(self.situation),
            "admitted": self.admitted,
            "decided": self.decided,
        }
        return Entry(_MEMBER + orjson.dumps(data))


class GateJournal:
    """Takes notes on the event loop at once, and makes them durable when a checkpoint is about to rely on them."""

    def __init__(self, store: Store, *, max_bytes: int, timeout_s: float) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._noted: dict[Cursor, list[_Run]] = {}
        self._untrimmed: dict[tuple[LogName, str], int] = {}

    def note(
        self,
        cursor: Cursor,
        context: GateContext,
        decision: Decision,
        policy: str,
        event_id: str,
        type: str,
    ) -> None:
        """Take down a decision. A plain admit leaves no more than its context."""
        runs = self._noted.get(cursor)
        if runs is None:
            runs = self._noted[cursor] = []
        if not runs or not runs[-1].takes(policy, context):
            runs.append(_Run(policy, context))
        run = runs[-1]
        if isinstance(decision, Admit) and not context.deferrals and not decision.reason:
            flags = (FRESH if context.is_fresh else 0) | (MAY_DEFER if context.may_defer else 0)
            ask = (
                context.offset,
                context.now_ms - run.now_ms,
                context.priority,
                context.inflight,
                context.backlog,
                flags,
                context.familiarity,
            )
            run.admitted.append((*ask, dict(context.spent)) if context.spent else ask)
        else:
            run.decided.append(_decided_to(context, decision, event_id, type))

    async def flush(self, cursor: Cursor, group: str) -> None:
        """Return when everything noted of a cursor so far is durable. What cannot be written now is kept."""
        runs = self._noted.pop(cursor, None)
        if not runs:
            return
        try:
            await cursor.log.sync()
            entries = [run.entry() for run in runs]
            journal = await self._store.journal(cursor.name.space_id, FOLDER, journal_name(cursor.name.topic, group))
            await journal.append(entries, timeout_s=self._timeout_s)
            await journal.sync()
        except BaseException:
            # An append whose outcome is unknown may stand there twice then. Each line stands for itself.
            self._noted[cursor] = [*runs, *self._noted.get(cursor, [])]
            raise
        await self._trim(cursor.name, group, sum(len(entry.members) for entry in entries))

    async def _trim(self, name: LogName, group: str, written: int) -> None:
        """Keep the journal within its bound: now and then, and once in the life of a process."""
        key = (name, group)
        untrimmed = self._untrimmed.get(key, self._max_bytes) + written
        if untrimmed * _TRIMS < self._max_bytes:
            self._untrimmed[key] = untrimmed
            return
        self._untrimmed[key] = 0
        journal = await self._store.journal(name.space_id, FOLDER, journal_name(name.topic, group))
        await journal.drop_before(await journal.offset_within(self._max_bytes))


def _situation_to(situation: Situation) -> Mapping[str, Any]:
    focus = [
        {"id": one.id, "weight": one.weight, "until_ms": one.until_ms, "filter": one.filter.describe()}
        for one in situation.focus
    ]
    return {"level": situation.level, "load": situation.load, "focus": focus}


def _decided_to(context: GateContext, decision: Decision, event_id: str, type: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "offset": context.offset,
        "event_id": event_id,
        "type": type,
        "decision": decision.__class__.__name__.lower(),
        "reason": decision.reason,
        "score": decision.score,
        "parts": dict(decision.parts),
        "now_ms": context.now_ms,
        "deferrals": context.deferrals,
        "may_defer": context.may_defer,
        "is_fresh": context.is_fresh,
        "priority": context.priority,
        "inflight": context.inflight,
        "backlog": context.backlog,
        "familiarity": context.familiarity,
        "spent": dict(context.spent),
    }
    if isinstance(decision, Defer):
        data["seconds"] = decision.seconds
    elif isinstance(decision, Boost):
        data["to"] = decision.priority
    return data
