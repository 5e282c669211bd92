"""What every command starts from: the settings, a console, the workspace as a reader sees it, and the policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from events.cli.output import make_console, printable
from events.cli.problems import CommandError
from events.contracts import Action
from events.errors import Denied
from events.inspection import Inspector
from events.logs import setup_logging
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName
from events.persistence.wal import WalStore
from events.settings import LogLevel, Settings
from events.types import EventMeta

if TYPE_CHECKING:
    from policies.rbac import PolicyEngine

WorkspaceOption = Annotated[
    Path | None,
    typer.Option("--workspace", "-w", help="The bus's folder; else EVENTS_WORKSPACE, else ./workspace.", metavar="DIR"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was given before the command's name; an option of the command itself comes first."""

    workspace: Path | None = None
    config: Path | None = None
    subject: str | None = None
    log_level: str | None = None
    as_json: bool = False


@dataclass
class Session:
    """One run of one command."""

    settings: Settings
    as_json: bool = False
    out: Any = field(default_factory=make_console)
    err: Any = field(default_factory=lambda: make_console(stderr=True))

    @classmethod
    def of(
        cls,
        ctx: typer.Context,
        workspace: Path | None,
        as_json: bool = False,
        *,
        usual_log_level: LogLevel | None = None,
        **arguments: Any,
    ) -> Session:
        """Load the settings, and send what the bus logs to stderr until the command ends.

        `usual_log_level` is the command's own, where nobody set another.
        """
        chosen = ctx.find_object(Chosen) or Chosen()
        settings = Settings.load(
            config=chosen.config,
            workspace=workspace or chosen.workspace,
            **{"subject": chosen.subject, "log_level": chosen.log_level}
            | {name: value for name, value in arguments.items() if value is not None},
        )
        level = settings.log_level
        if usual_log_level is not None and settings.sources["log_level"] == "default":
            level = usual_log_level
        # A bus that cannot start says so in its error, which is printed; the log line would be the same once more.
        ctx.call_on_close(setup_logging(level, settings.log_format, without={"events.bus"}))
        return cls(settings, as_json or chosen.as_json)

    @property
    def workspace(self) -> Path:
        """The folder of the bus."""
        return self.settings.workspace

    @cached_property
    def reader(self) -> WorkspaceReader:
        """The workspace for reading; an error with advice where there is none."""
        if not (self.workspace / ".bus").is_dir():
            raise CommandError(
                f"{self.workspace} holds no events yet. Name another folder with -w or EVENTS_WORKSPACE, "
                "publish something, or begin with `events init`"
            )
        return WorkspaceReader(self.workspace)

    @cached_property
    def inspector(self) -> Inspector:
        """The workspace as its files tell it."""
        return Inspector(self.reader, max_inflight=self.settings.bus.max_inflight)

    # -- who may -----------------------------------------------------------------------------------------------

    @cached_property
    def policy(self) -> PolicyEngine | None:
        """The policy that the settings name, if they do."""
        if self.settings.policies is None:
            return None
        from policies.rbac import PolicyEngine

        if not self.settings.policies.is_dir():
            raise CommandError(f"policies: there is no folder {self.settings.policies}. `events init` makes one")
        return PolicyEngine.of_folder(self.settings.policies)

    def allows(self, action: Action, name: LogName, meta: EventMeta | None = None) -> bool:
        """Whether the policy lets the subject; without a policy everything is allowed.

        Who can read the files can read them without us: this keeps honest people to their roles.
        """
        try:
            self.authorise(action, name, meta)
        except Denied:
            return False
        return True

    def authorise(self, action: Action, name: LogName, meta: EventMeta | None = None) -> None:
        """`Denied` when the policy says no."""
        if self.policy is not None:
            subject, band = self.settings.subject, meta.band if meta is not None else None
            decision = self.policy.decide(subject, action, name.topic, name.space_id, band)
            if not decision.allowed:
                raise Denied(subject or "", action, name.topic, name.space_id, str(decision))

    def permitted(self, action: Action, names: Sequence[LogName]) -> list[LogName]:
        """The logs that the subject may act on; `Denied` when there are some and it may on none."""
        allowed = [name for name in names if self.allows(action, name)]
        if names and not allowed:
            self.authorise(action, names[0])
        return allowed

    # -- printing ----------------------------------------------------------------------------------------------

    def say(self, text: str = "", style: str = "") -> None:
        """A line for people; nothing where JSON was asked for."""
        if not self.as_json:
            self.out.print(printable(text), style=style)

    def note(self, text: str) -> None:
        """A remark beside the data, on stderr, so that a pipe gets the data alone."""
        self.err.print(f"note: {printable(text)}", style="yellow")

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something that cannot be undone; without a terminal `--yes` must be given."""
        if yes:
            return
        if not self.err.is_terminal:
            raise CommandError(f"{question} Say --yes to do it without being asked")
        typer.confirm(question, abort=True, err=True)


@asynccontextmanager
async def opened_store(session: Session) -> AsyncIterator[WalStore]:
    """The workspace opened for writing, without a bus; `WorkspaceLocked` names the process that has it."""
    store = WalStore(session.workspace, session.settings.bus.wal)
    await store.open(lambda log, records: None)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            try:
                yield store
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()
