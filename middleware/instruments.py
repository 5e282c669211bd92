"""Counters, gauges and histograms that are read when somebody asks: as Prometheus text, and through OpenTelemetry.

The text follows Prometheus' exposition format 0.0.4:

    # HELP events_handle_ok_total Deliveries that were handled.
    # TYPE events_handle_ok_total counter
    events_handle_ok_total{topic="actions",group="learner"} 17
"""

from __future__ import annotations

import logging
import math
import re
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal

from opentelemetry.metrics import CallbackOptions, Meter, Observation

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"
LATENCY_BOUNDS_S: Final = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2, 5))
_is_metric = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*").fullmatch
_is_label = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*").fullmatch
log = logging.getLogger(__name__)

Labels = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]


class BoundedNames:
    """The first `limit` distinct names as they are; all further ones are `other`, so that no label can explode."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("at least one name is kept")
        self._limit = limit
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        found = self._names.get(name)
        if found is not None:
            return found
        if len(self._names) >= self._limit:
            return OTHER
        self._names[str(name)] = plain = str(name)
        return plain


class Histogram:
    """How often what was measured fell between two bounds. From 10 µs to 50 s, three to a power of ten."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """Count one measurement."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many measurements there were."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """What that fraction stayed below, in seconds, as if evenly spread between two bounds; NaN for nothing."""
        rank = fraction * self.count
        if not rank:
            return math.nan
        below = 0
        for index, counted in enumerate(self.counts[:-1]):
            if counted and below + counted >= rank:
                low = LATENCY_BOUNDS_S[index - 1] if index else 0.0
                return low + (LATENCY_BOUNDS_S[index] - low) * (rank - below) / counted
            below += counted
        return LATENCY_BOUNDS_S[-1]


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram in four numbers."""

    count: int
    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, histogram: Histogram) -> Latency:
        """Summed up."""
        return cls(histogram.count, histogram.quantile(0.5), histogram.quantile(0.95), histogram.quantile(0.99))


Sample = tuple[Labels, float]
Collect = Callable[[], Iterable[Sample]]
CollectHistograms = Callable[[], Iterable[tuple[Labels, Histogram]]]


class _Family:
    """All series of one name. Several may contribute to it, each with labels of its own."""

    def __init__(self, name: str, kind: Kind, help: str, labels: Sequence[str]) -> None:
        if not _is_metric(name) or not all(map(_is_label, labels)):
            raise ValueError(f"not the name of a metric and of labels: {name!r} {list(labels)!r}")
        self.name, self.kind, self.help, self.labels = name, kind, help, tuple(labels)
        self.collectors: list[Callable[[], Iterable[tuple[Labels, Any]]]] = []

    def series(self) -> Iterable[tuple[Labels, Any]]:
        """Everything that is there now. A contributor that fails leaves out its own."""
        for collect in self.collectors:
            try:
                yield from collect()
            except Exception:
                log.exception("%s could not be collected", self.name)

    def observations(self) -> Iterable[Observation]:
        """The family as OpenTelemetry wants it."""
        for labels, value in self.series():
            yield Observation(value, dict(zip(self.labels, labels, strict=True)))

    def lines(self) -> Iterable[str]:
        """The family as text."""
        yield f"# HELP {self.name} {_escaped_help(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.series():
            pairs = list(zip(self.labels, labels, strict=True))
            if isinstance(value, Histogram):
                yield from _histogram_lines(self.name, pairs, value)
            else:
                yield _line(self.name, pairs, value)


class Registry:
    """Names, and whom to ask for their values. Nothing is counted here, so nothing is paid until somebody asks.

    Counters and gauges are given to OpenTelemetry as observable instruments of the same name. Asking is allowed from
    any thread: an exporter has one of its own.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._families: dict[str, _Family] = {}

    def counter(self, name: str, help: str, labels: Sequence[str], collect: Collect) -> None:
        """Something that only grows."""
        self._add(name, "counter", help, labels, collect)

    def gauge(self, name: str, help: str, labels: Sequence[str], collect: Collect) -> None:
        """Something that goes up and down."""
        self._add(name, "gauge", help, labels, collect)

    def histogram(self, name: str, help: str, labels: Sequence[str], collect: CollectHistograms) -> None:
        """Measurements by size. OpenTelemetry has histograms of its own, which cannot be observed."""
        self._add(name, "histogram", help, labels, collect)

    def text(self) -> str:
        """Every family in Prometheus' text format."""
        return "".join(f"{line}\n" for family in list(self._families.values()) for line in family.lines())

    def _add(
        self,
        name: str,
        kind: Kind,
        help: str,
        labels: Sequence[str],
        collect: Callable[[], Iterable[tuple[Labels, Any]]],
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = _Family(name, kind, help, labels)
            self._families[name] = family
            if self._meter is not None and kind != "histogram":
                self._observe(self._meter, family)
        elif (family.kind, family.labels) != (kind, tuple(labels)):
            raise ValueError(f"{name} is a {family.kind} with labels {list(family.labels)!r} already")
        family.collectors.append(collect)

    @staticmethod
    def _observe(meter: Meter, family: _Family) -> None:
        create = meter.create_observable_counter if family.kind == "counter" else meter.create_observable_gauge
        create(family.name, callbacks=[weakly(family.observations)], description=family.help)


def weakly(method: Callable[[], Iterable[Observation]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """A method as a callback that does not keep its object alive.

    A meter keeps its callbacks for ever, and a process may open and close many buses.
    """
    known = weakref.WeakMethod(method)

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        alive = known()
        return () if alive is None else alive()

    return observe


def _histogram_lines(name: str, pairs: list[tuple[str, str]], histogram: Histogram) -> Iterable[str]:
    *running, count = accumulate(list(histogram.counts))
    for bound, below in zip(LATENCY_BOUNDS_S, running, strict=True):
        yield _line(f"{name}_bucket", [*pairs, ("le", _number(bound))], below)
    yield _line(f"{name}_bucket", [*pairs, ("le", "+Inf")], count)
    yield _line(f"{name}_sum", pairs, histogram.total)
    yield _line(f"{name}_count", pairs, count)


def _line(name: str, pairs: Iterable[tuple[str, str]], value: float) -> str:
    labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
    return f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
