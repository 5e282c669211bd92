"""A Hypothesis state machine over the promises S1 to S5 and L: what an application, time and crashes do to a bus.

    from hypothesis import settings
    from hypothesis.stateful import run_state_machine_as_test
    from events.testing.machine import BusMachine

    run_state_machine_as_test(BusMachine, settings=settings(max_examples=200, stateful_step_count=50))

Needs `hypothesis`. Each rule is a step of `events.testing.world.World`, which checks the promises after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import ClassVar, Concatenate, Final, ParamSpec

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from events.persistence.store import LogName
from events.testing.world import LOGS, PLANS, Ruling, Terms, World

P = ParamSpec("P")
GROUPS: Final = [plan.name for plan in PLANS]
TERMS: Final = st.builds(
    Terms,
    sync=st.sampled_from(["always", "always", "interval", "never"]),
    segment_lines=st.sampled_from([3, 1, 8]),
    tail_bytes=st.sampled_from([0, 600, 1_000_000]),
    settle_span=st.sampled_from([6, 1, 1000]),
    read_bytes=st.sampled_from([400, 100_000]),
)
DRAFTS: Final = st.lists(
    st.tuples(st.sampled_from(LOGS), st.sampled_from([None, "a", "b"])),
    min_size=1,
    max_size=4,
)
RULINGS: Final = st.sampled_from(["ack", "nack", "raise", "later", "bury", "skip", "relay"])
INDICES: Final = st.integers(0, 7)
BACK: Final = st.one_of(st.just(0), st.integers(0, 40))
_ENDS: Final = {"end", "kill", "power_cut"}
JUMPS: Final = st.sampled_from([0.0, 0.0, 1.0, 3600.0, -3600.0, 3e8, -3e8])


def step(function: Callable[Concatenate[BusMachine, P], None]) -> Callable[Concatenate[BusMachine, P], None]:
    """Count a rule, and remember that the world is broken when it raises."""

    @wraps(function)
    def counted(self: BusMachine, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.steps[function.__name__] += 1
        self.recent = [*self.recent[-3:], function.__name__]
        self.is_broken = True
        function(self, *args, **kwargs)
        self.is_broken = False

    return counted


class BusMachine(RuleBasedStateMachine):
    """Publishers, handlers, time and crashes, in any order. `steps` counts the rules of all runs by their names."""

    steps: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = True
        self.recent: list[str] = []
        self.world: World | None = None

    @property
    def running(self) -> World:
        """The world, once it has begun."""
        assert self.world is not None
        return self.world

    @property
    def may_end(self) -> bool:
        """Whether another end of the process could show anything: three in a row go deep into recovery."""
        return not set(self.recent[-3:]) <= _ENDS

    @initialize(terms=TERMS, groups=st.sets(st.sampled_from(GROUPS[:-1]), min_size=2))
    @step
    def begin(self, terms: Terms, groups: set[str]) -> None:
        """A new workspace and some groups."""
        self.world = World(terms)
        for group in GROUPS:
            if group in groups:
                self.world.subscribe(group)

    @rule(drafts=DRAFTS)
    @step
    def publish(self, drafts: list[tuple[LogName, str | None]]) -> None:
        """S1, S4: some events, one after the other."""
        self.running.publish(drafts)

    @rule(drafts=DRAFTS)
    @step
    def publish_many(self, drafts: list[tuple[LogName, str | None]]) -> None:
        """S1, S5: some events at once; whole or not at all is per event."""
        self.running.publish(drafts, at_once=True)

    @precondition(lambda self: self.running.waiting_publishes)
    @rule(index=INDICES)
    @step
    def cancel_publish(self, index: int) -> None:
        """W2: cancelled before it was staged, an event is never written."""
        self.running.cancel_publish(index)

    @precondition(lambda self: self.running.busy_groups)
    @rule(index=INDICES, ruling=RULINGS, times=st.integers(1, 4))
    @step
    def finish(self, index: int, ruling: Ruling, times: int) -> None:
        """S2, S3, W5, W6: handlers of a group succeed, fail, put off, give up, or publish on."""
        busy = self.running.busy_groups
        self.running.rule(busy[index % len(busy)], ruling, times)

    @precondition(lambda self: self.running.busy_groups)
    @rule(index=INDICES)
    @step
    def acknowledge(self, index: int) -> None:
        """S2: a group gets through what it has."""
        busy = self.running.busy_groups
        self.running.rule(busy[index % len(busy)], "ack", 20)

    @rule(seconds=st.sampled_from([0.3, 0.05, 1.0, 4.0, 11.0, 100.0]))
    @step
    def advance(self, seconds: float) -> None:
        """W1, W6, W8: checkpoints follow, retries fall due, deadlines pass, publishers give up."""
        self.running.advance(seconds)

    @rule(group=st.sampled_from(GROUPS))
    @step
    def come_or_go(self, group: str) -> None:
        """W3, W17: a group is subscribed, for the first time or again; or unsubscribed, and what it did stays."""
        if group in self.running.consumers:
            self.running.unsubscribe(group)
        else:
            self.running.subscribe(group)

    @precondition(lambda self: self.running.has_dead_letters)
    @rule(index=INDICES, all_of_group=st.booleans())
    @step
    def retry(self, index: int, all_of_group: bool) -> None:
        """W10: dead letters get another round."""
        self.running.retry(index, all_of_group=all_of_group)

    @precondition(lambda self: self.recent[-1] != "compact")
    @rule()
    @step
    def compact(self) -> None:
        """F5, S1, F6: settled segments go; history is whole, and an outsider sees only what is durable."""
        self.running.compact()
        self.running.replay()
        self.running.look_from_outside()

    @precondition(lambda self: self.may_end)
    @rule(how=st.sampled_from(["close", "close slowly", "leave loop"]), jump_s=JUMPS)
    @step
    def end(self, how: str, jump_s: float) -> None:
        """W17: the process ends in order, or its event loop ends around the bus; no attempt is charged for that."""
        if how == "leave loop":
            self.running.leave_loop(jump_s=jump_s)
        else:
            self.running.close(0.0 if how == "close" else 5.0, jump_s=jump_s)

    @precondition(lambda self: self.may_end)
    @rule(back=BACK, jump_s=JUMPS)
    @step
    def kill(self, back: int, jump_s: float) -> None:
        """A crash that loses no byte: now, or in the middle of what was just done."""
        self.running.kill(back, jump_s=jump_s)

    @precondition(lambda self: self.may_end)
    @rule(back=BACK, choice=st.lists(st.integers(0, 11), max_size=6), jump_s=JUMPS)
    @step
    def power_cut(self, back: int, choice: list[int], jump_s: float) -> None:
        """A crash that loses unsynced bytes: now, or in the middle of what was just done."""
        self.running.power_cut(back, choice, jump_s=jump_s)

    def teardown(self) -> None:
        """L: once the faults stop, every group drains."""
        if self.world is None:
            return
        try:
            if not self.is_broken:
                self.steps["drain"] += 1
                self.world.drain()
        finally:
            self.world.end()
