"""The load of a group: how full, how far behind, how late; at which level that is, and who is to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from events.attention_gate import GateContext
from policies.attention import LEVELS, AttentionPolicy, LevelName

_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Crossing:
    """A group's load crossed a bound, and that is to be told."""

    group: str
    space_id: str
    before: LevelName
    level: LevelName
    load: float
    inflight: int
    max_inflight: int
    backlog: int
    latency_s: float


class LoadMeter:
    """The level of one group. It rises at once, and falls when the load has been below `leave` for a while.

    It is looked at when an event comes to the group. In between, nothing entered, so the load cannot have risen.
    `load` is what it was when the level was entered.
    """

    __slots__ = ("_last_above_ms", "_started_ms", "_told", "_told_ms", "level", "load")

    def __init__(self, now_ms: int) -> None:
        self.level: LevelName = "calm"
        self.load = 0.0
        self._started_ms = now_ms
        self._last_above_ms: dict[LevelName, int] = {}
        self._told: LevelName = "calm"
        self._told_ms = 0

    def observe(self, policy: AttentionPolicy, context: GateContext) -> Crossing | None:
        """Take in one look at the group; what is to be told, if anything is."""
        latency_s = self._latency_s(context)
        load = self._load_of(policy, context, latency_s)
        if self.level == self._told == "calm" and load < policy.lowest_bound:
            return None  # nearly always
        level = self._level_for(policy, load, context.now_ms)
        load = round(load, _DIGITS)
        if level != self.level:
            self.level, self.load = level, load
        if level == self._told or not self._is_due(policy, context.now_ms):
            return None
        before, self._told, self._told_ms = self._told, level, context.now_ms
        return Crossing(
            group=context.group,
            space_id=context.space_id,
            before=before,
            level=level,
            load=load,
            inflight=context.inflight,
            max_inflight=context.max_inflight,
            backlog=context.backlog,
            latency_s=latency_s,
        )

    def _is_due(self, policy: AttentionPolicy, now_ms: int) -> bool:
        """Worse is told at once. Better can wait, and a level that comes and goes is told now and then."""
        if LEVELS.index(self.level) > LEVELS.index(self._told):
            return True
        return now_ms - self._told_ms >= policy.load.alert_every_s * 1000

    def _latency_s(self, context: GateContext) -> float:
        """How long an event stood in the log, as far as this group was there to take it.

        One that is looked at again waited because it was told to. What was published before the group began, as all
        of history was for a new one, is no sign that it is slow.
        """
        if not context.is_fresh:
            return 0.0
        return max(0, context.now_ms - max(context.appended_ms, self._started_ms)) / 1000

    def _load_of(self, policy: AttentionPolicy, context: GateContext, latency_s: float) -> float:
        asked = policy.load
        fullness = context.inflight / context.max_inflight / asked.window
        return max(fullness, context.backlog / asked.backlog, latency_s / asked.latency_s)

    def _level_for(self, policy: AttentionPolicy, load: float, now_ms: int) -> LevelName:
        held_ms = policy.load.hold_s * 1000
        index = LEVELS.index(self.level)
        for other, name in enumerate(LEVELS[1:], 1):
            level = policy.levels[name]
            assert level.enter is not None  # every level but calm has its bounds
            assert level.leave is not None
            if load >= level.leave:
                self._last_above_ms[name] = now_ms
            if load >= level.enter:
                index = max(index, other)
        while index and now_ms - self._last_above_ms.get(LEVELS[index], self._started_ms) >= max(1, held_ms):
            index -= 1
        return LEVELS[index]
