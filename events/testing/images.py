"""What disk and memory hold at one moment, and what a crash at that moment may leave of it.

Every file has what the disk holds and the changes that came after; every directory the same for its names. For each
change that was not synced a `Fate` says what is left of it, and a `Choice` is one fate for each: a short tuple that
replays a crash exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


class Fate(NamedTuple):
    """What a crash leaves of one change that was not synced.

    Of a write the bytes from `start` to `stop` reach the disk; where `extends`, the file's length does too, and what
    is missing of the bytes reads as NULs. A truncation happened if `stop` is 1. Of a directory's changes the first
    `stop` happened, in their order.
    """

    start: int
    stop: int
    extends: bool = False


Choice = tuple[Fate, ...]
DROPPED: Final = Fate(0, 0)


class Write(NamedTuple):
    """Bytes that a file got."""

    position: int
    data: bytes


class Truncate(NamedTuple):
    """A length that a file was given."""

    size: int


class Naming(NamedTuple):
    """A change of a directory in one step: `gone` vanishes, and `name` stands for `node` from then on."""

    gone: str | None
    name: str | None
    node: int


class FileImage(NamedTuple):
    """A file: what is on disk, and what came after."""

    label: str
    disk: bytes
    pending: tuple[Write | Truncate, ...]


class DirectoryImage(NamedTuple):
    """A directory: the names that are on disk, and what came after."""

    label: str
    disk: Mapping[str, int]
    pending: tuple[Naming, ...]


class Unsynced(NamedTuple):
    """A change that a crash may undo: `size` is the bytes of a write, or how many changes of names there are."""

    path: str
    kind: Literal["write", "truncate", "names"]
    size: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Image:
    """A whole file system at one moment. `call` is the last call before it, for people."""

    call: str
    nodes: Mapping[int, FileImage | DirectoryImage]
    folds_case: bool = False

    def unsynced(self) -> list[Unsynced]:
        """The changes that a crash at this moment may undo; a choice has one fate for each, in this order."""
        found: list[Unsynced] = []
        for node in self.nodes.values():
            if isinstance(node, DirectoryImage):
                if node.pending:
                    found.append(Unsynced(node.label, "names", len(node.pending)))
                continue
            for change in node.pending:
                if isinstance(change, Write):
                    found.append(Unsynced(node.label, "write", len(change.data), change.data))
                else:
                    found.append(Unsynced(node.label, "truncate", 1))
        return found

    def left_by(self, choice: Sequence[Fate]) -> Mapping[int, FileImage | DirectoryImage]:
        """What is on disk after a power cut. Changes for which there is no fate are lost."""
        fates = iter(choice)
        left: dict[int, FileImage | DirectoryImage] = {}
        for number, node in self.nodes.items():
            if not node.pending:
                left[number] = node
            elif isinstance(node, DirectoryImage):
                kept = node.pending[: next(fates, DROPPED).stop]
                left[number] = DirectoryImage(node.label, with_names(node.disk, kept), ())
            else:
                content = with_changes(node.disk, node.pending, [next(fates, DROPPED) for _ in node.pending])
                left[number] = FileImage(node.label, content, ())
        return left


def whole(change: Write | Truncate) -> Fate:
    """The fate of a change that was synced."""
    return Fate(0, len(change.data), True) if isinstance(change, Write) else Fate(0, 1)


def with_changes(disk: bytes, changes: Sequence[Write | Truncate], fates: Sequence[Fate]) -> bytes:
    """A file's bytes, with what these fates leave of some changes."""
    content: bytes | bytearray = bytearray(disk)
    for change, fate in zip(changes, fates, strict=True):
        if isinstance(change, Truncate):
            if fate.stop:
                content = truncated(content, change.size)
            continue
        if fate.stop > fate.start:
            content = written(content, change.data[fate.start : fate.stop], change.position + fate.start)
        if fate.extends and len(content) < change.position + len(change.data):
            content = written(content, b"", change.position + len(change.data))
    return bytes(content)


def with_names(disk: Mapping[str, int], changes: Sequence[Naming]) -> Mapping[str, int]:
    """A directory's names after some changes."""
    names = dict(disk)
    for change in changes:
        if change.gone is not None:
            names.pop(change.gone, None)
        if change.name is not None:
            names[change.name] = change.node
    return names


def written(content: bytes | bytearray, data: bytes, position: int) -> bytearray:
    """The bytes with `data` at `position`, and NULs before it if need be. Changes a bytearray in place."""
    grown = content if isinstance(content, bytearray) else bytearray(content)
    if len(grown) < position:
        grown.extend(bytes(position - len(grown)))
    grown[position : position + len(data)] = data
    return grown


def truncated(content: bytes | bytearray, size: int) -> bytes | bytearray:
    """The first `size` bytes, with NULs behind them if there are fewer."""
    return content[:size] if size <= len(content) else written(content, b"", size)
