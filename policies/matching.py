"""The matchers of policy lines: anchored, over whole names, and different for allowing and denying.

A request names a topic and a space, or, to subscribe, patterns of them. Then a line that allows must cover
everything the pattern could match, and a line that denies need only touch it. For plain names the two are the
same. Where covering is hard to tell, the answer is no.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

from events.names import topic_matches

Effect = Literal["allow", "deny"]
EVERYTHING: Final = "*"


def topic_applies(requested: str, ruled: str, effect: str) -> bool:
    """Whether a line about the topics `ruled` applies to a request for `requested`."""
    if "*" not in requested:
        return topic_matches(ruled, requested)
    return topic_covers(ruled, requested) if effect == "allow" else topics_overlap(ruled, requested)


def space_applies(requested: str, ruled: str, effect: str) -> bool:
    """Whether a line about the spaces `ruled` applies to a request for `requested`.

    A trailing `*` makes either a prefix. A space whose id really ends in `*` is taken for a pattern too,
    which can only refuse more.
    """
    return space_covers(ruled, requested) if effect == "allow" else spaces_overlap(ruled, requested)


def space_covers(pattern: str, other: str) -> bool:
    """Whether every space of `other` is one of `pattern`."""
    return pattern == other or (pattern.endswith("*") and other.startswith(pattern[:-1]))


def spaces_overlap(pattern: str, other: str) -> bool:
    """Whether some space could be one of both: prefixes that share a space lie one within the other."""
    return space_covers(pattern, other) or space_covers(other, pattern)


@lru_cache(maxsize=4096)
def topic_covers(pattern: str, other: str) -> bool:
    """Whether every topic of the glob `other` is one of `pattern`; no where it cannot be told by segments."""
    wider, narrower = _segments(pattern), _segments(other)
    # covered[j]: the segments of `wider` still to place cover narrower[j:]. Filled from the back, row by row,
    # so that a hostile pattern costs the product of two short lengths.
    covered = [False] * len(narrower) + [True]
    for segment in reversed(wider):
        row = [False] * len(covered)
        row[-1] = covered[-1] and segment == "**"
        for j in reversed(range(len(narrower))):
            if segment == "**":
                row[j] = covered[j] or row[j + 1]
            elif narrower[j] != "**" and segment in ("*", narrower[j]):
                row[j] = covered[j + 1]
        covered = row
    return covered[0]


@lru_cache(maxsize=4096)
def topics_overlap(pattern: str, other: str) -> bool:
    """Whether some topic could be one of both globs."""
    left, right = _segments(pattern), _segments(other)
    meets = [False] * len(right) + [True]
    for j in reversed(range(len(right))):
        meets[j] = meets[j + 1] and right[j] == "**"
    for segment in reversed(left):
        row = [False] * len(meets)
        row[-1] = meets[-1] and segment == "**"
        for j in reversed(range(len(right))):
            if "**" in (segment, right[j]):
                row[j] = meets[j] or row[j + 1]
            elif segment == right[j] or "*" in (segment, right[j]):
                row[j] = meets[j + 1]
        meets = row
    return meets[0]


def _segments(pattern: str) -> list[str]:
    return ["**"] if pattern == EVERYTHING else pattern.split(".")
