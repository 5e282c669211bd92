"""attention.toml: what may be left out, what is refused and where, and reloading."""

from pathlib import Path

import pytest

from policies.attention import AttentionPolicies, AttentionPolicy
from policies.files import END, PolicyError, Source


def test_the_packaged_file_says_what_an_empty_one_means() -> None:
    """Whatever is left out has the value that the packaged file shows."""
    packaged, empty = AttentionPolicy.load_file(), AttentionPolicy.parse("")
    for name in (
        "score",
        "levels",
        "boost",
        "load",
        "affect",
        "novelty",
        "recency",
        "focus",
        "sources",
        "always_admit",
    ):
        assert getattr(packaged, name) == getattr(empty, name), name
    assert packaged.budgets == empty.budgets == {}


def test_the_example_of_a_budget_is_right() -> None:
    """What the comments of the packaged file show can be used as it stands."""
    text = Source.of(None, "attention.toml").read().decode()
    example = text[text.index("# [budgets") : text.index("\n[always]")]
    policy = AttentionPolicy.parse("\n".join(line.removeprefix("# ") for line in example.splitlines()))
    budget = policy.budgets["sensors"]
    assert (budget.topics, budget.per, budget.events, budget.each_s, budget.over) == (
        "sensors.**",
        "actor",
        100,
        60.0,
        "defer",
    )


def test_the_version_follows_from_the_text() -> None:
    """Two texts are two versions, the same text is the same one."""
    one, other = AttentionPolicy.parse("[boost]\nto = 91\n"), AttentionPolicy.parse("[boost]\nto = 92\n")
    assert one.version != other.version
    assert one.version == AttentionPolicy.parse(one.text).version
    assert one.version == AttentionPolicy.parse(one.text.encode()).version


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[scores]\n", 1, "Did you mean 'score'"),
        ("[score]\nprioritty = 1.0\n", 2, "Did you mean 'priority'"),
        ("[score]\npriority = 'much'\n", 2, "priority: found 'much'"),
        ("[score]\npriority = nan\n", 2, "finite"),
        ("[levels.calmer]\n", 1, "Did you mean 'calm'"),
        ("[levels.calm]\nenter = 0.5\n", 2, "has no bounds"),
        ("[levels.strained]\nenter = 0.5\nleave = 0.5\n", 3, "does not flutter"),
        ("[levels.strained]\nenter = 0.5\n", 1, "does not flutter"),
        ("[levels.overloaded]\nenter = 0.5\nleave = 0.4\n", 2, "above strained"),
        ("[levels.calm]\ndrop_below = 0.5\ndefer_below = 0.4\n", 1, "could never apply"),
        ("[novelty]\nof = ['payload..x']\n", 2, "a path is"),
        ("[focus]\ntopic = 'no topic'\n", 2, "topic"),
        ("[sources]\n'a*b' = 1\n", 2, "at the end"),
        ("[sources]\n'user:*' = 2\n", 2, "from 0 to 1"),
        ("[budgets.b]\nevents = 1\neach_s = 1.0\n", 1, "'actor' or 'topic'"),
        ("[budgets.b]\nper = 'actor'\nevents = 0\neach_s = 1.0\n", 3, "greater than or equal to 1"),
        ("[budgets]\nb = 3\n", 2, "a table of settings"),
        ("[always]\nadmit = [{ path = 'meta.kind' }]\n", 2, "admit"),
        ("[always]\nadmit = 'everything'\n", 2, "a list of filters"),
        ("[always]\nrefuse = []\n", 2, "no such setting"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, line: int, said: str) -> None:
    """Every mistake is refused with file, line and what would be right."""
    with pytest.raises(PolicyError) as caught:
        AttentionPolicy.parse(text, "mine.toml")
    assert (caught.value.file, caught.value.line) == ("mine.toml", line)
    assert said in str(caught.value)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """A policy file is whole or refused: without its last line thresholds could be missing."""
    path = tmp_path / "attention.toml"
    path.write_text("[levels.calm]\ndrop_below = 0.5\n")
    with pytest.raises(PolicyError, match="cut short"):
        AttentionPolicy.load_file(path)


def test_a_bad_reload_keeps_the_last_good_policy(tmp_path: Path) -> None:
    """A file that broke changes nothing; one that was mended does."""
    path = tmp_path / "attention.toml"
    path.write_text(f"[boost]\nto = 80\n{END}\n")
    policies = AttentionPolicies(path)
    path.write_text("[boost]\nto = 1000\n")
    assert policies.reload_if_changed() is False
    assert policies.current.boost.to == 80
    path.write_text(f"[boost]\nto = 70\n{END}\n")
    assert policies.reload_if_changed() is True
    assert policies.current.boost.to == 70
