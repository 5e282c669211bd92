"""Payloads to bytes and back: what is not JSON is refused here, before anything is written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

import orjson
from pydantic import BaseModel

from events.errors import InvalidMessage, PayloadTooLarge, shown
from events.types import Event, dump_model

# orjson would write these in ways that do not come back as what they were.
_STRICT: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
MAX_DEPTH: Final = 254  # orjson's own limit: what it would refuse and what we name are the same
_OTHER_SCALARS: Final = frozenset({int, float, bool, type(None)})
_is_simple_key = re.compile(r"[\w-]{1,100}").fullmatch
_PAYLOAD_RULE: Final = (
    "a payload is JSON: objects with string keys, arrays, strings, finite numbers of at most 64 bits, "
    f"true, false and null, nested at most {MAX_DEPTH} deep"
)


def encode_payload(payload: object, max_bytes: int) -> bytes:
    """The payload's bytes, or an error that says which part of it is not JSON."""
    model = None
    if type(payload) is not dict:
        model = payload if isinstance(payload, BaseModel) else None
        plain_data = payload if model is None else dump_model(model)
        if not isinstance(plain_data, Mapping):
            rule = "a payload is a JSON object: a dict, or a pydantic model"
            raise InvalidMessage("payload", payload, rule)
        payload = dict(plain_data)
    plain = _room_left(payload, max_bytes, MAX_DEPTH) >= 0
    if not plain:
        _find_fault(payload, max_bytes)
    try:
        encoded = orjson.dumps(payload, option=_STRICT)
    except TypeError:
        raise _explained(payload, max_bytes) from None
    # orjson writes NaN and infinities as null; only a payload with a null in it can have lost one.
    if plain and b"null" in encoded:
        if not _is_finite(payload):
            _find_fault(payload, max_bytes)
        if model is not None:
            # So does pydantic in a field of no declared type, and has done it by now.
            _find_lost(model.model_dump(by_alias=True, round_trip=True), "payload")
    if len(encoded) > max_bytes:
        raise PayloadTooLarge(len(encoded), max_bytes)
    return encoded


def encode_event(event: Event[Any], max_bytes: int) -> tuple[bytes, bytes]:
    """Meta and payload as they will stand in the line. What came from a log is passed on byte for byte."""
    meta = event.meta.to_json()
    raw = event.raw_payload
    payload = raw if raw is not None else encode_payload(event.payload, max_bytes)
    if len(meta) + len(payload) > max_bytes:
        raise PayloadTooLarge(len(meta) + len(payload), max_bytes)
    return meta, payload


def _room_left(container: Any, room: int, depth: int) -> int:
    """How many bytes are left behind a container of plain JSON types at the most, below 0 for any other.

    Asked before orjson sees the payload, because it copies an `orjson.Fragment` unseen, counts no tuples when
    it limits the depth (thousands of them end the process), and would write a structure that shares its
    parts until the memory is used up. A value takes a byte at least, and so does a character.
    """
    room -= len(container)
    if room < 0 or not depth:
        return -1
    for value in container.values() if type(container) is dict else container:
        kind = type(value)
        if kind is str:
            room -= len(value)
        elif kind in _OTHER_SCALARS:
            continue
        elif kind is dict or kind is list:
            room = _room_left(value, room, depth - 1)
            if room < 0:
                break
        else:
            return -1
    return room


def _is_finite(container: Any) -> bool:
    """Whether a container of plain JSON types has no NaN and no infinity in it."""
    for value in container.values() if type(container) is dict else container:
        kind = type(value)
        if kind is float:
            if not math.isfinite(value):
                return False
        elif (kind is dict or kind is list) and not _is_finite(value):
            return False
    return True


def _find_lost(value: object, path: str) -> None:
    """Name the first NaN or infinity in what a model holds."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidMessage(path, value, _PAYLOAD_RULE)
    if isinstance(value, dict):
        for key, inner in value.items():
            _find_lost(inner, path + _step(str(key)))
    elif isinstance(value, list | tuple | set | frozenset):
        for index, inner in enumerate(value):
            _find_lost(inner, f"{path}[{index}]")


def _explained(payload: object, max_bytes: int) -> InvalidMessage:
    try:
        _find_fault(payload, max_bytes)
    except InvalidMessage as fault:
        return fault
    return InvalidMessage("payload", payload, _PAYLOAD_RULE)


def _find_fault(payload: object, max_bytes: int) -> None:
    """Walk a payload that could not be encoded, or may have lost a NaN, and name the first fault."""
    pending: list[tuple[str, object, int]] = [("payload", payload, 0)]
    size = 0  # at least
    while pending:
        path, value, depth = pending.pop()
        if isinstance(value, Enum):
            value = value.value  # as orjson writes it
        # No subclasses: they may say one thing to us and another to the encoder.
        kind = type(value)
        if isinstance(value, dict | list | tuple) and kind in (dict, list, tuple):
            if depth >= MAX_DEPTH:
                rule = f"nested more than {MAX_DEPTH} deep, or in a cycle; {_PAYLOAD_RULE}"
                raise InvalidMessage(path[:200], "…", rule)
            size += len(value)
            if isinstance(value, dict):
                for key, inner in value.items():
                    if type(key) is not str or not _is_text(key):
                        raise InvalidMessage(f"{path} key", key, _PAYLOAD_RULE)
                    pending.append((path + _step(key), inner, depth + 1))
            else:
                pending.extend((f"{path}[{index}]", inner, depth + 1) for index, inner in enumerate(value))
        elif isinstance(value, str) and kind is str and _is_text(value):
            size += len(value)
        elif kind is str or not _is_json_scalar(value):
            raise InvalidMessage(path, value, _PAYLOAD_RULE)
        if size > max_bytes:
            raise PayloadTooLarge(size, max_bytes)


def _step(key: str) -> str:
    # A key may hold dots, line ends or a megabyte, and the path goes into messages and logs.
    return f".{key}" if _is_simple_key(key) else f"[{shown(key)}]"


def _is_json_scalar(value: object) -> bool:
    kind = type(value)
    if isinstance(value, float):
        return kind is float and math.isfinite(value)
    if isinstance(value, int):
        return kind is bool or (kind is int and -(2**63) <= value < 2**64)
    return value is None or kind is UUID


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
