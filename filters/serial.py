"""Filters as plain JSON or TOML data: `filter_from` reads what `describe` prints.

    {"path": "meta.priority", "op": "exact", "value": "high"}           SimpleFilter
    {"jsonpath": "$..price", "dialect": "rfc9535", "op": "gt", "value": 100}    JSONPathFilter
    {"exact": {"type": "ACTION_EXECUTED"}}, also prefix, suffix         AttributeFilter
    {"all": [..]}, {"any": [..]}, {"not": {..}}                         CompoundFilter

`op`, `dialect` and, for a JSONPath, `value` may be left out. A list of filters means all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from events.errors import InvalidMessage
from filters.base import BaseFilter, suggestion
from filters.compound import MAX_DEPTH, CompoundFilter
from filters.dialects import AttributeFilter
from filters.jsonpath import JSONPathFilter
from filters.simple import SimpleFilter

_CONNECTIVES: Final = {"all": "AND", "any": "OR", "not": "NOT"}
_FURTHER_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("op", "value"),
    "jsonpath": ("dialect", "op", "value"),
    **dict.fromkeys(("exact", "prefix", "suffix", *_CONNECTIVES, "custom"), ()),
}
_RULE: Final = f"a filter has one of the keys {', '.join(key for key in _FURTHER_KEYS if key != 'custom')}"


def filter_from(data: object, *, where: str = "filter") -> BaseFilter:
    """The filter that plain data describes, or `InvalidMessage` naming the place in it.

    `where` is what errors call the data, such as the file and the table that it came from. Only a custom filter cannot
    be read back, since its function is not in the data.
    """
    return _build(data, where, depth=0)


def _build(data: object, where: str, depth: int) -> BaseFilter:
    if depth > MAX_DEPTH:
        raise InvalidMessage(where, data, f"filters may be nested {MAX_DEPTH} deep")
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _connected("all", data, where, depth)
    if not isinstance(data, Mapping):
        raise InvalidMessage(where, data, _RULE)
    form = _form_of(data, where)
    if form in _CONNECTIVES:
        return _connected(form, data[form], f"{where}.{form}", depth)
    try:
        return _LEAVES[form](data)
    except InvalidMessage as error:
        field = f"{where}.{'jsonpath' if error.field == 'expression' else error.field}"
        raise InvalidMessage(field, error.found, error.allowed, hint=error.hint) from None


def _form_of(data: Mapping[Any, Any], where: str) -> str:
    forms = [key for key in data if key in _FURTHER_KEYS]
    if len(forms) > 1:
        hint = f"Join them: {{'all': [{{{forms[0]!r}: ..}}, {{{forms[1]!r}: ..}}]}}"
        raise InvalidMessage(where, sorted(forms), "one filter has one of these keys", hint=hint)
    if not forms:
        wrong = next(iter(data), None)
        raise InvalidMessage(where, wrong, _RULE, hint=suggestion(wrong, _FURTHER_KEYS) if data else "")
    known = _FURTHER_KEYS[forms[0]]
    for key in data:
        if key in known or key == forms[0]:
            continue
        hint = suggestion(key, known) if known else f"{forms[0]!r} stands alone"
        raise InvalidMessage(f"{where}.{key}", key, f"no such key beside {forms[0]!r}", hint=hint)
    return str(forms[0])


def _connected(form: str, data: object, where: str, depth: int) -> CompoundFilter:
    if form == "not":
        children = [_build(data, where, depth + 1)]
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        children = [_build(child, f"{where}[{index}]", depth + 1) for index, child in enumerate(data)]
    else:
        raise InvalidMessage(where, data, f"{form!r} joins a list of filters")
    try:
        return CompoundFilter(_CONNECTIVES[form], children)
    except InvalidMessage as error:
        raise InvalidMessage(where, error.found, error.allowed, hint=error.hint) from None


def _simple(data: Mapping[str, Any]) -> BaseFilter:
    return SimpleFilter(data["path"], **{key: data[key] for key in ("value", "op") if key in data})


def _jsonpath(data: Mapping[str, Any]) -> BaseFilter:
    return JSONPathFilter(data["jsonpath"], **{key: data[key] for key in ("dialect", "value", "op") if key in data})


def _attributes(data: Mapping[str, Any]) -> BaseFilter:
    ((dialect, attributes),) = data.items()
    return AttributeFilter(dialect, attributes)


def _custom(data: Mapping[str, Any]) -> BaseFilter:
    hint = "Build CustomFunctionFilter(function) in code"
    raise InvalidMessage("custom", data["custom"], "a custom filter is a function, which data cannot hold", hint=hint)


_LEAVES: Final[Mapping[str, Callable[[Mapping[str, Any]], BaseFilter]]] = {
    "path": _simple,
    "jsonpath": _jsonpath,
    **dict.fromkeys(("exact", "prefix", "suffix"), _attributes),
    "custom": _custom,
}
