"""Counters, gauges and histograms: what they read as text, through OpenTelemetry, and how labels stay bounded."""

from __future__ import annotations

import gc
import logging
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from middleware.instruments import LATENCY_BOUNDS_S, OTHER, BoundedNames, Histogram, Latency, Registry
from tests.middleware.exposition import parse


@given(st.lists(st.tuples(st.text(), st.text()), unique=True, max_size=5), st.text())
def test_any_label_and_help_survive_the_text(labels: list[tuple[str, str]], help: str) -> None:
    """Quotes, backslashes and line ends are escaped; a strict parser reads back what was there."""
    registry = Registry()
    registry.counter("seen_total", help, ("a", "b"), lambda: [(one, 1) for one in labels])
    exposed = parse(registry.text())
    assert exposed.types == {"seen_total": "counter"}
    assert exposed.of("seen_total") == dict.fromkeys(labels, 1.0)


@pytest.mark.parametrize(
    "bad",
    [
        "events_total 1",
        "# TYPE a counter\na{x=y} 1\n",
        '# TYPE a counter\na{x="y"z="w"} 1\n',
        '# TYPE a counter\na{x="y\n"} 1\n',
        '# TYPE a counter\na{x="\\t"} 1\n',
        "# TYPE a counter\na one\n",
        "# TYPE a counter\na 1\na 1\n",
        "# TYPE a counter\n# TYPE a counter\n",
        "# TYPE a counter\n# TYPE b counter\nb 1\na 1\n",
        '# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
        "# TYPE a histogram\na 1\n",
    ],
)
def test_the_parser_is_strict(bad: str) -> None:
    """What these tests call accepted is what the format's grammar accepts."""
    with pytest.raises(ValueError, match=r"line|\+Inf|grow|histogram"):
        parse(bad)


def test_numbers_are_written_as_the_format_wants_them() -> None:
    """Whole numbers stay whole; infinities and NaN have names."""
    values = {"a": 3, "b": 0.25, "c": math.inf, "d": -math.inf, "e": math.nan, "f": True, "g": 1e300}
    registry = Registry()
    registry.gauge("g", "", ("of",), lambda: [((name,), value) for name, value in values.items()])
    written = [line.split(" ")[1] for line in registry.text().splitlines() if not line.startswith("#")]
    assert written == ["3", "0.25", "+Inf", "-Inf", "NaN", "1", "1e+300"]
    parse(registry.text())


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä"])
def test_a_bad_name_is_refused(name: str) -> None:
    """Names of metrics and labels keep to the grammar; they come from code, so this is a mistake in it."""
    with pytest.raises(ValueError, match="not the name"):
        Registry().counter(name, "", (), list)
    with pytest.raises(ValueError, match="not the name"):
        Registry().counter("fine", "", (name,), list)


def test_several_may_contribute_to_one_name() -> None:
    """Two breakers are one metric with two labels; another kind under the same name is refused."""
    registry = Registry()
    registry.gauge("open", "", ("of",), lambda: [(("a",), 1)])
    registry.gauge("open", "", ("of",), lambda: [(("b",), 0)])
    assert parse(registry.text()).of("open") == {("a",): 1, ("b",): 0}
    with pytest.raises(ValueError, match="already"):
        registry.counter("open", "", ("of",), list)


def test_one_that_cannot_be_collected_does_not_take_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A scrape shows what there is, and the log says what is missing."""
    registry = Registry()
    registry.gauge("broken", "", (), lambda: [((), 1 / 0)])
    registry.gauge("fine", "", (), lambda: [((), 1)])
    with caplog.at_level(logging.ERROR):
        assert parse(registry.text()).of("fine") == {(): 1}
    assert "broken" in caplog.text


def test_a_histogram_reads_its_quantiles() -> None:
    """p50, p95 and p99 lie in the right bucket: within a factor of 2.5 of the truth, from 10 µs to 50 s."""
    histogram, chance = Histogram(), random.Random(1)
    values = sorted(chance.lognormvariate(-6, 1.5) for _ in range(10_000))
    for value in values:
        histogram.record(value)
    summed = Latency.of(histogram)
    assert summed.count == 10_000
    for fraction, read in ((0.5, summed.p50_s), (0.95, summed.p95_s), (0.99, summed.p99_s)):
        true = values[int(fraction * 10_000)]
        assert true / 2.5 <= read <= true * 2.5


def test_a_histogram_at_its_ends() -> None:
    """Nothing is NaN, zero is in the first bucket, and what is beyond the last bound reads as that bound."""
    histogram = Histogram()
    assert math.isnan(histogram.quantile(0.5))
    histogram.record(0.0)
    assert 0 <= histogram.quantile(0.5) <= LATENCY_BOUNDS_S[0]
    histogram.record(1e9)
    assert histogram.quantile(0.99) == LATENCY_BOUNDS_S[-1]
    assert histogram.counts[-1] == 1


def test_names_are_bounded() -> None:
    """The first few keep their names, for good; whatever comes then is `other`."""
    names = BoundedNames(2)
    assert [names(name) for name in ("a", "b", "c", "a", "d", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]
    with pytest.raises(ValueError, match="at least one"):
        BoundedNames(0)


def test_opentelemetry_observes_the_same_numbers() -> None:
    """A counter and a gauge are exported under their own names; a registry that is gone is not kept alive for it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    registry = Registry(provider.get_meter("test"))
    registry.counter("seen_total", "Seen.", ("of",), lambda: [(("a",), 3)])
    registry.gauge("depth", "Deep.", (), lambda: [((), 2)])

    def exported() -> dict[str, list[tuple[dict[str, object], float]]]:
        data = reader.get_metrics_data()
        return {
            metric.name: [(dict(point.attributes or {}), point.value) for point in metric.data.data_points]  # type: ignore[union-attr]
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    assert exported() == {"seen_total": [({"of": "a"}, 3)], "depth": [({}, 2)]}
    del registry
    gc.collect()
    assert exported() == {}
    provider.shutdown()
