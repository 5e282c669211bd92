"""The CloudEvents Subscriptions dialects `exact`, `prefix`, `suffix`, `all`, `any` and `not`.

They speak of the attributes that `events.cloudevents` gives an event, and compare them as strings. Most are a field of
the meta as it stands. For the few that are made of fields the codec is asked once for each combination; and an
event that came from elsewhere, with attributes of its own, it is asked about anew.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from events.cloudevents import to_cloudevent
from events.contracts import Filter
from events.errors import InvalidMessage
from events.types import Actor, Event, EventMeta, SecurityBand
from filters.base import BaseFilter, suggestion
from filters.compound import CompoundFilter
from filters.values import plain

Dialect = Literal["exact", "prefix", "suffix"]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

Attribute = Callable[[EventMeta], Any]

# Where the codec keeps the attributes of an event that came from elsewhere.
_FOREIGN: Final = "cloudevent"
_COST_OF_ONE: Final = 1
_ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9]{1,64}")
_COMPARE: Final[dict[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


class AttributeFilter(BaseFilter):
    """Matches when every named attribute equals, starts with or ends with its value.

        AttributeFilter("exact", {"type": "ACTION_EXECUTED", "spaceid": "home"})

    An attribute that the event does not have does not match. A CloudEvent from elsewhere is known by the type and
    the source that it came with, and by its extensions. The payload is never looked at.
    """

    __slots__ = ("_tests", "attributes", "dialect")

    dialect: Dialect
    attributes: Mapping[str, str]
    _tests: tuple[tuple[str, Attribute, str], ...]

    def __init__(self, dialect: Dialect | str, attributes: Mapping[str, str]) -> None:
        if dialect not in DIALECTS:
            raise InvalidMessage("dialect", dialect, "no such dialect", hint=suggestion(dialect, DIALECTS))
        if not isinstance(attributes, Mapping) or not attributes:
            raise InvalidMessage(dialect, attributes, "names one or more attributes and their values")
        for name, value in attributes.items():
            if not isinstance(value, str) or not value:
                raise InvalidMessage(f"{dialect}.{name}", value, "an attribute is compared with a string, not empty")
        own = {name: str.__str__(value) for name, value in attributes.items()}
        super().__init__(
            cost=_COST_OF_ONE * len(own),
            dialect=dialect,
            attributes=own,
            _tests=tuple((name, _attribute(dialect, name), value) for name, value in own.items()),
        )

    def matches(self, event: Event[Any]) -> bool:
        """Whether all the attributes fit."""
        meta, fits = event.meta, _COMPARE[self.dialect]
        unknown = meta.__pydantic_extra__
        foreign = to_cloudevent(Event(meta, {})) if unknown and _FOREIGN in unknown else None
        for name, attribute, wanted in self._tests:
            found = attribute(meta) if foreign is None else foreign.get(name)
            if found is None or not fits(_text(found), wanted):
                return False
        return True

    def describe(self) -> Mapping[str, Any]:
        """`{"exact": {"type": "ACTION_EXECUTED"}}`, as a CloudEvents subscription has it."""
        return {self.dialect: dict(self.attributes)}

    def __repr__(self) -> str:
        return f"AttributeFilter({self.dialect!r}, {dict(self.attributes)!r})"


def exact(attributes: Mapping[str, str]) -> AttributeFilter:
    """Every attribute equals its value."""
    return AttributeFilter("exact", attributes)


def prefix(attributes: Mapping[str, str]) -> AttributeFilter:
    """Every attribute starts with its value."""
    return AttributeFilter("prefix", attributes)


def suffix(attributes: Mapping[str, str]) -> AttributeFilter:
    """Every attribute ends with its value."""
    return AttributeFilter("suffix", attributes)


def all_of(*filters: Filter) -> CompoundFilter:
    """The dialect `all`."""
    return CompoundFilter("AND", filters)


def any_of(*filters: Filter) -> CompoundFilter:
    """The dialect `any`."""
    return CompoundFilter("OR", filters)


def none_of(*filters: Filter) -> CompoundFilter:
    """The dialect `not`; of several filters, that none matches."""
    return CompoundFilter("NOT", filters if len(filters) == 1 else [any_of(*filters)])


def _field(name: str) -> Attribute:
    return lambda meta: meta.__dict__[name]


def _derived(name: str) -> Attribute:
    def derived(meta: EventMeta) -> Any:
        actor = meta.actor
        who = (actor.user_id, actor.agent_id) if isinstance(actor, Actor) else actor
        return _from_the_codec(meta.topic, meta.space_id, who, meta.band).get(name)

    return derived


@lru_cache(maxsize=4096)
def _from_the_codec(
    topic: str, space_id: str, who: str | tuple[str | None, str | None] | None, band: SecurityBand | None
) -> Mapping[str, Any]:
    actor = Actor(user_id=who[0], agent_id=who[1]) if isinstance(who, tuple) else who
    meta = EventMeta(topic=topic, type="ANY", space_id=space_id, actor=actor, band=band)
    return to_cloudevent(Event(meta, {}))


def _expiry(meta: EventMeta) -> Any:
    try:
        return None if meta.ttl_sec is None else meta.ts + timedelta(seconds=meta.ttl_sec)
    except OverflowError:  # it outlives the calendar
        return None


def _claims(meta: EventMeta) -> Any:
    return to_cloudevent(Event(meta, {})).get("authclaims")


def _tracestate(meta: EventMeta) -> Any:
    return meta.headers.get("tracestate") if meta.headers else None


_ATTRIBUTES: Final[dict[str, Attribute]] = {
    "specversion": lambda _meta: "1.0",
    "datacontenttype": lambda _meta: "application/json",
    "id": _field("event_id"),
    "type": _field("type"),
    "subject": _field("key"),
    "partitionkey": _field("key"),
    "time": _field("ts"),
    "expirytime": _expiry,
    "authclaims": _claims,
    "tracestate": _tracestate,
    **{name: _derived(name) for name in ("source", "authtype", "authid", "dataclassification")},
    **{
        # CloudEvents names have no underscores.
        name.replace("_", ""): _field(name)
        for name in (
            *("topic", "space_id", "correlation_id", "causation_id", "trace_id", "traceparent"),
            *("idem_key", "priority", "schema_version"),
        )
    },
}
_NOT_IN_THE_ENVELOPE: Final = {
    "sequence": "the offset is the log's, and an event has it only once it is written",
    "recordedtime": "when an event was appended is the log's to say, not the event's",
    "data": "the payload is no attribute; SimpleFilter and JSONPathFilter look into it",
}


def _attribute(dialect: str, name: object) -> Attribute:
    where = f"{dialect}.{name}"
    if not isinstance(name, str) or not _ATTRIBUTE_NAME.fullmatch(name):
        raise InvalidMessage(where, name, "a CloudEvents attribute has lower-case letters and digits only")
    if name in _NOT_IN_THE_ENVELOPE:
        raise InvalidMessage(where, name, _NOT_IN_THE_ENVELOPE[name])
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name]
    close = [] if name == "dataschema" else difflib.get_close_matches(name, _ATTRIBUTES, n=1, cutoff=0.75)
    if close:
        hint = f"Did you mean {close[0]!r}? SimpleFilter('meta.cloudevent.{name}', ..) reaches a foreign attribute"
        raise InvalidMessage(where, name, "no such attribute", hint=hint)
    return lambda _meta: None


def _text(value: Any) -> str:
    """An attribute in the canonical form of its CloudEvents type."""
    if isinstance(value, str):
        return str.__str__(value)
    return str(value).lower() if isinstance(value, bool) else str(plain(value))
