"""The workspace on disk: where each file lives, who may write, and that nothing leads out of it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from events.errors import ForkedProcess, InvalidMessage, ReadOnly, UnsupportedPlatform, WorkspaceLocked
from events.names import check_group, check_space, check_topic, escape_space, unescape_space
from events.persistence.documents import SUFFIX, list_documents
from events.persistence.files import FileSystem, list_or_empty, make_directories, make_directory, read_file, write_all
from events.persistence.segment import Naming, stem_of

BUS_DIRECTORY: Final = ".bus"
_LOCK: Final = "lock"
_LOG_FOLDERS: Final = frozenset({"wal", "offsets", "dlq"})
_DEAD_LETTERS: Final = re.compile(r"(?P<topic>.+)\.dlq(?:\.\d{8,})?\.jsonl", re.ASCII).fullmatch
_MAX_LOCK_BYTES: Final = 4096
_LOCK_TRIES: Final = 40
_LOCK_PAUSE_S: Final = 0.005


class Layout:
    """Paths, and nothing but paths. Every name that comes from a caller is checked or escaped here."""

    def __init__(self, workspace: str | Path) -> None:
        self.workspace = os.path.realpath(workspace)  # a link that leads to it is the user's choice
        self.root = os.path.join(self.workspace, BUS_DIRECTORY)
        self.lock = os.path.join(self.root, _LOCK)
        self.groups = os.path.join(self.root, "groups")
        self.spaces = os.path.join(self.root, "spaces")
        self.aside = os.path.join(self.root, "aside")
        self.ballast = os.path.join(self.root, "ballast")

    def space(self, space_id: str) -> str:
        """The directory of a space."""
        return os.path.join(self.spaces, escape_space(check_space(space_id)))

    def folder(self, space_id: str, kind: str) -> str:
        """A folder of a space: `wal`, `offsets`, `dlq`, `gate` and what else must last."""
        return os.path.join(self.space(space_id), kind)

    def group(self, group: str) -> str:
        """The record that a group exists."""
        return os.path.join(self.groups, f"{check_group(group)}.json")

    def checkpoint(self, space_id: str, topic: str, group: str) -> str:
        """What a group has settled of a log."""
        return os.path.join(self.folder(space_id, "offsets"), f"{check_topic(topic)}__{check_group(group)}.json")


def wal_naming(topic: str) -> Naming:
    """How the segments of a topic's log are called."""
    return Naming(check_topic(topic))


def dlq_naming(topic: str) -> Naming:
    """How the files of a topic's dead letters are called."""
    return Naming(f"{check_topic(topic)}.dlq", first_is_bare=True)


def journal_naming(name: str) -> Naming:
    """How the segments of a journal are called; its name is made of names, joined by `__`."""
    for part in name.split("__"):
        check_topic(part)
    return Naming(name)


def check_journal_folder(folder: str) -> str:
    """The folder of a journal, or `InvalidMessage` for one in which others write."""
    if folder in _LOG_FOLDERS:
        raise InvalidMessage("folder", folder, "a journal has a folder of its own")
    return check_topic(folder)


def list_spaces(fs: FileSystem, layout: Layout) -> list[str]:
    """The spaces that there are. A directory that we did not name is not ours, and is passed over."""
    spaces: list[str] = []
    for name in list_or_empty(fs, layout.spaces):
        try:
            spaces.append(unescape_space(name))
        except InvalidMessage:
            continue
    return spaces


def list_topics(fs: FileSystem, layout: Layout, space_id: str) -> list[str]:
    """The topics that have a log in a space."""
    names = list_or_empty(fs, layout.folder(space_id, "wal"))
    stems = {stem_of(name) for name in names}
    marked = {name[1 : -len(".mark.json")] for name in names if name.startswith(".") and name.endswith(".mark.json")}
    return sorted(stem for stem in (stems | marked) if stem is not None and _is_ours(check_topic, stem))


def list_groups(fs: FileSystem, layout: Layout) -> list[str]:
    """The paths of the group records that there are."""
    names = list_documents(fs, layout.groups)
    return [os.path.join(layout.groups, name) for name in names if _is_ours(check_group, name.removesuffix(SUFFIX))]


def _is_ours(check: Callable[[str], str], name: str) -> bool:
    """Whether a name in a directory is one that we would give; any other file there is somebody else's."""
    try:
        return bool(check(name))
    except InvalidMessage:
        return False


def list_journals(fs: FileSystem, layout: Layout, space_id: str, folder: str) -> list[str]:
    """The journals that the bus keeps in a folder of a space."""
    stems = {stem_of(name) for name in list_or_empty(fs, layout.folder(space_id, folder))}
    return sorted(stem for stem in stems if stem is not None and _is_ours(lambda name: journal_naming(name).stem, stem))


def list_journal_folders(fs: FileSystem, layout: Layout, space_id: str) -> list[str]:
    """The folders of a space in which the bus keeps journals."""
    names = list_or_empty(fs, layout.space(space_id))
    return [name for name in names if _is_ours(check_journal_folder, name)]


def list_dead_letters(fs: FileSystem, layout: Layout, space_id: str) -> list[str]:
    """The topics that have dead letters in a space."""
    names = list_or_empty(fs, layout.folder(space_id, "dlq"))
    topics = {match["topic"] for match in map(_DEAD_LETTERS, names) if match is not None}
    return sorted(topic for topic in topics if _is_ours(check_topic, topic))


class Workspace:
    """A workspace that this process may write to, for as long as it holds the lock.

    The lock is the kernel's: it is gone when the process is, however it ends. The child of a fork loses it at once
    and may not write; pid and boot id in the file are for people to read.
    """

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self.fs = fs
        self.layout = layout
        self._lock_handle: int | None = None
        self.is_forked = False
        self._made: set[str] = set()
        self._synced: set[str] = set()
        self.folds_case = False

    def acquire(self) -> None:
        """Take the lock and make the directories; `WorkspaceLocked` when another process has it."""
        if sys.platform == "win32":
            raise UnsupportedPlatform("Windows", "flock, and an fsync for directories")
        layout = self.layout
        make_directories(self.fs, layout.workspace)
        with suppress(PermissionError):  # not ours to read, then somebody else made what is in it
            self._sync_once(os.path.dirname(layout.workspace))
        if not make_directory(self.fs, layout.root):
            self.fs.listdir(layout.root)  # raises if it is a link, or no directory
            self._sync_once(layout.workspace)
        self._lock_handle = take_lock(self.fs, layout)
        _open_workspaces.add(self)
        try:
            note = json.dumps({"pid": os.getpid(), "boot_id": _boot_id()}) + "\n"
            with suppress(OSError):  # for people; a full disk is no reason to stay out
                self.fs.truncate(self._lock_handle, 0)
                write_all(self.fs, self._lock_handle, note.encode(), 0)
            for path in (layout.groups, layout.spaces, layout.aside):
                self.ensure(path)
            self.fs.sync_directory(layout.root)
            self.folds_case = self._probe_case()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Give the lock back. Safe to call twice."""
        _open_workspaces.discard(self)
        handle, self._lock_handle = self._lock_handle, None
        if handle is not None:
            with suppress(OSError):  # the note is for people
                self.fs.truncate(handle, 0)
            with suppress(OSError):  # the kernel has taken the lock back all the same
                self.fs.close(handle)

    def check_writable(self) -> None:
        """Raise when this process is not, or no longer, the one that may write."""
        if self.is_forked:
            raise ForkedProcess(self.layout.workspace)
        if self._lock_handle is None:
            raise ReadOnly(self.layout.workspace, "its lock is not held")

    def ensure(self, path: str) -> str:
        """Make a directory of the workspace durable, once; a link in its place is an error."""
        if path not in self._made:
            parent = os.path.dirname(path)
            if parent != self.layout.root and parent.startswith(self.layout.root):
                self.ensure(parent)
            self._refuse_twins(parent, os.path.basename(path))
            if not make_directory(self.fs, path):
                self.fs.listdir(path)
                self._sync_once(parent)
            if len(self._made) > 100_000:
                self._made.clear()  # a cache, and nothing more
            self._made.add(path)
        return path

    def _sync_once(self, directory: str) -> None:
        """Make names durable that an earlier process gave: it may have been killed before its own sync."""
        if directory not in self._synced:
            self.fs.sync_directory(directory)
            if len(self._synced) > 100_000:
                self._synced.clear()
            self._synced.add(directory)

    def ensure_folder(self, space_id: str, kind: str) -> str:
        """The folder of a space, there and durable."""
        return self.ensure(self.layout.folder(space_id, kind))

    def refuse_twin_topic(self, space_id: str, topic: str) -> None:
        """Refuse a topic that the file system would merge with another (rule F3)."""
        if self.folds_case:
            for other in list_topics(self.fs, self.layout, space_id):
                if other != topic and other.casefold() == topic.casefold():
                    raise InvalidMessage("topic", topic, f"this file system cannot tell it from {other!r}")

    def refuse_twin_group(self, group: str, others: Iterable[str]) -> None:
        """Refuse a group that the file system would merge with another (rule F3)."""
        if self.folds_case:
            for other in others:
                if other != group and other.casefold() == group.casefold():
                    raise InvalidMessage("group", group, f"this file system cannot tell it from {other!r}")

    def _refuse_twins(self, parent: str, name: str) -> None:
        if self.folds_case:
            for other in list_or_empty(self.fs, parent):
                if other != name and other.casefold() == name.casefold():
                    raise InvalidMessage("name", name, f"this file system cannot tell it from {other!r}")

    def _probe_case(self) -> bool:
        """Whether the file system takes two spellings for one name: the lock file is asked by another one."""
        try:
            handle = self.fs.open(os.path.join(self.layout.root, _LOCK.upper()))
        except FileNotFoundError:
            return False
        self.fs.close(handle)
        return True

    def _after_fork(self) -> None:
        self.is_forked = True
        handle, self._lock_handle = self._lock_handle, None
        if handle is not None:
            # The description is shared with the parent: closing our copy leaves the parent's lock in place,
            # keeping it would hold the lock after the parent was killed.
            self.fs.close(handle)


def take_lock(fs: FileSystem, layout: Layout) -> int:
    """The handle that holds the lock; `WorkspaceLocked` with the holder's pid when another one has it.

    A holder names itself just after it took the lock and just until it gives it back, and whoever only asks
    whether it is free has it for an instant without a name: where no living process is named, look again.
    """
    pid: int | None = None
    for _ in range(_LOCK_TRIES):
        try:
            return fs.lock(layout.lock)
        except BlockingIOError:
            pid = read_holder(fs, layout)
        if pid is not None and _is_alive(pid):
            break
        time.sleep(_LOCK_PAUSE_S)
    raise WorkspaceLocked(layout.workspace, pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True


def read_holder(fs: FileSystem, layout: Layout) -> int | None:
    """The pid that the lock file names, for people; the lock itself is the kernel's."""
    raw = read_file(fs, layout.lock, _MAX_LOCK_BYTES)
    try:
        note = json.loads(raw or b"{}")
    except ValueError:
        return None
    pid = note.get("pid") if isinstance(note, dict) else None
    return pid if isinstance(pid, int) else None


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


_open_workspaces: weakref.WeakSet[Workspace] = weakref.WeakSet()


def _close_locks_in_child() -> None:
    for workspace in list(_open_workspaces):
        workspace._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_in_child)
