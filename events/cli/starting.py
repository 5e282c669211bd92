"""`events init`, `events completion` and `events demo`: what somebody new begins with."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from events.cli.output import print_json
from events.cli.problems import CommandError, ExitCode
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.settings import FILE_NAME

_POLICY_FILES: Final = (".csv", ".conf", ".toml")
_SETTINGS: Final = """# Settings of this workspace. The environment comes before them (EVENTS_SYNC=interval).
# `events doctor --all` prints every setting that there is, its value, and where that came from.

policies = "policies"              # policy.csv: who may do what; topics.toml: how topics are treated
subject = "user:owner"             # on whose behalf the `events` command acts

# sync = "always"                  # always | interval | never: when an event counts as published
# segment_bytes = "16MiB"          # a log is a row of files of this size
# max_inflight = 1024              # events that a group holds at once
# max_retries = 5                  # then an event goes to the dead letters
# backoff_base = 0.5               # seconds before the first retry, at most; doubling up to backoff_max
# compact = false                  # delete files that every group has settled
# log_level = "warning"            # debug | info | warning | error
# log_format = "text"              # text | json
"""


class Shell(StrEnum):
    """A shell that typer can complete in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def init(
    ctx: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="The folder; else that of -w or EVENTS_WORKSPACE.", metavar="DIR")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a workspace with settings and policies to edit."""
    session = Session.of(ctx, folder or workspace, as_json)
    target = session.workspace
    files = {target / FILE_NAME: _SETTINGS, **_packaged_policies(target / "policies")}
    there = [path for path in files if path.exists()]
    if there and not force:
        raise CommandError(f"{there[0]} is there already; --force replaces it, and what was edited in it is gone")
    for path, text in files.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if session.as_json:
        print_json({"workspace": str(target), "files": [str(path) for path in files]})
        return
    session.say(f"A workspace in {target}:", "bold")
    for path in files:
        session.say(f"  {path}")
    where = "" if os.environ.get("EVENTS_WORKSPACE") == str(target) else f" -w {target}"
    session.say("Next:")
    session.say(f"  events publish greetings text=hello{where}", "cyan")
    session.say(f"  events tail{where}", "cyan")
    session.say(f"  events policy explain agent:planner publish greetings{where}", "cyan")


def _packaged_policies(folder: Path) -> Mapping[Path, str]:
    packaged = importlib.resources.files("policies")
    names = sorted(entry.name for entry in packaged.iterdir() if entry.name.endswith(_POLICY_FILES))
    return {folder / name: (packaged / name).read_text(encoding="utf-8") for name in names}


def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")] = Shell.BASH,
    install: Annotated[bool, typer.Option("--install", help="Put it where the shell finds it.")] = False,
) -> None:
    """Print shell completion, or install it.

    `eval "$(events completion bash)"` in a running shell; `events completion zsh --install` for good.
    """
    # Typer has no public name for these; its own --show-completion would take two lines of every help.
    from typer._completion_shared import get_completion_script
    from typer._completion_shared import install as install_script

    if install:
        found, path = install_script(shell=shell.value, prog_name="events")
        typer.echo(f"{found} completion installed in {path}; it works in the next terminal")
        return
    typer.echo(get_completion_script(prog_name="events", complete_var="_EVENTS_COMPLETE", shell=shell.value))


def demo(
    ctx: typer.Context,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """A tour in under a minute, with a real crash in it.

    Every number it shows is measured in that run; it exits 1 if one of its claims does not hold.
    """
    from events.demo import run

    if not run(workspace, as_json=as_json):
        raise typer.Exit(ExitCode.PROBLEM)
