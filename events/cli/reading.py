"""`events tail` and `events replay`: the events themselves, beside a running bus."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from events.cli.output import make_progress, plural, print_json, printable
from events.cli.problems import CommandError, ExitCode
from events.cli.selection import (
    FilterOption,
    SinceOption,
    SpaceOption,
    TopicArgument,
    TypeOption,
    UntilOption,
    WhereOption,
    check_selection,
    filters_of,
    moment_of,
)
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.history import Follower, Wanted, read_history, read_latest, wanted_by
from events.persistence.store import LogName
from events.replay import ReplayRecord
from events.units import show_moment

_POLL_S = 0.2
FullOption = Annotated[bool, typer.Option("--full", help="Whole payloads, wrapped.")]


class Engine(StrEnum):
    """What reads the history."""

    LOCAL = "local"


def tail(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    count: Annotated[int, typer.Option("--lines", "-n", help="How many of the latest to begin with.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is published, until Ctrl-C.")] = False,
    space: SpaceOption = "*",
    event_type: TypeOption = None,
    where: WhereOption = None,
    filter_json: FilterOption = None,
    full: FullOption = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the latest events, and follow.

    With --json each event is one line, which `events publish --stdin` takes back.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    wanted = visible(session, wanted_by(filters_of(where, filter_json, event_type)))
    inspector = session.inspector
    printer = _Printer(session, full=full)
    follower = Follower(inspector.reader, lambda: inspector.names(topic, space))
    follower.skip_to_end()
    names = session.permitted("replay", inspector.names(topic, space))
    printer.print(read_latest(inspector.reader, names, count, wanted=wanted))
    _note_withheld(session, names)
    try:
        while follow:
            printer.print(follower.read(wanted))
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return  # the way to end it


def replay(
    ctx: typer.Context,
    topic: TopicArgument,
    space: SpaceOption = "*",
    since: SinceOption = None,
    until: UntilOption = None,
    event_type: TypeOption = None,
    where: WhereOption = None,
    filter_json: FilterOption = None,
    limit: Annotated[int | None, typer.Option("--limit", help="At most so many events.", min=1)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON lines to a file.", metavar="FILE")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="What reads: this process.")] = Engine.LOCAL,
    full: FullOption = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read history, oldest first.

    `events replay actions --since yesterday --until today`: several topics are merged by the time of their append. Only
    what is proven durable is read.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    wanted = visible(session, wanted_by(filters_of(where, filter_json, event_type)))
    names = session.permitted("replay", session.inspector.names(topic, space))
    start, stop = moment_of(since, "--since"), moment_of(until, "--until")
    if not names:
        raise CommandError(
            f"no topic matches {topic!r} in space {space!r}. `events topics` lists them", ExitCode.PROBLEM
        )
    records = read_history(session.reader, names, start=start or "earliest", stop=stop, wanted=wanted)
    if limit is not None:
        records = (record for _, record in zip(range(limit), records, strict=False))
    if output is not None:
        number = _write(output, records)
        session.say(f"{plural(number, 'event')} written to {output}")
        if session.as_json:
            print_json({"events": number, "file": str(output)})
        return
    number = _Printer(session, full=full).print(records)
    if not number and not session.as_json:
        session.note("nothing there that matches")
    _note_withheld(session, names)


def _write(output: Path, records: Iterable[ReplayRecord]) -> int:
    number = 0
    with output.open("wb") as stream, make_progress() as progress:
        task = progress.add_task("replaying", total=None)
        for record in records:
            stream.write(orjson.dumps(as_data(record)) + b"\n")
            number += 1
            if number % 256 == 0:
                progress.update(task, completed=number)
    return number


def visible(session: Session, matches: Wanted) -> Wanted:
    """What matches and, where there is a policy, may be seen."""
    if session.policy is None:
        return matches

    def wanted(record: ReplayRecord) -> bool:
        name = LogName(record.space_id, record.topic)
        return session.allows("replay", name, record.event.meta) and matches(record)

    return wanted


def _note_withheld(session: Session, names: Iterable[LogName]) -> None:
    if session.reader.is_held():
        return  # what is in flight is shown in a moment
    withheld = sum(session.reader.log(name).prove().withheld_lines for name in names)
    if withheld:
        lines = plural(withheld, "line")
        session.note(f"{lines} at the end not proven durable, and withheld; `events repair` recovers them")


class _Printer:
    """Prints events, one line each."""

    def __init__(self, session: Session, *, full: bool) -> None:
        self._session, self._full = session, full
        self._day = ""

    def print(self, records: Iterable[ReplayRecord]) -> int:
        """Print them; how many there were."""
        number = 0
        for record in records:
            number += 1
            if self._session.as_json:
                print_json(as_data(record), lines=True)
            else:
                self._print(record)
        return number

    def _print(self, record: ReplayRecord) -> None:
        out, meta = self._session.out, record.event.meta
        day, clock = show_moment(record.at_ms).split(" ")[0], show_moment(record.at_ms)[11:]
        if day != self._day and out.is_terminal:
            out.print(day, style="dim")
        self._day = day
        line = Text.assemble(
            (clock if out.is_terminal else show_moment(record.at_ms), "dim"),
            f" {printable(record.space_id)}/",
            (record.topic, "bold"),
            f"/{record.offset} ",
            (str(meta.type), "cyan"),
        )
        line.append(" " + payload_text(record))
        for name in ("key", "priority", "band", "actor", "correlation_id"):
            value = getattr(meta, name)
            if value is not None:
                shown = value if isinstance(value, str | int) else value.user_id or value.agent_id
                line.append(f" {name.removesuffix('_id')}={printable(str(shown))}", "dim")
        out.print(line, no_wrap=not self._full, overflow="fold" if self._full else "ellipsis", crop=not self._full)


def payload_text(record: ReplayRecord) -> str:
    """The payload as it stands in the log, safe to print."""
    raw = record.event.raw_payload
    return printable((raw if raw is not None else orjson.dumps(record.event.payload)).decode("utf-8", "replace"))


def as_data(record: ReplayRecord) -> dict[str, Any]:
    """A record for JSON: where it stands, and the event as `publish` takes it back."""
    place = {name: getattr(record, name) for name in ("space_id", "topic", "offset", "at_ms")}
    return {**place, "meta": orjson.loads(record.event.meta.to_json()), "payload": record.event.payload}
