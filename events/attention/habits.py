"""What a gate remembers of the events that it has met: how familiar they are, and what their budgets have spent.

Both are bounded and live as long as the process: after a restart everything is new once more. What they contributed
to a decision is in its journal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from events.attention.looks import look_at, subject_of
from events.names import topic_matches
from events.types import Event
from policies.attention import AttentionPolicy

_MAX_PURSES: Final = 10_000
Signature = tuple[str, ...]


class Familiarity:
    """How often something was met lately: a count that halves with time. The least recently met are forgotten."""

    def __init__(self, policy: AttentionPolicy) -> None:
        self._looks = [look_at(path) for path in policy.novelty.of]
        self._half_life_ms = policy.novelty.half_life_s * 1000
        self._remember = policy.novelty.remember
        self._met: OrderedDict[Signature, tuple[float, int]] = OrderedDict()

    def signature(self, event: Event[Any]) -> Signature:
        """What makes two events the same thing met again."""
        return (event.meta.space_id, *[_text(look(event)) for look in self._looks])

    def of(self, signature: Signature, now_ms: int) -> float:
        """How familiar something is now; 0 for what was never met. Changes nothing."""
        known = self._met.get(signature)
        # Cut, so that the journal has it in few characters and decides by what it has.
        return 0.0 if known is None else int(self._faded(known, now_ms) * 10_000) / 10_000

    def meet(self, signature: Signature, now_ms: int) -> None:
        """It was met once more."""
        known = self._met.get(signature)
        count = 1.0 if known is None else self._faded(known, now_ms) + 1.0
        self._met[signature] = (count, now_ms)
        self._met.move_to_end(signature)
        if len(self._met) > self._remember:
            self._met.popitem(last=False)

    def _faded(self, known: tuple[float, int], now_ms: int) -> float:
        count, at_ms = known
        return float(count * 0.5 ** min(1000.0, max(0, now_ms - at_ms) / self._half_life_ms))


class Spending:
    """How many events each budget has admitted in the current stretch of time."""

    def __init__(self, policy: AttentionPolicy) -> None:
        self._budgets = policy.budgets
        self._purses: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def spent(self, event: Event[Any], topic: str, now_ms: int) -> tuple[tuple[str, int], ...]:
        """What the budgets that an event would draw on have spent, by name. Changes nothing."""
        found = []
        for name, purse, stretch in self._drawn_on(event, topic, now_ms):
            began, count = self._purses.get((name, purse), (stretch, 0))
            found.append((name, count if began == stretch else 0))
        return tuple(found)

    def spend(self, event: Event[Any], topic: str, now_ms: int) -> None:
        """An event was admitted."""
        for name, purse, stretch in self._drawn_on(event, topic, now_ms):
            began, count = self._purses.get((name, purse), (stretch, 0))
            self._purses[name, purse] = (stretch, count + 1 if began == stretch else 1)
            self._purses.move_to_end((name, purse))
            if len(self._purses) > _MAX_PURSES:
                self._purses.popitem(last=False)

    def _drawn_on(self, event: Event[Any], topic: str, now_ms: int) -> list[tuple[str, str, int]]:
        drawn = []
        for name, budget in self._budgets.items():
            if topic_matches(budget.topics, topic):
                each_ms = max(1, int(budget.each_s * 1000))
                purse = subject_of(event) if budget.per == "actor" else topic
                drawn.append((name, purse, now_ms // each_ms))
        return drawn


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else repr(value)
