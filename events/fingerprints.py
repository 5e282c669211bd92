"""Errors by what kind they are: one fingerprint for all that differ in numbers, names and quoted values only.

What a handler raised may quote the payload. It belongs in the workspace's own files, beside the payload, and not in a
log that is shipped elsewhere: so a log line shows an `ErrorText`, whose text has to be asked for by name.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

_SHAPE_CHARACTERS: Final = 160
_OWN_WORDS: Final = frozenset(
    {
        "nack",
        "expired",
        "retries exhausted",
        "the ack deadline passed",
        "the process ended during its attempts",
    }
)
_QUOTED: Final = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`[^`\n]*`""")
# Numbers, ids, addresses: a run that holds a digit.
_VARIABLE: Final = re.compile(r"[\w.:-]*[0-9][\w.:-]*", re.ASCII)


def shape_of(error: str) -> str:
    """The first line of an error with what varies taken out: `KeyError: '…'`, `took # s`."""
    lines = error.strip().splitlines()
    text = _QUOTED.sub("'…'", lines[0][: 4 * _SHAPE_CHARACTERS] if lines else "")
    text = _VARIABLE.sub("#", text)
    return " ".join(text.split())[:_SHAPE_CHARACTERS]


def fingerprint(error: str) -> str:
    """Eight hex digits that errors of one shape share."""
    return sha256(shape_of(error).encode("utf-8", "replace")).hexdigest()[:8]


@lru_cache(maxsize=256)
def is_exception_name(name: str) -> bool:
    """Whether a class of exceptions that this process has loaded is called so."""
    seen: set[type[BaseException]] = set()
    waiting: list[type[BaseException]] = [BaseException]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return True
        # type.__subclasses__, since a metaclass may have one of its own.
        children = [child for child in type.__subclasses__(kind) if child not in seen]
        seen.update(children)
        waiting += children
    return False


class ErrorText:
    """The text of an error as a log line may show it: the kind of the exception and the fingerprint.

    `text` has all of it, for those who were asked to show it; `at` is where it was raised, if that is known. The
    fingerprint is the one of `events dlq list`.
    """

    __slots__ = ("at", "text")

    def __init__(self, text: str, at: str = "") -> None:
        self.text, self.at = text, at

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        """What an exception says, and where it was raised."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code if trace is not None else None
        at = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}" if trace and code else ""
        return cls(f"{type(error).__name__}: {error}", at)

    @property
    def kind(self) -> str:
        """The exception's class, or `nack` where the text is a handler's own words."""
        kind = self.text.partition(":")[0]
        return kind if kind.isidentifier() and is_exception_name(kind) else "nack"

    def __str__(self) -> str:
        # What the bus itself says is no secret; everything else may quote a payload.
        return self.text if self.text in _OWN_WORDS else f"{self.kind} [{fingerprint(self.text)}]"

    def __repr__(self) -> str:
        return f"ErrorText({self})"
