"""What a gate remembers: familiarity that fades and is bounded, budgets that begin anew."""

from events.attention.habits import Familiarity, Spending
from tests.events.attention.support import a_policy, an_event


def test_what_is_met_again_grows_familiar_and_fades() -> None:
    """Each meeting adds one; the sum halves with every half-life. Looking is no meeting."""
    memory = Familiarity(a_policy("[novelty]\nhalf_life_s = 10.0\n"))
    thing = memory.signature(an_event())
    assert memory.of(thing, 0) == 0.0
    memory.meet(thing, 0)
    memory.meet(thing, 0)
    assert [memory.of(thing, at_ms) for at_ms in (0, 10_000, 20_000, 10**12)] == [2.0, 1.0, 0.5, 0.0]
    assert memory.of(thing, 0) == 2.0


def test_the_policy_says_what_is_the_same_thing() -> None:
    """Events that agree in the named paths are the same; those of another space never are."""
    memory = Familiarity(a_policy('[novelty]\nof = ["meta.type", "meta.actor", "payload.tags"]\n'))
    signature = memory.signature(an_event({"tags": ["a"]}, actor="user:x", key="k1"))
    assert memory.signature(an_event({"tags": ["a"], "more": 1}, actor="user:x", key="k2")) == signature
    assert memory.signature(an_event({"tags": ["b"]}, actor="user:x")) != signature
    assert memory.signature(an_event({"tags": ["a"]}, actor="user:y")) != signature
    assert memory.signature(an_event({"tags": ["a"]}, actor="user:x", space_id="elsewhere")) != signature


def test_only_the_latest_are_remembered() -> None:
    """M: memory is bounded; what was not met for longest is forgotten first."""
    memory = Familiarity(a_policy("[novelty]\nremember = 2\n"))
    first, second, third = (memory.signature(an_event(key=key)) for key in "abc")
    for thing in (first, second, first, third):
        memory.meet(thing, 0)
    assert [memory.of(thing, 0) for thing in (first, second, third)] == [2.0, 0.0, 1.0]


def test_a_budget_is_spent_by_actor_or_topic_and_begins_anew() -> None:
    """Each actor, or each topic, has its own; with the next stretch of time nothing is spent."""
    spending = Spending(
        a_policy(
            '[budgets.each]\ntopics = "talk.*"\nper = "actor"\nevents = 2\neach_s = 60.0\n'
            '[budgets.all]\nper = "topic"\nevents = 9\neach_s = 60.0\n'
        )
    )
    alice, bob = an_event(actor="user:alice"), an_event(actor="user:bob")
    for event in (alice, alice, bob):
        spending.spend(event, "talk.loud", 1_000)
    assert spending.spent(alice, "talk.loud", 59_999) == (("each", 2), ("all", 3))
    assert spending.spent(bob, "talk.loud", 59_999) == (("each", 1), ("all", 3))
    assert spending.spent(alice, "other", 59_999) == (("all", 0),)
    assert spending.spent(alice, "talk.loud", 60_000) == (("each", 0), ("all", 0))
    spending.spend(alice, "talk.loud", 60_000)
    assert spending.spent(alice, "talk.loud", 60_000) == (("each", 1), ("all", 1))
