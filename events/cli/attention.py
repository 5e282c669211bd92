"""`events attention`: what the gate decided and why, and what another policy would have decided about the same past."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from events.attention.inspector import AttentionInspector
from events.attention.what_if import shown_decision
from events.cli.output import Grid, ago, cell, print_json, print_table
from events.cli.problems import CommandError, ExitCode
from events.cli.selection import (
    GroupOption,
    SinceOption,
    SpaceOption,
    TopicArgument,
    UntilOption,
    check_selection,
    moment_of,
)
from events.cli.session import JsonOption, Session, WorkspaceOption

app = typer.Typer(help="The attention gate: explain a decision, try a policy.", no_args_is_help=True)

TopicOption = Annotated[str, typer.Option("--topic", help="A topic or a glob.")]


def _inspector(session: Session) -> AttentionInspector:
    session.reader  # noqa: B018 - says so where there is no workspace
    return AttentionInspector(session.workspace, authorise=session.authorise)


@app.command("list")
def list_decisions(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 20,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the latest decisions that were no plain admits."""
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    inspector = _inspector(session)
    found = anyio.run(lambda: inspector.decisions(topic=topic, space=space, group=group, limit=limit))
    if session.as_json:
        print_json([one.as_dict() for one in found])
        return
    if not found:
        session.say("Nothing was dropped, deferred or boosted, as far as is on record.")
        return
    table = Grid(">when", "decision", "?>score", "?group", "?log", "event", "<reason")
    for one in found:
        treated, context = one.ask.treated, one.ask.context
        table.add(
            cell(ago(context.now_ms), "dim"),
            cell(shown_decision(treated), "bold"),
            cell("-" if treated.score is None else f"{treated.score:.3f}"),
            cell(one.key.group),
            cell(f"{one.key.space_id}/{one.key.topic}/{context.offset}"),
            cell(one.ask.event_id, "cyan"),
            cell(treated.reason or "-"),
        )
    print_table(session.out, table)


@app.command()
def explain(
    ctx: typer.Context,
    event_id: Annotated[str, typer.Argument(help="The event's id; `attention list` and `tail --json` show it.")],
    topic: TopicOption = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why an event was dropped, deferred or boosted.

    With the score and its parts, and the load and focus that they were judged under. Exit 1 when nothing is on record.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    inspector = _inspector(session)
    found = anyio.run(lambda: inspector.explain(event_id, topic=topic, space=space, group=group))
    if session.as_json:
        print_json(found.as_dict())
    else:
        for line in str(found).splitlines():
            session.say(line)
    if not found.decisions:
        raise typer.Exit(ExitCode.PROBLEM)


@app.command("what-if")
def what_if(
    ctx: typer.Context,
    policy: Annotated[Path, typer.Argument(help="A changed copy of attention.toml.", metavar="FILE")],
    topic: TopicOption = "*",
    space: SpaceOption = "*",
    group: GroupOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(help="Name at most so many events.", min=0)] = 20,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try a policy on the recorded past; nothing is changed.

    Each event is judged again in the load, focus and time that were recorded with it.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    if not policy.is_file():
        raise CommandError(f"there is no file {policy}. `events init` makes an attention.toml to begin with")
    inspector = _inspector(session)
    start, stop = moment_of(since, "--since"), moment_of(until, "--until")
    report = anyio.run(lambda: inspector.what_if(policy, topic=topic, space=space, group=group, start=start, stop=stop))
    if session.as_json:
        print_json(report.as_dict())
        return
    for line in report.table(limit).splitlines():
        session.say(line)
