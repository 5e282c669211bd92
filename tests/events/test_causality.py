"""The causal tree of a conversation, across topics and spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from events.bus import EventBus
from events.causality import Node, trace
from events.inspection import Inspector
from events.types import Event, EventMeta
from tests.events.bus_support import disk_bus


async def said(
    bus: EventBus,
    name: str,
    *,
    topic: str = "talk",
    cause: str | None = None,
    correlation: str | None = "c-1",
    **meta: Any,
) -> str:
    """Publish an event that is told by its name, which is its id too."""
    fields = {"event_id": f"ev-{name}", "causation_id": cause, "correlation_id": correlation, **meta}
    given = {key: value for key, value in fields.items() if value is not None}
    await bus.publish(Event(EventMeta(topic=topic, type="SAID", space_id="home", **given), {"name": name}))
    return f"ev-{name}"


def shape(roots: list[Node]) -> list[tuple[int, str]]:
    """The trees as depths and names."""
    return [(depth, node.record.event.payload["name"]) for root in roots for depth, node in root.walk()]


def find(workspace: Path, identifier: str) -> list[tuple[int, str]]:
    """What a trace of the whole workspace finds."""
    inspector = Inspector(workspace)
    return shape(trace(inspector.reader, inspector.names(), identifier))


async def test_causes_come_before_their_effects(workspace: Path) -> None:
    """A tree across topics; siblings in the order of their append; other conversations left out."""
    async with disk_bus(workspace) as bus:
        seen = await said(bus, "seen", topic="perception")
        decided = await said(bus, "decided", topic="actions", cause=seen)
        await said(bus, "done", topic="outcomes", cause=decided)
        await said(bus, "noted", topic="memory", cause=seen)
        await said(bus, "elsewhere", correlation="c-2")
    assert find(workspace, "c-1") == [(0, "seen"), (1, "decided"), (2, "done"), (1, "noted")]
    assert find(workspace, "c-3") == []


async def test_effects_without_the_correlation_are_found_by_their_cause(workspace: Path) -> None:
    """A module that forgets to pass the correlation on does not fall out of the tree, nor what follows from it."""
    async with disk_bus(workspace) as bus:
        seen = await said(bus, "seen")
        lost = await said(bus, "lost", cause=seen, correlation=None)
        await said(bus, "later", topic="other", cause=lost, correlation=None)
    assert find(workspace, "c-1") == [(0, "seen"), (1, "lost"), (2, "later")]


async def test_the_id_of_one_event_brings_its_causes_and_effects(workspace: Path) -> None:
    """Also when nobody carries a correlation."""
    async with disk_bus(workspace) as bus:
        seen = await said(bus, "seen", correlation=None)
        decided = await said(bus, "decided", cause=seen, correlation=None)
        await said(bus, "done", cause=decided, correlation=None)
        await said(bus, "aside", correlation=None)
    assert find(workspace, "ev-decided") == [(0, "seen"), (1, "decided"), (2, "done")]


async def test_a_trace_id_will_do(workspace: Path) -> None:
    """What tracing filled in finds the same events."""
    async with disk_bus(workspace) as bus:
        await said(bus, "one", correlation=None, trace_id="0af7651916cd43dd8448eb211c80319c")
    assert find(workspace, "0af7651916cd43dd8448eb211c80319c") == [(0, "one")]


async def test_a_mention_in_a_payload_is_no_relation(workspace: Path) -> None:
    """Only the envelope counts."""
    async with disk_bus(workspace) as bus:
        await said(bus, "seen")
        await said(bus, "gossip about c-1 and ev-seen", correlation="c-2")
    assert find(workspace, "c-1") == [(0, "seen")]


@pytest.mark.parametrize("identifier", ['c "quoted" \\ 1', "ünïcode-✓"])
async def test_ids_of_any_letters_are_found(workspace: Path, identifier: str) -> None:
    """The bytes in the log may be escaped; the id is found all the same."""
    async with disk_bus(workspace) as bus:
        await said(bus, "seen", correlation=identifier)
    assert find(workspace, identifier) == [(0, "seen")]


async def test_events_that_blame_each_other_are_all_shown(workspace: Path) -> None:
    """A cycle of causes, or an event that names itself, hides nothing and ends."""
    async with disk_bus(workspace) as bus:
        await said(bus, "a", cause="ev-b")
        await said(bus, "b", cause="ev-a")
        await said(bus, "self", cause="ev-self")
        await said(bus, "orphan", cause="ev-gone")
    assert sorted(name for _, name in find(workspace, "c-1")) == ["a", "b", "orphan", "self"]


async def test_a_long_chain_is_walked(workspace: Path) -> None:
    """Longer than Python's stack, each one the cause of the next."""
    async with disk_bus(workspace) as bus:
        first = EventMeta(topic="talk", type="SAID", space_id="home", event_id="ev-0", correlation_id="c-1")
        others = [first.replace(event_id=f"ev-{n}", causation_id=f"ev-{n - 1}") for n in range(1, 1500)]
        await bus.publish_many([Event(meta, {"name": str(n)}) for n, meta in enumerate([first, *others])])
    assert find(workspace, "c-1") == [(n, str(n)) for n in range(1500)]
