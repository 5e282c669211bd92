"""Logging for applications and for the `events` command: one line per fact, as text or as JSON, never a payload.

    2026-11-18T09:34:00.123Z WARNING events.settling: attempt 2 at offset 3 of actions failed ... group=actor offset=3

What the levels mean here:

    ERROR     somebody has to look: an event was given up, a log is damaged, a checkpoint cannot be saved
    WARNING   the bus coped, and you should know: a failed attempt, a torn tail healed, events taken by retention
    INFO      what it was asked to do: closing on a signal, room on the disk again, audited reading
    DEBUG     every single skip and every exception of a handler

A line names events by space, topic, offset and id. What a handler raised is shown by its kind and its fingerprint
(that of `events dlq list`), because its text may quote the payload; the text stands in the workspace's own files.
`error_text` shows it in the log too, where that is wanted.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from events.fingerprints import ErrorText
from events.settings import LogFormat, LogLevel

LOGGERS: Final = ("events", "policies", "middleware", "filters", "spark")
"""The packages that log, each under its own name."""

_MAX_CHARACTERS: Final = 2_000
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FactFormatter(logging.Formatter):
    """A record as one line, whatever is in it: line ends are escaped, long values cut, exceptions folded."""

    def __init__(self, *, as_json: bool = False, error_text: bool = False) -> None:
        super().__init__()
        self._as_json, self._error_text = as_json, error_text

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            facts |= self._folded(record.exc_info[1])
        facts = {name: self._shown(value) for name, value in facts.items()}
        message = self._shown(self._message(record))
        if self._as_json:
            line = {"at": at, "level": record.levelname, "logger": record.name, "message": message, **facts}
            return json.dumps(line, separators=(",", ":"), default=str)
        pairs = "".join(f" {name}={_as_text(value)}" for name, value in facts.items())
        return f"{at} {record.levelname} {record.name}: {_one_line(str(message))}{pairs}"

    def _message(self, record: logging.LogRecord) -> str:
        if not self._error_text or not isinstance(record.args, tuple):
            return record.getMessage()
        shown = tuple(arg.text if isinstance(arg, ErrorText) else arg for arg in record.args)
        return str(record.msg) % shown if shown else str(record.msg)

    def _folded(self, error: BaseException) -> Mapping[str, Any]:
        """An exception and the way to it, on one line; what it says may quote a payload."""
        frames = traceback.extract_tb(error.__traceback__)
        way = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[::-1])
        return {"exception": ErrorText.of(error), "traceback": way}

    def _shown(self, value: Any) -> Any:
        if isinstance(value, ErrorText):
            value = value.text if self._error_text else str(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        text = str(value)
        return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"


def setup_logging(
    level: LogLevel = "info",
    format: LogFormat = "text",
    *,
    stream: TextIO | None = None,
    error_text: bool = False,
    without: Collection[str] = (),
) -> Callable[[], None]:
    """Send what the bus logs to a stream, stderr if none is given. Returns what takes it back.

    Loggers named in `without` are left out. Only the bus's own loggers are touched, and they no longer hand on to the
    application's root logger, so that no line appears twice. Calling it again adds another handler; take the first one
    back before.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(FactFormatter(as_json=format == "json", error_text=error_text))
    handler.addFilter(lambda record: record.name not in without)
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in LOGGERS}
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        logger.propagate = False

    def undo() -> None:
        for name, (old_level, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(handler)
            logger.setLevel(old_level)
            logger.propagate = propagate

    return undo


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _as_text(value: object) -> str:
    text = "" if value is None else str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())
