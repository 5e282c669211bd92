"""Quick looks into an event: paths of a policy, compiled for the common shapes so that scoring stays cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from events.types import Actor, Event
from filters.paths import Path, parse_path
from filters.values import MISSING

Look = Callable[[Event[Any]], Any]
"""What stands at a path, or None."""


def subject_of(event: Event[Any]) -> str:
    """Who caused an event, as policies name subjects; empty for nobody."""
    actor = event.meta.actor
    if actor is None or isinstance(actor, str):
        return actor or ""
    return _named(actor)


def _named(actor: Actor) -> str:
    if actor.user_id is not None:
        return f"user:{actor.user_id}"
    return "" if actor.agent_id is None else f"agent:{actor.agent_id}"


def look_at(text: str) -> Look:
    """A look along a dotted path. One or two names deep, which is where nearly all lead, it takes no walk."""
    path = parse_path(text)
    names = [step.name for step in path.steps]
    if path.root == "meta" and len(names) == 1 and names[0] != "actor":
        return _of_meta(names[0] or "")
    if path.root == "payload" and 1 <= len(names) <= 2 and all(step.position is None for step in path.steps):
        return _of_payload(*(name or "" for name in names))
    return subject_of if text == "meta.actor" else _along(path)


def _of_meta(name: str) -> Look:
    def look(event: Event[Any]) -> Any:
        meta = event.meta
        found = meta.__dict__.get(name)
        return (meta.__pydantic_extra__ or {}).get(name) if found is None else found

    return look


def _of_payload(name: str, inner: str | None = None) -> Look:
    path = parse_path(f"payload.{name}" if inner is None else f"payload.{name}.{inner}")
    slowly = _along(path)

    def look(event: Event[Any]) -> Any:
        payload = event.payload
        if type(payload) is not dict:
            return slowly(event)
        found = payload.get(name)
        if inner is None:
            return found
        return found.get(inner) if type(found) is dict else None

    return look


def _along(path: Path) -> Look:
    def look(event: Event[Any]) -> Any:
        found = path.find(event)
        return None if found is MISSING else found

    return look
