"""The lines of policy.csv: strict about every one of them, and written so that they read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.names import is_space
from policies.files import END, PolicyError
from policies.rules import (
    Clearance,
    Membership,
    Permission,
    Review,
    Rule,
    check_principal,
    is_subject,
    parse_policy,
    render_policy,
)

ALLOW = "p, alice, *, **, *, allow"


def parse(*lines: str) -> tuple[Rule, ...]:
    """The rules of a file with these lines and its proper end."""
    return parse_policy("\n".join([*lines, END, ""]).encode(), "policy.csv")


def test_each_kind_of_line() -> None:
    """The four kinds of line become rules that know where they stand."""
    rules = parse(
        "# who",
        "",
        "p, role:owner, family:*, actions.**, publish|consume, allow",
        "g,alice,role:owner,*",
        "\tclearance ,  alice ,  * ,  RED  ",
        '  # "review"',
        'review, "shared, ""household""", **',
    )
    assert rules == (
        Permission("role:owner", "family:*", "actions.**", "publish|consume", "allow"),
        Membership("alice", "role:owner", "*"),
        Clearance("alice", "*", "RED"),
        Review('shared, "household"', "**"),
    )
    assert [rule.line.number for rule in rules if rule.line] == [3, 4, 5, 7]
    assert str(rules[0].line) == "policy.csv:3: p, role:owner, family:*, actions.**, publish|consume, allow"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("P, mallory, *, **, *, deny", "Did you mean 'p'?"),
        ("pp, mallory, *, **, *, deny", "no kind of line"),
        ("p, mallory, *, **, *", "4 were found"),
        ("p, mallory, *, **, *, deny,", "6 were found"),
        ("p, mallory, *, **, *, Deny", "Did you mean 'deny'?"),
        ("p, mallory, *, **, *, deny # or not", "is no effect"),
        ("p, mallory, *, **, consme, deny", "Did you mean 'consume'?"),
        ("p, mallory, *, **, consume|, deny", "is no action"),
        ("p, mallory, *, **, , deny", "is no action"),
        ("p, , *, **, *, deny", "is no subject"),
        ("p, mal lory, *, **, *, deny", "is no subject"),
        ("p, role:, *, **, *, deny", "is no subject"),
        ("p, role:*, *, **, *, deny", "is no subject"),
        ("p, mallory, , **, *, deny", "is no space"),
        ("p, mallory, a*b, **, *, deny", "no space pattern"),
        ("p, mallory, **, **, *, deny", "no space pattern"),
        ("p, mallory, *, a/../b, *, deny", "is no topic"),
        ("p, mallory, *, act*, *, deny", "is no topic"),
        ('p, "mallory, *, **, *, deny', "quote is out of place from column 3"),
        ('p, mal"lory", *, **, *, deny', "quote is out of place"),
        ("g, mallory, owner, *", "written 'role:name'"),
        ("g, mallory, role:banned", "2 were found"),
        ("g, mallory, role:baned, *", "Did you mean 'role:banned'?"),
        ("clearance, mallory, *, PURPLE", "is no band"),
        ("review, **", "1 were found"),
    ],
)
def test_a_line_that_cannot_be_taken_refuses_the_file(line: str, problem: str) -> None:
    """No line is ever dropped: the error has its number and says what was probably meant."""
    with pytest.raises(PolicyError) as caught:
        parse(ALLOW, "p, role:banned, *, **, *, deny", line)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("policy.csv:3: ")
    assert (caught.value.file, caught.value.line, caught.value.code) == ("policy.csv", 3, "INVALID_POLICY")


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["g, alice, role:owner, *"], ["clearance, alice, *, RED"]])
def test_a_policy_without_permissions_is_refused(lines: list[str]) -> None:
    """An empty policy is a mistake, not a policy."""
    with pytest.raises(PolicyError):
        parse(*lines)


def test_nothing_may_follow_the_end() -> None:
    """An end in the middle would let a file be cut there and still look whole."""
    with pytest.raises(PolicyError, match=r"policy\.csv:2: .*lines follow"):
        parse(ALLOW, END, "p, alice, *, **, *, deny")


@pytest.mark.parametrize("name", ["alice", "agent:planner", "a@b.org", "anonymous", "x" * 100, "agent:a:b/c+d"])
def test_names_that_can_ask(name: str) -> None:
    """A subject is a plain name, with or without a kind."""
    assert is_subject(name)


@pytest.mark.parametrize(
    "name",
    ["", " alice", "alice ", "alice\n", "a,b", "*", "agent:*", "agent:", "role:owner", "é", "x" * 101, "a\0", 7, None],
)
def test_names_that_cannot_ask(name: object) -> None:
    """What is outside the grammar, a pattern or a role is nobody."""
    assert not is_subject(name)


space_ids = st.text(min_size=1, max_size=20).filter(lambda text: is_space(text) and "*" not in text[:-1])


@given(st.lists(space_ids, min_size=1, max_size=5))
def test_what_is_written_reads_back(space_list: list[str]) -> None:
    """Any space id survives being saved, quotes, commas and blanks included."""
    rules = tuple(Permission("alice", space, "**", "*", "deny") for space in space_list)
    assert parse_policy(render_policy(rules).encode(), "policy.csv") == rules


def test_a_name_that_is_none_cannot_be_put_into_a_rule() -> None:
    """What could not be read back cannot be built in the first place."""
    with pytest.raises(ValueError, match="is no subject"):
        Permission("x\np, mallory", "*", "**", "*", "allow")
    with pytest.raises(ValueError, match="is no space"):
        Review("x\np, mallory", "**")
    with pytest.raises(ValueError, match="is no subject"):
        check_principal("role:")


def test_an_empty_policy_is_not_written() -> None:
    """What would be refused when read is refused when written."""
    with pytest.raises(PolicyError):
        render_policy([Clearance("alice", "*", "RED")])
