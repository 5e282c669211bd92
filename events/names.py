"""The grammar of names (rule F3), and how a space id becomes the name of a directory."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from events.errors import InvalidGroup, InvalidMessage, InvalidSpace, InvalidTopic

_FIRST: Final = r"[A-Za-z0-9](?:_?[A-Za-z0-9-])*_?"
_OTHER: Final = r"(?:_?(?:[A-Za-z0-9-]_?)+|_)"
_NAME: Final = rf"{_FIRST}(?:\.{_OTHER})*"
# Written without look-around, so that pydantic's regex engine and Python's read it alike.
TOPIC_PATTERN: Final = rf"^{_NAME}$"
TOPIC_RULE: Final = (
    "a topic has at most 100 of A-Z a-z 0-9 _ - in segments joined by '.', starts with a letter or digit, "
    "and has no '__'"
)
GROUP_RULE: Final = TOPIC_RULE.replace("a topic", "a group", 1)
PATTERN_RULE: Final = "a topic pattern is a topic in which '*' may stand for one segment and '**' for any number"
SPACE_RULE: Final = "a space id is printable, not empty, and at most 200 bytes when percent-escaped"

_MAX_NAME_BYTES: Final = 100
_MAX_ESCAPED_SPACE_BYTES: Final = 200
_name = re.compile(_NAME, re.ASCII).fullmatch
_pattern = re.compile(rf"(?:{_FIRST}|\*\*?)(?:\.(?:{_OTHER}|\*\*?))*", re.ASCII).fullmatch
_unescaped = re.compile(r"[A-Za-z0-9_.-]", re.ASCII).match


# Caches hold plain strings only: a subclass may lie about its length, its hash, and what it equals.
@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return len(name) <= _MAX_NAME_BYTES and _name(name) is not None


@lru_cache(maxsize=4096)
def _is_pattern(pattern: str) -> bool:
    return len(pattern) <= _MAX_NAME_BYTES and _pattern(pattern) is not None


def check_topic(topic: str) -> str:
    """The topic as a plain string, or `InvalidTopic`."""
    if not isinstance(topic, str) or not _is_name(str.__str__(topic)):
        raise InvalidTopic("topic", topic, TOPIC_RULE)
    return str.__str__(topic)


def check_group(group: str) -> str:
    """The group's name as a plain string, or `InvalidGroup`."""
    if not isinstance(group, str) or not _is_name(str.__str__(group)):
        raise InvalidGroup("group", group, GROUP_RULE)
    return str.__str__(group)


def check_topic_pattern(pattern: str) -> str:
    """A topic or a glob over topics (rule W15), or `InvalidTopic`."""
    if not isinstance(pattern, str) or not _is_pattern(str.__str__(pattern)):
        raise InvalidTopic("topic", pattern, PATTERN_RULE)
    return str.__str__(pattern)


@lru_cache(maxsize=16384)
def is_space(space_id: str) -> bool:
    """Whether a space id keeps rule F3."""
    return (
        isinstance(space_id, str)
        and space_id.isprintable()
        and 0 < len(space_id) <= _MAX_ESCAPED_SPACE_BYTES
        and len(escape_space(space_id)) <= _MAX_ESCAPED_SPACE_BYTES
    )


def check_space(space_id: str) -> str:
    """The space id as a plain string, or `InvalidSpace`."""
    if not isinstance(space_id, str) or not is_space(str.__str__(space_id)):
        raise InvalidSpace("space_id", space_id, SPACE_RULE)
    return str.__str__(space_id)


@lru_cache(maxsize=16384)
def escape_space(space_id: str) -> str:
    """The directory name of a space: one name per space, nothing that a path could read as special."""
    escaped = "".join(
        character if _unescaped(character) else "".join(f"%{byte:02X}" for byte in character.encode("utf-8"))
        for character in space_id
    )
    # A leading dot would hide the directory, and '.' and '..' would leave it.
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped


def unescape_space(directory: str) -> str:
    """The space id of a directory that `escape_space` named; `InvalidMessage` for any other name."""
    try:
        space_id = unquote_to_bytes(directory).decode("utf-8")
    except UnicodeError:  # bytes that are not UTF-8, also as os.listdir hands them out
        space_id = ""
    if not is_space(space_id) or escape_space(space_id) != directory:
        raise InvalidMessage("directory", directory, "not the escaped name of a space")
    return space_id


@lru_cache(maxsize=4096)
def topic_matcher(pattern: str) -> re.Pattern[str]:
    """The anchored expression of a glob: `*` one segment, `**` any number, a lone `*` everything."""
    if pattern in ("*", "**"):
        return re.compile(r".+", re.DOTALL)
    runs: list[list[str]] = [[]]  # of segments, with a `**` between each two
    for segment in pattern.split("."):
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(r"(?:^|\.)" + (r"[^.]+" if segment == "*" else re.escape(segment)))
    first, *others = ["".join(run) for run in runs]
    skipped = r"(?:(?:^|\.)[^.]+)*?"
    # The nearest place for a run is as good as any later one. Atomic groups say so; without them a pattern of
    # many `**` would try every combination of places, which takes years.
    middle = "".join(f"(?>{skipped}{run})" for run in others[:-1])
    return re.compile(first + middle + (skipped + others[-1] if others else ""))


def topic_matches(pattern: str, topic: str) -> bool:
    """Whether a topic falls under a pattern."""
    return pattern == topic or ("*" in pattern and topic_matcher(pattern).fullmatch(topic) is not None)
