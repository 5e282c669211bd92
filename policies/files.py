"""Policy files: whole or refused, watched for changes, replaced by rename, and the last good one kept.

Every policy file ends with the line `# end of policy`. A file that was cut short has lost it, and is refused:
otherwise a cut could take a deny line away and leave the allowances before it.
"""

from __future__ import annotations

import importlib.resources
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from threading import Lock
from typing import ClassVar, Final, Generic, TypeVar

from events.errors import BusError

END: Final = "# end of policy"
_MAX_BYTES: Final = 16 * 1024 * 1024

Stamp = tuple[int, int, int] | None
log = logging.getLogger(__name__)


class PolicyError(BusError, ValueError):
    """A policy file that cannot be taken as it is. What was in force stays in force."""

    code: ClassVar[str] = "INVALID_POLICY"

    def __init__(self, file: str, line: int | None, problem: str, *, column: int | None = None, hint: str = "") -> None:
        self.file, self.line, self.column, self.problem, self.hint = file, line, column, problem, hint
        where = ":".join([file, *(str(number) for number in (line, column) if number is not None)])
        super().__init__(f"{where}: {problem}{f'. {hint}' if hint else ''}")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a policy file, as decisions and errors name it."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


@dataclass(frozen=True, slots=True)
class Source:
    """One policy file: the user's, or the one that ships with the package."""

    name: str
    file: Traversable

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None, packaged: str) -> Source:
        """The file at `path`, or without one the packaged file of that name."""
        if path is not None:
            return cls(os.fspath(path), Path(path))
        return cls(f"policies/{packaged}", importlib.resources.files("policies") / packaged)

    def stamp(self) -> Stamp:
        """What changes when the file is edited or replaced; None for a missing one, or one inside a zip."""
        if not isinstance(self.file, Path):
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> bytes:
        """The bytes of the file as they stood at one moment, or `PolicyError`."""
        before = self.stamp()
        try:
            with self.file.open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
        except OSError as error:
            raise PolicyError(self.name, None, f"cannot be read: {error.strerror or error}") from error
        # An editor that overwrites in place shows the new beginning and the old end, trailer and all.
        if self.stamp() != before:
            raise PolicyError(self.name, None, "changed while it was read", hint="It is read again shortly")
        return data


def whole_text(data: bytes, file: str) -> str:
    """The text of a policy file that is all there and shows everything it says; `PolicyError` otherwise."""
    if len(data) > _MAX_BYTES:
        raise PolicyError(file, None, f"has more than {_MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(file, line, f"byte {error.start} is not UTF-8") from None
    lines = text.split("\n")
    for number, content in enumerate(lines, 1):
        # A lone carriage return or a bidirectional mark shows a reviewer another policy than the machine.
        shown = content.removesuffix("\r").replace("\t", " ")
        if not shown.isprintable():
            column, hidden = next((at, c) for at, c in enumerate(shown, 1) if not c.isprintable())
            raise PolicyError(file, number, f"holds the unprintable U+{ord(hidden):04X}", column=column)
    if len(lines) < 2 or lines[-1] or lines[-2].removesuffix("\r") != END:
        raise PolicyError(
            file,
            len(lines),
            f"the last line is not {END!r}, so the file may have been cut short",
            hint="End it with exactly that line and a newline",
        )
    return text


def replace_file(path: Path, text: str) -> None:
    """Put a new policy in the place of the old one: a reader sees one or the other, also after a crash."""
    # The name behind a link is replaced, so that the link goes on pointing at the policy.
    path = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text.encode("utf-8"))
            stream.flush()
            with suppress(FileNotFoundError):
                os.fchmod(stream.fileno(), path.stat().st_mode & 0o777)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


LoadedT = TypeVar("LoadedT")


@dataclass(frozen=True, slots=True)
class Change(Generic[LoadedT]):
    """What a reload did: a new policy in force, or an error and the old one kept."""

    files: tuple[str, ...]
    before: LoadedT
    after: LoadedT
    error: Exception | None = None


class Reloading(Generic[LoadedT]):
    """What was last loaded without error from some policy files. Any thread may use it.

    The first load raises; a later one that fails keeps what is in force, logs why, and leaves it in
    `last_error` until a good one comes.
    """

    def __init__(self, sources: Sequence[Source], load: Callable[[], LoadedT]) -> None:
        self._sources, self._load = tuple(sources), load
        self._reading = Lock()
        self._listeners: list[Callable[[Change[LoadedT]], None]] = []
        self._stamps = self._stamps_now()
        self.current = load()
        self.last_error: Exception | None = None

    def on_change(self, listener: Callable[[Change[LoadedT]], None]) -> None:
        """Have `listener` called after every reload, good or bad. It must neither raise nor reload."""
        self._listeners.append(listener)

    def changed(self) -> bool:
        """Whether a file differs from what was last read, by time, size and identity."""
        return self._stamps_now() != self._stamps

    def reload_if_changed(self) -> bool:
        """`reload`, if a file has changed. A bad file is tried again when it changes again."""
        return self.changed() and self.reload()

    def reload(self) -> bool:
        """Read the files anew. True when what they say is now in force, False when the old one was kept."""
        with self._reading:
            # Taken before reading: a change in between is seen as one next time.
            self._stamps = self._stamps_now()
            before = self.current
            try:
                self.current = self._load()
                self.last_error = None
            # Whatever went wrong, a policy that did not load must never replace one that did.
            except Exception as error:
                self.last_error = error
                log.error("policy not reloaded, the last good one stays in force: %s", error)
            names = tuple(source.name for source in self._sources)
            change = Change(names, before, self.current, self.last_error)
            for listener in self._listeners:
                listener(change)
            return self.last_error is None

    def _stamps_now(self) -> tuple[Stamp, ...]:
        return tuple(source.stamp() for source in self._sources)
