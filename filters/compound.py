"""`CompoundFilter`: filters joined by AND, OR and NOT, the cheap ones asked first."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

from events.contracts import Filter
from events.errors import InvalidMessage
from events.types import Event
from filters.base import BaseFilter, suggestion

Connective = Literal["AND", "OR", "NOT"]
CONNECTIVES: Final[tuple[Connective, ...]] = get_args(Connective)

# A chain built by a loop, or read from a file, must neither exhaust the stack nor hold the loop for long.
MAX_DEPTH: Final = 32
MAX_FILTERS: Final = 256

_KEYS: Final[dict[str, str]] = {"AND": "all", "OR": "any", "NOT": "not"}


class CompoundFilter(BaseFilter):
    """Filters joined by "AND", "OR" or "NOT"; `a & b`, `a | b` and `~a` say the same.

    The cheapest filter is asked first, and the rest only while the answer is open: so a costly or custom filter may
    not be asked at all. `matches` returns a bool where it can, and an awaitable only when it has met an async filter.

    NOT is the complement, nothing else: of a filter and its NOT, exactly one matches any event. An event that a
    declarative filter cannot judge (a wrong type, a missing path) does not match it, so it matches its NOT; it is
    counted by the inner filter, and it is not lost between the two.
    """

    __slots__ = ("_by_cost", "_decisive", "depth", "filters", "operator", "size")

    operator: Connective
    filters: tuple[Filter, ...]
    depth: int
    size: int
    _by_cost: tuple[Filter, ...]
    _decisive: bool

    def __init__(self, operator: Connective | str, filters: Iterable[Filter]) -> None:
        children = tuple(filters)
        if operator not in CONNECTIVES:
            raise InvalidMessage("operator", operator, "no such operator", hint=suggestion(operator, CONNECTIVES))
        for child in children:
            if not isinstance(child, Filter):
                raise InvalidMessage("filters", child, "a filter has matches(), describe() and a cost")
        if len(children) != 1 if operator == "NOT" else not children:
            wanted = "takes one filter" if operator == "NOT" else "joins one filter or more"
            raise InvalidMessage("filters", children, f"{operator} {wanted}")
        depth = 1 + max(getattr(child, "depth", 0) for child in children)
        size = sum(getattr(child, "size", 1) for child in children)
        if depth > MAX_DEPTH or size > MAX_FILTERS:
            found = f"{size} filters, {depth} deep"
            raise InvalidMessage("filters", found, f"at most {MAX_FILTERS} filters, nested at most {MAX_DEPTH} deep")
        super().__init__(
            cost=sum(child.cost for child in children),
            operator=operator,
            filters=children,
            depth=depth,
            size=size,
            _by_cost=tuple(sorted(children, key=lambda child: child.cost)),
            _decisive=operator != "AND",
        )

    def matches(self, event: Event[Any]) -> bool | Awaitable[bool]:
        """Whether the joined filters match."""
        for position, child in enumerate(self._by_cost):
            verdict = child.matches(event)
            if not isinstance(verdict, bool):
                return self._continue(verdict, self._by_cost[position + 1 :], event)
            if verdict is self._decisive:
                return self._conclude(decided=True)
        return self._conclude(decided=False)

    async def _continue(self, pending: Awaitable[bool], rest: Sequence[Filter], event: Event[Any]) -> bool:
        """The same from the first awaitable on."""
        if await pending is self._decisive:
            return self._conclude(decided=True)
        for child in rest:
            verdict = child.matches(event)
            if (verdict if isinstance(verdict, bool) else await verdict) is self._decisive:
                return self._conclude(decided=True)
        return self._conclude(decided=False)

    def _conclude(self, *, decided: bool) -> bool:
        # One false decides AND, one true decides OR, and NOT turns that round.
        return decided if self.operator == "OR" else not decided

    @property
    def mismatches(self) -> int:
        """The sum over the filters inside."""
        return sum(getattr(child, "mismatches", 0) for child in self.filters)

    @property
    def overruns(self) -> int:
        """The sum over the filters inside."""
        return sum(getattr(child, "overruns", 0) for child in self.filters)

    def describe(self) -> Mapping[str, Any]:
        """`{"all": [..]}`, `{"any": [..]}` or `{"not": {..}}`, as the CloudEvents dialects have it."""
        described = [child.describe() for child in self.filters]
        return {_KEYS[self.operator]: described[0] if self.operator == "NOT" else described}

    def __repr__(self) -> str:
        return f"CompoundFilter({self.operator!r}, {list(self.filters)!r})"


def combined(operator: str, children: Iterable[Filter]) -> CompoundFilter:
    """Joined by an operator sign: `a & b & c` is one AND of three, not a pair with a pair inside."""
    flat: list[Filter] = []
    for child in children:
        same = operator != "NOT" and isinstance(child, CompoundFilter) and child.operator == operator
        flat += cast(CompoundFilter, child).filters if same else (child,)
    return CompoundFilter(operator, flat)
