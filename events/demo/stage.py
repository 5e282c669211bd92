"""What the audience of the tour sees: colour and live counters in a terminal, plain lines elsewhere, JSON if asked."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from events.cli.output import make_console, print_json
from events.units import show_seconds

_REFRESH_PER_S: Final = 12
_TO_READ_S: Final = 1.2

Counters = Callable[[], Mapping[str, int]]


class Stage:
    """Shows the acts, keeps the claims, and ends with what to try next."""

    def __init__(self, workspace: Path, *, as_json: bool = False) -> None:
        self.workspace = workspace
        self.claims: list[tuple[str, bool]] = []
        self.numbers: dict[str, Any] = {}
        self.correlation = ""
        self.dropped = ""
        self._console = make_console()
        self._as_json = as_json
        self._began = time.monotonic()
        self._acts = 0

    async def act(self, title: str, text: str = "") -> None:
        """Begin a part of the story, and leave the time to read where somebody does."""
        self._acts += 1
        self._print()
        self._print(f"{self._acts}. {title}", "bold cyan")
        if text:
            self.tell(text)
        if self._console.is_terminal and not self._as_json:
            await anyio.sleep(_TO_READ_S)

    def tell(self, text: str) -> None:
        """A sentence of the story."""
        self._print(f"   {text}")

    def measured(self, **numbers: Any) -> None:
        """Keep numbers of this run for the report."""
        self.numbers.update(numbers)

    def claim(self, text: str, holds: bool) -> None:
        """Something that was checked just now."""
        self.claims.append((text, holds))
        mark, style = ("✓", "green") if holds else ("✗ NOT SO:", "bold red")
        self._print(f"   {mark} {text}", style)

    @contextmanager
    def counting(self, counters: Counters) -> Iterator[None]:
        """Show counters while something happens, and what they came to when it is over."""
        began = time.monotonic()

        def line() -> Text:
            text = Text("   ")
            for name, value in counters().items():
                text.append(f"{name} ").append(f"{value:,}", "bold").append("   ")
            return text.append(f"{time.monotonic() - began:.1f}s", "dim")

        if self._as_json or not self._console.is_terminal:
            yield
            self._print(line().plain)
            return
        with Live(get_renderable=line, console=self._console, refresh_per_second=_REFRESH_PER_S):
            yield

    def finish(self) -> bool:
        """Say where the files are and what to try next. Whether every claim held."""
        held = sum(holds for _, holds in self.claims)
        spent_s = time.monotonic() - self._began
        all_hold = held == len(self.claims)
        if self._as_json:
            claims = [{"claim": text, "holds": holds} for text, holds in self.claims]
            report = {"workspace": str(self.workspace), "ok": all_hold, "seconds": round(spent_s, 3)}
            print_json({**report, "claims": claims, "measured": self.numbers})
            return all_hold
        self._print()
        summary = f"{held} of {len(self.claims)} claims held, in {show_seconds(spent_s)}."
        self._print(summary, "bold green" if all_hold else "bold red")
        self._print(
            f"The files are in {self.workspace}/.bus: open them with cat. The bus's own log is demo.log beside it."
        )
        self._print("Try next:")
        where = f"-w {shlex.quote(str(self.workspace))}"
        for command in (
            f"trace {self.correlation}",
            f"attention explain {self.dropped}",
            "replay actions --since yesterday --until today",
            "groups",
            "doctor",
        ):
            self._print(f"   events {command} {where}", "cyan")
        return all_hold

    def _print(self, text: str = "", style: str = "") -> None:
        if self._as_json:
            return
        indent = len(text) - len(text.lstrip())
        if self._console.is_terminal and indent < len(text):
            self._console.print(Padding(Text(text.lstrip(), style), (0, 0, 0, indent)))
        else:
            self._console.print(text)
