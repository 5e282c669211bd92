"""`CustomFunctionFilter`: any predicate that no declarative filter can express."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any

from events.errors import InvalidMessage
from events.types import Event
from filters.base import BaseFilter

Predicate = Callable[[Event[Any]], bool | Awaitable[bool]]

_UNKNOWN_COST = 50


class CustomFunctionFilter(BaseFilter):
    """Matches when a function says so.

        CustomFunctionFilter(lambda event: event.payload["total"] > limit, name="over-limit")
        CustomFunctionFilter(is_known_customer)      # async def works too

    What the function raises is raised to the bus, which makes it a failed attempt (rule W11). A plain function runs
    on the event loop, so it must not block. A group is known by what its filters print, and of this one that is the
    name: two lambdas of a module look alike unless they are given names, and a function whose meaning has changed is
    still the same filter.
    """

    __slots__ = ("function", "name")

    function: Predicate
    name: str

    def __init__(self, function: Predicate, *, name: str | None = None, cost: int = _UNKNOWN_COST) -> None:
        if not callable(function):
            raise InvalidMessage("function", function, "a custom filter is a function of the event")
        super().__init__(cost=cost, function=function, name=name or _qualified_name(function))

    def matches(self, event: Event[Any]) -> bool | Awaitable[bool]:
        """What the function says: a bool, or an awaitable of one when the function is async."""
        verdict = self.function(event)
        return _awaited(verdict) if isawaitable(verdict) else bool(verdict)

    def describe(self) -> Mapping[str, Any]:
        """`{"custom": name}`: says that there is a function, and cannot be read back."""
        return {"custom": self.name}

    def __repr__(self) -> str:
        return f"CustomFunctionFilter({self.name})"


async def _awaited(verdict: Awaitable[bool]) -> bool:
    return bool(await verdict)


def _qualified_name(function: Callable[..., object]) -> str:
    # functools.partial and callable objects have no name of their own.
    inner = getattr(function, "func", function)
    owner = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{owner.__module__}.{owner.__qualname__}"
