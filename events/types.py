"""The envelope: what an event is, before any bus has seen it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Literal, NamedTuple, Self, cast

import orjson
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
)
from typing_extensions import TypeVar
from uuid_utils import uuid7

from events.errors import InvalidMessage, InvalidSpace, InvalidTopic, shown
from events.names import SPACE_RULE, TOPIC_PATTERN, TOPIC_RULE, is_space

TRACEPARENT_PATTERN: Final = r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"


class EventType(StrEnum):
    """The cognitive event types that ship with the bus. Any other UPPER_SNAKE string is a type too."""

    ATTENTION_REQUEST = "ATTENTION_REQUEST"
    WORKING_MEMORY_UPDATE = "WORKING_MEMORY_UPDATE"
    GLOBAL_WORKSPACE_BROADCAST = "GLOBAL_WORKSPACE_BROADCAST"
    COGNITIVE_LOAD_ALERT = "COGNITIVE_LOAD_ALERT"
    FOCUS_SHIFT_REQUEST = "FOCUS_SHIFT_REQUEST"
    WORKSPACE_BROADCAST = "WORKSPACE_BROADCAST"
    HIPPO_ENCODE = "HIPPO_ENCODE"
    WRITE_ACCEPTED = "WRITE_ACCEPTED"
    AFFECT_ANNOTATED = "AFFECT_ANNOTATED"
    CORTEX_PREDICTION = "CORTEX_PREDICTION"
    ACTION_DECISION = "ACTION_DECISION"
    ACTION_EXECUTED = "ACTION_EXECUTED"
    METACOG_REPORT = "METACOG_REPORT"
    PROSPECTIVE_TRIGGER = "PROSPECTIVE_TRIGGER"
    TRIGGER_FIRED = "TRIGGER_FIRED"
    TEMPORAL_SUMMARY = "TEMPORAL_SUMMARY"
    LEARNING_SIGNAL = "LEARNING_SIGNAL"


class SecurityBand(StrEnum):
    """How sensitive an event is. Ordered: GREEN < AMBER < RED < BLACK."""

    GREEN = "GREEN"
    AMBER = "AMBER"
    RED = "RED"
    BLACK = "BLACK"

    @property
    def level(self) -> int:
        """0 for GREEN up to 3 for BLACK."""
        return _BAND_LEVELS[self.value]

    # All four, because str brings its own alphabetical ones: BLACK would come before GREEN. Names count as
    # bands for the same reason: Python would ask str next.
    def __lt__(self, other: object) -> bool:
        return self.level < _band_level(other)

    def __le__(self, other: object) -> bool:
        return self.level <= _band_level(other)

    def __gt__(self, other: object) -> bool:
        return self.level > _band_level(other)

    def __ge__(self, other: object) -> bool:
        return self.level >= _band_level(other)


_BAND_LEVELS: Final = {"GREEN": 0, "AMBER": 1, "RED": 2, "BLACK": 3}


def _band_level(band: object) -> int:
    level = _BAND_LEVELS.get(band) if isinstance(band, str) else None
    if level is None:
        raise TypeError(f"a SecurityBand compares with {', '.join(_BAND_LEVELS)}, not with {shown(band)}")
    return level


PriorityName = Literal["low", "normal", "high", "critical"]
PRIORITY_LEVELS: Final[Mapping[str, int]] = {"low": 25, "normal": 50, "high": 75, "critical": 100}


def priority_level(priority: int | str | None) -> int:
    """A priority as a number from 0 to 100; an event without one is normal."""
    if priority is None:
        return 50
    return PRIORITY_LEVELS[priority] if isinstance(priority, str) else priority


class FrozenDict(dict[str, str]):
    """The headers of an envelope that many consumers share."""

    def _refuse(self, *_args: object, **_kwargs: object) -> Any:
        raise TypeError("an event's headers are frozen; build a new EventMeta with the headers you want")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)  # the default would fill an empty one, item by item


Capability = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$", max_length=100)]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TopicName = Annotated[str, StringConstraints(pattern=TOPIC_PATTERN, max_length=100)]
TypeName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$", max_length=100)]
Priority = Annotated[int, Strict(), Field(ge=0, le=100)] | PriorityName
Seconds = Annotated[int, Strict(), Field(ge=0)] | Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
# The constraint refuses nothing by length. It makes pydantic look at the characters: without it a lone
# surrogate gets in, and is written as something else or not at all.
_Text = Annotated[str, StringConstraints(min_length=0)]
Labels = Annotated[dict[_Text, _Text], AfterValidator(FrozenDict)]


class _Envelope(BaseModel):
    """Frozen; strict about keys when code builds it, open when a log is read (rule E1)."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self, extra="forbid")
        except ValidationError as error:
            raise _explained(error, type(self), data) from None

    # Says that this initialiser adds no keys of its own, so that reading a log validates without calling it.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class Actor(_Envelope):
    """Who caused an event: a person, an agent acting for one, or both."""

    user_id: ShortText | None = None
    agent_id: ShortText | None = None
    session_id: ShortText | None = None
    on_behalf_of: ShortText | None = None
    roles: tuple[ShortText, ...] | None = None
    attributes: Labels | None = None


class Device(_Envelope):
    """Where an event was observed or caused."""

    device_id: ShortText
    kind: ShortText | None = None
    platform: ShortText | None = None
    attributes: Labels | None = None


class QoS(_Envelope):
    """What the producer wishes for delivery; a subscription's own settings come first."""

    ack_deadline_s: Seconds | None = None
    max_retries: Annotated[int, Strict(), Field(ge=0)] | None = None


def _new_event_id() -> str:
    return "ev-" + uuid7().hex


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventMeta(_Envelope):
    """The envelope's metadata. Frozen; shared by every consumer of the event.

    A misspelt keyword is refused with a suggestion; an unknown key that a newer writer put into a log is
    kept and written back (rule E1).
    """

    topic: Annotated[Annotated[EventType, Strict()] | TopicName, Field(union_mode="left_to_right")]
    type: Annotated[EventType | TypeName, Field(union_mode="left_to_right")]
    space_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    event_id: ShortText = Field(default_factory=_new_event_id)
    ts: AwareDatetime = Field(default_factory=_utc_now)
    actor: ShortText | Actor | None = None
    device: Device | None = None
    trace_id: ShortText | None = None
    traceparent: Annotated[str, StringConstraints(pattern=TRACEPARENT_PATTERN)] | None = None
    idem_key: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    ttl_sec: Seconds | None = None
    key: ShortText | None = None
    priority: Priority | None = None
    band: SecurityBand | None = None
    caps: tuple[Capability, ...] | None = None
    qos: QoS | None = None
    correlation_id: ShortText | None = None
    causation_id: ShortText | None = None
    headers: Labels | None = None
    schema_version: Annotated[int, Strict(), Field(ge=1)] | None = None

    def __init__(self, /, **data: Any) -> None:
        topic = data.get("topic")
        if "type" not in data and isinstance(topic, EventType):
            data["type"] = topic
        super().__init__(**data)
        if not is_space(self.space_id):
            raise InvalidSpace("meta.space_id", self.space_id, SPACE_RULE)
        if "ts" in data and self.ts.utcoffset():
            try:
                self.__dict__["ts"] = self.ts.astimezone(UTC)
            except OverflowError:
                raise InvalidMessage("meta.ts", self.ts, "a time is in the years 1 to 9999 of UTC") from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # as in _Envelope

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """The meta of a line that was read from a log: unknown keys are kept."""
        return cast(Self, cls.__pydantic_validator__.validate_json(data))

    def to_json(self) -> bytes:
        """The bytes that stand in a line of the log: no key that is unset."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)

    def another(self, **changes: Any) -> Self:
        """A meta for another event under the same envelope: a new id and time, and what else is to differ."""
        if changes:
            fields = {name: value for name, value in self.__dict__.items() if value is not None}
            del fields["event_id"], fields["ts"]
            return type(self)(**{**fields, **changes})
        # Checked when the template was made; only what is new is put in.
        return self.amended({"event_id": _new_event_id(), "ts": _utc_now()})

    def amended(self, changes: Mapping[str, Any]) -> Self:
        """A copy with other values that need no check: they were made by the bus, or checked before."""
        twin = self.__class__.__new__(self.__class__)
        object.__setattr__(twin, "__dict__", {**self.__dict__, **changes})
        object.__setattr__(twin, "__pydantic_fields_set__", self.__pydantic_fields_set__)
        object.__setattr__(twin, "__pydantic_extra__", self.__pydantic_extra__)
        object.__setattr__(twin, "__pydantic_private__", None)
        return twin

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, checked like a new one; unknown keys from a log stay."""
        unknown = self.__pydantic_extra__
        fields = {name: value for name, value in self.__dict__.items() if value is not None}
        copy = type(self)(**{**fields, **changes})
        if unknown:
            object.__setattr__(copy, "__pydantic_extra__", dict(unknown))
        return copy


_RULES: Final = {
    "topic": TOPIC_RULE,
    "type": "a type is an EventType or an UPPER_SNAKE string of at most 100 characters",
    "space_id": SPACE_RULE,
    "priority": "a priority is a whole number from 0 to 100, or low, normal, high or critical",
    "ttl_sec": "a time to live is a finite number of seconds, not negative",
    "actor": "an actor is a string of at most 256 characters, or an Actor",
    "traceparent": "a traceparent is W3C's 00-<32 hex>-<16 hex>-<2 hex>",
}
_ERRORS: Final[Mapping[str, type[InvalidMessage]]] = {"topic": InvalidTopic, "space_id": InvalidSpace}


def _explained(error: ValidationError, model: type[BaseModel], data: Mapping[str, Any]) -> InvalidMessage:
    """The first complaint in our own words: which field, what was found, what is allowed."""
    problems = error.errors(include_url=False, include_context=False)
    # A wrong key inside one branch of a union says more than "not the other branch".
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    root = "meta" if model is EventMeta else model.__name__.lower()
    field, wrong = str(first["loc"][0]), str(first["loc"][-1])
    if first["type"] == "extra_forbidden":
        owner = model if len(first["loc"]) == 1 else _PARTS.get(field, model)
        known = list(owner.model_fields)
        close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
        close = close or [name for name in known if name.startswith(wrong)]
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}"
        where = root if owner is model else f"{root}.{field}"
        return InvalidMessage(f"{where}.{wrong}", wrong, "no such key in the envelope", hint=hint)
    if first["type"] == "missing":
        path = ".".join([root, *map(str, first["loc"])])
        return _ERRORS.get(field, InvalidMessage)(path, None, f"{wrong} is required")
    rule = _RULES.get(field) if model is EventMeta else None
    found = data.get(field)
    return _ERRORS.get(field, InvalidMessage)(f"{root}.{field}", found, rule or _lowered(first["msg"]))


_PARTS: Final[Mapping[str, type[BaseModel]]] = {"actor": Actor, "device": Device, "qos": QoS}


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]


PayloadT = TypeVar("PayloadT", default=dict[str, Any])


class Event(Generic[PayloadT]):
    """An envelope and its payload, a JSON object.

    `Event[Model](meta, payload)` checks the payload against a pydantic model and hands it out as one. What a
    consumer receives is its own: the payload is decoded from the log's bytes for each delivery, so nobody can
    change what another group, or the next attempt, will see.
    """

    __slots__ = ("_meta", "_payload", "_raw")
    _model: ClassVar[type[BaseModel] | None] = None

    def __init__(self, meta: EventMeta, payload: PayloadT | Mapping[str, Any]) -> None:
        if not isinstance(meta, EventMeta):
            raise InvalidMessage("meta", meta, "meta is an EventMeta")
        if self._model is not None and not isinstance(payload, self._model):
            payload = cast(PayloadT, _modelled(self._model, payload))
        elif not isinstance(payload, Mapping | BaseModel):
            raise InvalidMessage("payload", payload, "a payload is a JSON object: a dict, or a pydantic model")
        self._meta = meta
        self._payload: Any = payload
        self._raw: bytes | None = None

    @classmethod
    def from_log(cls, meta: EventMeta, raw: bytes) -> Self:
        """An event whose payload is still the log's bytes; they are decoded when somebody looks."""
        event = cls.__new__(cls)
        event._meta = meta
        event._payload = None
        event._raw = raw
        return event

    @property
    def meta(self) -> EventMeta:
        """The envelope's metadata."""
        return self._meta

    @property
    def payload(self) -> PayloadT:
        """The payload: a dict of this consumer's own, or the model that `Event` was parametrised with."""
        if self._payload is None and self._raw is not None:
            decoded = orjson.loads(self._raw)
            self._payload = decoded if self._model is None else _modelled(self._model, decoded)
        return cast(PayloadT, self._payload)

    @property
    def raw_payload(self) -> bytes | None:
        """The log's bytes of the payload, while nobody has decoded (and so could have changed) it."""
        return self._raw if self._payload is None else None

    @classmethod
    def remade(cls, event: Event[Any], meta: EventMeta) -> Event[Any]:
        """The event under another meta, its payload untouched and undecoded."""
        copy: Event[Any] = Event.__new__(type(event))
        copy._meta, copy._payload, copy._raw = meta, event._payload, event._raw
        return copy

    def replace(self, *, payload: Mapping[str, Any] | BaseModel | None = None, **changes: Any) -> Event[Any]:
        """A copy with another payload or other values in its meta."""
        meta = self._meta.replace(**changes) if changes else self._meta
        if payload is None:
            return Event.remade(self, meta)
        # What is not of the model any more, as after a redaction, must not pass for it.
        fits = self._model is not None and isinstance(payload, self._model)
        made: type[Event[Any]] = type(self) if fits else Event
        return made(meta, payload)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self._meta == other._meta and _as_dict(self.payload) == _as_dict(other.payload)

    __hash__ = None  # type: ignore[assignment]  # a payload is a dict, so an event is no key; event_id is

    def __repr__(self) -> str:
        meta = self._meta
        return f"Event({meta.type} {meta.event_id} topic={str(meta.topic)!r} space={meta.space_id!r})"

    if not TYPE_CHECKING:

        def __class_getitem__(cls, model: Any) -> Any:
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                return super().__class_getitem__(model)
            typed = _typed_events.get(model)
            if typed is None:
                namespace = {"__slots__": (), "_model": model, "__module__": cls.__module__}
                typed = _typed_events[model] = type(f"Event[{model.__name__}]", (Event,), namespace)
            return typed


_typed_events: dict[type[BaseModel], type[Event[Any]]] = {}


def _modelled(model: type[BaseModel], payload: object) -> BaseModel:
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(["payload", *map(str, first["loc"])])
        raise InvalidMessage(path, first["input"], f"{_lowered(first['msg'])} (model {model.__name__})") from None


def dump_model(payload: BaseModel) -> Any:
    """A model as the JSON that the same model reads back: by alias, and without what it computes."""
    try:
        return payload.model_dump(mode="json", by_alias=True, round_trip=True)
    except (ValueError, RecursionError) as error:  # pydantic's own, and an undecodable or circular value
        raise InvalidMessage(
            "payload", payload, f"{type(payload).__name__} cannot be written as JSON: {error}"
        ) from None


def _as_dict(payload: object) -> object:
    return dump_model(payload) if isinstance(payload, BaseModel) else payload


@dataclass(frozen=True, slots=True)
class Ack:
    """The handler is done with the event. A handler that returns None says the same."""


@dataclass(frozen=True, slots=True)
class Nack:
    """The handler wants the event again.

    `delay` in seconds replaces the back-off; `count=False` charges no attempt, so that waiting for something
    else can never end in the dead-letter queue.
    """

    reason: str | None = None
    delay: float | None = None
    count: bool = True

    def __post_init__(self) -> None:
        delay = self.delay
        if delay is not None and not (isinstance(delay, int | float) and 0 <= delay < math.inf):
            raise InvalidMessage("delay", delay, "a delay is a finite number of seconds, not negative")


class Receipt(NamedTuple):
    """What `publish` returns once the event is durable: where it stands in the log."""

    space_id: str
    topic: str
    offset: int
    event_id: str
