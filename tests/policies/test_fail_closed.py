"""Where casbin fails open, and that behind the wrapper it does not.

Each test first shows casbin's own answer, so that the row is known to be real, and then ours.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import casbin
import pytest
from casbin.persist.adapters import StringAdapter
from casbin.util import key_match2_func, key_match_func, regex_match_func

from events.types import SecurityBand
from policies.files import END, PolicyError
from policies.rbac import Policy, PolicyEngine
from policies.rules import ACTIONS, Permission
from policies.topics import TopicPolicies, TopicTables

RAW = """
[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act, eft
[role_definition]
g = _, _
[policy_effect]
e = {effect}
[matchers]
m = g(r.sub, p.sub) && r.obj == p.obj && r.act == p.act
"""
ALLOW = "some(where (p.eft == allow))"
NO_DENY = "!some(where (p.eft == deny))"
Load = Callable[..., PolicyEngine]


def raw(effect: str, policy: str = "") -> Any:
    """Casbin as it comes."""
    model = casbin.Enforcer.new_model(text=RAW.format(effect=effect))
    return casbin.Enforcer(model, StringAdapter(policy) if policy else None)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Ours, with a policy of the given lines."""

    def loaded(*lines: str, model: str | None = None) -> PolicyEngine:
        policy = tmp_path / "policy.csv"
        policy.write_text("\n".join([*lines, END, ""]))
        if model is None:
            return PolicyEngine(policy)
        (tmp_path / "model.conf").write_text(f"{model}\n{END}\n")
        return PolicyEngine(policy, tmp_path / "model.conf")

    return loaded


def test_deny_override_with_an_empty_policy(load: Load) -> None:
    """Row: deny-override effect with an empty policy."""
    assert raw(NO_DENY).enforce("mallory", "t", "publish") is True
    with pytest.raises(PolicyError, match="empty policy"):
        load()
    with pytest.raises(PolicyError, match="not a model that fails closed"):
        load("p, alice, *, **, *, allow", model=RAW.format(effect=NO_DENY))


def test_empty_strings_with_an_empty_policy(load: Load) -> None:
    """Row: allow-override, empty policy, empty-string request."""
    assert raw(ALLOW).enforce("", "", "") is True
    with pytest.raises(PolicyError, match="not a model that fails closed"):
        load("p, alice, *, **, *, allow", model=RAW.format(effect=ALLOW))
    engine = load("p, *, *, **, *, allow", "p, anonymous, *, **, *, allow")
    assert engine.decide("alice", "publish", "t", "s").allowed
    for request in (
        ("", "publish", "t", "s"),
        ("a", "", "t", "s"),
        ("a", "publish", "", "s"),
        ("a", "publish", "t", ""),
    ):
        assert not engine.decide(*request).allowed


def test_names_are_matched_whole(load: Load) -> None:
    """Row: `regexMatch("spaceA-admin", "spaceA")`, not anchored."""
    assert regex_match_func("spaceA-admin", "spaceA")
    engine = load("p, alice, spaceA, topicA, publish, allow")
    assert engine.decide("alice", "publish", "topicA", "spaceA").allowed
    for space in ("spaceA-admin", "xspaceA", "spaceA:b", "spacea"):
        assert not engine.decide("alice", "publish", "topicA", space).allowed
    for topic in ("topicA-admin", "xtopicA", "topicA.b", "topica"):
        assert not engine.decide("alice", "publish", topic, "spaceA").allowed
    for subject in ("alice2", "xalice", "Alice", "user:alice"):
        assert not engine.decide(subject, "publish", "topicA", "spaceA").allowed


def test_newlines_and_dots_are_no_wildcards(load: Load) -> None:
    """Row: `keyMatch2` with a trailing newline, or `.` as a wildcard."""
    assert key_match2_func("/a\n", "/a")
    assert key_match2_func("/axb", "/a.b")
    engine = load("p, alice, s.p, a.b, publish, allow")
    assert engine.decide("alice", "publish", "a.b", "s.p").allowed
    for subject, topic, space in (
        *(("alice", "a.b\n", "s.p"), ("alice", "axb", "s.p"), ("alice", "a.b", "s.p\n")),
        *(("alice", "a.b", "sxp"), ("alice\n", "a.b", "s.p"), ("alice", "a.b", "s.p\0")),
    ):
        assert not engine.decide(subject, "publish", topic, space).allowed


def test_a_path_cannot_climb_out_of_a_prefix(load: Load) -> None:
    """Row: `keyMatch("/space/a/../b", "/space/a/*")`."""
    assert key_match_func("/space/a/../b", "/space/a/*")
    engine = load("p, alice, space/a/*, a.**, publish, allow")
    assert engine.decide("alice", "publish", "a.x", "space/a/x").allowed
    for topic in ("a.../b", "a/../b", "a..b", "../a", "a.b/.."):
        assert not engine.decide("alice", "publish", topic, "space/a/x").allowed
    # A space is an id, not a path: `..` in it leads nowhere, and the prefix is compared as it stands.
    assert not engine.decide("alice", "publish", "a.x", "space/b").allowed


def test_a_name_cannot_be_saved_into_a_privilege(load: Load, tmp_path: Path) -> None:
    """Row: a name that contains a newline and `p, mallory`, saved and reloaded."""
    hostile = "bob, t, publish, allow\np, mallory"
    (tmp_path / "raw.csv").write_text("p, alice, t, publish, allow\n")
    adapter = casbin.FileAdapter(str(tmp_path / "raw.csv"))
    enforcer = casbin.Enforcer(casbin.Enforcer.new_model(text=RAW.format(effect=ALLOW)), adapter)
    enforcer.add_policy(hostile, "t", "publish", "allow")
    enforcer.save_policy()
    enforcer.load_policy()
    assert enforcer.enforce("mallory", "t", "publish") is True

    engine = load("p, alice, *, t, publish, allow")
    for field in range(4):
        values = ["bob", "s", "t", "publish"]
        values[field] = hostile
        with pytest.raises(ValueError, match="is no"):
            engine.save([*engine.current.rules, Permission(values[0], values[1], values[2], values[3], "allow")])
        # A rule that was made behind the checks' back is caught when it does not read back as itself.
        forged = Permission("bob", "s", "t", "publish", "allow")
        object.__setattr__(forged, ("subject", "space", "topic", "actions")[field], hostile)
        with pytest.raises(PolicyError):
            engine.save([*engine.current.rules, forged])
    assert engine.reload()
    assert not engine.decide("mallory", "publish", "t", "s").allowed
    assert engine.decide("alice", "publish", "t", "s").allowed


def test_a_mistyped_line_is_not_dropped(load: Load) -> None:
    """Row: a mistyped `P,` deny line."""
    lines = "p, alice, t, publish, allow\nP, alice, t, publish, deny"
    both = f"{ALLOW} && {NO_DENY}"
    assert raw(both, lines).enforce("alice", "t", "publish") is True
    with pytest.raises(PolicyError, match=r"policy\.csv:2: 'P' is no kind of line"):
        load("p, alice, *, t, publish, allow", "P, alice, *, t, publish, deny")


def test_enforcement_cannot_be_turned_off(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """Row: `enable_enforce(False)`."""
    enforcer = raw(ALLOW, "p, alice, t, publish, allow")
    enforcer.enable_enforce(False)
    assert enforcer.enforce("mallory", "t", "admin") is True

    engine = load("p, mallory, *, t, publish, allow")
    inner = engine.current._judge((0,))._enforcer
    inner.enable_enforce(False)
    inner.enabled = False
    assert engine.decide("mallory", "publish", "t", "s").allowed
    assert not engine.decide("mallory", "admin", "t", "s").allowed
    assert "it stays on" in caplog.text


def test_a_denied_role_is_found_however_deep(load: Load) -> None:
    """Not in the table: casbin follows roles for ten levels, and loses what is denied beyond."""
    chain = [("alice", "role:r1"), *((f"role:r{i}", f"role:r{i + 1}") for i in range(1, 40))]
    both = f"{ALLOW} && {NO_DENY}"
    lines = ["p, alice, t, publish, allow", "p, role:r40, t, publish, deny"]
    roles = "\n".join([*lines, *(f"g, {member}, {role}" for member, role in chain)])
    assert raw(both, roles).enforce("alice", "t", "publish") is True
    engine = load(
        "p, alice, *, t, publish, allow",
        *(f"p, role:r{i}, *, other, publish, allow" for i in range(1, 40)),
        "p, role:r40, *, t, publish, deny",
        *(f"g, {member}, {role}, *" for member, role in chain),
    )
    assert not engine.decide("alice", "publish", "t", "s").allowed


def test_an_error_in_a_space_matcher_is_not_a_no(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the table: casbin takes an exception in a domain matcher for "no match", and loses a denied role."""

    def fail(*_: object) -> bool:
        raise RuntimeError("broken")

    with_spaces = RAW.replace("g = _, _", "g = _, _, _").replace("g(r.sub, p.sub)", 'g(r.sub, p.sub, "home")')
    lines = "p, alice, t, publish, allow\np, banned, t, publish, deny\ng, alice, banned, ho*"
    model = casbin.Enforcer.new_model(text=with_spaces.format(effect=f"{ALLOW} && {NO_DENY}"))
    enforcer = casbin.Enforcer(model, StringAdapter(lines))
    enforcer.add_named_domain_matching_func("g", fail)
    assert enforcer.enforce("alice", "t", "publish") is True

    engine = load("p, alice, *, t, publish, allow", "p, role:banned, *, t, publish, deny", "g, alice, role:banned, ho*")
    assert not engine.decide("alice", "publish", "t", "home").allowed
    monkeypatch.setattr("policies.rbac.space_applies", fail)
    with pytest.raises(RuntimeError, match="broken"):
        engine.decide("alice", "publish", "t", "homestead")


def test_an_effect_that_is_none_is_not_ignored(load: Load) -> None:
    """Not in the table: casbin reads `Deny` as no effect at all."""
    both = f"{ALLOW} && {NO_DENY}"
    lines = "p, alice, t, publish, allow\np, alice, t, publish, Deny"
    assert raw(both, lines).enforce("alice", "t", "publish") is True
    with pytest.raises(PolicyError, match="'Deny' is no effect"):
        load("p, alice, *, t, publish, allow", "p, alice, *, t, publish, Deny")


def test_a_roles_name_is_not_its_membership(load: Load) -> None:
    """Not in the table: whoever calls himself like a role has its rights in casbin."""
    assert raw(ALLOW, "p, role:owner, t, publish, allow").enforce("role:owner", "t", "publish") is True
    engine = load("p, role:owner, *, t, publish, allow", "g, alice, role:owner, *")
    assert engine.decide("alice", "publish", "t", "s").allowed
    assert not engine.decide("role:owner", "publish", "t", "s").allowed
    assert not engine.decide("owner", "publish", "t", "s").allowed


def test_an_error_while_deciding_never_allows(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside the policy is no decision, is not remembered, and the next request is decided anew."""
    engine = load("p, alice, *, t, publish, allow")

    def fail(*_: object) -> bool:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(Policy, "_lines_about", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken"):
                engine.decide("alice", "publish", "t", "s")
    assert engine.decide("alice", "publish", "t", "s").allowed
    with pytest.raises(TypeError):
        engine.decide(["alice"], "publish", "t", "s")  # type: ignore[arg-type]  # what a caller could do


CUT = """\
p, role:owner, *, **, *, allow
clearance, role:owner, *, BLACK
g, alice, role:owner, *
p, *, *, audit.**, publish, deny
p, alice, private:*, **, *, deny
p, anonymous, public, news, consume, allow
# end of policy
"""
REQUESTS = [
    (subject, action, topic, space, band)
    for subject in ("alice", "bob", None)
    for action in ACTIONS
    for topic in ("news", "audit.log", "**")
    for space in ("public", "private:bob", "*")
    for band in (None, *SecurityBand)
]


def granted(engine: PolicyEngine) -> set[Any]:
    """Everything that a policy allows, of some requests."""
    return {request for request in REQUESTS if engine.decide(*request).allowed}


def test_a_policy_cut_at_every_byte_grants_nothing_new(tmp_path: Path) -> None:
    """A cut can take a deny line away; so what was cut does not load, and what was in force stays."""
    path = tmp_path / "policy.csv"
    data = CUT.encode()
    path.write_bytes(data)
    whole = granted(PolicyEngine(path))
    assert whole
    # What casbin's own reading of a file without its last lines would grant: the cut matters.
    open_lines = CUT.replace("p, alice, private:*, **, *, deny\n", "")
    path.write_text(open_lines)
    assert granted(PolicyEngine(path)) - whole

    path.write_bytes(b"p, bob, public, news, consume, allow\n# end of policy\n")
    running = PolicyEngine(path)
    before = granted(running)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(PolicyError):
            PolicyEngine(path)
        assert running.reload() is False
        assert granted(running) == before
    path.write_bytes(data)
    assert running.reload() is True
    assert granted(running) == whole


def test_topic_policies_cut_at_every_byte_open_nothing(tmp_path: Path) -> None:
    """A cut that takes an allow-list or a band away does not load either."""
    data = b'[topics."news"]\nband = "RED"\nallow = ["alice"]\nredaction = "refuse"\n# end of policy\n'
    path = tmp_path / "topics.toml"
    path.write_bytes(data)
    running = TopicPolicies(path)
    for size in range(len(data)):
        with pytest.raises(PolicyError):
            TopicTables(data[:size], "topics.toml")
        path.write_bytes(data[:size])
        assert running.reload() is False
    assert running.for_topic("news").allow == frozenset({"alice"})
