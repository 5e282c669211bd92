"""What detectors find, what they leave alone, and that no text makes them slow."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from middleware.detectors import (
    CardDetector,
    EmailDetector,
    PatternDetector,
    PhoneDetector,
    RawMediaDetector,
    SecretDetector,
    TextDetector,
    standard_detectors,
)


def found(detector: TextDetector, text: str, key: str | None = None) -> list[str]:
    """The parts of a text that a detector finds."""
    return [text[start:end] for start, end in detector.find(text, key)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ann.b+x@mail.example.org, please", ["ann.b+x@mail.example.org"]),
        ("a@b.co;c@d.eu", ["a@b.co", "c@d.eu"]),
        ("<jürgen@münchen.de>.", ["jürgen@münchen.de"]),
        ("x@example.com.", ["x@example.com"]),
        ("x@xn--mnchen-3ya.xn--p1ai", ["x@xn--mnchen-3ya.xn--p1ai"]),
        ("user@localhost, @handle, a@1.2, a@b, 5 @ 3.50", []),
    ],
)
def test_email_addresses(text: str, expected: list[str]) -> None:
    """Addresses with a dotted domain, without the punctuation around them; handles and sums are none."""
    assert found(EmailDetector(), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("call +49 151 2345 6789 now", ["+49 151 2345 6789"]),
        ("+14155550123", ["+14155550123"]),
        ("(415) 555-0123 or 415-555-0123", ["(415) 555-0123", "415-555-0123"]),
        ("0151 23456789", ["0151 23456789"]),
        ("1795000000000", []),
        ("2026-11-18T08:00:00", []),
        ("version 1.2.3, 12-34, 03-2024", []),
        ("550e8400-e29b-41d4-a716-446655440000", []),
        ("192.168.100.200:8080", []),
    ],
)
def test_phone_numbers(text: str, expected: list[str]) -> None:
    """Numbers as people write them; times, versions, ids and addresses are none."""
    assert sorted(found(PhoneDetector(), text)) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4111111111111111", ["4111111111111111"]),
        ("card: 4111 1111 1111 1111 123 end", ["4111 1111 1111 1111"]),
        ("4111-1111-1111-1111", ["4111-1111-1111-1111"]),
        ("3782 822463 10005", ["3782 822463 10005"]),
        ("5555555555554444/2223003122003222", ["5555555555554444", "2223003122003222"]),
        ("4111111111111112", []),
        ("9999999999999995", []),
        ("14111111111111111", []),
        ("4111 1111-1111 1111", []),
        ("1795000000000", []),
    ],
)
def test_card_numbers(text: str, expected: list[str]) -> None:
    """An issuer's prefix and the Luhn check; one digit off, or part of a longer number, is none."""
    assert found(CardDetector(), text) == expected


def test_a_card_may_be_a_number() -> None:
    """JSON has numbers too; a timestamp in milliseconds is not mistaken for one."""
    detector = CardDetector()
    assert detector.covers(4111111111111111, None)
    assert not any(detector.covers(value, None) for value in (1795000000000, 4111, True, 4111111111111111.0, None))


@given(st.integers(0, 10**15 - 1))
def test_any_valid_visa_number_is_found(number: int) -> None:
    """With the right check digit every number of that issuer is found, and with a wrong one none."""
    digits = f"4{number:015}"[:15]
    total = sum(sum(divmod(int(d) * (2 if i % 2 == 0 else 1), 10)) for i, d in enumerate(digits))
    right = -total % 10
    assert found(CardDetector(), f"{digits}{right}") == [f"{digits}{right}"]
    assert found(CardDetector(), f"{digits}{(right + 1) % 10}") == []


@pytest.mark.parametrize(
    "secret",
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2_" * 8,
        "xoxb-" + "123456789012-abcdef",
        "sk-" + "ant-api03-abcdefghijklmnop",
        "sk_live_" + "abcdefghijklmnop1234",
        "AIza" + "B" * 35,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        "Bearer abcdef.ghijkl-mnop=",
    ],
)
def test_secrets_by_their_shape(secret: str) -> None:
    """Well-known keys and tokens are found whole, wherever they stand."""
    assert found(SecretDetector(), f"here: {secret} there") == [secret]


def test_secrets_by_their_name() -> None:
    """What stands under such a name, or behind it in a text, is one whatever it looks like."""
    detector = SecretDetector()
    for key in ("password", "db_password", "API-Key", "client_secret", "access_token", "Authorization"):
        assert found(detector, "x", key) == ["x"]
    assert found(detector, "password = hunter2; next") == ["hunter2"]
    assert found(detector, '{"api_key": "abcdef123"}') == ["abcdef123"]
    for innocent in ("token", "tokens", "keyboard", "passworded_hint", None):
        assert found(detector, "hello world", innocent) == []


@pytest.mark.parametrize(
    "head",
    [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF....WAVE", b"OggS", b"\x00\x00\x00\x18ftypmp42"],
)
def test_media_by_type(head: bytes) -> None:
    """Base64 that begins like a file of that type, however small, and a data URI that says so."""
    detector = RawMediaDetector()
    encoded = base64.b64encode(head + bytes(range(200))).decode()
    assert detector.covers(encoded, None)
    assert detector.covers(f"data:image/png;base64,{encoded}", None)
    assert not detector.covers(encoded[:40], None), "too short to be one"


def test_media_by_size() -> None:
    """Long base64 of any type, and long arrays of numbers; prose, embeddings and small data are let through."""
    detector = RawMediaDetector(max_base64_chars=1000, max_numbers=5000)
    assert detector.covers("QUJD" * 300, None)
    assert detector.covers("data:text/plain," + "x" * 1000, None)
    assert detector.covers([0.5] * 5001, None)
    assert not detector.covers("QUJD" * 100, None)
    assert not detector.covers("some words and more. " * 100, None)
    assert not detector.covers([0.5] * 1536, None)
    assert not detector.covers(["x"] * 6000, None)
    assert not detector.covers("data:text/plain,hello", None)


def test_a_pattern_of_ones_own() -> None:
    """In RE2's syntax; a pattern that it does not have is refused when the detector is made."""
    assert found(PatternDetector("ticket", r"[A-Z]{2,5}-\d+"), "see ABC-12 and DE-3") == ["ABC-12", "DE-3"]
    assert found(PatternDetector("none", r"x*"), "abc") == []
    with pytest.raises(Exception, match=r"invalid|missing|perl|repetition"):
        PatternDetector("bad", r"(?<=x)y")


HOSTILE = {
    "digits and spaces": "1 " * 2**17,
    "at signs": "@" * 2**18,
    "short addresses": "a@a." * 2**16,
    "dots": "a@" + "a." * 2**17,
    "plus signs": "+1 " * 2**16,
    "passwords": "password=" * 30_000,
    "begins": "-----BEGIN PRIVATE KEY" * 12_000,
    "tokens": "eyJaaaaaaaa. " * 20_000,
    "brackets": "(123) " * 43_000,
    "zeros": "0123 " * 52_000,
    "bearers": "Bearer " * 37_000,
    "cards": "4111 1111 1111 1111 " * 13_000,
    "letters": "x" * 2**18,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_long(text: str) -> None:
    """A quarter of a megabyte made to be slow takes a fraction of what a backtracking pattern would need."""
    started = time.process_time()
    for detector in standard_detectors():
        if isinstance(detector, TextDetector):
            for _ in detector.find(text, None):
                pass
        else:
            detector.covers(text, None)
    assert time.process_time() - started < 5
