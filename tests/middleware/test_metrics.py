"""Metrics: what a real SDK exports, what Prometheus reads, what the sink hears, and that labels stay few."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from events.bus import EventBus
from events.contracts import DeadLetter, Hop, HopResult, Settlement, Skip
from events.errors import Denied, StorageFull
from events.persistence.memory import MemoryStore
from events.testing.clock import FakeClock
from events.types import Event, EventMeta, EventType, Nack
from middleware.metrics import MetricsMiddleware
from tests.events.bus_support import Held, settled, until
from tests.middleware.exposition import Exposed, parse
from tests.middleware.hop_support import FakeDelivery, Terminal, chained_bus, cross, event, handle_hop, publish_hop

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PUBLISH = {
    "messaging.system": "cognitive_events",
    "messaging.operation.name": "events.publish",
    "messaging.operation.type": "send",
    "messaging.destination.name": "actions",
}
HANDLE = {
    "messaging.system": "cognitive_events",
    "messaging.operation.name": "events.handle",
    "messaging.operation.type": "process",
    "messaging.destination.name": "actions",
    "messaging.consumer.group.name": "learner",
}


class Exported:
    """A real SDK that is read when a test asks."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The attributes and data of every series of a metric."""
        data = self.reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def exported() -> Iterator[Exported]:
    """The SDK, shut down afterwards."""
    made = Exported()
    yield made
    made.provider.shutdown()


def read(metrics: MetricsMiddleware) -> Exposed:
    """What a strict scraper makes of the text."""
    return parse(metrics.expose())


# -- the conventions' instruments --------------------------------------------------------------------------------


async def test_a_publish_is_counted_and_timed(exported: Exported) -> None:
    """`messaging.client.sent.messages` and `messaging.client.operation.duration`, with the conventions' buckets."""
    metrics = MetricsMiddleware(meter_provider=exported.provider)
    await cross(metrics, publish_hop(event()), Terminal())
    await cross(metrics, publish_hop(event(), event()), Terminal())
    ((attributes, sent),) = exported.points("messaging.client.sent.messages")
    assert (attributes, sent.value) == (PUBLISH, 3)
    ((attributes, duration),) = exported.points("messaging.client.operation.duration")
    assert attributes == PUBLISH
    assert isinstance(duration, HistogramDataPoint)
    assert duration.count == 2
    assert tuple(duration.explicit_bounds) == BUCKETS


async def test_a_handle_is_counted_and_timed(exported: Exported) -> None:
    """`messaging.client.consumed.messages` and `messaging.process.duration`, per topic and group."""
    metrics = MetricsMiddleware(meter_provider=exported.provider)
    await cross(metrics, handle_hop(event()), Terminal())
    ((attributes, consumed),) = exported.points("messaging.client.consumed.messages")
    assert (attributes, consumed.value) == (HANDLE, 1)
    ((attributes, duration),) = exported.points("messaging.process.duration")
    assert (attributes, duration.count, tuple(duration.explicit_bounds)) == (HANDLE, 1, BUCKETS)


def test_a_settle_is_an_operation(exported: Exported) -> None:
    """It is timed by the clock that was around it."""
    metrics = MetricsMiddleware(meter_provider=exported.provider)
    metrics.settled([Settlement("learner", "home", "actions", 1, event().meta, "acked", None, 0, 20_000_000)])
    ((attributes, duration),) = exported.points("messaging.client.operation.duration")
    assert attributes["messaging.operation.name"] == "events.settle"
    assert duration.sum == pytest.approx(0.02)


async def test_an_error_is_an_attribute(exported: Exported) -> None:
    """`error.type` is the bus's code, the class, or the verdict."""
    metrics = MetricsMiddleware(meter_provider=exported.provider)

    async def denied(hop: Hop) -> HopResult:
        raise Denied("a", "publish", "t", "s", "")

    for hop in (publish_hop(event()), handle_hop(event())):
        with pytest.raises(Denied):
            await metrics(hop, denied)
    await cross(metrics, handle_hop(event()), Terminal(lambda hop: Nack("no")))
    ((attributes, _),) = exported.points("messaging.client.sent.messages")
    assert attributes == {**PUBLISH, "error.type": "DENIED"}
    errors = [attributes["error.type"] for attributes, _ in exported.points("messaging.process.duration")]
    assert sorted(errors) == ["DENIED", "nack"]


async def test_the_seeds_names_are_exported_too(exported: Exported, tmp_path: Path) -> None:
    """What Prometheus reads from the text, OpenTelemetry exports under the same names."""
    metrics = MetricsMiddleware(meter_provider=exported.provider)

    async def handler(one: Event[Any]) -> DeadLetter | None:
        return DeadLetter("bad") if one.payload["n"] else None

    async with chained_bus(tmp_path / "w", metrics) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many([event({"n": n}) for n in range(3)])
        await settled(bus)
        await metrics.refresh()
        values = {
            name: [(attributes, point.value) for attributes, point in exported.points(name)]
            for name in (
                "events_publish_count",
                "events_handle_ok_total",
                "events_handle_err_total",
                "events_dlq_total",
                "events_dlq_depth",
                "events_lag",
                "events_storage_full",
            )
        }
    topic, pair = {"topic": "actions"}, {"topic": "actions", "group": "learner"}
    assert values == {
        "events_publish_count": [(topic, 3)],
        "events_handle_ok_total": [(pair, 1)],
        "events_handle_err_total": [(pair, 2)],
        "events_dlq_total": [(topic, 2)],
        "events_dlq_depth": [(topic, 2)],
        "events_lag": [({"group": "learner"}, 0)],
        "events_storage_full": [({}, 0)],
    }


# -- the seed's names --------------------------------------------------------------------------------------------


async def test_verdicts_are_told_apart() -> None:
    """Handled, failed, skipped and told to wait: only the first two are ok and err."""
    metrics = MetricsMiddleware()
    verdicts: list[HopResult] = [None, Nack("no"), DeadLetter("bad"), Skip("filtered"), Nack("later", count=False)]
    terminal = Terminal(lambda hop: verdicts[len(terminal.hops) - 1])
    for _ in verdicts:
        await cross(metrics, handle_hop(event()), terminal)
    exposed = read(metrics)
    assert exposed.value("events_handle_ok_total", topic="actions", group="learner") == 1
    assert exposed.value("events_handle_err_total", topic="actions", group="learner") == 2
    assert exposed.value("events_handle_latency_seconds_count", topic="actions", group="learner") == 5


async def test_a_batch_counts_each_of_its_events() -> None:
    """Two topics in one delivery, one event skipped by somebody inside, one failed: all in their own series."""
    metrics = MetricsMiddleware()
    deliveries = [FakeDelivery(1), FakeDelivery(2), FakeDelivery(1, topic="affect")]
    hop = handle_hop(event(), event(), event(topic="affect"), deliveries=deliveries)

    async def inside(hop: Hop) -> HopResult:
        hop.without({0: Skip("filtered"), 2: Nack("no")})
        return None

    await metrics(hop, inside)
    exposed = read(metrics)
    assert exposed.of("events_handle_ok_total") == {("learner", "actions"): 1, ("learner", "affect"): 0}
    assert exposed.of("events_handle_err_total") == {("learner", "actions"): 0, ("learner", "affect"): 1}


async def test_a_failed_publish_is_not_published() -> None:
    """It has a name of its own, with the reason."""
    metrics = MetricsMiddleware()

    async def full(hop: Hop) -> HopResult:
        raise StorageFull("actions", 1.0)

    with pytest.raises(StorageFull):
        await metrics(publish_hop(event(), event()), full)
    exposed = read(metrics)
    assert exposed.value("events_publish_err_total", topic="actions", error="STORAGE_FULL") == 2
    assert exposed.value("events_publish_count", topic="actions") == 0


def test_skips_retries_and_deaths_are_known_by_their_end() -> None:
    """Also of events that were never delivered, as one that expired."""
    metrics = MetricsMiddleware()
    meta = event().meta
    for outcome in ("acked", "expired", "filtered", "filtered", "retry", "dead"):
        metrics.settled([Settlement("learner", "home", "actions", 1, meta, outcome, None, 0, 1)])
    exposed = read(metrics)
    labels = {"topic": "actions", "group": "learner"}
    assert exposed.value("events_skipped_total", **labels, reason="filtered") == 2
    assert exposed.value("events_skipped_total", **labels, reason="expired") == 1
    assert exposed.value("events_retry_total", **labels) == 1
    assert exposed.value("events_dlq_total", topic="actions") == 1


async def test_quantiles_are_readable() -> None:
    """p50, p95 and p99 per topic, and per topic and group; NaN where nothing happened."""
    metrics = MetricsMiddleware()

    async def slow(hop: Hop) -> HopResult:
        await anyio.sleep(0.02)
        return None

    await metrics(handle_hop(event()), slow)
    await cross(metrics, publish_hop(event()), Terminal())
    handled, published = metrics.latency("actions", "learner"), metrics.latency("actions")
    assert (handled.count, published.count) == (1, 1)
    assert 0.02 <= handled.p50_s <= handled.p95_s <= handled.p99_s
    assert published.p99_s < handled.p50_s
    assert math.isnan(metrics.latency("nothing").p50_s)


async def test_a_topic_given_as_a_member_is_one_series() -> None:
    """E2: the member and its name are the same topic."""
    metrics = MetricsMiddleware()
    one = Event(EventMeta(topic=EventType.ACTION_EXECUTED, space_id="home"), {})
    await cross(metrics, publish_hop(one), Terminal())
    await cross(metrics, publish_hop(event(topic="ACTION_EXECUTED")), Terminal())
    assert read(metrics).of("events_publish_count") == {("ACTION_EXECUTED",): 2}


async def test_labels_are_bounded() -> None:
    """After so many topics, groups and reasons the rest is `other`, in the text and in what OpenTelemetry gets."""
    metrics = MetricsMiddleware(max_label_values=3)
    for number in range(10):
        await cross(metrics, publish_hop(event(topic=f"t{number}")), Terminal())
        await cross(metrics, handle_hop(event(topic="t0"), group=f"g{number}"), Terminal())
        outcome = f"reason-{number}"
        metrics.settled([Settlement("g0", "home", "t0", 1, event().meta, outcome, None, 0, 1)])
    exposed = read(metrics)
    assert exposed.of("events_publish_count") == {("t0",): 1, ("t1",): 1, ("t2",): 1, ("other",): 7}
    groups = {group for group, _ in exposed.of("events_handle_ok_total")}
    assert groups == {"g0", "g1", "g2", "other"}
    reasons = {reason for _, reason, _ in exposed.of("events_skipped_total")}
    assert reasons == {"reason-0", "reason-1", "reason-2", "other"}


# -- the sink ----------------------------------------------------------------------------------------------------


async def test_the_sink_hears_everything_as_it_happens() -> None:
    """Names, values and labels are those of the text."""
    heard: list[tuple[str, float, dict[str, str]]] = []
    metrics = MetricsMiddleware(sink=lambda name, value, labels: heard.append((name, value, dict(labels))))
    await cross(metrics, publish_hop(event()), Terminal())
    await cross(metrics, handle_hop(event()), Terminal())
    await cross(metrics, handle_hop(event()), Terminal(lambda hop: Nack("no")))
    metrics.settled([Settlement("learner", "home", "actions", 1, event().meta, "dead", "bad", 0, 1)])
    topic, pair = {"topic": "actions"}, {"topic": "actions", "group": "learner"}
    counts = [one for one in heard if not one[0].endswith("seconds")]
    assert counts == [
        ("events_publish_count", 1, topic),
        ("events_handle_ok_total", 1, pair),
        ("events_handle_err_total", 1, pair),
        ("events_dlq_total", 1, topic),
    ]
    assert [name for name, _, _ in heard if name.endswith("seconds")] == [
        "events_publish_latency_seconds",
        "events_handle_latency_seconds",
        "events_handle_latency_seconds",
    ]


async def test_the_sink_hears_of_a_full_disk() -> None:
    """`events_storage_full` is told at once, not when somebody scrapes."""
    heard: list[str] = []
    metrics = MetricsMiddleware(sink=lambda name, value, labels: heard.append(name))

    async def full(hop: Hop) -> HopResult:
        raise StorageFull("actions", 1.0)

    with pytest.raises(StorageFull):
        await metrics(publish_hop(event()), full)
    assert "events_storage_full" in heard


async def test_a_sink_that_fails_is_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    """The hop goes on, and the log says it once."""

    def broken(name: str, value: float, labels: Any) -> None:
        raise RuntimeError("no")

    metrics = MetricsMiddleware(sink=broken)
    for _ in range(3):
        await cross(metrics, publish_hop(event()), Terminal())
    assert read(metrics).value("events_publish_count", topic="actions") == 3
    assert caplog.text.count("the metrics sink failed") == 1


# -- on a bus ----------------------------------------------------------------------------------------------------


async def test_lag_in_events_and_in_seconds() -> None:
    """Lag grows while nobody handles, in events and in time; an event that waits for a retry is old, but no lag."""
    clock = FakeClock()
    metrics, held = MetricsMiddleware(), Held()
    bus = EventBus([metrics], store=MemoryStore(clock=clock))
    await bus.subscribe("actions", "slow", held)
    await bus.publish(event({"n": 1}))
    await clock.advance(30)
    await bus.publish(event({"n": 2}))
    await clock.advance(10)

    def lag() -> tuple[float, ...]:
        metrics._snapshot = None
        exposed = read(metrics)
        names = ("events_lag", "events_lag_seconds", "events_oldest_unsettled_seconds", "events_inflight")
        return tuple(exposed.value(name, group="slow") for name in names)

    assert lag() == (2, 40, 40, 2)
    held.let_go()
    await until(lambda: held.ended == [1, 2])
    await clock.advance(1)
    assert lag() == (0, 0, 0, 0)

    async def fail_first(one: Event[Any]) -> Nack | None:
        return Nack("later", delay=100) if one.payload["n"] == 3 else None

    await bus.subscribe("plans", "picky", fail_first)
    for n in (3, 4):
        await bus.publish(event({"n": n}, topic="plans"))
    await clock.advance(50)
    metrics._snapshot = None
    exposed = read(metrics)
    assert exposed.value("events_lag", group="picky") == 1
    assert exposed.value("events_lag_seconds", group="picky") == 0
    assert exposed.value("events_oldest_unsettled_seconds", group="picky") == 50
    assert exposed.value("events_parked", group="picky") == 1
    await clock.advance(100)
    closing = anyio.Event()

    async def close() -> None:
        await bus.close(timeout_s=0)
        closing.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        while not closing.is_set():
            await clock.advance(1)


async def test_the_depth_of_dead_letters(tmp_path: Path) -> None:
    """Deaths add to it, also those of an earlier process; a retry that succeeds and a purge take away."""
    fails = True

    async def handler(one: Event[Any]) -> None:
        if fails:
            raise RuntimeError("no")

    def depth(metrics: MetricsMiddleware) -> float:
        return read(metrics).of("events_dlq_depth").get(("actions",), 0)

    first = MetricsMiddleware()
    async with chained_bus(tmp_path / "w", first, max_retries=0) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish_many([event({"n": n}) for n in range(3)])
        await settled(bus)
        await until(lambda: depth(first) == 3)
    second = MetricsMiddleware()
    async with chained_bus(tmp_path / "w", second, max_retries=0) as bus:
        assert depth(second) == 3
        fails = False
        await bus.subscribe("actions", "learner", handler)
        assert await bus.dlq.retry(offset=2) == 1
        await settled(bus)
        await until(lambda: depth(second) == 2)
        assert await bus.dlq.purge(older_than_s=0) == 2
        await second.refresh()
        assert depth(second) == 0


async def test_an_exporters_thread_may_read_at_any_time(tmp_path: Path) -> None:
    """Scraping from another thread while events fly never fails, and every text is whole."""
    metrics = MetricsMiddleware()
    errors: list[BaseException] = []
    stop = threading.Event()

    def scrape() -> None:
        try:
            while not stop.is_set():
                metrics._snapshot = None
                read(metrics)
        except BaseException as error:
            errors.append(error)

    async with chained_bus(tmp_path / "w", metrics) as bus:

        async def handler(one: Event[Any]) -> Nack | None:
            return Nack("again") if one.payload["n"] % 7 == 0 else None

        thread = threading.Thread(target=scrape)
        thread.start()
        try:
            for number in range(20):
                await bus.subscribe(f"t{number}", f"g{number}", handler, max_retries=1)
                await bus.publish_many([event({"n": n}, topic=f"t{number}", key=f"{n % 3}") for n in range(20)])
            await settled(bus)
        finally:
            stop.set()
            thread.join()
    assert not errors


def test_it_may_be_read_before_there_is_a_bus() -> None:
    """Nothing happened yet, and the text says so in the right format."""
    exposed = read(MetricsMiddleware())
    assert exposed.types["events_publish_count"] == "counter"
    assert exposed.types["events_handle_latency_seconds"] == "histogram"
    assert exposed.types["events_storage_full"] == "gauge"
