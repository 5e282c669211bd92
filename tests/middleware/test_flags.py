"""Feature flags: middlewares that are turned on and off under a running bus, and the metric for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from events.chain import check_order, name_of, stage_of
from events.contracts import Hop, HopResult, Middleware, Next, Settlement, Stage
from events.errors import InvalidMessage
from events.types import Event
from middleware.flags import FeatureFlags
from middleware.metrics import MetricsMiddleware
from middleware.redaction import RedactionMiddleware
from tests.events.bus_support import history, settled
from tests.middleware.exposition import parse
from tests.middleware.hop_support import Terminal, chained_bus, cross, event, publish_hop


class Watching:
    """A middleware with everything that the contract offers."""

    stage = Stage.TRACE

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        self.seen.append(hop.kind)
        return await call_next(hop)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.seen += [one.outcome for one in settlements]

    async def before_checkpoint(self) -> None:
        self.seen.append("checkpoint")


async def test_a_middleware_is_turned_off_and_on() -> None:
    """Off, a hop passes it by; the next one may meet it again."""
    flags, watching = FeatureFlags(), Watching()
    flagged = flags.flagged(watching, "tracing")
    for on in (True, False, True):
        flags.set("tracing", on)
        await cross(flagged, publish_hop(event()), Terminal())
    assert watching.seen == ["publish", "publish"]
    assert (flagged.taken, flagged.passed) == (2, 1)


async def test_a_flag_may_start_off() -> None:
    """`initial` is how it stands before anybody turned it."""
    flags, watching = FeatureFlags({"tracing": False}), Watching()
    await cross(flags.flagged(watching, "tracing"), publish_hop(event()), Terminal())
    assert not watching.seen
    assert not flags.is_on("tracing")
    assert not flags.is_on("unheard of")


def test_behind_a_flag_it_stands_where_it_stood() -> None:
    """Stage, name and the optional parts of the contract are those of what is behind it."""
    flags = FeatureFlags()
    flagged = flags.flagged(Watching(), "tracing")
    assert stage_of(flagged) is Stage.TRACE
    assert name_of(flagged) == "Watching"
    assert hasattr(flagged, "before_checkpoint")
    assert not hasattr(flagged, "authorise")
    with pytest.raises(InvalidMessage):
        check_order([RedactionMiddleware(), flagged])


async def test_off_it_hears_nothing_and_still_saves() -> None:
    """What it was told before must still become durable; what ends while it is off is not its business."""
    flags, watching = FeatureFlags({"tracing": False}), Watching()
    flagged = flags.flagged(watching, "tracing")
    flagged.settled([Settlement("g", "s", "t", 1, event().meta, "acked", None, 0, 1)])
    await flagged.before_checkpoint()
    assert watching.seen == ["checkpoint"]
    flags.turn_on("tracing")
    flagged.settled([Settlement("g", "s", "t", 1, event().meta, "acked", None, 0, 1)])
    assert watching.seen == ["checkpoint", "acked"]


def test_a_flag_that_switches_nothing_is_a_mistake() -> None:
    """The error knows which one was meant."""
    flags = FeatureFlags()
    flags.flagged(Watching(), "tracing")
    with pytest.raises(InvalidMessage, match="Did you mean 'tracing'"):
        flags.turn_off("tracking")


def test_authorisation_has_no_switch() -> None:
    """Off, everything would be allowed."""

    class Deciding(Watching):
        stage = Stage.AUTHORISE

    with pytest.raises(InvalidMessage, match="authorisation"):
        FeatureFlags().flagged(Deciding(), "rbac")


async def test_a_plain_function_may_be_flagged() -> None:
    """As anywhere else in the chain."""

    async def stamp(hop: Hop, call_next: Next) -> HopResult:
        return await call_next(hop)

    flagged = FeatureFlags().flagged(stamp, "stamp")
    assert (name_of(flagged), stage_of(flagged)) == ("stamp", Stage.CONTENT)
    assert not hasattr(flagged, "settled")
    await cross(flagged, publish_hop(event()), Terminal())


async def test_flags_on_a_running_bus_with_their_metric(tmp_path: Path) -> None:
    """Redaction is turned off between two publishes; the metrics say how it stands, and how many hops it took."""
    metrics = MetricsMiddleware()
    flags = FeatureFlags(registry=metrics.registry)
    chain: list[Middleware] = [metrics, flags.flagged(RedactionMiddleware(), "redaction")]

    async def handler(one: Event[Any]) -> None: ...

    async with chained_bus(tmp_path / "w", *chain) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event({"x": "ann@example.org"}))
        flags.turn_off("redaction")
        await bus.publish(event({"x": "bob@example.org"}))
        await settled(bus)
        found = [record.event.payload["x"] for record in await history(bus)]
    assert found == ["[redacted:email]", "bob@example.org"]
    exposed = parse(metrics.expose())
    assert exposed.value("events_middleware_enabled", middleware="redaction") == 0
    hops = {
        enabled: exposed.value("events_middleware_hops_total", middleware="redaction", enabled=enabled)
        for enabled in ("true", "false")
    }
    assert hops["true"] + hops["false"] == 4
    assert hops["true"] >= 1
    assert hops["false"] >= 1
