"""Kinds of events: what the payload of each type looks like, in which version, and how older ones are lifted.

A `Taxonomy` belongs to whoever makes it; `events.cognitive_events.standard()` is one with the kinds that ship. The
version of a payload is its `meta.schema_version`; an event that names none has version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from events.errors import InvalidMessage
from events.names import check_topic
from events.types import Event, EventMeta

Upcaster = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Turns the payload of one version into that of the next. It is given a copy of its own."""

UpcasterT = TypeVar("UpcasterT", bound=Upcaster)
Model = type[BaseModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is known of a type: its payload, where it usually travels, and between whom."""

    type: str
    model: Model
    topic: str
    version: int = 1
    producers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What such an event says: the first line of its model's docstring."""
        return (self.model.__doc__ or "").strip().partition("\n")[0]


class Taxonomy:
    """Kinds by type, and the upcasters between their versions. Register before the bus runs; then only read."""

    def __init__(self, kinds: Iterable[Kind] = ()) -> None:
        self._kinds: dict[str, Kind] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}
        for kind in kinds:
            self.register(kind)

    def register(self, kind: Kind) -> Kind:
        """Add a kind. One type has one kind: a second is refused unless it is a newer version of the first."""
        known = self._kinds.get(kind.type)
        if known is not None and known.version >= kind.version:
            rule = f"there is a version {known.version} of {kind.type} already"
            raise InvalidMessage("kind", f"{kind.type} version {kind.version}", rule, hint="Raise its version")
        if kind.version < 1:
            raise InvalidMessage("kind", kind.version, "versions begin at 1")
        EventMeta(topic=check_topic(kind.topic), type=kind.type, space_id="any")  # the names are names
        self._kinds[kind.type] = kind
        return kind

    def upcaster(self, type: str, from_version: int) -> Callable[[UpcasterT], UpcasterT]:
        """Register a function that lifts a payload from one version to the next."""

        def register(function: UpcasterT) -> UpcasterT:
            self._upcasters[str(type), from_version] = function
            return function

        return register

    def kind(self, type: str) -> Kind | None:
        """What is known of a type."""
        return self._kinds.get(type)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def __len__(self) -> int:
        return len(self._kinds)

    # -- publishing --------------------------------------------------------------------------------------------

    def event(self, type: str, payload: Mapping[str, Any] | BaseModel, *, space_id: str, **meta: Any) -> Event[Any]:
        """An event of a known kind: its usual topic and its version are filled in, its payload is checked."""
        kind = self._kinds.get(type)
        if kind is None:
            raise InvalidMessage("type", type, "no such kind is registered", hint="Register it, or build an Event")
        fields = {"topic": kind.topic, "schema_version": kind.version, **meta}
        event: Event[Any] = Event(EventMeta(type=type, space_id=space_id, **fields), payload)
        fault = self.fault(event)
        if fault is not None:
            raise fault
        return event

    def fault(self, event: Event[Any]) -> InvalidMessage | None:
        """What is wrong with a payload by its kind's model. Nothing, where the type or its version is not known."""
        kind = self._kinds.get(event.meta.type)
        if kind is None or _version(event) > kind.version:
            return None
        try:
            raw = event.raw_payload
            if raw is not None and _version(event) == kind.version:
                kind.model.model_validate_json(raw)
            else:
                kind.model.model_validate(self._lift(kind, event))
        except ValidationError as error:
            return _explained(error, kind)
        except InvalidMessage as error:
            return error
        return None

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, event: Event[Any]) -> BaseModel:
        """The payload as its kind's model, lifted where it is older; `InvalidMessage` if it does not fit."""
        kind = self._kinds.get(event.meta.type)
        if kind is None:
            raise InvalidMessage("meta.type", event.meta.type, "no such kind is registered")
        try:
            return kind.model.model_validate(self._lift(kind, event))
        except ValidationError as error:
            raise _explained(error, kind) from None

    def lifted(self, event: Event[Any]) -> Event[Any]:
        """The event at its kind's version. One that is there already, newer, or of no known kind is left alone."""
        kind = self._kinds.get(event.meta.type)
        if kind is None or _version(event) >= kind.version:
            return event
        # Of its own class: a handler that asked for Event[Model] gets the model, made of the newest version.
        return type(event)(event.meta.replace(schema_version=kind.version), self._lift(kind, event))

    def _lift(self, kind: Kind, event: Event[Any]) -> dict[str, Any]:
        payload = _decoded(event)
        for version in range(_version(event), kind.version):
            upcaster = self._upcasters.get((kind.type, version))
            if upcaster is None:
                rule = f"{kind.type} has version {kind.version}, and nothing lifts version {version}"
                raise InvalidMessage("meta.schema_version", version, rule, hint="Register an upcaster for it")
            payload = dict(upcaster(payload))
        return payload


def _version(event: Event[Any]) -> int:
    return event.meta.schema_version or 1


def _decoded(event: Event[Any]) -> dict[str, Any]:
    """A payload of our own, without decoding the event itself: its bytes go on as they are."""
    raw = event.raw_payload
    if raw is not None:
        decoded: dict[str, Any] = orjson.loads(raw)
        return decoded
    payload = event.payload
    return payload.model_dump(mode="json", by_alias=True) if isinstance(payload, BaseModel) else dict(payload)


def _explained(error: ValidationError, kind: Kind) -> InvalidMessage:
    first = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(["payload", *map(str, first["loc"])])
    said = first["msg"][:1].lower() + first["msg"][1:]
    return InvalidMessage(path, first["input"], f"{said} ({kind.type} version {kind.version})")
