"""`events publish`: one event from arguments, many from JSON lines on stdin, or none with `--dry-run`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import anyio
import orjson
import typer
from rich.progress import Progress, TaskID

from events.bus import EventBus
from events.cli.output import joined, make_progress, plural, print_json
from events.cli.problems import CommandError
from events.cli.selection import complete_space, complete_topic, value_of
from events.cli.session import JsonOption, Session, WorkspaceOption
from events.contracts import Middleware
from events.errors import InvalidMessage, InvalidTopic
from events.persistence.store import LogName
from events.serialization import encode_payload
from events.surface import Surface
from events.types import Event, EventMeta, Receipt
from events.units import parse_seconds, show_seconds

_CHUNK: Final = 500


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What the options say of every event's meta; a line of stdin may say otherwise."""

    fields: Mapping[str, Any]
    subject: str | None
    max_bytes: int

    def event(self, payload: Mapping[str, Any], meta: Mapping[str, Any]) -> Event[Any]:
        """The event, checked as the bus will check it."""
        fields = {**self.fields, **meta}
        if "topic" not in fields:
            raise InvalidMessage("topic", None, "no topic: give one as the first argument, or in the line's meta")
        fields.setdefault("type", type_of(str(fields["topic"])))
        if self.subject is not None:
            fields.setdefault("actor", self.subject)
        return Event.from_log(EventMeta(**fields), encode_payload(payload, self.max_bytes))


def publish(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(help="The topic; with --stdin it may stand in each line.", autocompletion=complete_topic),
    ] = None,
    payload: Annotated[
        list[str] | None, typer.Argument(help="A JSON object, @FILE with one, or NAME=VALUE words.")
    ] = None,
    event_type: Annotated[
        str | None, typer.Option("--type", "-t", help="The type; else the topic in capitals.", metavar="TYPE")
    ] = None,
    space: Annotated[str, typer.Option("--space", "-s", help="The space.", autocompletion=complete_space)] = "default",
    key: Annotated[str | None, typer.Option("--key", "-k", help="Events of a key stay in order.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="0 to 100, or low, normal, high, critical.", metavar="PRIORITY")
    ] = None,
    correlation: Annotated[str | None, typer.Option(help="The conversation it belongs to.", metavar="ID")] = None,
    causation: Annotated[str | None, typer.Option(help="The event that caused it.", metavar="ID")] = None,
    idem_key: Annotated[str | None, typer.Option(help="Handled once, however often it comes.", metavar="KEY")] = None,
    ttl: Annotated[str | None, typer.Option(help="How long it is worth handling: 30s, 5m.", metavar="SPAN")] = None,
    meta: Annotated[
        list[str] | None, typer.Option("--meta", help="Any other field of the meta: band=RED.", metavar="NAME=VALUE")
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="JSON lines: payloads, or what `events tail --json` prints.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show; write nothing, lock nothing.")] = False,
    subject: Annotated[str | None, typer.Option("--as", help="Publish as this subject.", metavar="SUBJECT")] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish events; durable when it returns.

    Takes the workspace's lock: while a bus runs there, publish through that process. With --json each receipt is a
    line.
    """
    session = Session.of(ctx, workspace, as_json, subject=subject)
    given = {
        "topic": topic,
        "type": event_type,
        "key": key,
        "correlation_id": correlation,
        "causation_id": causation,
        "idem_key": idem_key,
        "priority": None if priority is None else value_of(priority),
        "ttl_sec": None if ttl is None else parse_seconds(ttl, "--ttl"),
        **_pairs(meta or (), "--meta"),
    }
    fields = {"space_id": space, **{name: value for name, value in given.items() if value is not None}}
    envelope = _Envelope(fields, session.settings.subject, session.settings.bus.max_event_bytes)
    if stdin and payload:
        raise CommandError("the payload comes from stdin or from arguments, not from both")
    events = _from_lines(sys.stdin, envelope) if stdin else iter([envelope.event(payload_of(payload or ()), {})])
    if dry_run:
        _show(session, events)
    else:
        anyio.run(_publish, session, events, stdin)


def payload_of(words: Sequence[str]) -> Mapping[str, Any]:
    """The payload that arguments stand for: JSON, a file with JSON, or NAME=VALUE words. Nothing is `{}`."""
    text = words[0].strip() if len(words) == 1 else ""
    if text.startswith("@"):
        text = Path(text[1:]).read_text(encoding="utf-8")
    elif not text.startswith("{"):
        return _pairs(words, "payload")
    try:
        data = orjson.loads(text)
    except ValueError as error:
        raise InvalidMessage("payload", text, f"no JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidMessage("payload", text, "a payload is a JSON object")
    return data


def type_of(topic: str) -> str:
    """The type that goes without saying: `memory.write` is MEMORY_WRITE."""
    return "_".join(part for part in topic.replace("-", "_").replace(".", "_").upper().split("_") if part)


def _pairs(words: Iterable[str], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidMessage(where, word, "NAME=VALUE; or one JSON object in quotes")
        found[name] = value_of(value)
    return found


def _from_lines(lines: TextIO, envelope: _Envelope) -> Iterator[Event[Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = orjson.loads(line)
            if not isinstance(data, dict):
                raise InvalidMessage("line", data, "each line is a JSON object")
            if isinstance(data.get("meta"), dict) and isinstance(data.get("payload"), dict):
                yield envelope.event(data["payload"], data["meta"])
            else:
                yield envelope.event(data, {})
        except ValueError as error:  # of JSON, and every InvalidMessage
            raise CommandError(f"line {number} of stdin: {error}") from None


def _show(session: Session, events: Iterable[Event[Any]]) -> None:
    number = 0
    for event in events:
        number += 1
        _check_topic(session, str(event.meta.topic))
        session.authorise("publish", LogName(event.meta.space_id, str(event.meta.topic)), event.meta)
        shown = {"meta": orjson.loads(event.meta.to_json()), "payload": orjson.loads(event.raw_payload or b"{}")}
        print_json(shown, lines=True)
    session.say(
        f"dry run: {plural(number, 'event')} would be published to {session.workspace}; nothing was written", "dim"
    )


def _check_topic(session: Session, topic: str) -> None:
    allowed = session.settings.bus.strict_topics
    if allowed is not None and topic not in allowed:
        raise InvalidTopic("topic", topic, f"strict topology allows {', '.join(allowed)}")


async def _publish(session: Session, events: Iterator[Event[Any]], many: bool) -> None:
    # Nobody subscribes here, so strict topology would refuse everything: its list is kept to by us.
    config = replace(session.settings.bus, strict_topics=None)
    began, counts = time.monotonic(), Counter[str]()
    async with EventBus(_middlewares(session), workspace=session.workspace, config=config) as bus:
        surface: Surface = bus if session.settings.subject is None else bus.bind(session.settings.subject)
        with make_progress() as progress:
            task = progress.add_task("publishing", total=None, visible=many)
            while chunk := _next_chunk(session, events, counts):
                receipts = await surface.publish_many(chunk)
                counts.update(f"{receipt.space_id}/{receipt.topic}" for receipt in receipts)
                _tell(session, receipts, progress, task, one_by_one=not many)
    if many:
        spent = show_seconds(time.monotonic() - began)
        session.say(
            f"{plural(counts.total(), 'event')} published in {spent}: {joined(sorted(counts), 6) or 'no input'}"
        )


def _next_chunk(session: Session, events: Iterator[Event[Any]], published: Counter[str]) -> list[Event[Any]]:
    try:
        chunk = [event for _, event in zip(range(_CHUNK), events, strict=False)]
        for event in chunk:
            _check_topic(session, str(event.meta.topic))
    except CommandError as error:
        raise CommandError(f"{error}. {plural(published.total(), 'event')} before it went out") from None
    return chunk


def _tell(session: Session, receipts: Sequence[Receipt], progress: Progress, task: TaskID, *, one_by_one: bool) -> None:
    progress.update(task, advance=len(receipts))
    for receipt in receipts:
        if session.as_json:
            print_json(receipt._asdict(), lines=True)
        elif one_by_one:
            session.say(f"published {receipt.space_id}/{receipt.topic}/{receipt.offset} {receipt.event_id}")


def _middlewares(session: Session) -> list[Middleware]:
    if session.policy is None:
        return []
    from middleware.audit import AuditTrail, JsonlAuditSink
    from middleware.rbac import RBACMiddleware

    # Not to the log as well: a refusal is printed anyway.
    audit = AuditTrail(JsonlAuditSink(session.workspace / ".bus" / "audit"))
    return [RBACMiddleware(session.policy, audit=audit)]
