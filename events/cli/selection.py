"""Which events a command is about: topic patterns, spaces, conditions, moments, and completing their names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from events.cli.problems import CommandError
from events.contracts import Filter
from events.errors import BusError, InvalidMessage
from events.inspection import Inspector
from events.names import check_space, check_topic_pattern
from events.settings import Settings
from events.types import EventMeta
from events.units import parse_moment
from filters import SimpleFilter, filter_from

_condition = re.compile(r"(?P<path>[^=!<>~?]+?)\s*(?P<op>!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.DOTALL).fullmatch
_OPERATORS: Final = {"=": "exact", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "~": "regex"}
_WHERE_RULE: Final = (
    "a condition is PATH=VALUE, or with != < <= > >= or ~ (a regular expression), or PATH? for there at all, "
    "as in payload.score>0.5 or meta.actor?"
)


def _inspector_for(ctx: typer.Context) -> Inspector:
    workspace = ctx.params.get("workspace")
    return Inspector(Settings.load(workspace=Path(workspace) if workspace else None).workspace)


def _completing(find: Callable[[Inspector], Sequence[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            names = find(_inspector_for(ctx))
        except (BusError, OSError):
            return []  # whoever presses Tab does not want to read about it
        return sorted({name for name in names if name.startswith(incomplete)})

    return complete


complete_topic = _completing(lambda inspector: [name.topic for name in inspector.names()])
complete_space = _completing(lambda inspector: inspector.reader.spaces())
complete_group = _completing(lambda inspector: list(inspector.group_records()))

TopicArgument = Annotated[
    str,
    typer.Argument(help="A topic, or a glob: * is one segment, ** any number.", autocompletion=complete_topic),
]
SpaceOption = Annotated[
    str, typer.Option("--space", "-s", help="One space, or * for all.", autocompletion=complete_space)
]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", help="One group only.", autocompletion=complete_group, metavar="GROUP")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", "-q", help="PATH=VALUE, also != < <= > >= ~, or PATH? May repeat.", metavar="COND"),
]
FilterOption = Annotated[
    str | None, typer.Option("--filter", help="A filter as JSON, as policy files have it.", metavar="JSON")
]
TypeOption = Annotated[str | None, typer.Option("--type", "-t", help="One event type.", metavar="TYPE")]
SinceOption = Annotated[
    str | None, typer.Option("--since", "--from", help="A time, 'yesterday', '2h ago'.", metavar="WHEN")
]
UntilOption = Annotated[str | None, typer.Option("--until", "--to", help="Up to then.", metavar="WHEN")]


def check_selection(topic: str, space: str) -> None:
    """Refuse what is neither a topic nor a pattern, and what is no space."""
    check_topic_pattern(topic)
    if space != "*":
        check_space(space)


def filters_of(where: Sequence[str] | None, filter_json: str | None, event_type: str | None) -> list[Filter]:
    """The filters that some options stand for; all of them must match."""
    filters: list[Filter] = [condition_of(one) for one in where or ()]
    if event_type is not None:
        filters.append(SimpleFilter("meta.type", event_type))
    if filter_json is not None:
        try:
            data = json.loads(filter_json)
        except ValueError as error:
            raise CommandError(f"--filter is no JSON: {error}") from None
        filters.append(filter_from(data, where="--filter"))
    return filters


def condition_of(text: str) -> Filter:
    """`payload.score>0.5` as a filter. A path that does not say where means the meta if that has such a field."""
    if text.endswith("?"):
        return SimpleFilter(_full_path(text[:-1]), True, "exists")
    found = _condition(text.strip())
    if found is None:
        raise InvalidMessage("--where", text, _WHERE_RULE)
    value = found["value"] if found["op"] == "~" else value_of(found["value"])
    return SimpleFilter(_full_path(found["path"]), value, _OPERATORS[found["op"]])


def value_of(text: str) -> Any:
    """What a word on the command line stands for: JSON where it is some, else the text itself."""
    try:
        return json.loads(text, parse_constant=lambda constant: constant)
    except ValueError:
        return text


def _full_path(path: str) -> str:
    path = path.strip()
    root = path.split(".", 1)[0]
    if root in ("meta", "payload"):
        return path
    return f"meta.{path}" if root in EventMeta.model_fields else f"payload.{path}"


def moment_of(text: str | None, option: str) -> datetime | None:
    """The moment that an option names, if it was given."""
    return None if text is None else parse_moment(text, datetime.now(UTC), option)
