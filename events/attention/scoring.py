"""The score of an event and what follows from it: pure, so that it can be asked again of the recorded past (W13)."""

from __future__ import annotations

from typing import Any, Final

from events.attention.looks import Look, look_at, subject_of
from events.attention_gate import Admit, Boost, Decision, Defer, Drop, GateContext, Parts
from events.types import Event
from policies.attention import LEVELS, AttentionPolicy, Budget, Level

_ALWAYS: Final = Admit()
_WHOLE: Final = 10_000
"""Parts are counted in ten-thousandths, so that what is shown adds up to what was compared, to the last digit."""


class Scorer:
    """One policy, compiled. Knows nothing that is not in the policy, the event or the context."""

    def __init__(self, policy: AttentionPolicy) -> None:
        self.policy = policy
        self._valence = [look_at(path) for path in policy.affect.valence]
        self._arousal = [look_at(path) for path in policy.affect.arousal]
        self._sources = sorted(policy.sources.items(), key=lambda entry: len(entry[0]), reverse=True)
        self._names = tuple(policy.score.model_dump())
        self._weights = tuple(weight * _WHOLE for weight in policy.score.model_dump().values())
        self._levels: dict[str, Level] = {name: policy.levels[name] for name in LEVELS}
        self._habituate_after = policy.novelty.habituate_after
        self._half_life_ms = policy.recency.half_life_s * 1000

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """Always admitted, over budget, or as the score stands to the thresholds of the level."""
        for one in self.policy.always_admit:
            if one.matches(event) is True:
                return _ALWAYS
        over = self._over_budget(context) if context.spent else None
        if over is not None:
            return over
        # A level that this version does not know was journaled by another one; the lowest asks the least.
        name = context.situation.level
        level = self._levels.get(name, self._levels["calm"])
        points = self._points(event, context)
        score = sum(points) / _WHOLE
        if level.drop_below is not None and score < level.drop_below:
            return Drop(f"{name}: {score} is below {level.drop_below}", score, self._parts(points))
        if level.defer_below is not None and score < level.defer_below:
            return Defer(level.defer_s, f"{name}: {score} is below {level.defer_below}", score, self._parts(points))
        if level.boost_from is not None and score >= level.boost_from:
            priority = max(context.priority, self.policy.boost.to)
            return Boost(priority, f"{name}: {score} reaches {level.boost_from}", score, self._parts(points))
        # Nobody reads the parts of a plain admit, and most events are one.
        return Admit("", score, self._parts(points) if context.deferrals else ())

    def parts(self, event: Event[Any], context: GateContext) -> Parts:
        """What the score is made of: weight times value for each part that is something."""
        return self._parts(self._points(event, context))

    def _parts(self, points: tuple[int, ...]) -> Parts:
        return tuple((name, part / _WHOLE) for name, part in zip(self._names, points, strict=True) if part)

    def _points(self, event: Event[Any], context: GateContext) -> tuple[int, ...]:
        """The parts in the order of the policy's weights."""
        priority, arousal, valence, novelty, habituation, recency, relevance, distraction, source = self._weights
        familiarity = context.familiarity
        focused = self._focused(event, context) if context.situation.focus else 0.0
        age_ms = context.now_ms - context.appended_ms
        return (
            int(priority * context.priority / 100),
            int(arousal * min(1.0, max(0.0, _number(self._arousal, event)))),
            int(valence * min(1.0, abs(_number(self._valence, event)))),
            int(novelty / (1 + familiarity)),
            int(habituation * familiarity / (familiarity + self._habituate_after)),
            int(recency * 0.5 ** min(1000.0, age_ms / self._half_life_ms) if age_ms > 0 else recency),
            int(relevance * focused) if focused > 0 else 0,
            int(distraction) if focused < 0 else 0,
            int(source * self._trust(subject_of(event))),
        )

    def _focused(self, event: Event[Any], context: GateContext) -> float:
        """The weight of the heaviest focus that an event matches; below 0 where it matches none."""
        return max((one.weight for one in context.situation.focus if one.matches(event)), default=-1.0)

    def _trust(self, subject: str) -> float:
        for pattern, weight in self._sources:
            if subject == pattern or (pattern.endswith("*") and subject.startswith(pattern[:-1])):
                return weight
        return 0.0

    def _over_budget(self, context: GateContext) -> Decision | None:
        for name, spent in context.spent:
            budget = self.policy.budgets.get(name)
            if budget is None or spent < budget.events:
                continue
            reason = f"budget {name}: {spent} of {budget.events} in {budget.each_s:g} s"
            if budget.over == "drop":
                return Drop(reason)
            return Defer(next_stretch_ms(budget, context.now_ms) / 1000, reason)
        return None


def next_stretch_ms(budget: Budget, now_ms: int) -> int:
    """How long until the budget's next stretch of time begins."""
    each_ms = max(1, int(budget.each_s * 1000))
    return each_ms - now_ms % each_ms


def _number(looks: list[Look], event: Event[Any]) -> float:
    """The first number that one of the paths leads to, or 0: what feels like nothing counts for nothing."""
    for look in looks:
        found = look(event)
        kind = type(found)
        if kind is float or kind is int:
            return float(found)
    return 0.0
