"""The anchored matchers, against the bus's own topic matcher and against brute force."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.names import topic_matches
from policies.matching import (
    space_applies,
    space_covers,
    spaces_overlap,
    topic_applies,
    topic_covers,
    topics_overlap,
)

names = st.sampled_from(["a", "b", "c"])
topics = st.lists(names, min_size=1, max_size=5).map(".".join)
globs = st.lists(names | st.sampled_from(["*", "**"]), min_size=1, max_size=4).map(".".join)
space_patterns = st.text("ab*", max_size=3).filter(lambda text: text and "*" not in text[:-1])
spaces = st.text("ab", min_size=1, max_size=4)


@given(globs, topics)
def test_a_plain_topic_is_covered_and_overlapped_by_the_globs_that_match_it(glob: str, topic: str) -> None:
    """For a plain topic, allowing and denying ask the same question as the bus's own matcher."""
    expected = topic_matches(glob, topic)
    assert topic_covers(glob, topic) == topics_overlap(glob, topic) == expected
    assert topic_applies(topic, glob, "allow") == topic_applies(topic, glob, "deny") == expected


@given(globs, globs, topics)
def test_a_covering_glob_matches_all_that_the_covered_one_matches(wider: str, narrower: str, topic: str) -> None:
    """A line that allows a pattern allows every topic of the pattern."""
    if topic_covers(wider, narrower) and topic_matches(narrower, topic):
        assert topic_matches(wider, topic)


@given(globs, globs, topics)
def test_globs_that_share_a_topic_overlap(left: str, right: str, topic: str) -> None:
    """A line that denies any topic of a pattern is not overlooked, from either side."""
    if topic_matches(left, topic) and topic_matches(right, topic):
        assert topics_overlap(left, right)
        assert topics_overlap(right, left)


@pytest.mark.parametrize(
    ("wider", "narrower", "covers", "overlaps"),
    [
        ("*", "**", True, True),
        ("**", "*", True, True),
        ("a.*", "*", False, True),
        ("a.**", "a.*.b", True, True),
        ("a.*", "a.**", False, True),
        ("a.b", "a.*", False, True),
        ("a.*", "b.*", False, False),
        ("a.**.c", "a.b.**", False, True),
        ("a.**.c", "a.*.c", True, True),
        ("a", "a.*", False, False),
    ],
)
def test_patterns_against_patterns(wider: str, narrower: str, covers: bool, overlaps: bool) -> None:
    """Covering is for allowing, overlapping for denying."""
    assert topic_applies(narrower, wider, "allow") == covers
    assert topic_applies(narrower, wider, "deny") == overlaps


@given(space_patterns, space_patterns, spaces)
def test_space_patterns_cover_and_overlap_as_their_spaces_do(left: str, right: str, space: str) -> None:
    """A prefix covers what it must, and two that share a space overlap."""
    if space_covers(left, space) and space_covers(right, space):
        assert spaces_overlap(left, right)
    if space_covers(left, right) and space_covers(right, space):
        assert space_covers(left, space)


@pytest.mark.parametrize(
    ("asked", "ruled", "allows", "denies"),
    [
        ("family", "family", True, True),
        ("family:kids", "family:*", True, True),
        ("family", "family:*", False, False),
        ("familyx", "family", False, False),
        ("xfamily", "family", False, False),
        ("family\n", "family", False, False),
        ("Family", "family", False, False),
        ("*", "family:*", False, True),
        ("fam*", "family:*", False, True),
        ("family:kids*", "family:*", True, True),
        ("anything", "*", True, True),
    ],
)
def test_spaces_match_whole(asked: str, ruled: str, allows: bool, denies: bool) -> None:
    """A space is the same id, or has the prefix; nothing in between, and no case is folded."""
    assert space_applies(asked, ruled, "allow") == allows
    assert space_applies(asked, ruled, "deny") == denies


def test_a_hostile_pattern_costs_little() -> None:
    """A pattern of many `**`, on which a backtracking expression would hang, is compared at once."""
    hostile = ".".join(["**.a"] * 19) + ".c"
    started = time.process_time()
    assert not topic_covers(hostile, ".".join("a" * 40) + ".*")
    assert topics_overlap(hostile, ".".join("a" * 40) + ".*")
    assert time.process_time() - started < 0.1
