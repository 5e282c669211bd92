"""`events topics` and `events groups`: what there is, and how far everybody is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from events.cli.output import Grid, ago, cell, joined, plural, print_json, print_table, tracked
from events.cli.selection import GroupOption, SpaceOption, TopicArgument, check_selection
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.inspection import GroupState, TopicState
from events.units import show_bytes, show_moment, show_seconds


def topics(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    space: SpaceOption = "*",
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List topics: events, size, newest, dead letters, groups."""
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    inspector = session.inspector
    records = inspector.group_records()
    names = session.permitted("replay", inspector.names(topic, space))
    states = [inspector.topic_state(name, records) for name in tracked(names, "reading topics")]
    if session.as_json:
        print_json([{**asdict(state), "events": state.events} for state in states])
        return
    if not states:
        session.say(f"No topic matches {topic!r}" if topic != "*" else "No topics yet.")
        return
    print_table(session.out, _topic_table(states))
    withheld = sum(state.withheld for state in states)
    if withheld:
        held = inspector.reader.is_held()
        advice = "the bus is writing them" if held else "opening the workspace (`events repair`) recovers them"
        session.note(f"{plural(withheld, 'line')} not proven durable yet, and not counted: {advice}")
    for state in states:
        if state.trouble:
            session.note(f"{state.space_id}/{state.topic}: {state.trouble}")


def _topic_table(states: Sequence[TopicState]) -> RenderableType:
    table = Grid("space", "topic", ">events", "?>offsets", "?>newest", ">size", "?>files", ">dead", "<groups")
    for state in states:
        table.add(
            cell(state.space_id),
            cell(state.topic, "bold red" if state.trouble else "bold"),
            cell(state.events),
            cell(f"{state.first}..{state.last}", "dim" if state.first == 1 else ""),
            cell(ago(state.last_at_ms), "dim"),
            cell(show_bytes(state.size_bytes)),
            cell(state.segments),
            cell(state.dead, "red" if state.dead else "dim"),
            cell(joined(state.groups) or "none", "" if state.groups else "dim"),
        )
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group over all its logs: counts are summed, ages are those of the oldest."""

    group: str
    pattern: str
    space: str
    condition: str
    logs: int
    lag: int
    lag_s: float
    oldest_at_ms: int | None
    in_flight: int
    retrying: int
    deferred: int
    dead: int
    settled_per_s: float | None = None
    trouble: str | None = None


def groups(
    ctx: typer.Context,
    group: GroupOption = None,
    topic: Annotated[str, typer.Option("--topic", help="Only logs of these topics.")] = "*",
    space: SpaceOption = "*",
    each: Annotated[bool, typer.Option("--each", "-e", help="One line for each log, not for each group.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show groups: lag, in flight, retries, dead letters.

    LAG counts what a group has not settled, AGE is how long the oldest of that has waited. Of the lag, RETRY waits for
    another attempt, DEFER was put off by the gate, and FLIGHT is queued, running, or stands behind another event of its
    key, as of the last checkpoint (a tenth of a second ago at most). DEAD are dead letters.

    A group is `consuming` while a bus has it, `stopped` after an orderly end, and `interrupted` when its process died:
    then nothing is lost, and what it had in hand comes again.
    """
    session = Session.of(ctx, workspace, as_json)
    check_selection(topic, space)
    view = _View(session, topic, space, group, each=each)
    if not watch:
        view.look()
        if session.as_json:
            print_json(view.data())
        else:
            print_table(session.out, view.table())
            for trouble in view.troubles():
                session.note(trouble)
        return
    try:
        _watch(session, view, interval)
    except KeyboardInterrupt:
        return  # the way to end it


def _watch(session: Session, view: _View, interval: float) -> None:
    if session.as_json or not session.out.is_terminal:
        while True:
            view.look()
            if session.as_json:
                print_json({"at_ms": time.time_ns() // 1_000_000, "groups": view.data()}, lines=True)
            else:
                print_table(session.out, view.table())
            time.sleep(interval)
    view.look()
    with Live(view.screen(), console=session.out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            view.look()
            live.update(view.screen(), refresh=True)


class _View:
    """The groups as they were when last looked at, and how fast they settle since the look before."""

    def __init__(self, session: Session, topic: str, space: str, group: str | None, *, each: bool) -> None:
        self._session, self._each = session, each
        self._selection = (topic, space, group)
        self._states: list[GroupState] = []
        self._summaries: list[GroupSummary] = []
        self._looked_at = 0.0
        self._settled: dict[str, int] = {}

    def look(self) -> None:
        """Read the files again."""
        inspector = self._session.inspector
        self._states = list(inspector.group_states(*self._selection))
        now, settled = time.monotonic(), _settled_by_group(self._states)
        passed, before = now - self._looked_at, self._settled
        rates = {name: (settled[name] - before[name]) / passed for name in settled if name in before}
        self._looked_at, self._settled = now, settled
        wanted = self._selection[2]
        self._summaries = [
            _summary(record, [one for one in self._states if one.group == name], rates.get(name))
            for name, record in sorted(inspector.group_records().items())
            if wanted in (None, name)
        ]

    def data(self) -> list[dict[str, Any]]:
        """What was seen, for JSON."""
        shown: Sequence[GroupState] | Sequence[GroupSummary] = self._states if self._each else self._summaries
        return [asdict(one) for one in shown]

    def troubles(self) -> list[str]:
        """What could not be read."""
        return [f"{one.group}: {one.space_id}/{one.topic}: {one.trouble}" for one in self._states if one.trouble]

    def table(self) -> RenderableType:
        """What was seen, for people."""
        if not self._summaries:
            return Text("No groups yet: nobody has subscribed.")
        return _each_table(self._states) if self._each else _group_table(self._summaries)

    def screen(self) -> RenderableType:
        """What was seen, with a line above and below it."""
        head = Text.assemble(
            (f"{self._session.workspace}", "bold"),
            f"   {show_moment(time.time_ns() // 1_000_000)[:19]} UTC   ",
            (f"{plural(sum(one.lag for one in self._summaries), 'event')} to settle", "bold"),
        )
        return Stack(head, Text(), self.table(), *map(Text, self.troubles()), Text("Ctrl-C ends this", style="dim"))


def _settled_by_group(states: Iterable[GroupState]) -> dict[str, int]:
    settled: dict[str, int] = {}
    for one in states:
        settled[one.group] = settled.get(one.group, 0) + one.last - one.lag
    return settled


def _summary(record: Any, states: Sequence[GroupState], rate: float | None) -> GroupSummary:
    condition = states[0].condition if states else "stopped" if not record.held else "consuming"
    return GroupSummary(
        group=record.name,
        pattern=record.topic,
        space=record.space,
        condition=condition,
        logs=len(states),
        lag=sum(one.lag for one in states),
        lag_s=max((one.lag_s for one in states), default=0.0),
        oldest_at_ms=min((one.oldest_at_ms for one in states if one.oldest_at_ms is not None), default=None),
        in_flight=sum(one.in_flight for one in states),
        retrying=sum(one.retrying for one in states),
        deferred=sum(one.deferred for one in states),
        dead=sum(one.dead for one in states),
        settled_per_s=rate,
        trouble=next((one.trouble for one in states if one.trouble), None),
    )


_CONDITION_STYLES = {"consuming": "green", "stopped": "dim", "interrupted": "bold yellow"}


_COUNTS = (">lag", ">age", ">flight", ">retry", ">defer", ">dead")


def _group_table(summaries: Sequence[GroupSummary]) -> RenderableType:
    has_rates = any(one.settled_per_s is not None for one in summaries)
    table = Grid("group", "reads", "state", *_COUNTS, *([">settled/s"] if has_rates else []))
    for one in summaries:
        table.add(
            cell(one.group, "bold"),
            cell(one.pattern if one.space == "*" else f"{one.space}/{one.pattern}"),
            cell(one.condition, _CONDITION_STYLES.get(one.condition, "")),
            *_counts(one),
            *([cell(f"{one.settled_per_s or 0:,.0f}")] if has_rates else []),
        )
    return table


def _each_table(states: Sequence[GroupState]) -> RenderableType:
    table = Grid("group", "log", "?>settled to", "?>end", "?>oldest", *_COUNTS)
    for one in states:
        table.add(
            cell(one.group, "bold"),
            cell(f"{one.space_id}/{one.topic}", _CONDITION_STYLES.get(one.condition, "")),
            cell(one.committed),
            cell(one.last),
            cell(one.oldest),
            *_counts(one),
        )
    return table


def _counts(one: GroupSummary | GroupState) -> list[Text]:
    age = show_seconds(one.lag_s) if one.lag else "-"
    return [
        cell(one.lag, "bold" if one.lag else "dim"),
        cell(age, "red" if one.lag_s > 60 else "yellow" if one.lag_s > 5 else "dim" if not one.lag else ""),
        cell(one.in_flight, "" if one.in_flight else "dim"),
        cell(one.retrying, "yellow" if one.retrying else "dim"),
        cell(one.deferred, "cyan" if one.deferred else "dim"),
        cell(one.dead, "bold red" if one.dead else "dim"),
    ]
