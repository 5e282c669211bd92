"""`events trace`: what caused what, as a tree across topics, and what became of each event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from rich.text import Text
from rich.tree import Tree

from events.causality import Node
from events.causality import trace as causal_trace
from events.cli.output import make_progress, plural, print_json, printable
from events.cli.problems import CommandError, ExitCode
from events.cli.reading import FullOption, as_data, payload_text, visible
from events.cli.selection import SpaceOption, check_selection
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.history import Wanted
from events.inspection import Outcome
from events.persistence.store import LogName
from events.units import show_moment, show_seconds

_MARKS: Final[Mapping[Outcome, tuple[str, str]]] = {
    "settled": ("✓", "green"),
    "pending": ("…", "yellow"),
    "retrying": ("↻", "yellow"),
    "deferred": ("⏲", "cyan"),
    "dead": ("✗", "bold red"),
}


def trace(
    ctx: typer.Context,
    correlation: Annotated[str, typer.Argument(help="A correlation id, a trace id, or the id of one event.")],
    space: SpaceOption = "*",
    full: FullOption = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what caused what: the tree of a correlation.

    Behind each event stands what its groups made of it: settled, pending, retrying, deferred or dead.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection("*", space)
    roots = _find(session, correlation, space)
    if not roots:
        raise CommandError(f"no event has the correlation, trace or event id {correlation!r}", ExitCode.PROBLEM)
    wanted = visible(session, lambda record: True)
    walk = [(depth, node) for root in roots for depth, node in root.walk()]
    if session.as_json:
        events = [
            {**as_data(node.record), "depth": depth, "groups": _outcomes(session, node)}
            for depth, node in walk
            if wanted(node.record)
        ]
        print_json({"correlation": correlation, "events": events})
        return
    _print_head(session, correlation, [node for _, node in walk])
    began_ms = min(node.record.at_ms for _, node in walk)
    for root in roots:
        session.out.print(_tree(session, root, began_ms, wanted, full=full))


def _find(session: Session, correlation: str, space: str) -> list[Node]:
    names = session.permitted("replay", session.inspector.names("*", space))
    with make_progress() as progress:
        task = progress.add_task("looking through the logs", total=None)

        def show(name: LogName) -> None:
            progress.update(task, advance=1, description=f"looking through {name.topic}")

        return causal_trace(session.reader, names, correlation, progress=show)


def _print_head(session: Session, correlation: str, nodes: Sequence[Node]) -> None:
    times = [node.record.at_ms for node in nodes]
    logs = {(node.record.space_id, node.record.topic) for node in nodes}
    session.say(
        f"{correlation}: {plural(len(nodes), 'event')} in {plural(len(logs), 'log')}, "
        f"from {show_moment(min(times))} over {show_seconds((max(times) - min(times)) / 1000)}",
        "bold",
    )


def _tree(session: Session, root: Node, began_ms: int, wanted: Wanted, *, full: bool) -> Tree:
    branches: list[Tree] = []
    for depth, node in root.walk():
        label = _label(session, node, began_ms)
        if not wanted(node.record):
            label.append(" (not yours to see)", "dim")
        elif full:
            label.append("\n" + payload_text(node.record), "dim")
        del branches[depth:]
        branches.append(branches[-1].add(label) if branches else Tree(label, guide_style="dim"))
    return branches[0]


def _label(session: Session, node: Node, began_ms: int) -> Text:
    record = node.record
    label = Text.assemble(
        (str(record.event.meta.type), "bold cyan"),
        f"  {printable(record.space_id)}/{record.topic}/{record.offset}",
        (f"  +{show_seconds((record.at_ms - began_ms) / 1000)}", "dim"),
    )
    outcomes = _outcomes(session, node)
    for group, outcome in sorted(outcomes.items()):
        mark, style = _MARKS[outcome]
        label.append(f"  {mark} {group}", style).append("" if outcome == "settled" else f" {outcome}", style)
    return label if outcomes else label.append("  no group", "dim")


def _outcomes(session: Session, node: Node) -> Mapping[str, Outcome]:
    return session.inspector.outcomes(LogName(node.record.space_id, node.record.topic), node.record.offset)
