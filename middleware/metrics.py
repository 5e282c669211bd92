"""What is counted and timed at every hop: OpenTelemetry's messaging instruments, and the seed's Prometheus names."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics
from opentelemetry.metrics import MeterProvider, Observation

from events.contracts import Hop, HopResult, Next, Settlement, Stage
from events.errors import StorageFull
from events.persistence.store import LogName
from events.types import Ack, EventMeta
from middleware import conventions as names
from middleware.depth import DeadLetterDepth
from middleware.instruments import BoundedNames, Histogram, Labels, Latency, Registry, Sample, weakly

if TYPE_CHECKING:
    from events.bus import EventBus, Statistics

_SNAPSHOT_S: Final = 0.1
_TRIES: Final = 5
log = logging.getLogger(__name__)

Sink = Callable[[str, float, Mapping[str, str]], object]
"""Called with a metric's name, its value (1 for a count) and its labels, as it happens. Must not block."""


class _Series:
    """What is known of one topic (group is None), or of one topic in one group."""

    __slots__ = ("_attributes", "_base", "done", "failed", "labels", "latency", "messages", "retried", "skipped")

    def __init__(self, topic: str, group: str | None) -> None:
        self.labels = {"topic": topic} if group is None else {"topic": topic, "group": group}
        self.done = 0
        self.messages: Counter[str | None] = Counter()
        self.failed: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.retried = 0
        self.latency = Histogram()
        self._base = {names.MESSAGING_SYSTEM: names.SYSTEM, names.DESTINATION: topic}
        if group is not None:
            self._base[names.CONSUMER_GROUP] = group
        self._attributes: dict[tuple[str, str | None], Mapping[str, str]] = {}

    def attributes(self, operation: str, kind: str, error: str | None = None) -> Mapping[str, str]:
        """OpenTelemetry's attributes; made once, since they are asked for with every event."""
        found = self._attributes.get((operation, error))
        if found is None:
            found = {**self._base, names.OPERATION_NAME: operation, names.OPERATION_TYPE: kind}
            if error is not None:
                found[names.ERROR_TYPE] = error
            self._attributes[operation, error] = found
        return found


class MetricsMiddleware:
    """Counts and times every hop, and asks the bus for lag, depth and a full disk when somebody reads.

    `expose()` is the Prometheus text; the same names, and the conventions' own instruments, go to OpenTelemetry's
    meter; `sink` is told everything as it happens. Labels take at most `max_label_values` distinct topics, groups
    and reasons each, then `other`. Reading is allowed from any thread.
    """

    stage = Stage.MEASURE

    def __init__(
        self,
        sink: Sink | None = None,
        *,
        meter_provider: MeterProvider | None = None,
        max_label_values: int = 100,
    ) -> None:
        meter = metrics.get_meter(names.SYSTEM, meter_provider=meter_provider)
        buckets = names.DURATION_BUCKETS_S
        self._operation_s = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a publish or a settle.",
            explicit_bucket_boundaries_advisory=buckets,
        )
        self._process_s = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of a handle.", explicit_bucket_boundaries_advisory=buckets
        )
        # Observed, where the conventions' counters could be added to as well: exported alike, at no cost an event.
        for name, described, observe in (
            ("messaging.client.sent.messages", "Events published.", self._observe_sent),
            ("messaging.client.consumed.messages", "Events delivered.", self._observe_consumed),
        ):
            meter.create_observable_counter(name, [weakly(observe)], "{message}", described)
        self._sink = sink
        self._is_sink_broken = False
        self._topic_names, self._group_names, self._reasons = (BoundedNames(max_label_values) for _ in range(3))
        self._topics: dict[str, _Series] = {}
        self._pairs: dict[tuple[str, str], _Series] = {}
        self._dead: Counter[str] = Counter()
        self._bus: EventBus | None = None
        self._depth: DeadLetterDepth | None = None
        self._snapshot: tuple[float, Statistics] | None = None
        self.registry = Registry(meter)
        self._register()

    # -- with the bus ------------------------------------------------------------------------------------------

    def attach(self, bus: EventBus) -> None:
        """Ask this bus from now on."""
        self._bus, self._depth, self._snapshot = bus, DeadLetterDepth(bus.store), None

    async def start(self) -> None:
        """Count the dead letters that are there already."""
        if self._depth is not None:
            await self._depth.find()

    async def before_checkpoint(self) -> None:
        """Deaths touch a checkpoint, so this is when there may be new ones."""
        await self.refresh()

    async def refresh(self) -> None:
        """Have the depth of the dead letters up to date, as after a purge; all else always is."""
        if self._depth is not None:
            await self._depth.refresh()

    # -- hops --------------------------------------------------------------------------------------------------

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        record = self._published if hop.kind == "publish" else self._handled
        started = time.perf_counter()
        try:
            result = await call_next(hop)
        except BaseException as error:
            record(hop, time.perf_counter() - started, None, self._reasons(names.error_type_of(error)))
            if isinstance(error, StorageFull):
                self._tell("events_storage_full", 1, {})
            raise
        record(hop, time.perf_counter() - started, result, None)
        return result

    def _published(self, hop: Hop, seconds: float, _result: HopResult, error: str | None) -> None:
        for topic, number in _by_topic(hop.metas):
            series = self._topics.get(topic) or self._new_topic(topic)
            self._operation_s.record(seconds, series.attributes(names.PUBLISH, "send", error))
            series.messages[error] += number
            if error is not None:
                series.failed[error] += number
                self._tell("events_publish_err_total", number, {**series.labels, "error": error})
                continue
            series.done += number
            series.latency.record(seconds)
            if self._sink is not None:
                self._tell("events_publish_count", number, series.labels)
                self._tell("events_publish_latency_seconds", seconds, series.labels)

    def _handled(self, hop: Hop, seconds: float, result: HopResult, error: str | None) -> None:
        group = hop.group or ""
        for topic, number in _by_topic(hop.metas):
            series = self._pairs.get((topic, group)) or self._new_pair(topic, group)
            ok, failures = (0, [error] * number) if error is not None else _judged(hop, topic, result)
            error = failures[0] if failures else None
            self._process_s.record(seconds, series.attributes(names.HANDLE, "process", error))
            series.messages[error] += number
            series.done += ok
            series.latency.record(seconds)
            if failures:
                series.failed.update(failures)
            if self._sink is not None:
                for name, count in (("events_handle_ok_total", ok), ("events_handle_err_total", len(failures))):
                    if count:
                        self._tell(name, count, series.labels)
                self._tell("events_handle_latency_seconds", seconds, series.labels)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """Deaths, skips and retries are known only here: an event may end without having been delivered."""
        for one in settlements:
            series = self._pairs.get((one.topic, one.group)) or self._new_pair(one.topic, one.group)
            if one.outcome == "acked":
                continue
            if one.outcome == "dead":
                topic = series.labels["topic"]
                self._dead[topic] += 1
                self._tell("events_dlq_total", 1, {"topic": topic})
                if self._depth is not None:
                    self._depth.expect(LogName(one.space_id, one.topic))
            elif one.outcome == "retry":
                series.retried += 1
                self._tell("events_retry_total", 1, series.labels)
            else:
                reason = self._reasons(one.outcome)
                series.skipped[reason] += 1
                self._tell("events_skipped_total", 1, {**series.labels, "reason": reason})
        if settlements:
            seconds = (settlements[0].ended_ns - settlements[0].started_ns) / 1e9
            self._operation_s.record(max(0.0, seconds), series.attributes(names.SETTLE, "settle"))

    # -- reading -----------------------------------------------------------------------------------------------

    def expose(self) -> str:
        """Everything in Prometheus' text format, to be served as `instruments.CONTENT_TYPE`."""
        return self.registry.text()

    def latency(self, topic: str, group: str | None = None) -> Latency:
        """p50, p95 and p99 of publishing to a topic, or of handling it in a group; NaN where nothing happened."""
        series = self._topics.get(topic) if group is None else self._pairs.get((topic, group))
        return Latency.of(Histogram() if series is None else series.latency)

    def _register(self) -> None:
        topic, pair, group = ("topic",), ("topic", "group"), ("group",)
        add, topics, pairs, of_groups = self.registry, self._each_topic, self._each_pair, self._of_groups
        add.counter("events_publish_count", "Events published.", topic, topics(lambda one: one.done))
        add.counter(
            "events_publish_err_total", "Events whose publish failed.", ("topic", "error"), self._publish_failures
        )
        add.histogram(
            "events_publish_latency_seconds", "Time to publish.", topic, lambda: _latencies(self._topics.values())
        )
        add.counter("events_handle_ok_total", "Deliveries handled.", pair, pairs(lambda one: one.done))
        add.counter("events_handle_err_total", "Failed attempts.", pair, pairs(lambda one: one.failed.total()))
        add.histogram(
            "events_handle_latency_seconds", "Time to handle.", pair, lambda: _latencies(self._pairs.values())
        )
        add.counter("events_retry_total", "Deliveries that come again.", pair, pairs(lambda one: one.retried))
        add.counter("events_skipped_total", "Events settled unhandled.", (*pair, "reason"), self._skips)
        add.counter("events_dlq_total", "Events that died.", topic, lambda: _by_label(self._dead))
        add.gauge("events_dlq_depth", "Dead letters that need somebody.", topic, self._depths)
        add.gauge("events_storage_full", "1 while the disk has no room.", (), self._storage_full)
        add.gauge("events_lag", "Events not settled.", group, of_groups("lag", sum))
        add.gauge("events_lag_seconds", "Age of the first event behind all settled ones.", group, of_groups("lag_s"))
        add.gauge("events_oldest_unsettled_seconds", "Age of the oldest.", group, of_groups("oldest_s"))
        add.gauge("events_inflight", "Events queued or running.", group, of_groups("inflight", sum))
        add.gauge("events_parked", "Events that wait for a later time.", group, of_groups("parked", sum))
        add.counter("events_dropped_total", "Events the gate dropped.", group, of_groups("dropped", sum))
        add.counter("events_deferred_total", "Times the gate put an event off.", group, of_groups("deferred", sum))
        add.counter("events_lost_total", "Events given up by a repair or retention.", group, of_groups("lost", sum))

    def _observe_sent(self) -> Iterable[Observation]:
        for one in list(self._topics.values()):
            for error, count in list(one.messages.items()):
                yield Observation(count, one.attributes(names.PUBLISH, "send", error))

    def _observe_consumed(self) -> Iterable[Observation]:
        for one in list(self._pairs.values()):
            for error, count in list(one.messages.items()):
                yield Observation(count, one.attributes(names.HANDLE, "process", error))

    def _each_topic(self, value: Callable[[_Series], float]) -> Callable[[], Iterable[Sample]]:
        return lambda: [(tuple(one.labels.values()), value(one)) for one in list(self._topics.values())]

    def _each_pair(self, value: Callable[[_Series], float]) -> Callable[[], Iterable[Sample]]:
        return lambda: [(tuple(one.labels.values()), value(one)) for one in list(self._pairs.values())]

    def _of_groups(self, field: str, merge: Callable[[Iterable[float]], float] = max) -> Callable[[], Iterable[Sample]]:
        def collect() -> Iterable[Sample]:
            found: dict[str, list[float]] = {}
            statistics = self._statistics()
            for name, values in statistics.groups.items() if statistics is not None else ():
                found.setdefault(self._group_names(name), []).append(values.get(field, 0))
            return [((label,), merge(values)) for label, values in found.items()]

        return collect

    def _publish_failures(self) -> Iterable[Sample]:
        for one in list(self._topics.values()):
            yield from (((one.labels["topic"], error), count) for error, count in list(one.failed.items()))

    def _skips(self) -> Iterable[Sample]:
        for one in list(self._pairs.values()):
            labels = tuple(one.labels.values())
            yield from (((*labels, reason), count) for reason, count in list(one.skipped.items()))

    def _depths(self) -> Iterable[Sample]:
        merged: Counter[str] = Counter()
        for topic, depth in self._depth.by_topic().items() if self._depth is not None else ():
            merged[self._topic_names(topic)] += depth
        return _by_label(merged)

    def _storage_full(self) -> Iterable[Sample]:
        statistics = self._statistics()
        return [((), int(statistics.storage_full))] if statistics is not None else []

    def _statistics(self) -> Statistics | None:
        """The bus's own numbers, for a moment, so that one reading asks once."""
        if self._bus is None:
            return None
        now = time.monotonic()
        if self._snapshot is None or now - self._snapshot[0] > _SNAPSHOT_S:
            for tries_left in reversed(range(_TRIES)):
                try:
                    self._snapshot = now, self._bus.statistics()
                    break
                except (RuntimeError, ValueError, IndexError):
                    # Another thread reads, and the loop changed something under its hands.
                    if not tries_left:
                        raise
        return self._snapshot[1] if self._snapshot is not None else None

    # -- series ------------------------------------------------------------------------------------------------

    def _new_topic(self, topic: str) -> _Series:
        label = self._topic_names(topic)
        return self._topics.setdefault(label, _Series(label, None))

    def _new_pair(self, topic: str, group: str) -> _Series:
        labels = self._topic_names(topic), self._group_names(group)
        return self._pairs.setdefault(labels, _Series(*labels))

    def _tell(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        if self._sink is None:
            return
        try:
            self._sink(name, value, labels)
        except Exception:
            if not self._is_sink_broken:  # once is enough: it would be said with every event
                self._is_sink_broken = True
                log.exception("the metrics sink failed; it is still called, and this is not said again")


def _by_topic(metas: Sequence[EventMeta]) -> Iterable[tuple[str, int]]:
    return ((metas[0].topic, 1),) if len(metas) == 1 else Counter(str(meta.topic) for meta in metas).items()


def _judged(hop: Hop, topic: str, result: HopResult) -> tuple[int, Sequence[str]]:
    """How many deliveries of a topic were handled, and the error types of those that failed; a skip is neither."""
    if len(hop.metas) == 1 and not hop.verdicts and (result is None or isinstance(result, Ack)):
        return 1, ()
    verdicts = [names.verdict_of(hop, i, result) for i, one in enumerate(hop.deliveries) if one.topic == topic]
    failures = [failure for verdict in verdicts if (failure := names.failure_of(verdict)) is not None]
    return sum(verdict is None or isinstance(verdict, Ack) for verdict in verdicts), failures


def _latencies(series: Iterable[_Series]) -> Iterable[tuple[Labels, Histogram]]:
    return [(tuple(one.labels.values()), one.latency) for one in list(series)]


def _by_label(counts: Mapping[str, Any]) -> Iterable[Sample]:
    return [((label,), count) for label, count in list(counts.items())]
