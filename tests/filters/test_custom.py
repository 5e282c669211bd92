"""Custom filters."""

from collections.abc import Awaitable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from events.errors import InvalidMessage
from events.types import Event, EventMeta
from filters import CustomFunctionFilter, SimpleFilter, filter_from

EVENT = Event(EventMeta(topic="t", type="T", space_id="s"), {"n": 3})


def over(limit: int, event: Event[Any]) -> bool:
    """A predicate with a parameter."""
    return bool(event.payload["n"] > limit)


async def slowly_true(event: Event[Any]) -> bool:
    """An async predicate that really waits."""
    await anyio.lowlevel.checkpoint()
    return bool(event.payload["n"] == 3)


class Alarm:
    """A predicate that is an object."""

    def __call__(self, event: Event[Any]) -> bool:
        return False


def test_a_plain_function_decides_at_once() -> None:
    """A sync predicate gives a bool, not an awaitable."""
    assert CustomFunctionFilter(partial(over, 2)).matches(EVENT) is True
    assert CustomFunctionFilter(partial(over, 5)).matches(EVENT) is False


async def test_an_async_function_is_awaited() -> None:
    """An async predicate gives an awaitable of the verdict."""
    verdict = CustomFunctionFilter(slowly_true).matches(EVENT)
    assert isinstance(verdict, Awaitable)
    assert await verdict is True


async def test_what_a_custom_filter_raises_is_raised() -> None:
    """W11: an error in a custom filter is no verdict; it reaches the bus, which makes it a failed attempt."""

    async def broken(event: Event[Any]) -> bool:
        raise LookupError("down")

    with pytest.raises(KeyError):
        CustomFunctionFilter(lambda event: event.payload["missing"]).matches(EVENT)
    verdict = (SimpleFilter("payload.n", 3) & CustomFunctionFilter(broken)).matches(EVENT)
    assert isinstance(verdict, Awaitable)
    with pytest.raises(LookupError):
        await verdict


def test_a_custom_filter_says_what_it_is() -> None:
    """The description names the function and says that it is custom; a name of one's own tells lambdas apart."""
    assert CustomFunctionFilter(slowly_true).describe() == {"custom": f"{__name__}.slowly_true"}
    assert CustomFunctionFilter(partial(over, 2)).describe() == {"custom": f"{__name__}.over"}
    assert CustomFunctionFilter(Alarm()).describe() == {"custom": f"{__name__}.Alarm"}
    assert CustomFunctionFilter(lambda event: True, name="always").describe() == {"custom": "always"}
    assert repr(CustomFunctionFilter(Alarm(), name="alarm")) == "CustomFunctionFilter(alarm)"


def test_a_custom_filter_cannot_be_read_back() -> None:
    """Data cannot hold a function, and the error says what to do instead."""
    with pytest.raises(InvalidMessage, match="Build CustomFunctionFilter"):
        filter_from(CustomFunctionFilter(Alarm()).describe())


def test_something_that_cannot_be_called_is_refused() -> None:
    """A custom filter is a function."""
    with pytest.raises(InvalidMessage, match="a function of the event"):
        CustomFunctionFilter("over")  # type: ignore[arg-type]
