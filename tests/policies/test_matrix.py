"""The whole (role x action x space x band) matrix, against oracles that share no code with the policy."""

import itertools
from pathlib import Path

import pytest

from events.types import SecurityBand
from policies.rbac import PolicyEngine
from policies.rules import ACTIONS

LEVELS = {None: 0, "GREEN": 0, "AMBER": 1, "RED": 2, "BLACK": 3}
BANDS = (None, *SecurityBand)
TOPICS = ("actions", "learning", "learning.signal", "learningx")
SPACES = ("shared:household", "private:bob", "private", "x")

# What the comments in the packaged policy promise, written down once more by hand.
PACKAGED: dict[str | None, tuple[set[str], int]] = {
    "user:owner": ({"publish", "consume", "ack", "replay", "dlq", "admin"}, 3),
    "agent:planner": ({"publish", "consume", "ack"}, 2),
    "learner:offline": ({"consume", "ack", "replay"}, 1),
    "observer:dashboard": ({"consume", "ack"}, 0),
    "user:stranger": (set(), 0),
    "owner": (set(), 0),
    None: (set(), 0),
}


def packaged_oracle(subject: str | None, action: str, topic: str, space: str, band: str | None) -> bool:
    """What the packaged policy is meant to say."""
    actions, clearance = PACKAGED[subject]
    may = action in actions
    if subject == "learner:offline" and action == "publish":
        may = topic in ("learning", "learning.signal")
    if subject == "observer:dashboard" and space == "private:bob":
        may = False
    return may and LEVELS[band] <= clearance


def test_the_packaged_policy_is_what_its_comments_say() -> None:
    """Every subject, action, topic, space and band: allowed exactly where the oracle allows."""
    engine = PolicyEngine()
    requests = list(itertools.product(PACKAGED, ACTIONS, TOPICS, SPACES, BANDS))
    assert len(requests) == 7 * 6 * 4 * 4 * 5
    wrong = [request for request in requests if engine.decide(*request).allowed != packaged_oracle(*request)]
    assert wrong == []


ROLES = ("role:owner", "role:agent", "role:observer", "role:banned")
GRANTS = {
    "role:owner": [("*", set(ACTIONS))],
    "role:agent": [("home:", {"publish", "consume", "ack"}), ("lab", {"replay"})],
    "role:observer": [("*", {"consume"})],
    "role:banned": [],
}
DENIALS = {"role:banned": ["*"], "role:observer": ["home:kids"]}
CLEARANCES = {"role:owner": 3, "role:agent": 2, "role:observer": 0, "role:banned": 3}
MEMBERS = ("home:kids", "home:kitchen", "lab", "homeless")
NAMES = {"*": "*", "home:": "home:*", "lab": "lab", "home:kids": "home:kids"}


def in_space(pattern: str, space: str) -> bool:
    """Whether a space is meant by a name in the tables above."""
    return pattern in ("*", space) or (pattern.endswith(":") and space[: len(pattern)] == pattern)


def oracle(roles: dict[str, str], action: str, space: str, band: str | None) -> bool:
    """Computed from the tables: roles held here, what they grant, what they are denied, what they may see."""
    held = [role for role, where in roles.items() if in_space(where, space)]
    granted = any(in_space(where, space) and action in actions for role in held for where, actions in GRANTS[role])
    denied = any(in_space(where, space) for role in held for where in DENIALS.get(role, []))
    clearance = max([CLEARANCES[role] for role in held], default=0)
    return granted and not denied and LEVELS[band] <= clearance


@pytest.fixture(scope="module")
def subjects() -> dict[str, dict[str, str]]:
    """One subject for every way to hold up to two roles, each everywhere or in some spaces."""
    single: list[dict[str, str]] = [{role: where} for role in ROLES for where in ("*", "home:", "lab")]
    double = [first | second for first, second in itertools.combinations(single, 2) if first.keys() != second.keys()]
    return {f"user:{number}": roles for number, roles in enumerate([{}, *single, *double])}


def test_the_whole_matrix_of_roles_actions_spaces_and_bands(
    tmp_path: Path, subjects: dict[str, dict[str, str]]
) -> None:
    """Every combination of two roles per space, every action, space and band, against the tables."""
    bands = {level: band for band, level in LEVELS.items() if band}
    lines = [
        *(
            f"p, {role}, {NAMES[where]}, **, {'|'.join(sorted(acts))}, allow"
            for role in ROLES
            for where, acts in GRANTS[role]
        ),
        *(f"p, {role}, {NAMES[where]}, **, *, deny" for role, places in DENIALS.items() for where in places),
        *(f"clearance, {role}, *, {bands[level]}" for role, level in CLEARANCES.items()),
        *(f"g, {name}, {role}, {NAMES[where]}" for name, roles in subjects.items() for role, where in roles.items()),
        "# end of policy",
        "",
    ]
    path = tmp_path / "policy.csv"
    path.write_text("\n".join(lines))
    engine = PolicyEngine(path)
    requests = list(itertools.product(subjects, ACTIONS, MEMBERS, BANDS))
    assert len(requests) == 67 * 6 * 4 * 5
    wrong = [
        (subject, action, space, band)
        for subject, action, space, band in requests
        if engine.decide(subject, action, "any.topic", space, band).allowed
        != oracle(subjects[subject], action, space, band)
    ]
    assert wrong == []
