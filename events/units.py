"""Sizes, spans and moments as people write and read them: `16MiB`, `7d`, `2h ago`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from events.errors import InvalidMessage

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONG_SPANS: Final = (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_BYTES: Final = {
    "": 1,
    "b": 1,
    **{letter + suffix: 1024**power for letter, power in _POWERS.items() for suffix in ("", "ib")},
    **{letter + "b": 1000**power for letter, power in _POWERS.items()},
}
_quantity = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII).fullmatch
_SECONDS_RULE: Final = "a span is a number of seconds, or a number with ms, s, m, h, d or w, as in 90s or 7d"
_BYTES_RULE: Final = "a size is a number of bytes, or a number with KiB, MiB, GiB, kB, MB or GB, as in 16MiB"
_MOMENT_RULE: Final = (
    "a moment is an ISO date or time (UTC unless it names a zone), now, today, yesterday, or a span ago, as in '2h ago'"
)


def parse_seconds(text: str, field: str = "span") -> float:
    """`90`, `90s`, `1.5h`, `7d` in seconds; `InvalidMessage` for anything else."""
    found = _quantity(text)
    unit = _SECONDS.get((found[2] or "s").lower()) if found else None
    if found is None or unit is None:
        raise InvalidMessage(field, text, _SECONDS_RULE)
    return float(found[1]) * unit


def parse_bytes(text: str, field: str = "size") -> int:
    """`1048576`, `16MiB`, `1.5GB` in bytes; `InvalidMessage` for anything else."""
    found = _quantity(text)
    unit = _BYTES.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise InvalidMessage(field, text, _BYTES_RULE)
    return int(float(found[1]) * unit)


def parse_moment(text: str, now: datetime, field: str = "moment") -> datetime:
    """A point in time, in UTC: ISO 8601, `yesterday`, `2h ago`. `InvalidMessage` for anything else."""
    word = text.strip().lower()
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("now", "today", "yesterday"):
        return {"now": now.astimezone(UTC), "today": midnight, "yesterday": midnight - timedelta(days=1)}[word]
    try:
        if word.endswith("ago"):
            return now.astimezone(UTC) - timedelta(seconds=parse_seconds(word.removesuffix("ago"), field))
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):  # an InvalidMessage is a ValueError too
        raise InvalidMessage(field, text, _MOMENT_RULE) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def show_seconds(seconds: float | None) -> str:
    """A span in at most two units: `340ms`, `4.2s`, `3m 20s`, `2d 4h`."""
    if seconds is None or math.isnan(seconds):
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f}µs" if seconds else "0ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms" if seconds >= 0.01 else f"{seconds * 1000:.1f}ms"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    unit, size, small, part = next(one for one in _LONG_SPANS if whole >= one[1])
    rest = whole % size // part
    return f"{whole // size}{unit} {rest}{small}" if rest else f"{whole // size}{unit}"


def show_bytes(size: float) -> str:
    """`812 B`, `3.4 KiB`, `16.0 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_moment(at_ms: int | None) -> str:
    """`2026-11-18 09:34:12.345Z`; a dash for none, and for a moment that no calendar has."""
    if at_ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "-"
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
