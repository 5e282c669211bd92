"""Paths into an event: compiled once, walked without dumping the meta or decoding a payload that nobody asked for."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

import orjson
from pydantic import BaseModel

from events.errors import InvalidMessage
from events.types import Actor, Device, Event, EventMeta, QoS
from filters.values import ARRAYS, MISSING

Root = Literal["meta", "payload"]
ROOTS: Final = ("meta", "payload")

MAX_STEPS: Final = 64
_RULE: Final = "a path is 'meta' or 'payload', then names and array indices joined by '.'"
_PARTS: Final[dict[str, type[BaseModel]]] = {"actor": Actor, "device": Device, "qos": QoS}


class Step(NamedTuple):
    """One step down: a name leads into an object, a position into an array; a dotted `0` can be either."""

    name: str | None
    position: int | None


@dataclass(frozen=True, slots=True)
class Path:
    """Where in an event a value stands."""

    root: Root
    steps: tuple[Step, ...]

    def find(self, event: Event[Any]) -> Any:
        """The value at the path, or `MISSING` where the path leads nowhere. An unset field of the meta is missing."""
        value: Any = event.meta if self.root == "meta" else payload_of(event)
        for name, position in self.steps:
            if isinstance(value, dict):
                value = value.get(name, MISSING)
            elif isinstance(value, ARRAYS):
                if position is None or not -len(value) <= position < len(value):
                    return MISSING
                value = value[position]
            elif hasattr(value, "__pydantic_extra__"):
                value = _field_of(value, name)
            else:
                return MISSING
        return value


def parse_path(text: str) -> Path:
    """The compiled form of `meta.actor.user_id` or `payload.items.0.name`, or `InvalidMessage`."""
    if not isinstance(text, str):
        raise InvalidMessage("path", text, _RULE)
    root, *names = text.split(".")
    if root not in ROOTS:
        raise InvalidMessage("path", text, _RULE, hint=f"An event has meta and payload, but no {root!r}")
    if not all(names) or len(names) > MAX_STEPS:
        hint = f"At most {MAX_STEPS} of them, and none empty; JSONPathFilter reaches names that have a dot in them"
        raise InvalidMessage("path", text, _RULE, hint=hint)
    if root == "meta":
        _refuse_misspelt(text, names)
    return Path(cast(Root, root), tuple(Step(name, _position(name)) for name in names))


def path_of(steps: Sequence[str | int]) -> Path | None:
    """The path of a JSONPath that only names members and indices; None when it starts outside the event."""
    if not steps or steps[0] not in ROOTS:
        return None
    below = (Step(step, None) if isinstance(step, str) else Step(None, step) for step in steps[1:])
    return Path(cast(Root, steps[0]), tuple(below))


def payload_of(event: Event[Any]) -> dict[str, Any]:
    """The payload as the object that stands, or will stand, in the log."""
    payload = event.payload
    if type(payload) is dict:
        return payload
    return payload.model_dump(mode="json") if isinstance(payload, BaseModel) else dict(payload)


def document_of(event: Event[Any], roots: Sequence[str]) -> dict[str, Any]:
    """The event as one JSON object, with those of its two halves that a query will look at."""
    document: dict[str, Any] = {}
    if "meta" in roots:
        document["meta"] = orjson.loads(event.meta.to_json())
    if "payload" in roots:
        document["payload"] = payload_of(event)
    return document


def _field_of(model: BaseModel, name: str | None) -> Any:
    if name is None:
        return MISSING
    # Not getattr: a path must reach fields, and never a method or a property.
    value = model.__dict__.get(name)
    if value is None and (unknown := model.__pydantic_extra__):
        value = unknown.get(name)
    return MISSING if value is None else value


def _position(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


def _refuse_misspelt(text: str, names: list[str]) -> None:
    """Unknown names are allowed, since newer writers may know them (rule E1); near misses of known ones are not."""
    model: type[BaseModel] | None = EventMeta
    for name in names:
        if model is None or name in model.model_fields:
            model = _PARTS.get(name) if model is EventMeta else None
            continue
        close = difflib.get_close_matches(name, model.model_fields, n=1, cutoff=0.75)
        if close:
            hint = f"Did you mean {close[0]!r}? A key that only newer writers know is reached with JSONPathFilter"
            raise InvalidMessage("path", text, f"the envelope has no {name!r}", hint=hint)
        return
