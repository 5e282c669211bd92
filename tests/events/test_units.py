"""Sizes, spans and moments as people write and read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from events.errors import InvalidMessage
from events.units import parse_bytes, parse_moment, parse_seconds, show_bytes, show_moment, show_seconds

NOW = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("500ms", 0.5),
        ("15m", 900),
        ("15min", 900),
        ("1.5h", 5400),
        ("7d", 604800),
        ("1 w", 604800),
    ],
)
def test_a_span_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    """A bare number is seconds; the unit may stand apart."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1_024", 1024),
        ("16MiB", 2**24),
        ("16m", 2**24),
        ("1.5 GB", 1_500_000_000),
        ("2kB", 2000),
        ("3K", 3072),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    """Units with an i, and single letters, are powers of 1024; the others of 1000."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-3s", "3 parsec", "1e9", "nan", "1 2"])
def test_what_is_neither_is_refused_with_the_rule(text: str) -> None:
    """The error shows what was found, and an example of what would do."""
    with pytest.raises(InvalidMessage, match="as in 90s or 7d"):
        parse_seconds(text, "--max-age")
    with pytest.raises(InvalidMessage, match="as in 16MiB"):
        parse_bytes(text, "--max-bytes")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("today", datetime(2026, 11, 18, tzinfo=UTC)),
        ("Yesterday", datetime(2026, 11, 17, tzinfo=UTC)),
        ("2h ago", NOW - timedelta(hours=2)),
        ("2026-11-17", datetime(2026, 11, 17, tzinfo=UTC)),
        ("2026-11-17T06:00", datetime(2026, 11, 17, 6, tzinfo=UTC)),
        ("2026-11-17T06:00+02:00", datetime(2026, 11, 17, 4, tzinfo=UTC)),
    ],
)
def test_a_moment_is_utc_unless_it_says_otherwise(text: str, moment: datetime) -> None:
    """Dates, times and words all come out in UTC."""
    assert parse_moment(text, NOW) == moment
    assert parse_moment(text, NOW.astimezone(timezone(timedelta(hours=-9)))) == moment
    assert parse_moment(text, NOW).tzinfo is UTC


@pytest.mark.parametrize("text", ["", "soon", "3 parsec ago", "2026-13-01", "1000000000w ago"])
def test_no_moment_is_refused_with_the_rule(text: str) -> None:
    """What cannot be a moment names the ways to write one."""
    with pytest.raises(InvalidMessage, match="ISO date"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0, "0ms"),
        (0.000_05, "50µs"),
        (0.0042, "4.2ms"),
        (0.34, "340ms"),
        (4.2, "4.2s"),
        (59.99, "1m"),
        (200, "3m 20s"),
        (3600, "1h"),
        (7260, "2h 1m"),
        (86_399, "23h 59m"),
        (200_000, "2d 7h"),
        (-5, "0ms"),
    ],
)
def test_spans_are_shown_in_two_units_at_most(seconds: float | None, shown: str) -> None:
    """Small ones finely, large ones coarsely."""
    assert show_seconds(seconds) == shown


def test_sizes_and_moments_are_shown_for_people() -> None:
    """Sizes in powers of 1024, moments in UTC, and a dash for what no calendar has."""
    assert [show_bytes(size) for size in (812, 3482, 2**24, 2**33, 2**45)] == [
        *("812 B", "3.4 KiB", "16.0 MiB", "8.0 GiB", "32.0 TiB")
    ]
    assert show_moment(1_763_455_200_123) == "2025-11-18 08:40:00.123Z"
    assert show_moment(None) == show_moment(10**18) == "-"
