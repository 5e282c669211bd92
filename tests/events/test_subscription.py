"""Subscriptions and the registry: what is declared before there is a bus."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from events.errors import InvalidGroup, InvalidMessage, InvalidSpace, InvalidTopic
from events.names import check_group
from events.subscription import Subscription, SubscriptionRegistry, default_group, start_of
from events.types import Event, EventType
from filters import SimpleFilter


async def handler(event: Event) -> None:
    """A handler that does nothing."""


class Module:
    """A module with handlers of its own."""

    async def on_event(self, event: Event) -> None:
        """A bound method."""

    async def __call__(self, event: Event) -> None:
        """The object itself."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (handler, "handler"),
        (Module().on_event, "Module.on_event"),
        (partial(handler), "handler"),
        (lambda event: None, None),
    ],
)
def test_the_group_defaults_to_the_handlers_qualified_name(given: Any, expected: str | None) -> None:
    """The registry: a name that the grammar of groups allows, the same in every process."""
    name = default_group(given)
    assert check_group(name) == name
    assert name == default_group(given)
    if expected is not None:
        assert name == expected


def test_a_nested_handler_has_a_group_too() -> None:
    """F3: what Python puts into a qualified name is not all allowed in a group's."""

    async def inner(event: Event) -> None:
        """Defined inside a function."""

    name = default_group(inner)
    assert check_group(name) == name
    assert name.endswith("inner")


def test_a_registry_hands_out_what_it_was_given() -> None:
    """`register_subscription` returns the id and the subscription; the registry keeps them in order."""
    registry = SubscriptionRegistry()
    only = SimpleFilter("meta.priority", "high", "exact")
    first_id, first = registry.register_subscription(topic="actions", handler=handler, advanced_filters=[only])
    second_id, second = registry.register_subscription(
        EventType.HIPPO_ENCODE, handler, group="second", space="home", start="latest", workers=3
    )
    assert (len(registry), list(registry)) == (2, [first, second])
    assert (first.id, second.id) == (first_id, second_id)
    assert first_id != second_id
    assert (first.topic, first.group, first.space, list(first.filters)) == ("actions", "handler", "*", [only])
    assert (second.topic, second.group, second.start, dict(second.settings)) == (
        "HIPPO_ENCODE",
        "second",
        "latest",
        {"workers": 3},
    )
    assert not first.is_active


def test_a_registry_tells_whoever_listens() -> None:
    """The registry: a running bus hears of what is registered; one that stopped hears nothing more."""
    registry = SubscriptionRegistry()
    heard: list[Subscription] = []
    others: list[Subscription] = []
    registry.attach(heard.append)
    registry.detach(others.append)
    _, first = registry.register_subscription("actions", handler)
    registry.detach(heard.append)
    registry.register_subscription("notes", handler, group="second")
    assert heard == [first]


@pytest.mark.parametrize(
    ("topic", "group", "space", "error"),
    [
        ("a b", "g", "*", InvalidTopic),
        ("actions", "a__b", "*", InvalidGroup),
        ("actions", "g", "\x00", InvalidSpace),
    ],
)
def test_a_bad_name_is_refused_when_it_is_declared(topic: str, group: str, space: str, error: type[Exception]) -> None:
    """F3: not when the bus starts, in another file."""
    with pytest.raises(error):
        Subscription(topic, group, handler, space=space)
    with pytest.raises(error):
        SubscriptionRegistry().register_subscription(topic, handler, group=group, space=space)


def test_starts_are_kept_as_a_kind_and_a_value() -> None:
    """W4: what the record of a group says about its beginning."""
    assert start_of("earliest", "*", "*") == ("earliest", 0)
    assert start_of("latest", "*", "*") == ("latest", 0)
    assert start_of(7, "actions", "home") == ("offset", 7)
    assert start_of(datetime(2026, 1, 1, tzinfo=UTC), "*", "*") == ("timestamp", 1_767_225_600_000)
    for start, topic, space in ((7, "*", "home"), (7, "actions", "*"), (0, "actions", "home"), ("now", "a", "b")):
        with pytest.raises(InvalidMessage):
            start_of(start, topic, space)  # type: ignore[arg-type]
