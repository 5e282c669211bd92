"""`events dlq`: what died and why, grouped by what went wrong; trying it again; forgetting it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import orjson
import typer
from rich.syntax import Syntax
from rich.text import Text

from events.cli.output import Grid, ago, cell, joined, plural, print_json, print_table, printable, tracked
from events.cli.problems import CommandError, ExitCode
from events.cli.selection import GroupOption, SpaceOption, TopicArgument, check_selection
from events.cli.session import JsonOption, Session, WorkspaceOption, YesOption, opened_store
from events.dlq import DeadLetterInfo, DLQInspector
from events.fingerprints import fingerprint, shape_of
from events.persistence.store import LogName
from events.units import parse_seconds, show_moment

app = typer.Typer(help="Dead letters: list, show, retry, purge.", no_args_is_help=True)

TopicOption = Annotated[str, typer.Option("--topic", help="A topic or a glob.")]
WhichArgument = Annotated[
    str, typer.Argument(help="A fingerprint of `dlq list`, an event id, or an offset.", metavar="WHICH")
]
MaybeWhichArgument = Annotated[
    str | None, typer.Argument(help="A fingerprint of `dlq list`, an event id, or an offset.", metavar="WHICH")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The dead letters that died of one thing in one group."""

    fingerprint: str
    error: str
    group: str
    topics: tuple[str, ...]
    count: int
    retrying: int
    first_died_ms: int
    last_died_ms: int
    offsets: tuple[int, ...]


@app.command("list")
def list_letters(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    each: Annotated[bool, typer.Option("--each", "-e", help="One line for each, not for each kind.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many lines.", min=1)] = 100,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by what went wrong.

    Errors that differ in numbers, ids and quoted values only share a FINGERPRINT, which the other commands take.
    """
    session = Session.of(ctx, workspace, as_json)
    letters = _find(session, topic, space, group)
    if each:
        _list_each(session, letters[:limit])
    else:
        _list_kinds(session, kinds_of(letters)[:limit])
    if not session.as_json and letters:
        session.say()
        session.say("events dlq show FINGERPRINT shows one; events dlq retry FINGERPRINT tries them again", "dim")


def _list_kinds(session: Session, kinds: Sequence[Kind]) -> None:
    if session.as_json:
        print_json(list(kinds))
        return
    if not kinds:
        session.say("No dead letters.", "green")
        return
    table = Grid("fingerprint", ">count", "group", "topics", ">last died", "<error")
    for kind in kinds:
        retrying = f" ({kind.retrying} retrying)" if kind.retrying else ""
        table.add(
            cell(kind.fingerprint, "bold cyan"),
            cell(kind.count, "bold red"),
            cell(kind.group, "bold"),
            cell(joined(kind.topics, 2)),
            cell(ago(kind.last_died_ms), "dim"),
            cell(kind.error + retrying),
        )
    print_table(session.out, table)


def _list_each(session: Session, letters: Sequence[DeadLetterInfo]) -> None:
    if session.as_json:
        print_json([as_data(letter) for letter in letters])
        return
    if not letters:
        session.say("No dead letters.", "green")
        return
    table = Grid("event", "group", "?>round", "?>attempts", "?>died", "fingerprint", "<error")
    for letter in letters:
        table.add(
            cell(place_of(letter)),
            cell(letter.group, "bold"),
            cell(letter.round, "dim" if not letter.round else ""),
            cell(letter.attempts),
            cell(ago(letter.died_ms), "dim"),
            cell(fingerprint(error_of(letter)), "cyan"),
            cell(("retrying: " if letter.is_retrying else "") + error_of(letter)),
        )
    print_table(session.out, table)


@app.command()
def show(
    ctx: typer.Context,
    which: WhichArgument,
    topic: TopicOption = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters whole: envelope, payload, every attempt's error."""
    session = Session.of(ctx, workspace, as_json)
    letters = selected(_find(session, topic, space, group), which)
    if session.as_json:
        print_json([{**as_data(letter), "payload": letter.event.payload} for letter in letters])
        return
    _show_one(session, letters[0])
    if len(letters) > 1:
        others = joined([place_of(one) for one in letters[1:]], 6)
        session.say()
        session.say(f"{plural(len(letters) - 1, 'more')} like it: {others}".replace("mores", "more"), "dim")


def _show_one(session: Session, letter: DeadLetterInfo) -> None:
    out = session.out
    out.print(
        Text.assemble(
            (printable(place_of(letter)), "bold"),
            " died in group ",
            (letter.group, "bold"),
            f" at {show_moment(letter.died_ms)}: ",
            (printable(letter.reason), "red"),
            (", and is being retried" if letter.is_retrying else ""),
        )
    )
    session.say(f"fingerprint {fingerprint(error_of(letter))}, round {letter.round}, event {letter.event_id}", "dim")
    session.say(f"published {show_moment(letter.appended_ms)}, {plural(letter.attempts, 'attempt')}:", "dim")
    for number, error in enumerate(letter.errors, 1):
        out.print(Text.assemble((f"  {number}  ", "dim"), (printable(error), "red")), soft_wrap=True)
    meta = orjson.loads(letter.event.meta.to_json())
    for title, data in (("meta", meta), ("payload", letter.event.payload)):
        session.say(title, "bold")
        text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
        safe = "\n".join(map(printable, text.split("\n")))
        out.print(Syntax(safe, "json", background_color="default", word_wrap=True) if out.is_terminal else safe)


@app.command()
def retry(
    ctx: typer.Context,
    which: MaybeWhichArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every dead letter that the options cover.")] = False,
    topic: TopicOption = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which; change nothing.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver dead letters again, each to its own group.

    They get fresh attempts, and are delivered when the group next consumes. Takes the lock; on a live bus use
    `bus.dlq.retry()` in the process that has it.
    """
    session = Session.of(ctx, workspace, as_json)
    letters = [one for one in _chosen(session, which, every, topic, space, group) if not one.is_retrying]
    if dry_run:
        _list_each(session, letters)
        return
    number = anyio.run(_retry, session, letters) if letters else 0
    if session.as_json:
        print_json({"retried": number})
    else:
        session.say(f"{plural(number, 'dead letter')} will be delivered again")


async def _retry(session: Session, letters: Sequence[DeadLetterInfo]) -> int:
    number = 0
    async with opened_store(session) as store:
        inspector = DLQInspector(session.workspace, store=store)
        for letter in tracked(letters, "retrying"):
            number += await inspector.retry(
                topic=letter.topic, space=letter.space_id, group=letter.group, offset=letter.offset
            )
    return number


@app.command()
def purge(
    ctx: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only what died so long ago: 7d, 12h, 0s for all.", metavar="SPAN")
    ],
    topic: TopicOption = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    yes: YesOption = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget dead letters for good; the events stay in the log.

    What is being retried is kept. Takes the lock.
    """
    session = Session.of(ctx, workspace, as_json)
    seconds = parse_seconds(older_than, "--older-than")
    letters = _find(session, topic, space, group)
    scope = "" if group is None else f" of group {group}"
    question = f"Forget dead letters older than {older_than}{scope} (there are {len(letters)} of any age)?"
    session.confirm(question, yes=yes or not letters)

    async def run() -> int:
        async with opened_store(session) as store:
            inspector = DLQInspector(session.workspace, store=store)
            return await inspector.purge(older_than_s=seconds, topic=topic, space=space, group=group)

    number = anyio.run(run) if letters else 0
    if session.as_json:
        print_json({"purged": number})
    else:
        session.say(f"{plural(number, 'dead letter')} forgotten")


# -- which ones ------------------------------------------------------------------------------------------------


def _find(session: Session, topic: str, space: str, group: str | None) -> list[DeadLetterInfo]:
    check_selection(topic, space)
    session.permitted("dlq", session.inspector.names(topic, space))
    letters = session.inspector.dead_letters(topic, space, group)
    return [one for one in letters if session.allows("dlq", LogName(one.space_id, one.topic), one.event.meta)]


def _chosen(
    session: Session, which: str | None, every: bool, topic: str, space: str, group: str | None
) -> list[DeadLetterInfo]:
    if every == (which is not None):
        raise CommandError(
            "say which: a fingerprint, an event id or an offset; or --all for all that the options cover"
        )
    letters = _find(session, topic, space, group)
    return letters if which is None else selected(letters, which)


def selected(letters: Sequence[DeadLetterInfo], which: str) -> list[DeadLetterInfo]:
    """Those that a fingerprint, an event id or an offset means; an error when there is none."""
    tests = (
        lambda letter: fingerprint(error_of(letter)) == which,
        lambda letter: letter.event_id == which,
        lambda letter: str(letter.offset) == which,
    )
    for test in tests:
        found = [letter for letter in letters if test(letter)]
        if found:
            return found
    raise CommandError(f"no dead letter is meant by {which!r}. `events dlq list` shows them", ExitCode.PROBLEM)


def place_of(letter: DeadLetterInfo) -> str:
    """Where the event stands in the log."""
    return f"{letter.space_id}/{letter.topic}/{letter.offset}"


def error_of(letter: DeadLetterInfo) -> str:
    """What it died of: the last attempt's error, or the reason where nothing was attempted."""
    return letter.errors[-1] if letter.errors else letter.reason


def kinds_of(letters: Sequence[DeadLetterInfo]) -> list[Kind]:
    """The letters by fingerprint and group, the most frequent first."""
    groups: dict[tuple[str, str], list[DeadLetterInfo]] = {}
    for letter in letters:
        groups.setdefault((fingerprint(error_of(letter)), letter.group), []).append(letter)
    kinds = [
        Kind(
            fingerprint=mark,
            error=shape_of(error_of(found[0])) if len(found) > 1 else error_of(found[0]),
            group=group,
            topics=tuple(sorted({one.topic for one in found})),
            count=len(found),
            retrying=sum(one.is_retrying for one in found),
            first_died_ms=min(one.died_ms for one in found),
            last_died_ms=max(one.died_ms for one in found),
            offsets=tuple(one.offset for one in found),
        )
        for (mark, group), found in groups.items()
    ]
    return sorted(kinds, key=lambda kind: (-kind.count, -kind.last_died_ms))


def as_data(letter: DeadLetterInfo) -> dict[str, Any]:
    """A dead letter for JSON, without its payload."""
    plain = {name: getattr(letter, name) for name in letter.__dataclass_fields__ if name != "event"}
    return {**plain, "fingerprint": fingerprint(error_of(letter)), "meta": orjson.loads(letter.event.meta.to_json())}
