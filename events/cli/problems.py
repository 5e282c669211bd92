"""Errors as a person at the terminal gets them: one line that says what to do, and an exit code for scripts."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from events.errors import BusError, Denied, InvalidMessage, StorageError, UnknownGroup, WorkspaceLocked, error_code_of


class ExitCode(IntEnum):
    """What `events` ends with; the help of the command lists the same."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    REFUSED = 3
    STORAGE = 4
    INTERRUPTED = 130


EXIT_CODES = "Exit: 0 ok, 1 problem, 2 usage, 3 locked or denied, 4 storage, 130 interrupted"


class CommandError(BusError):
    """What a command itself has to complain about. The message says what to do."""

    code = "USAGE"

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error stands for."""
    match error:
        case CommandError(exit_code=code):
            return code
        case WorkspaceLocked() | Denied() | PermissionError():
            return ExitCode.REFUSED
        case StorageError() | OSError():
            return ExitCode.STORAGE
        case UnknownGroup():
            return ExitCode.PROBLEM
        case InvalidMessage() | ValueError():
            return ExitCode.USAGE
        case _:
            return ExitCode.PROBLEM


def one_line(error: BaseException) -> str:
    """What went wrong and what to do, with the stable code of a bus error in front."""
    code = error_code_of(error)
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and code is None:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or text}"
    if isinstance(error, WorkspaceLocked) and error.pid is not None and (command := command_of(error.pid)):
        text = text.replace(f"process {error.pid}", f"process {error.pid} ({command})", 1)
    return text if code in (None, CommandError.code) else f"{code}: {text}"


def command_of(pid: int) -> str:
    """What a process was started as, where the system tells; at most 60 characters of it."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    words = [word for word in raw.decode("utf-8", "replace").split("\0") if word]
    text = " ".join(word if index else Path(word).name for index, word in enumerate(words))
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= 60 else text[:59] + "…"
