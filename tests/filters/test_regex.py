"""Regular expressions in linear time."""

import time

import pytest

from filters.budget import Budget, Overrun
from filters.regex import BadRegex, Replacement, compile_i_regexp, compile_regex


def test_search_and_fullmatch() -> None:
    """A pattern is found anywhere, or is the whole text."""
    regex = compile_regex("b+")
    assert regex.search("abbc") is True
    assert regex.fullmatch("abbc") is False
    assert regex.fullmatch("bb") is True
    assert regex.search("\ud800") is None


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(x+x+)+y", r"(a|a)*b", r"^(\w+\s?)*$", r"(.*a){20}", r"((a*)*)*b"])
def test_patterns_that_backtrack_elsewhere_take_linear_time(pattern: str) -> None:
    """What takes Python's own engine longer than anyone waits takes this one milliseconds."""
    regex = compile_regex(pattern)
    started = time.process_time()
    regex.search("a" * 50_000 + "!")
    assert time.process_time() - started < 1


def test_text_times_pattern_is_bounded() -> None:
    """A small pattern may search a long text, a large one a short text."""
    assert compile_regex("a+b").search("a" * 1_000_000) is False
    with pytest.raises(Overrun):
        compile_regex("(a|b)*a(a|b){900}c").search("ab" * 50_000)
    with pytest.raises(Overrun):
        compile_regex("(é|b)*é(é|b){900}c").search("éb" * 2_500)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a**", 1),
        ("ab)", 0),
        ("[b-a]", 1),
        (r"x(?=y)", 1),
        (r"(a)\1", 3),
        ("a{2000}", 1),
        ("(((a{100}){100}){100})", 4),
        (r"\pL{900}", 0),
        ("a" * 1_001, 1_000),
        ("ab\ud800", 2),
    ],
)
def test_a_bad_pattern_is_refused_with_its_position(pattern: str, position: int) -> None:
    """Look-around and back-references are not in RE2; what unfolds too far or is too long is refused as well."""
    with pytest.raises(BadRegex) as refused:
        compile_regex(pattern)
    assert refused.value.position == position


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "a", "a|b", "a|", "()", "(a(b|c))*", "a{2}", "[0-9]{12}", "a{2,}", "a{1,100}", "[a-z-]", "[-a]", "[^-]"),
        *(
            r"\p{Lu}",
            r"\P{L}+",
            r"[\p{Nd}_]",
            r"\.",
            r"\-",
            r"a\|b",
            r"[\]\[]",
            ".",
            ".*",
            "[.]",
            "^a$",
            r"\n\r\t",
            "é",
        ),
    ],
)
def test_i_regexp_is_accepted(pattern: str) -> None:
    """The grammar of RFC 9485, which is what RFC 9535 has for match() and search()."""
    assert compile_i_regexp(pattern)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        *((r"a\d", 1), (r"\w", 0), (r"\s", 0), (r"\b", 0), ("(?:a)", 1), ("a+?", 2), ("a**", 2), ("*", 0), ("a{", 1)),
        *(("a}", 1), ("]", 0), ("[]", 0), ("[a", 0), ("(a", 2), ("a)", 1), (r"\p{Xx}", 0), (r"(a)\1", 3), ("a{,2}", 1)),
    ],
)
def test_what_is_no_i_regexp_is_refused(pattern: str, position: int) -> None:
    """Refused with its position, though RE2 would take much of it: a filter means the same everywhere or nothing."""
    with pytest.raises(BadRegex) as refused:
        compile_i_regexp(pattern)
    assert refused.value.position == position


def test_the_dot_of_an_i_regexp_leaves_out_line_ends() -> None:
    """RFC 9485: a dot is neither a line feed nor a carriage return, except as itself inside brackets."""
    dot = compile_i_regexp("a.b")
    assert [dot.fullmatch(text) for text in ("axb", "a\u2028b", "a𐄁b", "a\nb", "a\rb")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert compile_i_regexp("a[.]b").fullmatch("a.b") is True
    assert compile_i_regexp("a[.]b").fullmatch("axb") is False
    assert compile_i_regexp(r"a\.b").fullmatch("axb") is False


def test_replacing() -> None:
    """Groups are put in by number or name, and what is not a group is text."""
    regex = compile_regex(r"(?P<first>\w)(\w*)")
    assert regex.replace("ab cd", Replacement(regex, r"\2\g<first>é\n"), Budget()) == r"baé\n dcé\n"
    assert regex.replace("", Replacement(regex, "x"), Budget()) == ""
    with pytest.raises(BadRegex, match="no group '3'"):
        Replacement(regex, r"a\3")
    with pytest.raises(BadRegex, match="no group 'last'"):
        Replacement(regex, r"\g<last>")


def test_replacing_is_bounded() -> None:
    """Each occurrence costs a look at the rest, so many of them in a long text are given up in time."""
    regex = compile_regex("a(.*z)?")
    started = time.process_time()
    with pytest.raises(Overrun):
        regex.replace("a" * 200_000, Replacement(regex, "aa"), Budget())
    assert time.process_time() - started < 1
