"""What the commands print with: tables that fit a terminal and stay whole in a pipe, JSON, progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from events.units import show_seconds

_PIPE_WIDTH: Final = 1000
_LONG: Final = 24
T = TypeVar("T")


def make_console(*, stderr: bool = False) -> Console:
    """A console that does not wrap what goes into a file or a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: whatever is not printable is shown as its escape."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def cell(value: object, style: str = "") -> Text:
    """One value of a table."""
    if value is None:
        return Text("-", style="dim")
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))
    return Text(text, style=style)


class Grid:
    """A table without lines that fits where it is printed.

    A column that begins with `>` is for numbers; one with `<` wraps where there is no room; one with `?` before that
    is left out where there is none at all, the last of them first. In a pipe there is always room.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: Text) -> None:
        """One row."""
        self._rows.append(cells)

    def table(self, width: int) -> Table:
        """What fits."""
        kept = list(range(len(self._columns)))
        optional = [index for index in kept if self._columns[index].startswith("?")]
        while optional and self._width_of(kept) > width:
            kept.remove(optional.pop())
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
        for index in kept:
            column = self._columns[index].lstrip("?")
            is_long, justify = column.startswith("<"), "right" if column.startswith(">") else "left"
            overflow: OverflowMethod = "fold" if is_long else "ellipsis"
            table.add_column(_name(column), justify=_JUSTIFY[justify], no_wrap=not is_long, overflow=overflow)
        for row in self._rows:
            table.add_row(*(row[index] for index in kept))
        return table

    def _width_of(self, kept: Sequence[int]) -> int:
        width = 2 * (len(kept) - 1)
        for index in kept:
            column = self._columns[index]
            widest = max(len(_name(column)), *(row[index].cell_len for row in self._rows), 0)
            width += min(widest, _LONG) if "<" in column[:2] else widest
        return width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(options.max_width)


_JUSTIFY: Final[Mapping[str, JustifyMethod]] = {"right": "right", "left": "left"}


def _name(column: str) -> str:
    return column.lstrip("?<>")


def print_table(console: Console, grid: RenderableType) -> None:
    """A table, without the blanks that fill its last column."""
    if console.is_terminal:
        console.print(grid)
        return
    with console.capture() as captured:
        console.print(grid)
    console.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


def print_json(data: object, *, lines: bool = False) -> None:
    """Data as one JSON document, or with `lines` as one line of it."""
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | (0 if lines else orjson.OPT_INDENT_2)
    sys.stdout.write(orjson.dumps(_plain(data), default=_default, option=options).decode())
    if lines:
        sys.stdout.flush()


def _plain(data: object) -> object:
    if is_dataclass(data) and not isinstance(data, type):
        return asdict(data)
    if isinstance(data, list | tuple):
        return [_plain(one) for one in data]
    return data


def _default(value: Any) -> Any:
    if isinstance(value, Path | Enum):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def tracked(items: Iterable[T], what: str, *, total: int | None = None) -> Iterator[T]:
    """Go through items with a progress bar on stderr; without one where that is no terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    size = total if total is not None else len(items) if isinstance(items, Sized) else None
    with make_progress() as progress:
        task = progress.add_task(what, total=size)
        for item in items:
            yield item
            progress.advance(task)


def make_progress() -> Progress:
    """A progress display that leaves nothing behind, and shows nothing where stderr is no terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def ago(at_ms: int | None) -> str:
    """About how long ago a moment was: `3m ago`."""
    if at_ms is None:
        return "-"
    return f"{show_seconds((time.time_ns() // 1_000_000 - at_ms) / 1000).split(' ')[0]} ago"


def plural(number: int, one: str, many: str = "") -> str:
    """`1 event`, `3 events`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def joined(values: Sequence[object], limit: int = 4) -> str:
    """A few values by comma, and how many more there are."""
    shown = ", ".join(map(str, values[:limit]))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
