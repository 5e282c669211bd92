"""What must not get into the log: e-mail addresses, phone and card numbers, secrets, raw media.

Texts come from anybody, so nothing here takes more than time in proportion to their length: every repetition is
bounded or ends at a character that cannot be part of it.

Most payloads hold nothing of the kind. A detector may have a `may_find`, which is asked with the bytes of a whole
payload, in ASCII and without escapes, and says False only where it is sure: then nobody has to look at the parts.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, runtime_checkable

import re2  # type: ignore[import-untyped]  # google-re2 ships no stubs

Span = tuple[int, int]
"""Where something begins and ends in a text."""


@runtime_checkable
class TextDetector(Protocol):
    """Finds parts of a text. `key` is the name under which the text stands in the payload, if it has one."""

    @property
    def name(self) -> str: ...

    def find(self, text: str, key: str | None) -> Iterable[Span]: ...


@runtime_checkable
class ValueDetector(Protocol):
    """Judges a value as a whole, before anybody looks into it: a text, a number, an object or an array."""

    @property
    def name(self) -> str: ...

    def covers(self, value: object, key: str | None) -> bool: ...


Detector = TextDetector | ValueDetector


class EmailDetector:
    """Addresses with a dotted domain: `ann@example.org`."""

    name = "email"
    may_find = staticmethod(re.compile(rb"@").search)
    _domain = staticmethod(
        re.compile(r"[\w-]{1,63}(?:\.[\w-]{1,63}){0,9}\.(?:[^\W\d_]{2,63}|xn--[\w-]{1,59})(?![\w-])").match
    )

    def find(self, text: str, key: str | None) -> Iterator[Span]:
        at = text.find("@")
        while at != -1:
            domain = self._domain(text, at + 1)
            if domain is not None:
                start = at
                while start > max(0, at - 64) and (text[start - 1].isalnum() or text[start - 1] in "._%+-'"):
                    start -= 1
                if start < at:
                    yield start, domain.end()
            at = text.find("@", at + 1)


class PhoneDetector:
    """Numbers as people write them: `+49 151 2345 6789`, `(555) 123-4567`, `0151 23456789`. Not bare digits."""

    name = "phone"
    may_find = staticmethod(re.compile(rb"[0-9][0-9 ()./-]{7}").search)
    _patterns = (
        re.compile(r"(?<![\w+])\+\d[\d ().-]{6,20}(?<=\d)(?!\d)"),
        re.compile(r"(?<![\w.+-])(?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4}(?![\w-])"),
        re.compile(r"(?<![\w.+/-])0\d{2,4}[ /-]\d{3,8}(?:[ -]\d{2,6})?(?![\w/-])"),
    )

    def find(self, text: str, key: str | None) -> Iterator[Span]:
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                if 9 <= sum(letter.isdigit() for letter in match[0]) <= 15:
                    yield match.span()


class CardDetector:
    """Payment card numbers of the large issuers, alone or in their usual groups, that pass the Luhn check."""

    name = "card"
    may_find = staticmethod(re.compile(rb"[0-9][0-9 .-]{11}[0-9]").search)
    _candidate = re.compile(
        r"(?<!\d)(?:\d{13,19}|\d{4}([ .-])\d{4}\1\d{4}\1\d{4}(\1\d{3})?|\d{4}([ .-])\d{6}\3\d{4,5})(?!\d)", re.ASCII
    )
    _issued = staticmethod(
        re.compile(r"4|5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)|3[47]|3(?:0[0-5]|[689])|35|6(?:011|5|4[4-9])").match
    )

    def find(self, text: str, key: str | None) -> Iterator[Span]:
        for match in self._candidate.finditer(text):
            if self._is_card(match[0]):
                yield match.span()
            # The last group of three may be something else that follows: an expiry date, a check number.
            elif match[2] is not None and self._is_card(match[0][:19]):
                yield match.start(), match.start() + 19

    def covers(self, value: object, key: str | None) -> bool:
        """A card number may be a JSON number too."""
        return type(value) is int and value >= 10**12 and self._is_card(str(value))

    def _is_card(self, text: str) -> bool:
        digits = [int(letter) for letter in text if letter.isdigit()]
        if not 13 <= len(digits) <= 19 or not self._issued("".join(map(str, digits))):
            return False
        doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
        return (sum(digits[-1::-2]) + doubled) % 10 == 0


_SECRETS: Final[tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]] = tuple(
    (markers, re.compile(pattern))
    for markers, pattern in (
        (("AKIA", "ASIA"), r"\bA[KS]IA[0-9A-Z]{16}\b"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{20,255}"),
        (("github_pat_",), r"\bgithub_pat_[A-Za-z0-9_]{20,255}"),
        (("glpat-",), r"\bglpat-[A-Za-z0-9_-]{16,255}"),
        (("xox",), r"\bxox[abeprs]-[A-Za-z0-9-]{10,255}"),
        (("sk-",), r"\bsk-[A-Za-z0-9_-]{16,255}"),
        (("_live_", "_test_"), r"\b[rsp]k_(?:live|test)_[A-Za-z0-9]{10,255}"),
        (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
        (("eyJ",), r"\beyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{0,2048}"),
        (
            ("-----BEGIN",),
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
        ),
        (("earer ",), r"\b[Bb]earer [A-Za-z0-9._~+/=-]{12,8192}"),
    )
)


class SecretDetector:
    """Keys and tokens by their well-known shapes, `password = ...` in a text, and all that stands under such a name."""

    name = "secret"
    may_find = staticmethod(
        re.compile(
            rb"A[KS]IA|gh[opsur]_|github_pat_|glpat-|xox|sk-|_live_|_test_|AIza|eyJ|-----BEGIN|earer "
            rb"|(?i:passw|passp|secret|key|token|authorization)"
        ).search
    )
    _named = staticmethod(
        re.compile(
            r"(?:.*_)?(?:password|passwd|passphrase|secret|api_?key|access_?key|private_?key|client_?secret"
            r"|(?:access|refresh|auth|bearer|session)_?token|authorization)",
            re.IGNORECASE,
        ).fullmatch
    )
    _assigned = re.compile(
        r"(?:password|passwd|passphrase|secret|api[_ -]?key|access[_ -]?key)[\"']?[ \t]{0,8}[:=][ \t]{0,8}[\"']?"
        r"([^\s\"',;]{6,1024})",
        re.IGNORECASE,
    )

    def find(self, text: str, key: str | None) -> Iterator[Span]:
        if key is not None and text and len(key) <= 100 and self._named(key.replace("-", "_")):
            yield 0, len(text)
            return
        for markers, pattern in _SECRETS:
            if any(marker in text for marker in markers):
                yield from (match.span() for match in pattern.finditer(text))
        if "=" in text or ":" in text:
            yield from (match.span(1) for match in self._assigned.finditer(text))


_MAGIC: Final = (
    *(b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*"),
    *(b"OggS", b"ID3", b"\xff\xfb", b"fLaC", b"\x1a\x45\xdf\xa3", b"RIFF"),
)
_is_base64 = re.compile(r"[A-Za-z0-9+/_\r\n-]+={0,2}\s{0,2}").fullmatch


class RawMediaDetector:
    """Images, sound and video as bytes: by type however small, and by size whatever the type.

    A data URI of a media type; base64 that begins like such a file; base64 of more than `max_base64_chars`; an array
    of more than `max_numbers` numbers (samples or pixels; embeddings are shorter).
    """

    name = "media"
    _has_bulk = staticmethod(re.compile(rb"data:|[A-Za-z0-9+/_=-]{32}").search)

    def __init__(
        self,
        *,
        types: tuple[str, ...] = ("image/", "audio/", "video/"),
        max_base64_chars: int = 64 * 1024,
        max_numbers: int = 16 * 1024,
    ) -> None:
        self._types, self._max_base64_chars, self._max_numbers = types, max_base64_chars, max_numbers

    def may_find(self, payload: bytes) -> object:
        return len(payload) > self._max_numbers or self._has_bulk(payload)

    def covers(self, value: object, key: str | None) -> bool:
        if isinstance(value, str):
            if value.startswith("data:"):
                return value[5:].startswith(self._types) or len(value) > self._max_base64_chars
            return len(value) >= 64 and (
                self._begins_like_media(value) or (len(value) > self._max_base64_chars and bool(_is_base64(value)))
            )
        if isinstance(value, list) and len(value) > self._max_numbers:
            return all(type(one) in (int, float) for one in value)
        return False

    def _begins_like_media(self, text: str) -> bool:
        try:
            head = base64.b64decode(text[:32].replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            return False
        # The short signatures could be the beginning of an ordinary word.
        return (head.startswith(_MAGIC) or head[4:8] == b"ftyp") and bool(_is_base64(text[:4096]))


class PatternDetector:
    """Whatever a pattern of yours matches, in RE2's syntax, which cannot be made to take long."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self._compiled: Any = re2.compile(pattern)

    def find(self, text: str, key: str | None) -> Iterator[Span]:
        yield from (match.span() for match in self._compiled.finditer(text) if match[0])


def standard_detectors() -> tuple[Detector, ...]:
    """All of them, the costly last."""
    return RawMediaDetector(), SecretDetector(), CardDetector(), EmailDetector(), PhoneDetector()
