"""The default gate: a transparent score, thresholds that move with load, and a focus that the bus can shift.

    bus = EventBus(gate=SalienceGate())                    # the packaged attention.toml
    bus = EventBus(gate=SalienceGate("my/attention.toml")) # yours, read again when it changes

While it runs it follows FOCUS_SHIFT_REQUEST and ATTENTION_REQUEST on the topic that the policy names, as the durable
group `attention`, and publishes COGNITIVE_LOAD_ALERT when the load of a group crosses a bound. After a restart the
focus is read back from the log before any group consumes; levels begin calm, and everything is new once more.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from events.attention.focus import HEARD, FocusBoard
from events.attention.habits import Familiarity, Signature, Spending
from events.attention.load import Crossing, LoadMeter
from events.attention.scoring import Scorer
from events.attention_gate import CALM, Admit, Decision, Defer, Drop, GateContext, Situation
from events.errors import BusError
from events.signals import Signal
from events.types import Event, EventMeta, EventType
from policies.attention import AttentionPolicies, AttentionPolicy

if TYPE_CHECKING:
    from events.bus import EventBus

logger = logging.getLogger("events.attention")
GROUP: Final = "attention"
_MAX_ALERTS: Final = 100
_READ_BYTES: Final = 256 * 1024
_TRY_AGAIN_S: Final = 1.0
_ADMIT: Final = Admit()
_GIVEN: Final = GateContext._fields.index("familiarity")  # what stands before it, the group has filled in


class _GroupState:
    """What the gate has learnt of one group: its load, what it met, what it spent, its situation in each space."""

    __slots__ = ("familiarity", "meter", "situations", "spending")

    def __init__(self, policy: AttentionPolicy, now_ms: int) -> None:
        self.meter = LoadMeter(now_ms)
        self.familiarity = Familiarity(policy)
        self.spending = Spending(policy)
        self.situations: dict[str, Situation] = {}


class SalienceGate:
    """Decides by an `AttentionPolicy`: one that is given, or the one in a file, which is watched.

    `subject` is on whose behalf it listens and publishes, where policies ask. One gate serves one bus.
    """

    def __init__(
        self,
        policy: AttentionPolicy | str | os.PathLike[str] | None = None,
        *,
        subject: str | None = None,
        reload_every_s: float = 1.0,
    ) -> None:
        self._policies = None if isinstance(policy, AttentionPolicy) else AttentionPolicies(policy)
        self._scorer = Scorer(policy if isinstance(policy, AttentionPolicy) else self._current())
        self._subject = subject
        self._reload_every_s = reload_every_s
        self._focus = FocusBoard(self.policy.focus)
        self._groups: dict[str, _GroupState] = {}
        self._crossings: deque[Crossing] = deque(maxlen=_MAX_ALERTS)
        self._crossed = Signal()
        self._looked_at: tuple[Event[Any] | None, Signature] = (None, ())
        self._bus: EventBus | None = None

    def _current(self) -> AttentionPolicy:
        assert self._policies is not None
        return self._policies.current

    @property
    def policy(self) -> AttentionPolicy:
        """The policy in force."""
        return self._scorer.policy

    @property
    def version(self) -> str:
        """What the journal calls the policy in force."""
        return self._scorer.policy.version

    def level(self, group: str) -> str:
        """The level of load that a group is at."""
        state = self._groups.get(group)
        return "calm" if state is None else state.meter.level

    # -- deciding ----------------------------------------------------------------------------------------------

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        """Pure: by the policy, the event and the context alone (rule W13)."""
        if context.group == GROUP:
            return _ADMIT  # a focus that waits for attention would never come
        return self._scorer.decide(event, context)

    def sense(self, event: Event[Any], context: GateContext) -> GateContext:
        """Put what the gate knows into the context: how the group is loaded, what is in focus, what it met before."""
        if context.group == GROUP:
            return context
        state, now_ms = self._state(context), context.now_ms
        crossing = state.meter.observe(self.policy, context)
        if crossing is not None:
            self._crossings.append(crossing)
            self._crossed.tell()
        signature = state.familiarity.signature(event)
        self._looked_at = (event, signature)
        # Not _replace, which costs as much as the rest of this.
        sensed = (
            state.familiarity.of(signature, now_ms),
            state.spending.spent(event, context.topic, now_ms),
            self._situation(state, context),
        )
        return GateContext._make(context[:_GIVEN] + sensed)

    def learn(self, event: Event[Any], context: GateContext, treated: Decision) -> None:
        """What was met is familiar from now on, and what was admitted is spent. What is put off is met later."""
        if context.group == GROUP or isinstance(treated, Defer):
            return
        state = self._state(context)
        known, signature = self._looked_at
        if known is not event:
            signature = state.familiarity.signature(event)
        state.familiarity.meet(signature, context.now_ms)
        if not isinstance(treated, Drop):
            state.spending.spend(event, context.topic, context.now_ms)

    def _state(self, context: GateContext) -> _GroupState:
        state = self._groups.get(context.group)
        if state is None:
            state = self._groups[context.group] = _GroupState(self.policy, context.now_ms)
        return state

    def _situation(self, state: _GroupState, context: GateContext) -> Situation:
        """The same object for as long as nothing changed, so that the journal need not repeat it."""
        focus, level = self._focus.of(context.space_id, context.now_ms), state.meter.level
        known = state.situations.get(context.space_id, CALM)
        if known.focus is focus and known.level == level:
            return known
        situation = Situation(level, state.meter.load, focus) if focus or level != "calm" else CALM
        if situation is CALM:
            state.situations.pop(context.space_id, None)
        else:
            state.situations[context.space_id] = situation
        return situation

    # -- on the bus --------------------------------------------------------------------------------------------

    def attach(self, bus: EventBus) -> None:
        """The bus is opening."""
        self._bus = bus

    async def start(self) -> None:
        """Read back the focus, so that the first event after a restart meets the mind as it was."""
        assert self._bus is not None
        store, now_ms = self._bus.store, self._bus.clock.now_ms()
        since_ms = now_ms - int(self.policy.focus.longest_s * 1000)
        for name in await store.log_names():
            if name.topic != self.policy.focus.topic:
                continue
            log = await store.log(name)
            position = await log.offset_at(since_ms)
            while records := await log.read(position, _READ_BYTES):
                for record in records:
                    if not record.is_gap:
                        self._focus.hear(record.event, now_ms)
                position = records[-1].last + 1

    def forget_group(self, group: str) -> None:
        """Forget what was learnt of a group that is no more."""
        self._groups.pop(group, None)

    async def run(self) -> None:
        """Follow the requests for attention, tell of crossings, and watch the policy, until cancelled."""
        assert self._bus is not None
        bus = self._bus if self._subject is None else self._bus.bind(self._subject)
        clock = self._bus.clock
        await bus.subscribe(self.policy.focus.topic, GROUP, self._hear, overflow="spill")
        while True:
            woken = self._crossed.next
            while self._crossings:
                crossing = self._crossings.popleft()
                try:
                    await bus.publish(self._alert(crossing))
                except (OSError, BusError) as error:
                    logger.warning("an alert of cognitive load could not be published: %s", error)
                    await clock.sleep(_TRY_AGAIN_S)
            if self._policies is None:
                await woken.wait()
            else:
                await clock.wait(woken, self._reload_every_s)
                if await anyio.to_thread.run_sync(self._policies.reload_if_changed):
                    self._apply(self._policies.current)

    async def _hear(self, event: Event[Any]) -> None:
        assert self._bus is not None
        if event.meta.type in HEARD:
            self._focus.hear(event, self._bus.clock.now_ms())

    def _alert(self, crossing: Crossing) -> Event[Any]:
        meta = EventMeta(
            topic=self.policy.load.topic,
            type=EventType.COGNITIVE_LOAD_ALERT,
            space_id=crossing.space_id,
            priority="high",
        )
        return Event(
            meta,
            {
                "group": crossing.group,
                "before": crossing.before,
                "level": crossing.level,
                "load": crossing.load,
                "inflight": crossing.inflight,
                "max_inflight": crossing.max_inflight,
                "backlog": crossing.backlog,
                "latency_s": crossing.latency_s,
            },
        )

    def _apply(self, policy: AttentionPolicy) -> None:
        """Another policy is in force from the next event on. What was learnt by other rules begins anew."""
        before = self.policy
        if policy.version == before.version:
            return
        self._scorer = Scorer(policy)
        self._focus.table = policy.focus
        for state in self._groups.values():
            if policy.novelty != before.novelty:
                state.familiarity = Familiarity(policy)
            if policy.budgets != before.budgets:
                state.spending = Spending(policy)
        logger.info("attention policy %s is in force, after %s", policy.version, before.version)
