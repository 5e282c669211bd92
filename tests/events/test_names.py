"""Names at the boundary: the grammar, globs, and how spaces become directories."""

import itertools
import os
import re
import time
import unicodedata
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import InvalidGroup, InvalidMessage, InvalidSpace, InvalidTopic
from events.names import (
    TOPIC_PATTERN,
    check_group,
    check_space,
    check_topic,
    check_topic_pattern,
    escape_space,
    is_space,
    topic_matches,
    unescape_space,
)
from events.types import EventMeta, EventType

# --- the grammar ----------------------------------------------------------------------------------------

GRAMMAR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*", re.ASCII)


def in_grammar(name: str) -> bool:
    """Rule F3 as it is written down."""
    return bool(GRAMMAR.fullmatch(name)) and len(name.encode()) <= 100 and "__" not in name


def accepted_topic(name: str) -> bool:
    """Whether the boundary takes it."""
    try:
        return check_topic(name) == name
    except InvalidTopic:
        return False


def test_the_grammar_is_the_one_that_was_decided() -> None:
    """F3: over every string of up to 6 of a small alphabet, our expression and the written rule agree."""
    tried = 0
    for length in range(7):
        for letters in itertools.product("aZ_.-/", repeat=length):
            name = "".join(letters)
            tried += 1
            assert accepted_topic(name) == in_grammar(name), name
            assert bool(re.fullmatch(TOPIC_PATTERN, name)) == in_grammar(name), name
    print(f"{tried} names")


@given(st.text(max_size=8) | st.from_regex(GRAMMAR, fullmatch=True))
def test_topics_groups_and_metas_agree(name: str) -> None:
    """F3: one grammar for topics and groups, and the envelope keeps the same."""
    valid = in_grammar(name)
    assert accepted_topic(name) == valid
    try:
        assert check_group(name) == name
        assert valid
    except InvalidGroup:
        assert not valid
    try:
        EventMeta(topic=name, type="T", space_id="s")
        assert valid
    except InvalidTopic:
        assert not valid


def test_a_name_has_at_most_100_bytes() -> None:
    """F3: 100 fit and 101 do not."""
    assert check_topic("x" * 100) == "x" * 100
    for check, error in ((check_topic, InvalidTopic), (check_group, InvalidGroup)):
        with pytest.raises(error):
            check("x" * 101)


def test_checked_names_are_plain_strings() -> None:
    """F3: an EventType is a name; what comes back is the string, whoever asked first."""
    for check in (check_topic, check_group, check_topic_pattern, check_space):
        assert type(check(EventType.HIPPO_ENCODE)) is str
        assert type(check("HIPPO_ENCODE")) is str


@pytest.mark.parametrize("thing", [None, 5, b"a", ["a"], {"a"}, {}, ("a",), object], ids=repr)
def test_what_is_no_string_is_no_name(thing: object) -> None:
    """F3: refused with the error of the name, hashable or not."""
    checks = ((check_topic, InvalidTopic), (check_topic_pattern, InvalidTopic), (check_group, InvalidGroup))
    for check, error in (*checks, (check_space, InvalidSpace)):
        with pytest.raises(error):
            check(thing)  # type: ignore[arg-type]


class Liar(str):
    """A string that says it is short, and equal to every other."""

    __slots__ = ()

    def __len__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("good")

    def isprintable(self) -> bool:
        """No."""
        return True

    def encode(self, *_args: object) -> bytes:
        """Not what it is."""
        return b"good"


def test_a_string_that_lies_is_looked_at_itself() -> None:
    """F3: neither the length nor the cache can be fooled by a subclass."""
    assert check_topic("good") == check_group("good") == check_space("good") == "good"
    for name in ("../up", "x" * 300, "a\nb"):
        with pytest.raises(InvalidTopic):
            check_topic(Liar(name))
        with pytest.raises(InvalidGroup):
            check_group(Liar(name))
    for name in ("x" * 300, "a\nb"):
        with pytest.raises(InvalidSpace):
            check_space(Liar(name))
    assert escape_space(check_space(Liar("../up"))) == "%2E.%2Fup"


# --- hostile names --------------------------------------------------------------------------------------

WINDOWS = ["CON", "PRN", "AUX", "NUL", "COM1", "LPT9", "con.txt", "NUL.", "a:b", "C:\\x", "a\\b", "\\\\host\\s", "a|b"]
INVISIBLE = list("\u200b\u200e\u202a\u202e\u2066\u2069\u00ad\ufeff\u2028\u2029\u00a0")
SPECIAL = [*"/\\\x00\n\r\t\x7f\x85 %*?\"'`;", "\x1b[31m", "$(id)"]
CASES = "A a Space space SPACE \u00df SS \u1e9e \u0131 I i \u0130 \u017f s K k \u212a"  # some fold to others
LOOK_ALIKES = (
    "\u0430 \u0440\u0430ypal \uff41 \uff11 \u0663 \u00b2 \u2167 \u2100 \u2024 \u2025 \uff0f \uff3c \u2215 \uff0e\uff0e"
)


def hostile_names() -> list[str]:
    """Strings that have broken out of somewhere before, and variations of them."""
    names: set[str] = {"", ".", "..", "...", "../..", "../../etc/passwd", "/etc/passwd", "~", "~root", "-rf", "--help"}
    names |= {"a/../b", "./a", "a/.", "a//b", "/", "a/", ".hidden", "..hidden", "a..b", "a.", ".a", "__", "a__b"}
    names |= {"%", "%%", "%2E", "%2e%2e", "%2F", "%00", "%ZZ", "%E4", "%C3%A4", "a%", "%25", "%252E", "%u002e"}
    names |= {"wal", ".bus", "lock", "offsets", ".prev", ".tmp", "a.jsonl", "spaces", "dlq"}
    names |= {"x" * 101, "x" * 200, "x" * 201, "x" * 300, "x" * 100_000, "é" * 33, "é" * 34, "🙂" * 16, "🙂" * 17}
    # As os.listdir gives a byte that is not UTF-8, and other halves of a pair.
    names |= {chr(surrogate) + tail for surrogate in (0xD800, 0xDBFF, 0xDC00, 0xDCE4, 0xDFFF) for tail in ("", "a")}
    names |= set(WINDOWS)
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        names |= {unicodedata.normalize(form, text) for text in ("ä", "Å", "ﬁ", "ñandú", "각", "Ω", "é́")}
    names |= {*CASES.split(" "), *LOOK_ALIKES.split(" ")}
    for part in (*SPECIAL, *INVISIBLE):
        names |= {part, f"a{part}", f"{part}a", f"a{part}b", part * 3}
    for code in range(0x20):
        names.add(f"c{chr(code)}")
    names |= {"\U000e0001", "\ue000", "\ufffe", "\uffff", "\U0010ffff", "\ufffd", "\u3164", "\u115f", "a\u0301" * 40}
    return sorted(names)


HOSTILE = hostile_names()


def is_safe_component(name: str) -> bool:
    """Whether a file system can read a name only as one entry of a directory."""
    return (
        0 < len(os.fsencode(name)) <= 200
        and re.fullmatch(r"[A-Za-z0-9_%-][A-Za-z0-9_.%-]*", name) is not None
        and PurePosixPath(name).parts == (name,)
        and PureWindowsPath(name).parts == (name,)
        and os.path.normpath(os.path.join("/w", name)) == f"/w/{name}"
    )


def test_there_are_enough_hostile_names() -> None:
    """F3: at least 200, all distinct."""
    print(f"{len(HOSTILE)} hostile names x topic, group, space")
    assert len(HOSTILE) >= 200


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[1:40])
def test_a_hostile_name_is_refused_or_escaped(name: str) -> None:
    """F3: a topic or group outside the grammar is refused by name; a space is refused, or becomes one safe name."""
    for check, error in ((check_topic, InvalidTopic), (check_group, InvalidGroup)):
        if in_grammar(name):
            assert check(name) == name
            assert is_safe_component(name)
        else:
            with pytest.raises(error) as caught:
                check(name)
            assert len(str(caught.value)) < 400
            assert "\n" not in str(caught.value)
            assert str(caught.value).encode()
    if is_space(name):
        assert check_space(name) == name
        assert is_safe_component(escape_space(name))
        assert unescape_space(escape_space(name)) == name
    else:
        with pytest.raises(InvalidSpace):
            check_space(name)
        with pytest.raises(InvalidSpace):
            EventMeta(topic="t", type="T", space_id=name)


def test_distinct_spaces_have_distinct_directories(tmp_path: Path) -> None:
    """F3: case twins, normalisation twins and escaped look-alikes included, and nothing lands outside."""
    spaces = [name for name in HOSTILE if is_space(name)]
    assert len(spaces) > 100
    root = tmp_path / "spaces"
    root.mkdir()
    for space in spaces:
        (root / escape_space(space)).mkdir()  # raises if there is one already
    assert sorted(os.listdir(tmp_path)) == ["spaces"]
    assert {unescape_space(name) for name in os.listdir(root)} == set(spaces)


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_escaping_is_one_to_one(one: str, other: str) -> None:
    """F3: whatever two space ids are made of, they share a directory only if they are the same."""
    for space in (one, other):
        if is_space(space):
            assert is_safe_component(escape_space(space))
            assert unescape_space(escape_space(space)) == space
    if is_space(one) and is_space(other):
        assert (escape_space(one) == escape_space(other)) == (one == other)


@pytest.mark.parametrize(
    "directory",
    ["", ".", "..", ".a", "%2e", "%2E%2E", "a b", "ä", "%", "%4", "%41", "%FF", "%0A", "%E2%80%8B", "a/b", "\udce4"],
    ids=ascii,
)
def test_a_directory_that_we_did_not_name_is_no_space(directory: str) -> None:
    """F3: a foreign directory among the spaces is told apart, whatever bytes its name has."""
    with pytest.raises(InvalidMessage, match="not the escaped name"):
        unescape_space(directory)


def test_space_ids_are_limited_by_their_escaped_length() -> None:
    """F3: at most 200 bytes once escaped: 200 plain letters, 33 two-byte letters."""
    assert is_space("x" * 200)
    assert not is_space("x" * 201)
    assert is_space("é" * 33)
    assert not is_space("é" * 34)
    assert len(escape_space("/" * 66)) == 198
    assert not is_space("/" * 67)


# --- globs ----------------------------------------------------------------------------------------------

MATCHES = {
    "*": ["a", "a.b", "a.b.c", "HIPPO_ENCODE"],
    "**": ["a", "a.b", "a.b.c"],
    "a": ["a"],
    "a.b": ["a.b"],
    "a.*": ["a.b", "a.b-c_d"],
    "*.b": ["a.b", "b.b"],
    "*.*": ["a.b", "x.y"],
    "a.**": ["a", "a.b", "a.b.c", "a.a"],
    "**.b": ["b", "a.b", "a.a.b", "b.b"],
    "a.**.b": ["a.b", "a.x.b", "a.x.y.b", "a.b.b", "a.a.b"],
    "order.*.shipped": ["order.1.shipped", "order.eu-west.shipped", "order.shipped.shipped"],
    "**.a.**": ["a", "x.a", "a.x", "x.a.y", "a.a.a", "x.y.a.z"],
    "**.**": ["a", "a.b"],
    "**.**.b": ["b", "a.b", "a.a.b"],
    "a.**.**.b": ["a.b", "a.x.b"],
    "**.*": ["a", "a.b", "a.b.c"],
    "*.**": ["a", "a.b", "a.b.c"],
    "*.**.*": ["a.b", "a.b.c"],
    "a.**.b.*.c": ["a.b.x.c", "a.b.b.x.c", "a.q.b.b.c"],
    "a.**.b.**.c": ["a.b.c", "a.x.b.y.c", "a.b.b.c.c"],
}
MISSES = {
    "a": ["b", "A", "a.b", "aa"],
    "a.b": ["a", "a.bb", "aXb", "a-b", "a.b.c"],
    "a.*": ["a", "a.b.c", "b.a", "aa.b"],
    "*.b": ["b", "a.b.b", "a.bb", "a.b.c"],
    "*.*": ["a", "a.b.c"],
    "a.**": ["b", "aa", "ab.c", "b.a", "a-b"],
    "**.b": ["a", "b.a", "bb", "a.bb", "ab", "a-b"],
    "a.**.b": ["a", "b", "ab", "a.bb", "aa.b", "a.x.bb", "a.b.x", "x.a.b"],
    "order.*.shipped": [
        "order.shipped",
        "order.1.2.shipped",
        "order.1.shipped.x",
        "x.order.1.shipped",
        "order.1.Shipped",
    ],
    "**.a.**": ["b", "aa", "x.aa.y", "A"],
    "**.**.b": ["a", "b.a", "bb"],
    "*.**.*": ["a"],
    "a.**.b.*.c": ["a.b.c", "a.x.c", "a.b.x.d", "a.b.x.y.c"],
    "a.**.b.**.c": ["a.c", "a.b", "a.c.b", "a.b.d", "b.c"],
}


@pytest.mark.parametrize(("pattern", "topic"), [(p, t) for p, topics in MATCHES.items() for t in topics])
def test_a_pattern_takes_its_topics(pattern: str, topic: str) -> None:
    """W15: `*` is one segment, `**` any number and none, a lone `*` everything."""
    assert topic_matches(check_topic_pattern(pattern), check_topic(topic))


@pytest.mark.parametrize(("pattern", "topic"), [(p, t) for p, topics in MISSES.items() for t in topics])
def test_a_pattern_leaves_other_topics(pattern: str, topic: str) -> None:
    """W15: whole segments, whole topics, and letters of the same case."""
    assert not topic_matches(check_topic_pattern(pattern), check_topic(topic))


def by_definition(pattern: tuple[str, ...], topic: tuple[str, ...]) -> bool:
    """W15 as it is written down, for comparison."""
    if not pattern:
        return not topic
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return any(by_definition(rest, topic[skipped:]) for skipped in range(len(topic) + 1))
    return bool(topic) and first in ("*", topic[0]) and by_definition(rest, topic[1:])


def test_patterns_match_as_they_are_defined() -> None:
    """W15: every pattern of up to 5 segments against every topic of up to 5, compared with the definition."""
    topics = [t for length in range(1, 6) for t in itertools.product("ab", repeat=length)]
    tried = 0
    for length in range(2, 6):
        for pattern in itertools.product(("a", "b", "*", "**"), repeat=length):
            for topic in topics:
                tried += 1
                expected = by_definition(pattern, topic)
                assert topic_matches(".".join(pattern), ".".join(topic)) == expected, (pattern, topic)
    print(f"{tried} pairs of pattern and topic")


def test_no_pattern_takes_long_to_match() -> None:
    """W15: many `**` in one pattern do not multiply; a subscriber cannot stop the dispatcher with a glob."""
    topic = ".".join(["a"] * 50)
    started = time.process_time()
    for pattern in (".".join(["**"] * 33) + ".b", "**.*." * 19 + "b", "**.a." * 19 + "b", "a.**.a.**." * 9 + "b"):
        assert len(pattern) <= 100
        assert not topic_matches(check_topic_pattern(pattern), topic)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "pattern",
    ["", ".", "a.", ".a", "a..b", "***", "a*", "*a", "a.*b", "a.***", "a/*", "* ", "a__b.*", "-a", "_a.*", "x" * 101],
    ids=ascii,
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """W15: a pattern is a topic in which whole segments may be `*` or `**`."""
    for hostile in (pattern, pattern + "\n", pattern + ".\ud800", "[" + pattern + "]", "ä." + pattern):
        with pytest.raises(InvalidTopic, match="a topic pattern is"):
            check_topic_pattern(hostile)
