"""Decisions, their cache and their explanation, and the files behind them."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from events.types import EventType, SecurityBand
from policies.files import END, PolicyError, Source
from policies.rbac import PolicyEngine
from policies.rules import Clearance, Permission
from policies.topics import TopicPolicies

RED, AMBER = SecurityBand.RED, SecurityBand.AMBER
Load = Callable[..., PolicyEngine]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the policy file is."""
    return tmp_path / "policy.csv"


def write(path: Path, *lines: str) -> None:
    """Put a policy of these lines there."""
    path.write_text("\n".join([*lines, END, ""]))


@pytest.fixture
def load(path: Path) -> Load:
    """An engine with a policy of the given lines."""

    def loaded(*lines: str, topics: TopicPolicies | None = None) -> PolicyEngine:
        write(path, *lines)
        return PolicyEngine(path, topics=topics)

    return loaded


def test_deny_overrides_every_allowance(load: Load) -> None:
    """One line that denies outweighs any number that allow, in any order."""
    engine = load(
        "p, alice, *, actions, *, deny",
        "p, alice, *, **, *, allow",
        "p, *, *, actions, *, allow",
    )
    assert not engine.decide("alice", "publish", "actions", "s").allowed
    assert engine.decide("alice", "publish", "affect", "s").allowed
    assert engine.decide("bob", "publish", "actions", "s").allowed


def test_roles_are_held_per_space(load: Load) -> None:
    """A role in one space is none in another, and roles may hold roles."""
    engine = load(
        "p, role:agent, *, **, publish, allow",
        "p, role:owner, *, **, admin, allow",
        "g, alice, role:owner, home:*",
        "g, role:owner, role:agent, *",
    )
    assert engine.decide("alice", "publish", "actions", "home:kitchen").allowed
    assert engine.decide("alice", "admin", "actions", "home:kitchen").allowed
    assert not engine.decide("alice", "publish", "actions", "work").allowed
    assert set(engine.current.names("alice", "home:x")) == {"alice", "*", "role:owner", "role:agent"}
    assert set(engine.current.names("alice", "work")) == {"alice", "*"}


def test_roles_that_hold_each_other_end(load: Load) -> None:
    """A circle of roles is everyone's in it, and no endless loop."""
    engine = load("p, role:b, *, t, publish, allow", "g, a, role:a, *", "g, role:a, role:b, *", "g, role:b, role:a, *")
    assert engine.decide("a", "publish", "t", "s").allowed


def test_anonymous_has_only_what_is_given_to_it(load: Load) -> None:
    """`*` allows everyone who is named; whoever is not bound needs a line for `anonymous`. `*` denies everyone."""
    engine = load(
        "p, *, *, **, *, allow",
        "p, anonymous, public, news, consume|publish, allow",
        "p, *, *, news, publish, deny",
        "clearance, *, *, RED",
    )
    assert engine.decide("alice", "consume", "actions", "s", RED).allowed
    assert engine.decide(None, "consume", "news", "public").allowed
    assert not engine.decide(None, "consume", "news", "public", AMBER).allowed
    assert not engine.decide(None, "consume", "actions", "public").allowed
    assert not engine.decide(None, "publish", "news", "public").allowed
    assert engine.decide("anonymous", "consume", "news", "public").allowed


def test_clearance_is_the_highest_that_applies(load: Load) -> None:
    """Clearance comes from the subject's own lines and its roles', in that space; without one it is GREEN."""
    engine = load(
        "p, *, *, **, *, allow",
        "p, role:doctor, *, **, *, allow",
        "g, alice, role:doctor, ward",
        "clearance, role:doctor, *, RED",
        "clearance, alice, *, AMBER",
    )
    assert engine.current.clearance("alice", "ward") == RED
    assert engine.current.clearance("alice", "home") == AMBER
    assert engine.current.clearance("bob", "ward") == SecurityBand.GREEN
    assert engine.decide("bob", "consume", "t", "ward").allowed
    assert not engine.decide("bob", "consume", "t", "ward", AMBER).allowed
    assert not engine.decide("alice", "consume", "t", "ward", SecurityBand.BLACK).allowed


def test_a_pattern_must_be_allowed_for_everything_it_covers(load: Load) -> None:
    """To subscribe to a pattern of topics or spaces, allowances must cover it and denials not touch it."""
    engine = load(
        "p, alice, home:*, actions.**, consume, allow",
        "p, alice, *, actions.secret, consume, deny",
        "p, bob, *, **, consume, allow",
        "p, role:banned, *, **, *, deny",
        "g, bob, role:banned, jail",
    )
    assert engine.decide("alice", "consume", "actions.x", "home:a").allowed
    assert engine.decide("alice", "consume", "actions.x.*", "home:*").allowed
    assert not engine.decide("alice", "consume", "actions.*", "home:a").allowed, "touches actions.secret"
    assert not engine.decide("alice", "consume", "actions.x", "*").allowed
    assert not engine.decide("alice", "consume", "**", "home:a").allowed
    assert engine.decide("bob", "consume", "**", "home:*").allowed
    assert not engine.decide("bob", "consume", "**", "*").allowed, "touches a space in which bob is banned"


def test_a_topic_may_be_an_event_type(load: Load) -> None:
    """A topic that is a member of EventType is the topic of that name."""
    engine = load("p, alice, *, HIPPO_ENCODE, publish, allow")
    assert engine.decide("alice", "publish", EventType.HIPPO_ENCODE, "s").allowed
    assert not engine.decide("alice", "publish", EventType.FOCUS_SHIFT_REQUEST, "s").allowed


def test_explain_names_the_line_that_allowed(load: Load, path: Path) -> None:
    """A yes comes with its line, the memberships that led there, and the clearance."""
    engine = load(
        "# comment",
        "p, role:agent, *, affect, publish, allow",
        "p, role:agent, *, actions.**, publish|consume, allow",
        "g, role:planner, role:agent, *",
        "g, agent:*, role:planner, *",
        "clearance, agent:*, *, AMBER",
    )
    explanation = engine.explain("agent:x", "consume", "actions", "s", AMBER)
    assert explanation.allowed
    assert explanation.line is not None
    assert (explanation.line.file, explanation.line.number) == (str(path), 3)
    assert explanation.line.text == "p, role:agent, *, actions.**, publish|consume, allow"
    assert [line.number for line in explanation.because] == [5, 4, 6]
    assert str(explanation).splitlines()[:2] == [
        "yes: agent:x consume 'actions' in 's': allowed, with clearance up to AMBER",
        f"  {path}:3: p, role:agent, *, actions.**, publish|consume, allow",
    ]


def test_explain_names_the_line_that_denied(load: Load) -> None:
    """A no comes with the line that denied, or the clearance that is too low, or nothing if no line allows."""
    engine = load(
        "p, alice, *, **, *, allow",
        "p, role:guest, *, **, publish, deny",
        "g, alice, role:guest, *",
        "clearance, alice, *, AMBER",
    )
    denied = engine.explain("alice", "publish", "t", "s")
    assert (denied.allowed, denied.line and denied.line.number) == (False, 2)
    assert [line.number for line in denied.because] == [3]
    too_high = engine.explain("alice", "consume", "t", "s", RED)
    assert (too_high.allowed, too_high.line and too_high.line.number) == (False, 4)
    assert "band is RED" in too_high.reason
    unknown = engine.explain("bob", "consume", "t", "s")
    assert (unknown.allowed, unknown.line, unknown.reason) == (False, None, "no line allows it")
    assert engine.explain(None, "consume", "t", "s").subject == "anonymous"
    assert "is no action" in engine.explain("alice", "fly", "t", "s").reason


def test_capabilities_are_asked_of_the_consumer(load: Load) -> None:
    """An event that asks for capabilities goes only to those who hold all of them."""
    engine = load("p, alice, *, **, *, allow")
    request = ("alice", "consume", "t", "s", None)
    assert engine.decide(*request, ("vision", "speech"), {"vision", "speech", "more"}).allowed
    assert not engine.decide(*request, ("vision", "speech"), {"vision"}).allowed
    explanation = engine.explain(*request, caps=["vision"])
    assert (explanation.allowed, explanation.line) == (False, None)
    assert explanation.reason.endswith("not held: vision")


def test_what_a_topic_asks_for_can_only_take_away(load: Load, tmp_path: Path) -> None:
    """A topic's allow-list and band come on top of the policy, and are explained with their line."""
    (tmp_path / "topics.toml").write_text(
        '[topics."health.**"]\nband = "AMBER"\nallow = ["role:doctor"]\n[topics."health.news"]\nallow = ["*"]\n'
        + f"{END}\n"
    )
    engine = load(
        "p, *, *, **, *, allow",
        "clearance, *, *, RED",
        "p, role:doctor, *, **, *, allow",
        "g, alice, role:doctor, ward",
        "p, anonymous, *, **, *, allow",
        topics=TopicPolicies(tmp_path / "topics.toml"),
    )
    assert engine.decide("alice", "consume", "health.pulse", "ward").allowed
    assert not engine.decide("alice", "consume", "health.pulse", "home").allowed
    assert not engine.decide("bob", "consume", "health.pulse", "ward").allowed
    assert engine.decide("bob", "consume", "health.news", "ward").allowed
    assert not engine.decide(None, "consume", "health.news", "ward").allowed
    assert engine.decide(None, "consume", "weather", "ward").allowed
    assert not engine.decide("bob", "consume", "**", "ward").allowed, "touches health.**"
    explanation = engine.explain("bob", "consume", "health.pulse", "ward")
    assert (explanation.allowed, explanation.line and explanation.line.number) == (False, 3)
    assert "the band is AMBER" in engine.explain(None, "consume", "health.pulse", "ward").reason


def test_a_decision_is_cached_and_a_reload_empties_the_cache(load: Load, path: Path) -> None:
    """The second time a request costs no casbin; a new policy decides anew; the cache is bounded."""
    engine = load("p, alice, *, t, publish, allow")
    for _ in range(3):
        assert engine.decide("alice", "publish", "t", "s").allowed
    info = engine.current._decide.cache_info()
    assert (info.hits, info.misses, info.currsize, info.maxsize) == (2, 1, 1, 65_536)
    write(path, "p, alice, *, t, publish, deny")
    assert engine.reload_if_changed()
    assert engine.current._decide.cache_info().currsize == 0
    assert not engine.decide("alice", "publish", "t", "s").allowed

    small = PolicyEngine(path, cache_size=4)
    for number in range(100):
        small.decide(f"user:{number}", "publish", "t", "s")
    assert small.current._decide.cache_info().currsize == 4


def test_a_bad_reload_keeps_the_last_good_policy(load: Load, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broken file changes nothing but `last_error` and the log; a good one takes over."""
    engine = load("p, alice, *, t, publish, allow")
    for bad in ("p, mallory, *, **, *, allow\n", "P, x\n# end of policy\n", "", "# end of policy\n"):
        path.write_text(bad)
        assert engine.reload_if_changed() is False
        assert isinstance(engine.last_error, PolicyError)
        assert engine.decide("alice", "publish", "t", "s").allowed
        assert not engine.decide("mallory", "publish", "t", "s").allowed
    assert "the last good one stays in force" in caplog.text
    write(path, "p, mallory, *, t, publish, allow")
    assert engine.reload_if_changed() is True
    assert engine.last_error is None
    assert engine.decide("mallory", "publish", "t", "s").allowed


def test_topic_policies_are_reloaded_with_the_policy(load: Load, tmp_path: Path) -> None:
    """One look at the files is enough for all of them, and each keeps its own last good content."""
    topics = tmp_path / "topics.toml"
    topics.write_text(f"{END}\n")
    engine = load("p, *, *, **, *, allow", topics=TopicPolicies(topics))
    assert engine.decide("bob", "publish", "t", "s").allowed
    topics.write_text(f'[topics.t]\nallow = ["alice"]\n{END}\n')
    assert engine.reload_if_changed() is True
    assert not engine.decide("bob", "publish", "t", "s").allowed
    topics.write_text(f'[topics.t]\nalow = ["alice"]\n{END}\n')
    assert engine.reload_if_changed() is False
    assert not engine.decide("bob", "publish", "t", "s").allowed


def test_a_folder_replaces_the_packaged_files_one_by_one(tmp_path: Path) -> None:
    """What the user's folder has is used, what it lacks is the packaged file."""
    assert PolicyEngine.of_folder(tmp_path).decide("agent:planner", "publish", "actions", "s").allowed
    write(tmp_path / "policy.csv", "p, alice, *, t, publish, allow")
    engine = PolicyEngine.of_folder(tmp_path)
    assert engine.decide("alice", "publish", "t", "s").allowed
    assert not engine.decide("agent:planner", "publish", "actions", "s").allowed


def test_saving_replaces_the_file_and_takes_effect(load: Load, path: Path) -> None:
    """Rules that were saved are the file, and the policy in force; the packaged file is never written."""
    engine = load("p, alice, *, t, publish, allow", "# a comment")
    before = path.stat().st_ino
    assert engine.save([*engine.current.rules, Permission("bob", 'a "b", c', "t", "*", "allow")]) is True
    assert path.stat().st_ino != before
    assert engine.decide("bob", "dlq", "t", 'a "b", c').allowed
    assert PolicyEngine(path).current.digest == engine.current.digest
    with pytest.raises(PolicyError, match="empty policy"):
        engine.save([Clearance("bob", "*", "RED")])
    assert engine.decide("bob", "dlq", "t", 'a "b", c').allowed
    with pytest.raises(PolicyError, match="packaged"):
        PolicyEngine().save(engine.current.rules)


def test_another_model_is_another_policy(load: Load, path: Path, tmp_path: Path) -> None:
    """A changed model takes effect and changes the digest by which the audit tells policies apart."""
    model = tmp_path / "model.conf"
    packaged = Source.of(None, "model.conf").read().decode()
    model.write_text(packaged)
    before = load("p, alice, *, t, *, allow").current.digest
    engine = PolicyEngine(path, model)
    assert engine.current.digest == before
    assert engine.decide("alice", "admin", "t", "s").allowed
    term = '(p.eft == "deny" || r.act != "admin")'
    model.write_text(packaged.replace("does(r.act, p.act)\n", f"does(r.act, p.act) && {term}\n"))
    assert engine.reload_if_changed() is True
    assert engine.current.digest != before
    assert not engine.decide("alice", "admin", "t", "s").allowed
    assert engine.explain("alice", "publish", "t", "s").allowed


def test_reviewed_spaces(load: Load) -> None:
    """A review line asks for an audit of its topics in its spaces."""
    policy = load("p, *, *, **, *, allow", "review, family:*, health.**").current
    assert policy.reviewed("health.pulse", "family:kids")
    assert not policy.reviewed("actions", "family:kids")
    assert not policy.reviewed("health.pulse", "work")


def test_threads_may_ask_while_the_policy_is_reloaded(load: Load, path: Path) -> None:
    """Every answer is one that the old or the new policy gives, whole."""
    allow, deny = "p, alice, *, t, *, allow", "p, alice, *, t, *, deny"
    engine = load(allow)
    wrong: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            try:
                decision = engine.decide("alice", "publish", "t", "s")
                if decision.allowed == ("denies" in decision.reason):
                    wrong.append(decision)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(40):
        write(path, allow, *([deny] if number % 2 else []))
        assert engine.reload()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
