"""Small JSON documents that are replaced as a whole: group records and checkpoints.

A document is `{"version":..,"generation":..,<data>,"crc":".."}`. Replacing it writes a temporary file, syncs
it, keeps the current one as `.prev`, renames, and syncs the directory: a crash leaves the old one, the new
one, or the previous copy of it, never half of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import orjson

from events.persistence.files import FileSystem, list_or_empty, read_file, write_all

VERSION: Final = 1
MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
SUFFIX: Final = ".json"
PREVIOUS: Final = ".prev"
TEMPORARY: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class Document:
    """What was read: the data, its generation, and whether it is the previous copy standing in."""

    data: dict[str, Any]
    generation: int
    is_previous: bool = False


def encode_document(data: Mapping[str, Any], generation: int) -> bytes:
    """The bytes of a document; readable with `cat`."""
    body = orjson.dumps({"version": VERSION, "generation": generation, **data})
    return b'%b,"crc":"%08x"}\n' % (body[:-1], crc32(body))


def decode_document(raw: bytes) -> Document | None:
    """The document, or None when a byte of it is not what was written."""
    if len(raw) < 40 or raw[-1] != 10:
        return None
    body = raw[:-19] + b"}"
    if raw[-19:] != b',"crc":"%08x"}\n' % crc32(body):
        return None
    data = orjson.loads(body)
    if data.pop("version") != VERSION:
        return None
    return Document(data, data.pop("generation"))


def list_documents(fs: FileSystem, directory: str) -> list[str]:
    """The file names of the documents in a directory; a crash may have left one of them as its previous copy alone."""
    names = {name.removesuffix(PREVIOUS) for name in list_or_empty(fs, directory)}
    return sorted(name for name in names if name.endswith(SUFFIX))


def read_document(fs: FileSystem, path: str) -> tuple[Document | None, bool]:
    """The newest good copy, and whether a copy that is there could not be read."""
    current, damaged = _read_one(fs, path)
    if current is not None:
        return current, False
    previous, previous_damaged = _read_one(fs, path + PREVIOUS)
    if previous is not None:
        previous = Document(previous.data, previous.generation, is_previous=True)
    return previous, damaged or previous_damaged


def read_previous(fs: FileSystem, path: str) -> Document | None:
    """The copy before the current one, for those who must trust the lower of the two."""
    return _read_one(fs, path + PREVIOUS)[0]


def _read_one(fs: FileSystem, path: str) -> tuple[Document | None, bool]:
    raw = read_file(fs, path, MAX_DOCUMENT_BYTES)
    if raw is None:
        return None, False
    document = decode_document(raw)
    return document, document is None


def write_document(
    fs: FileSystem, path: str, data: Mapping[str, Any], generation: int, *, keep_current: bool = True
) -> None:
    """Replace a document. When this returns the new one is durable; when it raises, one of the two is.

    `keep_current` is false for a current copy that is damaged: it must not take the place of the good one before it.
    """
    temporary = path + TEMPORARY
    try:
        handle = fs.open(temporary, create=True)
    except FileExistsError:  # left behind by a crash or an earlier failure
        fs.unlink(temporary)
        handle = fs.open(temporary, create=True)
    try:
        write_all(fs, handle, encode_document(data, generation), 0)
        fs.sync(handle)
    finally:
        fs.close(handle)
    if keep_current:
        with suppress(FileNotFoundError):  # the first of its kind has no previous copy
            fs.rename(path, path + PREVIOUS)
    fs.rename(temporary, path)
    fs.sync_directory(os.path.dirname(path))


def remove_document(fs: FileSystem, path: str) -> None:
    """Forget a document and its copies. The current one goes last, so that a crash never revives an older."""
    for suffix in (TEMPORARY, PREVIOUS, ""):
        try:
            fs.unlink(path + suffix)
        except FileNotFoundError:
            continue
    fs.sync_directory(os.path.dirname(path))
