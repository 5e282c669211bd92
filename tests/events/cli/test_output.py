"""Tables that fit, JSON that parses, and nothing that could steer a terminal."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from events.cli.output import Grid, ago, cell, joined, plural, print_json, print_table, printable, tracked
from events.inspection import Outcome
from events.types import SecurityBand


def a_grid() -> Grid:
    """Five columns, of which two may be left out and one may wrap."""
    grid = Grid("name", "?>first", ">count", "?note", "<text")
    grid.add(cell("alpha"), cell(1), cell(1_234), cell("a note"), cell("some words that may well be wrapped"))
    return grid


def drawn(width: int) -> list[str]:
    """The grid as a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(a_grid())
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_table_shows_everything_where_there_is_room() -> None:
    """Numbers to the right, with their thousands apart."""
    assert drawn(100) == [
        "name   first  count  note    text",
        "alpha      1  1,234  a note  some words that may well be wrapped",
    ]


def test_a_narrow_terminal_leaves_columns_out_from_the_right() -> None:
    """First the optional ones, then the long one wraps; nothing is cut."""
    assert drawn(46)[0] == "name   first  count  text"
    assert drawn(38)[0] == "name   count  text"
    assert " ".join(" ".join(drawn(38)[1:]).split()) == "alpha 1,234 some words that may well be wrapped"


def test_in_a_pipe_lines_are_whole_and_have_no_blanks_behind() -> None:
    """For grep and cut."""
    stream = io.StringIO()
    print_table(Console(file=stream, width=1000), a_grid())
    assert stream.getvalue().splitlines()[1] == "alpha      1  1,234  a note  some words that may well be wrapped"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ünï ✓", "plain ünï ✓"), ("\x1b[31m", "\\x1b[31m"), ("a\nb", "a\\nb"), ("\u202e", "\\u202e")],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    """Escape sequences, line ends, marks of direction."""
    assert printable(text) == shown
    assert cell(text).plain == shown


def test_json_of_what_the_library_hands_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Paths, times, enumerations, sets; one document or one line."""
    outcome: Outcome = "settled"
    at = datetime(2026, 11, 18, tzinfo=UTC)
    data = {"path": Path("/x"), "at": at, "band": SecurityBand.RED, "names": {"b", "a"}, "outcome": outcome, 3: None}
    print_json(data, lines=True)
    print_json([data])
    out = capsys.readouterr().out
    first = out.splitlines()[0]
    assert first == (
        '{"path":"/x","at":"2026-11-18T00:00:00+00:00","band":"RED","names":["a","b"],"outcome":"settled","3":null}'
    )
    with pytest.raises(TypeError, match="object"):
        print_json(object())


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on stderr that a log would keep."""
    assert list(tracked(range(3), "counting")) == [0, 1, 2]
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_words_for_numbers() -> None:
    """One event, many events; a few names and how many more."""
    assert [plural(1, "event"), plural(1_200, "event"), plural(2, "entry", "entries")] == [
        *("1 event", "1,200 events", "2 entries")
    ]
    assert joined([1, 2, 3, 4, 5, 6]) == "1, 2, 3, 4 and 2 more"
    assert ago(None) == "-"
    assert ago(0).endswith("d ago")
