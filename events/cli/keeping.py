"""`events verify`, `repair`, `compact`, `retention`: reading every byte, mending, deleting what is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import anyio
import typer

from events.cli.output import Grid, cell, joined, make_progress, plural, print_json, print_table
from events.cli.problems import CommandError, ExitCode
from events.cli.selection import SpaceOption, TopicArgument, check_selection
from events.cli.session import JsonOption, Session, WorkspaceOption, YesOption, opened_store
from events.errors import CorruptLog, InvalidMessage
from events.persistence.repair import Repaired, Verified
from events.persistence.repair import repair as repair_logs
from events.persistence.repair import verify as verify_logs
from events.persistence.retention import Dropped, retain
from events.persistence.retention import compact as compact_log
from events.persistence.store import LogName
from events.units import parse_bytes, parse_seconds, show_bytes

_STYLES = {"clean": "green", "whole": "green", "torn": "yellow", "corrupt": "bold red"}
_MEANING = {
    "whole": "sound; the mark lags behind, as while a bus writes",
    "torn": "the end was cut off in mid-write; heals when the bus opens",
    "corrupt": "damaged",
}


def verify(ctx: typer.Context, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Read every byte of every log; exit 1 on damage.

    Needs no lock. Beside a running bus a batch in flight may show as torn.
    """
    session = Session.of(ctx, workspace, as_json)
    session.reader  # noqa: B018 - says so where there is no workspace
    found: list[Verified] = []
    with make_progress() as progress:
        task = progress.add_task("verifying", total=None)
        for one in verify_logs(session.workspace):
            found.append(one)
            progress.update(task, advance=1, description=f"verified {one.name.space_id}/{one.name.topic}")
    if session.as_json:
        print_json([_verified_data(one) for one in found])
    else:
        _print_verified(session, found)
    if not all(one.is_sound for one in found):
        raise typer.Exit(ExitCode.PROBLEM)


def _verified_data(one: Verified) -> dict[str, Any]:
    damage = one.found.damage
    return {
        "space_id": one.name.space_id,
        "topic": one.name.topic,
        "kind": one.kind,
        "condition": one.found.condition,
        "last_offset": one.found.last_offset,
        "bytes_read": one.found.bytes_read,
        "surplus_bytes": one.found.surplus if one.found.condition == "torn" else 0,
        "mark_damaged": one.found.mark_damaged,
        "damage": None if damage is None else {"path": damage.path, "byte": damage.byte, "reason": damage.reason},
    }


def _print_verified(session: Session, found: Sequence[Verified]) -> None:
    table = Grid("space", "topic", "kind", "condition", ">last offset", ">read", "<")
    for one in found:
        meaning = "a copy of the mark is unreadable; the other stood in" if one.found.mark_damaged else ""
        table.add(
            cell(one.name.space_id),
            cell(one.name.topic, "bold"),
            cell(one.kind, "dim"),
            cell(one.found.condition, _STYLES[one.found.condition]),
            cell(one.found.last_offset),
            cell(show_bytes(one.found.bytes_read)),
            cell(meaning or _MEANING.get(one.found.condition, ""), "dim"),
        )
    if found:
        print_table(session.out, table)
    damaged = [one.found.damage for one in found if one.found.damage is not None]
    size = show_bytes(sum(one.found.bytes_read for one in found))
    if damaged:
        for damage in damaged:
            session.say(str(damage), "red")
    else:
        session.say(f"{plural(len(found), 'log')} sound, {size} read.", "green")


def repair(
    ctx: typer.Context,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up the offsets that cannot be read; a gap line stays.")
    ] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Heal torn ends; with --accept-loss, mend damage.

    A torn end is kept aside and cut off, as opening the bus does. Damage is only named, unless you accept the loss:
    then what can be read is kept, the rest becomes a gap, and the damaged files stay in `.bus/aside`. Takes the lock.
    """
    session = Session.of(ctx, workspace, as_json, usual_log_level="critical")  # what recovery logs is printed here
    session.reader  # noqa: B018 - says so where there is no workspace
    for name in session.inspector.names():
        session.authorise("admin", name)
    damage: CorruptLog | None = None
    repaired: list[Repaired] = []
    try:
        repaired = repair_logs(session.workspace, accept_loss=accept_loss)
    except CorruptLog as error:
        damage = error
    healed = anyio.run(_open_all, session)
    if session.as_json:
        print_json(_repaired_data(repaired, healed, damage))
    else:
        _print_repaired(session, repaired, healed, damage)
    if damage is not None:
        raise typer.Exit(ExitCode.PROBLEM)


async def _open_all(session: Session) -> list[tuple[LogName, str | None]]:
    """Open every log, which recovers it; those whose torn end was kept aside."""
    async with opened_store(session) as store:
        for name in await store.log_names():
            await store.log(name)
            if await store.has_dead_letters(name):
                await store.dead_letters(name)
        return [(name, found.kept_aside) for name, found in store.reports if found.condition == "torn"]


def _repaired_data(
    repaired: Sequence[Repaired], healed: Sequence[tuple[LogName, str | None]], damage: CorruptLog | None
) -> dict[str, Any]:
    return {
        "repaired": [
            {**one.name._asdict(), "kind": one.kind, "lost": one.lost, "kept_aside": one.kept_aside} for one in repaired
        ],
        "healed": [{**name._asdict(), "kept_aside": aside} for name, aside in healed],
        "damage": None if damage is None else str(damage),
    }


def _print_repaired(
    session: Session,
    repaired: Sequence[Repaired],
    healed: Sequence[tuple[LogName, str | None]],
    damage: CorruptLog | None,
) -> None:
    for one in repaired:
        lost = sum(last - first + 1 for first, last in one.lost)
        ranges = joined([f"{first}" if first == last else f"{first}..{last}" for first, last in one.lost], 8)
        session.say(
            f"{one.name.space_id}/{one.name.topic} ({one.kind}): gave up {plural(lost, 'offset')}: {ranges}", "yellow"
        )
        session.say(f"  the damaged files are kept: {joined(one.kept_aside)}", "dim")
    for name, aside in healed:
        session.say(f"{name.space_id}/{name.topic}: healed a torn end, kept in {aside}", "yellow")
    if damage is not None:
        session.say(str(damage), "red")
    elif not repaired and not healed:
        session.say("Nothing to repair.", "green")


def compact(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    space: SpaceOption = "*",
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete sealed files that every group has settled.

    A log without a group is left alone. Takes the lock.
    """
    session = Session.of(ctx, workspace, as_json)
    names = _names(session, topic, space)

    async def run() -> list[Dropped]:
        async with opened_store(session) as store:
            return [await compact_log(store, name) for name in names]

    _report(session, anyio.run(run), "every group has settled them")


def retention(
    ctx: typer.Context,
    topic: TopicArgument = "*",
    space: SpaceOption = "*",
    max_age: Annotated[
        str | None, typer.Option("--max-age", help="Delete what is older: 30d, 12h.", metavar="SPAN")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Keep at most so much of each log: 1GiB.", metavar="SIZE")
    ] = None,
    yes: YesOption = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete by age or size, settled or not.

    Only whole sealed files go, and it says which group lost what. Without limits, those of topics.toml apply. Takes the
    lock.
    """
    session = Session.of(ctx, workspace, as_json)
    names = _names(session, topic, space)
    age_s = None if max_age is None else parse_seconds(max_age, "--max-age")
    size = None if max_bytes is None else parse_bytes(max_bytes, "--max-bytes")
    limits = {name: _limits(session, name, age_s, size) for name in names}
    limited = {name: found for name, found in limits.items() if found != (None, None)}
    if not limited:
        raise CommandError("no limit: give --max-age or --max-bytes, or set retention_s in topics.toml")
    session.confirm(f"Delete what is beyond the limits in {plural(len(limited), 'log')}?", yes=yes)

    async def run() -> list[Dropped]:
        async with opened_store(session) as store:
            now_ms = store.clock.now_ms()
            return [
                await retain(store, name, now_ms=now_ms, max_age_s=age, max_bytes=most)
                for name, (age, most) in limited.items()
            ]

    _report(session, anyio.run(run), "they are beyond the limits")


def _limits(session: Session, name: LogName, age_s: float | None, size: int | None) -> tuple[float | None, int | None]:
    if age_s is not None or size is not None:
        return age_s, size
    policy = session.settings.bus.topic(name.topic)
    return policy("retention_s"), policy("retention_bytes")


def _names(session: Session, topic: str, space: str) -> list[LogName]:
    check_selection(topic, space)
    names = session.inspector.names(topic, space)
    if not names:
        raise InvalidMessage("topic", topic, f"no log matches it in space {space!r}", hint="`events topics` lists them")
    for name in names:
        session.authorise("admin", name)
    return names


def _report(session: Session, dropped: Sequence[Dropped], why: str) -> None:
    gone = [one for one in dropped if one.first_now > one.first_before]
    if session.as_json:
        print_json(
            [
                {**one.name._asdict(), "first_before": one.first_before, "first_now": one.first_now}
                | {"robbed": [{"group": group, "events": events} for group, events in one.robbed]}
                for one in gone
            ]
        )
        return
    for one in gone:
        number = plural(one.first_now - one.first_before, "event")
        session.say(f"{one.name.space_id}/{one.name.topic}: deleted {number}, up to offset {one.first_now - 1}: {why}")
        for group, events in one.robbed:
            session.say(f"  group {group} had not settled {plural(events, 'of them', 'of them')}", "yellow")
    if not gone:
        session.say("Nothing to delete: only whole sealed files go, never the one that is being written.")
