"""Regular expressions that take time in proportion to the text, whatever the expression.

RE2 runs an automaton instead of trying alternatives one after the other, so nothing backtracks; for that it has
no look-around and no back-references. What is left to bound is the product of text and automaton.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # google-re2 ships no stubs

from filters.budget import Budget, Overrun

MAX_PATTERN_CHARS: Final = 1_000
# RE2 needs at most some 6 ns for a byte and an instruction: 100 ms.
_MAX_WORK: Final = 1 << 24
_MAX_INSTRUCTIONS: Final = 1 << 13
_MAX_AUTOMATON_BYTES: Final = 1 << 20
_WORK_BITS_OF_A_STEP: Final = 9
_CALL_STEPS: Final = 5
_GROUP_REFERENCE: Final = re.compile(r"\\(?:(\d{1,2})|g<(\w+)>)")

# The grammar of RFC 9485, section 3. Only groups nest, so a token at a time and a count of them decide.
_CATEGORY: Final = r"\\[pP]\{(?:L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|Z[lps]?|S[ckmo]?|C[cfno]?)\}"
_ESCAPED: Final = r"\\[()*+\-.?\[\\\]^nrt{|}]"
_IN_CLASS: Final = rf"(?:[^\-\[\\\]]|{_ESCAPED})"
_CLASS_ITEM: Final = rf"(?:{_IN_CLASS}(?:-{_IN_CLASS})?|{_CATEGORY})"
_ATOM: Final = rf"[^()*+?\[\\\]{{|}}]|{_ESCAPED}|{_CATEGORY}|\[\^?(?:-|{_CLASS_ITEM}){_CLASS_ITEM}*-?\]"
_I_REGEXP_TOKEN: Final = re.compile(rf"\(|\||(?:\)|{_ATOM})(?:[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})?", re.DOTALL)


class BadRegex(ValueError):
    """A pattern that cannot be used. `position` is where in the pattern."""

    def __init__(self, reason: str, position: int) -> None:
        self.reason, self.position = reason, position
        super().__init__(f"{reason} at position {position}")


class LinearRegex:
    """A compiled pattern.

    A question raises `Overrun` when the text is too long for the pattern, and answers None when UTF-8 cannot
    write the text.
    """

    __slots__ = ("_compiled", "_instructions", "_max_bytes", "pattern")

    def __init__(self, pattern: str, compiled: Any) -> None:
        self.pattern = pattern
        self._compiled = compiled
        self._instructions: int = max(1, compiled.programsize)
        self._max_bytes = _MAX_WORK // self._instructions

    def search(self, text: str) -> bool | None:
        """Whether the pattern occurs anywhere in the text."""
        return self._ask(self._compiled.search, text)

    def fullmatch(self, text: str) -> bool | None:
        """Whether the pattern is the whole text."""
        return self._ask(self._compiled.fullmatch, text)

    def steps(self, text: str, start: int = 0) -> int:
        """What a question about the text takes from the budget of a query."""
        return _CALL_STEPS + (_bytes_in(text, start) * self._instructions >> _WORK_BITS_OF_A_STEP)

    def replace(self, text: str, replacement: Replacement, budget: Budget) -> str:
        """The text with every occurrence replaced. Each occurrence is paid for with a search of the rest."""
        pieces: list[str] = []
        end = 0
        budget.spend(self.steps(text))
        for match in self._compiled.finditer(text):
            budget.spend(self.steps(text, match.end()))
            pieces += (text[end : match.start()], replacement(match))
            end = match.end()
        return "".join(pieces) + text[end:]

    def group(self, name: str, position: int) -> int:
        """The number of a group that a replacement refers to at that position."""
        number = int(name) if name.isdigit() else self._compiled.groupindex.get(name, -1)
        if not 0 <= number <= self._compiled.groups:
            raise BadRegex(f"the pattern has no group {name!r}, which the replacement refers to", position)
        return int(number)

    def _ask(self, question: Any, text: str) -> bool | None:
        if _bytes_in(text) > self._max_bytes:
            raise Overrun
        try:
            return question(text) is not None
        except UnicodeEncodeError:
            return None


class Replacement:
    """What stands in for an occurrence: text in which `\\1` and `\\g<name>` are groups of the pattern."""

    __slots__ = ("_parts",)

    def __init__(self, regex: LinearRegex, text: str) -> None:
        self._parts: list[str | int] = []
        end = 0
        for escape in _GROUP_REFERENCE.finditer(text):
            self._parts += (text[end : escape.start()], regex.group(escape[1] or escape[2], escape.start()))
            end = escape.end()
        self._parts.append(text[end:])

    def __call__(self, match: Any) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._parts)


@lru_cache(maxsize=256)
def compile_regex(pattern: str) -> LinearRegex:
    """A pattern in RE2's syntax, or `BadRegex`."""
    _check_length(pattern)
    return _compiled(pattern, pattern)


@lru_cache(maxsize=256)
def compile_i_regexp(pattern: str) -> LinearRegex:
    """A pattern in the syntax of RFC 9485, which RFC 9535 prescribes, or `BadRegex`."""
    _check_length(pattern)
    spelled: list[str] = []
    position = depth = 0
    while position < len(pattern):
        token = _I_REGEXP_TOKEN.match(pattern, position)
        depth += {"(": 1, ")": -1}.get(pattern[position], 0)
        if token is None or depth < 0:
            raise BadRegex("not an I-Regexp (RFC 9485 has no \\d \\w \\s, no (?..) and no lazy repetition)", position)
        # RE2's dot would take the carriage return too.
        spelled.append(r"[^\n\r]" + token[0][1:] if token[0][0] == "." else token[0])
        position = token.end()
    if depth:
        raise BadRegex("not an I-Regexp: a group is not closed", position)
    return _compiled("".join(spelled), pattern)


def _check_length(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadRegex(f"a pattern has at most {MAX_PATTERN_CHARS} characters, and goes on", MAX_PATTERN_CHARS)


def _compiled(spelled: str, pattern: str) -> LinearRegex:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_AUTOMATON_BYTES
    try:
        compiled = re2.compile(spelled, options)
    except re2.error as error:
        raise _explained(pattern, error) from None
    except UnicodeEncodeError as error:
        raise BadRegex("not text that UTF-8 can write", error.start) from None
    if compiled.programsize > _MAX_INSTRUCTIONS:
        raise BadRegex("too large: its counted repetitions unfold to more than can be searched in time", 0)
    return LinearRegex(pattern, compiled)


def _bytes_in(text: str, start: int = 0) -> int:
    """At most so many bytes of UTF-8, without writing them."""
    return (len(text) - start) * (1 if text.isascii() else 4)


def _explained(pattern: str, error: Exception) -> BadRegex:
    """RE2 names the faulty part but not its place: `bad repetition operator: **`."""
    (message,) = error.args
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    reason, _, part = text.partition(": ")
    return BadRegex(f"{reason}: {part}" if part else reason, max(0, pattern.find(part)) if part else 0)
