"""The score: what each part is worth, what the thresholds of a level make of it, and that it is pure."""

from typing import Any

import pytest

from events.attention.looks import subject_of
from events.attention.scoring import Scorer
from events.attention_gate import Admit, Boost, Defer, Drop, Focus, GateContext, Situation
from events.types import Actor, Event
from filters import SimpleFilter
from policies.attention import AttentionPolicy
from tests.events.attention.support import NOW_MS, a_context, a_policy, an_event

NOTHING = "\n".join(
    ["[score]", *(f"{part} = 0.0" for part in AttentionPolicy.parse("").score.model_dump()), "[always]", "admit = []"]
)


def part(name: str, event: Event, context: GateContext | None = None, settings: str = "") -> float:
    """What one part says of an event, when it alone counts and counts once."""
    text = NOTHING.replace(f"{name} = 0.0", f"{name} = 1.0")
    scorer = Scorer(AttentionPolicy.parse(f"{text}\n{settings}"))
    return dict(scorer.parts(event, context or a_context())).get(name, 0.0)


def focused(*filters: tuple[SimpleFilter, float]) -> GateContext:
    """A context with something in focus."""
    focus = tuple(Focus(f"ev-{index}", one, weight, NOW_MS + 1) for index, (one, weight) in enumerate(filters))
    return a_context(situation=Situation(focus=focus))


def test_priority_counts_by_its_level() -> None:
    """A priority of 80 is 0.8 of what priority is worth, whether the event or its topic set it."""
    assert part("priority", an_event(), a_context(priority=80)) == 0.8


@pytest.mark.parametrize(
    ("payload", "arousal", "valence"),
    [
        ({"arousal": 0.7, "valence": -0.4}, 0.7, 0.4),
        ({"affect": {"arousal": 0.2, "valence": 0.9}}, 0.2, 0.9),
        ({"arousal": 7, "valence": -7}, 1.0, 1.0),
        ({"arousal": -1, "valence": 0}, 0.0, 0.0),
        ({"arousal": "much", "valence": True}, 0.0, 0.0),
        ({}, 0.0, 0.0),
    ],
)
def test_affect_counts_where_it_is_a_number(payload: dict[str, Any], arousal: float, valence: float) -> None:
    """How stirring, and how strong the feeling is either way; out of range is the end of it, no number is nothing."""
    assert part("arousal", an_event(payload)) == arousal
    assert part("valence", an_event(payload)) == valence


def test_the_new_is_novel_and_the_familiar_is_not() -> None:
    """Novelty falls with the first meeting; habituation comes slowly, and is at one half where the policy says."""
    assert [part("novelty", an_event(), a_context(familiarity=f)) for f in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert [part("habituation", an_event(), a_context(familiarity=f)) for f in (0, 10)] == [0.0, 0.5]


def test_freshness_halves() -> None:
    """Recency is 1 for what was just appended and half after each half-life; a clock that went back changes nothing."""
    ages = [0, 60, 120, 10**9, -5]
    found = [part("recency", an_event(), a_context(appended_ms=NOW_MS - 1000 * age)) for age in ages]
    assert found == [1.0, 0.5, 0.25, 0.0, 1.0]


def test_what_is_in_focus_is_relevant_and_the_rest_distracts() -> None:
    """The heaviest focus that matches counts; with a focus that does not match, an event is a distraction."""
    kitchen, fire = SimpleFilter("payload.room", "kitchen"), SimpleFilter("payload.what", "fire")
    context = focused((kitchen, 0.5), (fire, 1.0))
    event = an_event({"room": "kitchen", "what": "fire"})
    assert part("relevance", event, context) == 1.0
    assert part("relevance", an_event({"room": "kitchen"}), context) == 0.5
    assert part("distraction", event, context) == 0.0
    assert part("distraction", an_event({"room": "hall"}), context) == 1.0
    assert part("relevance", an_event({"room": "hall"}), context) == 0.0
    assert part("distraction", event) == part("relevance", event) == 0.0


@pytest.mark.parametrize(
    ("actor", "subject", "weight"),
    [
        ("user:alice", "user:alice", 1.0),
        (Actor(user_id="alice"), "user:alice", 1.0),
        (Actor(agent_id="planner"), "agent:planner", 0.7),
        ("agent:other", "agent:other", 0.2),
        ("planner", "planner", 0.0),
        (Actor(session_id="s"), "", 0.0),
        (None, "", 0.0),
    ],
)
def test_a_source_has_the_weight_of_its_longest_match(actor: Any, subject: str, weight: float) -> None:
    """Exact names and prefixes with `*`; who is not named counts for nothing."""
    settings = '[sources]\n"user:*" = 1.0\n"agent:*" = 0.2\n"agent:planner" = 0.7\n'
    event = an_event(actor=actor)
    assert subject_of(event) == subject
    assert part("source", event, settings=settings) == weight


@pytest.mark.parametrize(
    ("priority", "decided"),
    [(9, Drop), (10, Defer), (29, Defer), (30, Admit), (69, Admit), (70, Boost), (100, Boost)],
)
def test_thresholds_part_the_scores(priority: int, decided: type) -> None:
    """Below drop_below dropped, below defer_below deferred, from boost_from on boosted, admitted in between."""
    policy = a_policy("[levels.calm]\ndrop_below = 0.1\ndefer_below = 0.3\nboost_from = 0.7\ndefer_s = 4.0\n")
    decision = Scorer(policy).decide(an_event(), a_context(priority=priority))
    assert type(decision) is decided
    assert decision.score == priority / 100
    assert decision.parts == (() if decided is Admit else (("priority", priority / 100),))
    if isinstance(decision, Defer):
        assert (decision.seconds, decision.reason) == (4.0, f"calm: {priority / 100} is below 0.3")
    if isinstance(decision, Boost):
        assert decision.priority == max(priority, 90)


def test_thresholds_move_with_the_level() -> None:
    """The same event is admitted when calm, deferred when strained and dropped when overloaded."""
    policy = a_policy(
        "[levels.strained]\nenter = 0.6\nleave = 0.4\ndefer_below = 0.6\n"
        "[levels.overloaded]\nenter = 0.8\nleave = 0.7\ndrop_below = 0.6\n"
    )
    decided = [
        type(Scorer(policy).decide(an_event(), a_context(situation=Situation(level))))
        for level in ("calm", "strained", "overloaded", "a level of another version")
    ]
    assert decided == [Admit, Defer, Drop, Admit]


def test_what_is_always_admitted_is_not_even_scored() -> None:
    """Out of the box no gate holds back what moves attention itself, nor what is critical."""
    scorer = Scorer(AttentionPolicy.parse("[levels.calm]\ndrop_below = 100.0\nboost_from = 200.0\n"))
    for event in (an_event(type="FOCUS_SHIFT_REQUEST"), an_event(priority="critical"), an_event(priority=100)):
        assert scorer.decide(event, a_context()) == Admit()
    assert isinstance(scorer.decide(an_event(priority="high"), a_context()), Drop)


@pytest.mark.parametrize(("over", "decided"), [("defer", Defer), ("drop", Drop)])
def test_a_spent_budget_defers_to_its_next_stretch_or_drops(over: str, decided: type) -> None:
    """What is over budget waits for the next stretch of time, or is dropped, whatever its score."""
    policy = a_policy(f'[budgets.talk]\nper = "actor"\nevents = 3\neach_s = 60.0\nover = "{over}"\n')
    scorer = Scorer(policy)
    assert isinstance(scorer.decide(an_event(), a_context(spent=(("talk", 2),))), Admit)
    now_ms = 60_000 * 1000 + 45_000
    decision = scorer.decide(an_event(), a_context(spent=(("talk", 3),), now_ms=now_ms, priority=100))
    assert type(decision) is decided
    assert decision.reason == "budget talk: 3 of 3 in 60 s"
    if isinstance(decision, Defer):
        assert decision.seconds == 15.0
    assert isinstance(scorer.decide(an_event(), a_context(spent=(("of another policy", 99),))), Admit)


def test_deciding_twice_is_deciding_the_same() -> None:
    """W13: a decision is a function of event and context: asking changes nothing, and another scorer says the same."""
    policy = AttentionPolicy.load_file()
    event = an_event({"arousal": 0.61, "valence": -0.3}, actor="user:alice", priority=33)
    context = a_context(familiarity=1.2345, priority=33, appended_ms=NOW_MS - 12_345, situation=Situation("strained"))
    decisions = {Scorer(policy).decide(event, context) for _ in range(3)} | {Scorer(policy).decide(event, context)}
    assert len(decisions) == 1
    (decision,) = decisions
    parts = Scorer(policy).parts(event, context)
    assert decision.score == round(sum(value for _, value in parts), 4)
