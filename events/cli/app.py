"""The command `events`: its commands in the order of the help, and errors turned into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer._completion_classes import completion_init
from typer.core import TyperGroup

from events.cli import attention, dead_letters, doctor, keeping, looking, policy, publishing, reading, starting, tracing
from events.cli.output import make_console, printable
from events.cli.problems import EXIT_CODES, ExitCode, exit_code_of, one_line
from events.cli.session import Chosen
from events.errors import BusError

# The class that typer's usage errors share, by a public way to it: where it lives differs between versions.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]


class Commands(TyperGroup):
    """The group of all commands. Whatever one of them raises ends here."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code. Usage errors are one line too."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _USAGE_ERROR as error:
            if not standalone_mode:
                raise
            _complain(_usage_line(error))
            code = ExitCode.USAGE
        except typer.Abort:
            code = ExitCode.INTERRUPTED
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else ExitCode.OK)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of the bus is a line on stderr, never a traceback."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read our output has seen enough, as in `events tail | head`.
            sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
            raise typer.Exit(ExitCode.OK) from None
        except (BusError, OSError, ExceptionGroup) as error:
            inner: BaseException = error
            while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
                inner = inner.exceptions[0]
            if not isinstance(inner, BusError | OSError):
                raise
            _complain(one_line(inner))
            raise typer.Exit(exit_code_of(inner)) from None


def _complain(text: str) -> None:
    console = make_console(stderr=True)
    console.print("events: ", style="bold red", end="")
    console.print(printable(text), soft_wrap=True)


def _usage_line(error: Exception) -> str:
    message = " ".join(str(getattr(error, "format_message", lambda: error)()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "events"
    return f"{message}. `{path} --help` shows how"


app = typer.Typer(
    name="events",
    cls=Commands,
    help="An embedded, durable event bus: look into a workspace, publish, mend, replay.",
    epilog=EXIT_CODES,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def root(
    ctx: typer.Context,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", help="The bus's folder (or EVENTS_WORKSPACE).", metavar="DIR")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings; else events.toml in the workspace.", metavar="FILE")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--as", help="Act as this subject, where policies are set.", metavar="SUBJECT")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="debug, info, warning, error.", metavar="LEVEL", hidden=True)
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Common options; each command also takes -w and --json itself."""
    ctx.obj = Chosen(workspace, config, subject, log_level)
    if version:
        from events import __version__

        typer.echo(__version__)
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


_LOOK = "Look (beside a running bus)"
app.command(rich_help_panel=_LOOK)(looking.topics)
app.command(rich_help_panel=_LOOK)(looking.groups)
app.command(rich_help_panel=_LOOK)(reading.tail)
app.command(rich_help_panel=_LOOK)(tracing.trace)
app.command(rich_help_panel=_LOOK)(reading.replay)
app.command(rich_help_panel=_LOOK)(keeping.verify)

_CHANGE = "Change (takes the lock)"
app.command(rich_help_panel=_CHANGE)(publishing.publish)
app.add_typer(dead_letters.app, name="dlq", rich_help_panel=_CHANGE)
app.command(rich_help_panel=_CHANGE)(keeping.repair)
app.command(rich_help_panel=_CHANGE)(keeping.compact)
app.command(rich_help_panel=_CHANGE)(keeping.retention)
_BEGIN = "Begin and check"
app.command(rich_help_panel=_BEGIN)(starting.demo)
app.command(rich_help_panel=_BEGIN)(starting.init)
app.command(rich_help_panel=_BEGIN)(doctor.doctor)
app.add_typer(policy.app, name="policy", rich_help_panel=_BEGIN)
app.add_typer(attention.app, name="attention", rich_help_panel=_BEGIN)
app.command(rich_help_panel=_BEGIN)(starting.completion)


def main() -> None:
    """The entry point of the script."""
    if "_EVENTS_COMPLETE" in os.environ:
        completion_init()
    app(prog_name="events")
