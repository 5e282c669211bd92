"""`events policy`: whether the policy files can be taken as they are, and why somebody may or may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from events.cli.output import plural, print_json, printable
from events.cli.problems import CommandError, ExitCode
from events.cli.selection import complete_space, complete_topic
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.errors import InvalidMessage
from events.types import SecurityBand
from policies.files import PolicyError, Source

app = typer.Typer(help="Policy files: check them, explain a decision.", no_args_is_help=True)

FolderOption = Annotated[
    Path | None,
    typer.Option("--policies", help="The folder; else the settings', else the packaged files.", metavar="DIR"),
]


def _policy_csv(source: Source) -> str:
    from policies.rules import parse_policy

    return plural(len(parse_policy(source.read(), source.name)), "rule")


def _model_conf(source: Source) -> str:
    from policies.judge import Model

    Model(source.read(), source.name)
    return "a model that fails closed"


def _topics_toml(source: Source) -> str:
    from policies.topics import TopicTables

    tables = TopicTables(source.read(), source.name)
    return f"topic settings{', strict topology' if tables.topology.strict else ''}"


def _attention_toml(source: Source) -> str:
    from policies.attention import AttentionPolicy

    AttentionPolicy.parse(source.read(), source.name)
    return "an attention policy"


_FILES: Final[Mapping[str, Callable[[Source], str]]] = {
    "policy.csv": _policy_csv,
    "model.conf": _model_conf,
    "topics.toml": _topics_toml,
    "attention.toml": _attention_toml,
}


@app.command()
def check(
    ctx: typer.Context, folder: FolderOption = None, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> None:
    """Check the policy files; exit 1 on the first that cannot be taken.

    A bus that runs keeps the last good policy; one that starts with a bad file refuses to.
    """
    session = Session.of(ctx, workspace, as_json)
    found = [_checked(name, _folder(session, folder)) for name in _FILES]
    if session.as_json:
        print_json(found)
    else:
        for one in found:
            mark, style = ("ok", "green") if one["ok"] else ("bad", "bold red")
            text = f"{one['file']}: {one['says']}" if one["ok"] else str(one["says"])
            session.out.print(Text.assemble((f"{mark:4}", style), printable(text)), soft_wrap=True)
    if not all(one["ok"] for one in found):
        raise typer.Exit(ExitCode.PROBLEM)


def _checked(name: str, folder: Path | None) -> dict[str, Any]:
    own = folder / name if folder is not None and (folder / name).exists() else None
    source = Source.of(own, name)
    try:
        return {"file": source.name, "ok": True, "says": _FILES[name](source), "line": None}
    except PolicyError as error:
        return {"file": source.name, "ok": False, "says": str(error), "line": error.line}


@app.command()
def explain(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(help="user:alice, agent:planner, or anonymous.")],
    action: Annotated[str, typer.Argument(help="publish, consume, ack, replay, dlq or admin.")],
    topic: Annotated[str, typer.Argument(help="A topic, or a pattern.", autocompletion=complete_topic)],
    space: Annotated[str, typer.Option("--space", "-s", help="The space.", autocompletion=complete_space)] = "default",
    band: Annotated[
        str | None, typer.Option(help="The band of the event: GREEN, AMBER, RED, BLACK.", metavar="BAND")
    ] = None,
    caps: Annotated[list[str] | None, typer.Option("--needs", help="A capability that the event asks for.")] = None,
    held: Annotated[list[str] | None, typer.Option("--holds", help="A capability that the subscription holds.")] = None,
    folder: FolderOption = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say yes or no, and which line decided; exit 3 for no.

    `events policy explain agent:planner consume actions --space home --band RED`
    """
    from policies.rbac import PolicyEngine
    from policies.rules import ANONYMOUS

    session = Session.of(ctx, workspace, as_json)
    if band is not None and band.upper() not in SecurityBand.__members__:
        raise InvalidMessage("--band", band, f"a band is {', '.join(SecurityBand)}")
    where = _folder(session, folder)
    engine = PolicyEngine() if where is None else PolicyEngine.of_folder(where)
    explanation = engine.explain(
        None if subject == ANONYMOUS else subject,
        action,
        topic,
        space,
        SecurityBand(band.upper()) if band is not None else None,
        caps or (),
        held or (),
    )
    if session.as_json:
        print_json(asdict(explanation))
    else:
        verdict, style = ("yes", "bold green") if explanation.allowed else ("no", "bold red")
        first, *rest = str(explanation).split("\n")
        session.out.print(Text.assemble((verdict, style), printable(first.removeprefix(verdict))), soft_wrap=True)
        for line in rest:
            session.say(line, "dim")
        if where is None:
            session.say("by the packaged policy; `events init` makes a copy to edit", "dim")
    if not explanation.allowed:
        raise typer.Exit(ExitCode.REFUSED)


def _folder(session: Session, folder: Path | None) -> Path | None:
    chosen = folder if folder is not None else session.settings.policies
    if chosen is not None and not chosen.is_dir():
        raise CommandError(f"there is no folder {chosen}. `events init` makes one with policy files to edit")
    return chosen
