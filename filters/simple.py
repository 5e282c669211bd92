"""`SimpleFilter`: one value of the event, found by its dotted path, against one condition."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from events.types import Event
from filters.base import BaseFilter
from filters.budget import Overrun
from filters.operators import Condition, Operator, check_operator, check_value, condition
from filters.paths import Path, parse_path
from filters.values import MISSING, plain

_META_COST, _PAYLOAD_COST, _REGEX_COST = 1, 3, 3


class SimpleFilter(BaseFilter):
    """Matches when the value at `path` fulfils `op`.

        SimpleFilter("meta.priority", "high")
        SimpleFilter("meta.actor.user_id", ["alice", "bob"], "in")
        SimpleFilter("payload.items.0.price", 100, "lt")
        SimpleFilter("payload.error", op="exists")

    `exact` (also spelt `eq`) and `ne` compare as JSON does; `in` takes a list; `prefix`, `suffix` and `regex` (RE2
    syntax, found anywhere) want strings; `contains` looks into a string or an array; `exists` takes true or false;
    `lt`, `le`, `gt` and `ge` compare numbers with numbers and strings with strings. `meta.ts` is compared as a time,
    `meta.band` as GREEN < AMBER < RED < BLACK, and the order of `meta.priority` is that of its levels.

    A path that leads nowhere does not match, except for `exists` false. A value of another type does not match
    either, and is counted in `mismatches` (rule W11): so `ne` wants a value that is there, of that type, and different,
    while `~SimpleFilter(path, value)` takes everything that is not exactly the value.
    """

    __slots__ = ("_condition", "_path", "op", "path", "value")

    path: str
    value: Any
    op: Operator
    _path: Path
    _condition: Condition

    def __init__(self, path: str, value: Any = MISSING, op: Operator | str = "exact") -> None:
        compiled = parse_path(path)
        operator = check_operator(op)
        checked = check_value(operator, value)
        super().__init__(
            cost=(_META_COST if compiled.root == "meta" else _PAYLOAD_COST) + (_REGEX_COST if op == "regex" else 0),
            path=path,
            value=checked,
            op=operator,
            _path=compiled,
            _condition=condition(operator, checked, path),
        )

    def matches(self, event: Event[Any]) -> bool:
        """Whether the event has such a value. Never raises on what an event holds (rule W11)."""
        found = self._path.find(event)
        if found is MISSING:
            return self.op == "exists" and not self.value
        try:
            verdict = self._condition(plain(found), None)
        except (Overrun, RecursionError):
            self._tally.overruns += 1
            return False
        if verdict is None:
            self._tally.mismatches += 1
            return False
        return verdict

    def describe(self) -> Mapping[str, Any]:
        """`{"path": ..., "op": ..., "value": ...}`"""
        return {"path": self.path, "op": self.op, "value": copy.deepcopy(self.value)}

    def __repr__(self) -> str:
        return f"SimpleFilter({self.path!r}, {self.value!r}, {self.op!r})"
