"""What every measurement shares: rounds in turn, medians with their spread, a table for people and JSON for the rest.

A machine is never quiet. So the subjects of a measurement take turns within one run, and a ratio is the median of
the ratios of neighbouring rounds: what slows one of them slows the other too.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

RESULTS: Final = Path(__file__).parent / "results"
Round = Callable[[], Awaitable[int]]
"""One round of a subject; returns how many events it dealt with."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Events a second of one subject, round by round."""

    name: str
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """The middle half of the rounds, as a part of the median."""
        if len(self.rates) < 2:
            return 0.0
        low, _, high = quantiles(self.rates, n=4, method="inclusive")
        return (high - low) / self.rate

    @property
    def microseconds(self) -> float:
        """What one event takes."""
        return 1e6 / self.rate

    def over(self, other: Figures) -> float:
        """How many times as fast as another subject: the median over the rounds that stood side by side."""
        return median(mine / its for mine, its in zip(self.rates, other.rates, strict=True))


@dataclass(frozen=True, slots=True)
class Ratio:
    """One subject against another; `goal` is what is hoped for, if anything is."""

    name: str
    subject: str
    base: str
    goal: float | None = None


async def measure(subjects: Mapping[str, Round], *, repeats: int, warm_up: int = 1) -> dict[str, Figures]:
    """Run every subject `repeats` times, in turn; the warm-up rounds do not count."""
    figures = {name: Figures(name) for name in subjects}
    for turn in range(warm_up + repeats):
        for name, run in subjects.items():
            began = time.perf_counter()
            events = await run()
            took = time.perf_counter() - began
            if turn >= warm_up:
                figures[name].rates.append(events / took)
    return figures


@dataclass(slots=True)
class Report:
    """The outcome of one measurement."""

    name: str
    title: str
    parameters: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    ratios: list[tuple[Ratio, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parameters = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
            **self.parameters,
        }

    def add(self, figures: Mapping[str, Figures], ratios: Sequence[Ratio]) -> None:
        """Take the figures of some subjects and work out their ratios."""
        self.figures.update(figures)
        self.ratios += [(ratio, figures[ratio.subject].over(figures[ratio.base])) for ratio in ratios]

    def save(self) -> Path:
        """Write it as JSON; the path."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        content = {
            "name": self.name,
            "title": self.title,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "parameters": self.parameters,
            "figures": {
                name: {"per_second": round(f.rate), "spread": round(f.spread, 3), "rounds": [*map(round, f.rates)]}
                for name, f in self.figures.items()
            },
            "ratios": {
                ratio.name: {"value": round(value, 3), "goal": ratio.goal, "of": ratio.subject, "to": ratio.base}
                for ratio, value in self.ratios
            },
        }
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path

    def show(self) -> None:
        """Print it: in colour where a person looks, as plain lines elsewhere."""
        if sys.stdout.isatty():
            self._show_tables(Console())
            return
        print(self.title)
        print("  " + ", ".join(f"{name} {value}" for name, value in self.parameters.items()))
        for name, figures in self.figures.items():
            rate, spread = f"{figures.rate:,.0f}/s", f"{figures.spread:.0%}"
            print(f"  {name:<58} {rate:>12}  ±{spread:<5} {figures.microseconds:10.2f} µs")
        for ratio, value in self.ratios:
            print(f"  {ratio.name:<58} {value:>11.2f}x  {_verdict(ratio, value)}".rstrip())

    def _show_tables(self, console: Console) -> None:
        parameters = ", ".join(f"{name} [bold]{value}[/]" for name, value in self.parameters.items())
        console.print(f"\n[bold]{self.title}[/]\n[dim]{parameters}[/]\n")
        table = Table(box=None, header_style="dim", pad_edge=False)
        for heading in ("", "events/s", "±", "µs each", ""):
            table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
        fastest = max(figures.rate for figures in self.figures.values())
        room = max(4, min(30, console.width - 40 - max(map(len, self.figures))))
        for name, figures in self.figures.items():
            bar = Text("━" * max(1, round(room * figures.rate / fastest)), style="dim" if "bare" in name else "cyan")
            table.add_row(name, f"{figures.rate:,.0f}", f"{figures.spread:.0%}", f"{figures.microseconds:,.2f}", bar)
        console.print(table)
        ratios = Table(box=None, header_style="dim", pad_edge=False)
        for heading in ("", "ratio", "goal"):
            ratios.add_column(heading, justify="left" if heading == "" else "right")
        for ratio, value in self.ratios:
            met = ratio.goal is None or value >= ratio.goal
            goal = "" if ratio.goal is None else f"≥ {ratio.goal}"
            ratios.add_row(ratio.name, Text(f"{value:.2f}", style="green" if met else "red"), goal)
        console.print()
        console.print(ratios)


def _verdict(ratio: Ratio, value: float) -> str:
    if ratio.goal is None:
        return ""
    return f"goal {ratio.goal}: {'met' if value >= ratio.goal else 'missed'}"
