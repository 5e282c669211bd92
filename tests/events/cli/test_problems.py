"""Errors as one line and one exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from events.cli.problems import CommandError, ExitCode, command_of, exit_code_of, one_line
from events.errors import (
    BusClosed,
    BusError,
    CorruptLog,
    Denied,
    InvalidMessage,
    InvalidTopic,
    QueueFull,
    StorageFull,
    UnknownGroup,
    WorkspaceLocked,
)
from events.settings import SettingsError
from policies.files import PolicyError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("x"), 2),
        (CommandError("x", ExitCode.PROBLEM), 1),
        (WorkspaceLocked("/w", 7), 3),
        (Denied("a", "publish", "t", "s"), 3),
        (PermissionError(13, "no"), 3),
        (StorageFull("t", 1.0), 4),
        (CorruptLog("/f", 0, 1, 2, "bad"), 4),
        (FileNotFoundError(2, "none"), 4),
        (InvalidMessage("f", 1, "rule"), 2),
        (InvalidTopic("topic", "/", "rule"), 2),
        (SettingsError("x", "y"), 2),
        (PolicyError("f", 1, "bad"), 2),
        (UnknownGroup("none"), 1),
        (QueueFull("t", "g", 1.0), 1),
        (BusClosed(), 1),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    """Usage, refused, storage, problem."""
    assert exit_code_of(error) == code


def test_a_line_begins_with_the_stable_code() -> None:
    """Where there is one; line ends are folded."""
    assert one_line(InvalidMessage("f", 1, "a\n  rule")) == "INVALID_MESSAGE: f: found 1; a rule"
    assert one_line(CommandError("do this")) == "do this"
    assert one_line(FileNotFoundError(2, "No such file", "/x")) == "/x: No such file"
    assert one_line(BusError()) == "BUS_ERROR: BusError"


def test_the_holder_of_a_lock_is_named_by_its_command() -> None:
    """As far as the system tells, and not at any length."""
    own = command_of(os.getpid())
    assert own.startswith("python")
    assert len(own) <= 60
    assert f"process {os.getpid()} ({own})" in one_line(WorkspaceLocked("/w", os.getpid()))
    assert command_of(2**22 + 1) == ""
    assert "another process" in one_line(WorkspaceLocked(str(Path("/w")), None))
