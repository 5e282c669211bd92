"""What all filters have in common: they are immutable, combine with `&`, `|` and `~`, and print as plain data."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import orjson

from events.contracts import Filter
from events.types import Event

if TYPE_CHECKING:
    from filters.compound import CompoundFilter


class Tally:
    """What a filter could not judge. Counting is all that ever changes in a filter."""

    __slots__ = ("mismatches", "overruns")

    def __init__(self) -> None:
        self.mismatches = 0
        self.overruns = 0


class BaseFilter(ABC):
    """A filter that can be combined with others.

    Two filters that describe alike are equal, and the same to a group (rule W3). A filter may be shared by any
    number of subscriptions; asking it changes nothing but its counters.
    """

    __slots__ = ("_tally", "cost")

    cost: int
    _tally: Tally

    def __init__(self, *, cost: int, **attributes: Any) -> None:
        # The one place that writes; afterwards __setattr__ refuses.
        for name, value in {"cost": cost, "_tally": Tally(), **attributes}.items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def matches(self, event: Event[Any]) -> bool | Awaitable[bool]:
        """Whether the subscriber wants the event."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """The filter as plain JSON; `filter_from` reads it back."""

    @property
    def mismatches(self) -> int:
        """How many events did not match because a value was not of the type that the filter compares."""
        return self._tally.mismatches

    @property
    def overruns(self) -> int:
        """How many events did not match because judging them would have taken more than the bound."""
        return self._tally.overruns

    def __and__(self, other: Filter) -> CompoundFilter:
        return _combined("AND", self, other)

    def __or__(self, other: Filter) -> CompoundFilter:
        return _combined("OR", self, other)

    def __invert__(self) -> CompoundFilter:
        return _combined("NOT", self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseFilter):
            return NotImplemented
        return type(self) is type(other) and self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash(self._canonical())

    def _canonical(self) -> bytes:
        # Bytes, because to Python {"value": 1}, {"value": 1.0} and {"value": True} are equal.
        return orjson.dumps(self.describe(), option=orjson.OPT_SORT_KEYS)

    def __reduce__(self) -> tuple[Any, ...]:
        # To another process as data. A custom filter cannot go there, and says so on arrival.
        from filters.serial import filter_from

        return filter_from, (dict(self.describe()),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; build another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; build another one")


def _combined(operator: str, *children: Filter) -> CompoundFilter:
    # Here, because CompoundFilter is itself a BaseFilter.
    from filters.compound import combined

    return combined(operator, children)


def suggestion(wrong: object, known: Iterable[str]) -> str:
    """What somebody probably meant, or everything that there is."""
    names, text = list(known), str(wrong)
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.5) or [name for name in names if text.startswith(name)]
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}"
