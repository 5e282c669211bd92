"""`events doctor`: whether this machine, this folder and these settings are fit for a bus, with advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from events.cli.checks import Check, check_machine, check_workspace
from events.cli.output import Grid, cell, print_json, print_table, printable
from events.cli.problems import ExitCode
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.settings import KEYS

_MARKS = {"ok": ("✓", "green"), "info": ("·", "cyan"), "warn": ("!", "bold yellow"), "fail": ("✗", "bold red")}


def doctor(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="All settings, also those left at their default.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check disk, clock, limits, files, settings; give advice.

    Exit 1 when something must be done; a warning (!) alone is exit 0. Needs no lock, and leaves nothing behind.
    """
    session = Session.of(ctx, workspace, as_json)
    checks = list(check_machine(session.settings))
    has_bus = (session.workspace / ".bus").is_dir()
    if has_bus:
        checks += check_workspace(session.settings, session.inspector)
    else:
        found = f"{session.workspace.absolute()} holds no events yet"
        checks.append(Check("workspace", "info", found, "Publishing makes it; `events init` with files to edit"))
    settings = settings_in_force(session)
    if session.as_json:
        print_json(
            {"workspace": str(session.workspace), "checks": [asdict(one) for one in checks], "settings": settings}
        )
    else:
        _print(session, checks, settings, every=every)
    if any(one.verdict == "fail" for one in checks):
        raise typer.Exit(ExitCode.PROBLEM)


def settings_in_force(session: Session) -> list[dict[str, Any]]:
    """Every setting: its name, its value, and where that came from."""
    settings = session.settings
    return [{"name": name, "value": settings.value(name), "source": settings.sources[name]} for name in KEYS]


def _print(session: Session, checks: Sequence[Check], settings: Sequence[dict[str, Any]], *, every: bool) -> None:
    session.say(f"workspace {session.workspace.absolute()}", "bold")
    width = max(len(one.name) for one in checks)
    for one in checks:
        mark, style = _MARKS[one.verdict]
        session.out.print(
            Text.assemble((f" {mark} ", style), (f"{one.name:<{width}}  ", "bold"), printable(one.found)),
            soft_wrap=True,
        )
        if one.advice:
            session.out.print(Text.assemble(" " * (width + 5), ("→ ", style), one.advice), soft_wrap=True)
    shown = settings if every else [one for one in settings if one["source"] != "default"]
    session.say()
    file = session.settings.file
    session.say(f"settings in force{f', with {file}' if file else ''}", "bold")
    if shown:
        table = Grid("setting", "<value", "<from")
        for setting in shown:
            table.add(*(cell(setting[name]) for name in ("name", "value", "source")))
        print_table(session.out, table)
    defaults = len(settings) - len(shown)
    if defaults:
        session.say(f"{defaults} more at their defaults; --all shows them", "dim")
    verdicts = [one.verdict for one in checks]
    if "fail" in verdicts:
        session.say("Something must be done before a bus can be trusted here.", "bold red")
    elif "warn" in verdicts:
        session.say("Fit for a bus; mind the warnings.", "yellow")
    else:
        session.say("Fit for a bus.", "green")
