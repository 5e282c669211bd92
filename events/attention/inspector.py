"""Looking back at attention: why an event was dropped, deferred or boosted, and what another policy would have done.

`AttentionInspector("workspace")` reads beside whoever has the workspace open; `bus.attention` is the same on a live
bus.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from events.attention.history import Ask, History, JournalKey, OutsideHistory, StoreHistory, decode_run
from events.attention.salience import SalienceGate
from events.attention.what_if import Range, WhatIf, shown_decision, what_if, word_of
from events.attention_gate import Boost, Defer, Gate
from events.contracts import Action
from events.names import topic_matches
from events.persistence.store import LogName, Store
from events.units import show_moment
from policies.attention import AttentionPolicy

Authorise = Callable[[Action, LogName], None]
Refresh = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision about an event, and what it was based on."""

    key: JournalKey
    ask: Ask

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        context, treated = self.ask.context, self.ask.treated
        data: dict[str, Any] = {
            "space_id": self.key.space_id,
            "topic": self.key.topic,
            "group": self.key.group,
            "offset": context.offset,
            "event_id": self.ask.event_id,
            "type": self.ask.type,
            "at_ms": context.now_ms,
            "decision": word_of(treated),
            "reason": treated.reason,
            "score": treated.score,
            "parts": dict(treated.parts),
            "policy": self.ask.policy,
            "level": context.situation.level,
            "load": context.situation.load,
            "focus": [
                {"id": one.id, "weight": one.weight, "filter": one.filter.describe()} for one in context.situation.focus
            ],
            "inflight": context.inflight,
            "max_inflight": context.max_inflight,
            "backlog": context.backlog,
            "deferrals": context.deferrals,
            "familiarity": context.familiarity,
            "spent": dict(context.spent),
        }
        if isinstance(treated, Defer):
            data |= {"seconds": treated.seconds, "until_ms": context.now_ms + int(treated.seconds * 1000)}
        elif isinstance(treated, Boost):
            data["to"] = treated.priority
        return data

    def __str__(self) -> str:
        context, treated = self.ask.context, self.ask.treated
        score = "" if treated.score is None else f", score {treated.score:.4f}"
        parts = " ".join(f"{name} {value:+.4f}" for name, value in treated.parts)
        again = f", deferred {context.deferrals} times before" if context.deferrals else ""
        lines = [
            f"{show_moment(context.now_ms)}  group {self.key.group}: {shown_decision(treated)}{score}{again}",
            f"    {treated.reason or 'no reason given'}",
            f"    level {context.situation.level}, {context.inflight} of {context.max_inflight} in the window, "
            f"{context.backlog} behind; policy {self.ask.policy}",
        ]
        return "\n".join([*lines, *([f"    {parts}"] if parts else [])])


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that is on record about one event, oldest first."""

    event_id: str
    decisions: tuple[Decided, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"event_id": self.event_id, "decisions": [one.as_dict() for one in self.decisions]}

    def __str__(self) -> str:
        if not self.decisions:
            return (
                f"{self.event_id}: nothing but plain admits, if it was ever decided on. "
                "Only what is not a plain admit is journaled under the event's name"
            )
        first = self.decisions[0]
        head = f"{self.event_id}: {first.ask.type} at offset {first.ask.context.offset} of {first.key.topic!r}"
        return "\n".join([f"{head} in {first.key.space_id!r}", *map(str, self.decisions)])


class AttentionInspector:
    """The journals of a workspace, or of the bus that runs on one."""

    def __init__(
        self,
        workspace: str | Path | None = None,
        *,
        store: Store | None = None,
        authorise: Authorise = lambda action, name: None,
        refresh: Refresh | None = None,
    ) -> None:
        path = "workspace" if workspace is None else workspace
        self._history: History = OutsideHistory(path) if store is None else StoreHistory(store)
        self._authorise = authorise
        self._refresh = refresh

    async def explain(
        self, event_id: str, *, topic: str = "*", space: str = "*", group: str | None = None
    ) -> Explanation:
        """Why an event was dropped, deferred or boosted, for each group that it reached."""
        found: list[Decided] = []
        needle = event_id.encode()
        for key in await self._keys(topic, space, group):
            async for line in self._history.lines(key):
                if needle in line.line:  # most lines are not about it, and need not be decoded
                    found += [Decided(key, ask) for ask in decode_run(line, key) if ask.event_id == event_id]
        found.sort(key=lambda one: one.ask.context.now_ms)
        return Explanation(event_id, tuple(found))

    async def decisions(
        self, *, topic: str = "*", space: str = "*", group: str | None = None, limit: int = 100
    ) -> list[Decided]:
        """The latest decisions that were no plain admits, the newest first."""
        found: list[Decided] = []
        for key in await self._keys(topic, space, group):
            latest: deque[Decided] = deque(maxlen=limit)
            async for line in self._history.lines(key):
                latest.extend(Decided(key, ask) for ask in decode_run(line, key) if not ask.is_plain)
            found += latest
        found.sort(key=lambda one: one.ask.context.now_ms, reverse=True)
        return found[:limit]

    async def what_if(
        self,
        policy: AttentionPolicy | Gate | str | os.PathLike[str],
        *,
        topic: str = "*",
        space: str = "*",
        group: str | None = None,
        start: datetime | int | None = None,
        stop: datetime | int | None = None,
    ) -> WhatIf:
        """What a policy, its file, or another gate would have decided about what is on record.

        From `start` up to, and not including, `stop`: times of the decisions, or offsets of the events.
        """
        if isinstance(policy, str | os.PathLike):
            policy = AttentionPolicy.load_file(policy)
        gate: Gate = SalienceGate(policy) if isinstance(policy, AttentionPolicy) else policy
        return await what_if(self._history, await self._keys(topic, space, group), gate, Range(start, stop))

    async def _keys(self, topic: str, space: str, group: str | None) -> list[JournalKey]:
        if self._refresh is not None:
            await self._refresh()  # on a live bus the latest decisions are still to be written
        wanted = [
            key
            for key in await self._history.keys()
            if space in ("*", key.space_id) and topic_matches(topic, key.topic) and group in (None, key.group)
        ]
        for key in wanted:
            self._authorise("replay", key.log)
        return wanted
