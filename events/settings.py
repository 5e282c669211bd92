"""The settings of an application or a command: arguments over environment over `events.toml` over defaults.

    [events.toml, in the workspace or where EVENTS_CONFIG or --config says]
    sync = "always"                # every setting of BusConfig and WalSettings, by its name
    segment_bytes = "16MiB"        # sizes and spans may be written with their unit
    policies = "policies"          # a folder with policy.csv, model.conf, topics.toml; relative to this file
    subject = "user:owner"         # on whose behalf the `events` command acts
    log_level = "info"

The environment has the same names in capitals: `EVENTS_SYNC=interval`. A key or a variable that nobody knows is an
error with a suggestion, since a setting that is silently ignored is found at night. `Settings.sources` says where each
value came from.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from events.config import BusConfig
from events.errors import BusError, InvalidMessage, shown
from events.persistence.wal import WalSettings
from events.units import parse_bytes, parse_seconds

FILE_NAME: Final = "events.toml"
PREFIX: Final = "EVENTS_"
_MIB: Final = 1024 * 1024
_MAX_FILE_BYTES: Final = _MIB

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["text", "json"]


class SettingsError(BusError, ValueError):
    """A setting that cannot be taken as it is. `where` names the file and line, the variable, or the argument."""

    code: ClassVar[str] = "INVALID_SETTING"

    def __init__(self, where: str, problem: str, *, hint: str = "") -> None:
        self.where, self.problem, self.hint = where, problem, hint
        super().__init__(f"{where}: {problem}{f'. {hint}' if hint else ''}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set from outside, checked. `bus` is what `EventBus(config=...)` takes.

    `sources` names for each setting where its value came from, and `file` the file that was read, if one was.
    """

    workspace: Path = Path("workspace")
    policies: Path | None = None
    subject: str | None = None
    log_level: LogLevel = "warning"
    log_format: LogFormat = "text"
    bus: BusConfig = field(default_factory=BusConfig)
    sources: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def load(
        cls,
        *,
        environ: Mapping[str, str] | None = None,
        config: str | Path | None = None,
        **arguments: Any,
    ) -> Settings:
        """Read all sources; `SettingsError` names the first value that cannot be taken.

        An argument that is None is not given. Without `config` the file is the one that EVENTS_CONFIG names, else
        `events.toml` in the workspace if there is one.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, tuple[Any, str]] = {}
        given = {name: value for name, value in arguments.items() if value is not None}
        for name in given:
            _check_known(name, "argument")
        variables = _from_environment(environ)
        workspace = Path(given.get("workspace") or variables.get("workspace", ("workspace", ""))[0])
        file = _file_of(config or environ.get(f"{PREFIX}CONFIG"), workspace)
        if file is not None:
            found |= _from_file(file)
        found |= variables
        found |= {name: (value, "argument") for name, value in given.items()}
        values = {name: _checked(name, value, source, file) for name, (value, source) in found.items()}
        sources = {name: found[name][1] if name in found else "default" for name in KEYS}
        own = {name: values[name] for name in _OWN if name in values}
        return cls(**own, bus=_bus_config(values), sources=sources, file=file)

    def value(self, name: str) -> Any:
        """The value of a setting by its name, as `sources` lists them."""
        for holder in (self, self.bus, self.bus.wal):
            if name in holder.__dataclass_fields__:
                return getattr(holder, name)
        raise KeyError(name)


def _bus_config(values: Mapping[str, Any]) -> BusConfig:
    wal = WalSettings(**{name: values[name] for name in _WAL if name in values})
    settings = {name: values[name] for name in _BUS if name in values}
    policies = values.get("policies")
    if policies is not None and (topics := policies / "topics.toml").exists():
        from policies.topics import TopicPolicies  # casbin's neighbours are loaded for those who have policies

        settings["topics"] = TopicPolicies(topics)
    return BusConfig(wal=wal, **settings)


_HINTS: Final[Mapping[str, Any]] = {
    **get_type_hints(Settings),
    **get_type_hints(WalSettings),
    **get_type_hints(BusConfig),
}
_OWN: Final = ("workspace", "policies", "subject", "log_level", "log_format")
_WAL: Final = tuple(entry.name for entry in fields(WalSettings))
# What is an object, and not a value that a person could write, is set in code.
_BUS: Final = tuple(entry.name for entry in fields(BusConfig) if entry.name not in ("wal", "topics"))
KEYS: Final = (*_OWN, *_WAL, *_BUS)
"""The name of every setting."""
_ADAPTERS: Final[Mapping[str, TypeAdapter[Any]]] = {name: TypeAdapter(_HINTS[name]) for name in KEYS}


def _at_least(low: float) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value >= low), f"at least {low:g}"


_BOUNDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "segment_bytes": (lambda value: _MIB <= value <= 100 * _MIB, "from 1MiB to 100MiB"),
    **dict.fromkeys(("segment_lines", "max_event_bytes", "workers", "max_inflight", "max_parked"), _at_least(1)),
    **dict.fromkeys(("batch", "io_threads", "sync_handler_threads", "settle_span", "read_bytes"), _at_least(1)),
    **dict.fromkeys(("tail_bytes", "ballast_bytes", "max_retries", "max_deferrals"), _at_least(0)),
    **dict.fromkeys(("max_error_chars", "publish_timeout_s", "backoff_base", "backoff_mult"), _at_least(0)),
    **dict.fromkeys(("backoff_max", "checkpoint_interval_s", "ack_deadline_s"), _at_least(0)),
    **dict.fromkeys(("sync_interval_s", "maintenance_interval_s"), _at_least(0.001)),
    "max_open_files": _at_least(4),
}


def _checked(name: str, value: Any, source: str, file: Path | None) -> Any:
    """The value as its type, or an error that names the source."""
    where = f"{source}: {name}" if source == "argument" else source
    if isinstance(value, str):
        value = _from_text(name, value, where)
    elif isinstance(value, bool) and _HINTS[name] is not bool:
        raise SettingsError(where, f"found {shown(value)}; {name} is no switch")
    try:
        checked = _ADAPTERS[name].validate_python(value)
    except ValidationError as error:
        said = error.errors(include_url=False, include_context=False)[0]["msg"]
        raise SettingsError(where, f"found {shown(value)}; {name}: {said[:1].lower()}{said[1:]}") from None
    fits, rule = _BOUNDS.get(name, (lambda value: True, ""))
    if checked is not None and not fits(checked):
        raise SettingsError(where, f"found {shown(value)}; {name} is {rule}")
    if name == "policies" and checked is not None and file is not None and source.startswith(str(file)):
        checked = file.parent / checked
    return checked


def _from_text(name: str, text: str, where: str) -> Any:
    """Text stands for what it says: a size, a span, a switch, a list with commas."""
    hint = _HINTS[name]
    try:
        if hint in (int, int | None) and name.endswith("_bytes"):
            return parse_bytes(text, name)
        if name.endswith("_s") and hint in (float, float | None):
            return parse_seconds(text, name)
    except InvalidMessage as error:
        raise SettingsError(where, f"found {shown(text)}; {name}: {error.allowed}") from None
    if name == "strict_topics":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name == "log_level":
        return text.lower()
    return text


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == f"{PREFIX}CONFIG" or not text:
            continue  # empty is how a shell says "not set"
        name = variable[len(PREFIX) :].lower()
        _check_known(name, variable, PREFIX)
        found[name] = (text, variable)
    return found


def _file_of(config: str | Path | None, workspace: Path) -> Path | None:
    if config is not None:
        if not Path(config).is_file():
            raise SettingsError(str(config), "there is no such file", hint="Make it, or leave --config out")
        return Path(config)
    usual = workspace / FILE_NAME
    return usual if usual.is_file() else None


def _from_file(file: Path) -> dict[str, tuple[Any, str]]:
    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_FILE_BYTES).decode("utf-8")
        data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise SettingsError(str(file), f"byte {error.start} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(str(file), str(error)) from None
    found: dict[str, tuple[Any, str]] = {}
    for name, value in data.items():
        where = f"{file}:{_line_of(text, name)}"
        _check_known(name, where)
        if name == "workspace":
            raise SettingsError(where, "a file cannot say where the workspace is", hint="Use -w or EVENTS_WORKSPACE")
        found[name] = (value, where)
    return found


def _line_of(text: str, name: str) -> int:
    pattern = re.compile(rf"""\s*\[?\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    lines = text.split("\n")
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 1)


def _check_known(name: str, where: str, prefix: str = "") -> None:
    if name in KEYS:
        return
    written = {key: prefix + (key.upper() if prefix else key) for key in KEYS}
    close = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.5)
    hint = f"Did you mean {written[close[0]]!r}?" if close else f"There are {', '.join(written.values())}"
    raise SettingsError(where, f"no such setting {shown(prefix + name.upper() if prefix else name)}", hint=hint)
