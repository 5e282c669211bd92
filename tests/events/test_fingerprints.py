"""Errors by what kind they are, and how a log may show them."""

from __future__ import annotations

import pytest

from events.fingerprints import ErrorText, fingerprint, is_exception_name, shape_of

SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'goal-1'", "KeyError: 'goal-2'"),
        ("TimeoutError: took 3.4 s at 10.0.0.1:80", "TimeoutError: took 12 s at 10.0.0.27:443"),
        ('ValueError: "a" is no number', 'ValueError: "b c" is no number'),
        ("OSError: [Errno 2] no such file: '/a'", "OSError: [Errno 13] no such file: '/b'"),
        ("RuntimeError: first line\nsecond", "RuntimeError: first   line\nanother"),
    ],
)
def test_errors_that_differ_in_values_only_share_a_fingerprint(one: str, other: str) -> None:
    """Numbers, ids, addresses, quoted values, further lines and blanks make no difference."""
    assert fingerprint(one) == fingerprint(other)


def test_errors_of_different_kinds_differ() -> None:
    """The class and the words are what counts."""
    errors = ["KeyError: 'x'", "ValueError: 'x'", "ValueError: no 'x'", "", "ValueError"]
    assert len({fingerprint(error) for error in errors}) == len(errors)


def test_a_shape_is_short_and_readable() -> None:
    """What varies is taken out, and the rest is cut."""
    assert shape_of("TimeoutError: tool 'search' took 3.4s") == "TimeoutError: tool '…' took #"
    assert shape_of("") == ""
    assert len(shape_of("word " * 1000)) <= 160


def test_a_log_shows_kind_and_fingerprint_and_no_word_of_the_text() -> None:
    """Neither `str` nor `repr` nor formatting gives the text away; asking for it by name does."""
    text = f"KeyError: '{SECRET}'"
    error = ErrorText(text)
    assert str(error) == f"KeyError [{fingerprint(text)}]"
    assert SECRET not in f"{error} {error!r} {error!s:>50}"
    assert error.text == text


def test_only_the_name_of_a_real_exception_is_shown_as_the_kind() -> None:
    """A handler may return any words as its reason, also words that look like a class."""
    assert is_exception_name("ConnectionResetError")
    assert not is_exception_name(SECRET)
    assert ErrorText(f"{SECRET.replace('-', '_')}: no").kind == "nack"
    assert SECRET not in str(ErrorText(SECRET))


def test_what_the_bus_itself_says_is_no_secret() -> None:
    """Reasons that are the bus's own words are shown as they are."""
    assert str(ErrorText("retries exhausted")) == "retries exhausted"


def test_an_exception_brings_where_it_was_raised() -> None:
    """The innermost frame: file, line, function."""
    try:
        int("no number")
    except ValueError as error:
        found = ErrorText.of(error)
    assert found.kind == "ValueError"
    assert found.at.startswith("test_fingerprints.py:")
    assert ErrorText.of(ValueError("never raised")).at == ""
