"""Authorisation of every hop: a publish is whole or refused, a delivery that is denied is settled unseen."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, Final

from anyio import to_thread

from events.contracts import Action, Delivery, Hop, HopResult, Next, Skip, Stage, Verdict
from events.errors import Denied
from events.types import Actor, EventMeta, SecurityBand
from middleware.audit import AuditTrail
from policies.rbac import Decision, PolicyEngine
from policies.rules import ANONYMOUS

_DENIED: Final = Skip("denied")
_HANDS_OUT: Final = ("consume", "replay", "dlq")


class RBACMiddleware:
    """Asks the policy about every event, by its envelope alone.

    A publish is refused with `Denied` before anything is written. A delivery that is definitely denied is
    settled as skipped, and neither retried nor seen by what stands behind. An error while deciding is raised:
    the publish fails, or the delivery has failed one attempt.

    The policy files are looked at again at most every `reload_every_s` seconds, while there is traffic; None
    leaves that to whoever calls `reload`.
    """

    stage = Stage.AUTHORISE

    def __init__(
        self,
        policy: PolicyEngine,
        *,
        audit: AuditTrail | None = None,
        reload_every_s: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._audit = policy, audit or AuditTrail()
        self._reload_every_s, self._clock = reload_every_s, clock
        self._next_look = clock()
        policy.on_change(self._audit.policy_changed)
        if policy.topics is not None:
            policy.topics.on_change(self._audit.policy_changed)

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if self._look_is_due():
            # In a thread: a long policy takes longer to read than the event loop can wait.
            await to_thread.run_sync(self._policy.reload_if_changed)
        if hop.kind == "publish":
            self._authorise_publish(hop)
            return await call_next(hop)
        denied: dict[int, Verdict] = {
            index: _DENIED for index, meta in enumerate(hop.metas) if not self._may_consume(hop, index, meta)
        }
        if not denied:
            return await call_next(hop)
        rest = hop.without(denied)
        return await call_next(rest) if rest.metas else _DENIED

    def authorise(
        self,
        subject: str | None,
        action: Action,
        topic: str,
        space_id: str,
        meta: EventMeta | None = None,
        capabilities: Collection[str] = frozenset(),
    ) -> None:
        """Return when allowed, raise `Denied` on a definite no; see `events.contracts.Authoriser`."""
        if self._look_is_due():
            self._policy.reload_if_changed()
        band = meta.band if meta else None
        caps = meta.caps if meta and action in _HANDS_OUT else None
        decision = self._policy.decide(subject, action, topic, space_id, band, caps, capabilities)
        if not decision.allowed:
            raise self._refusal(decision, subject, action, topic, space_id, meta)
        if meta and action in _HANDS_OUT and self._policy.current.reviewed(topic, space_id):
            self._audit.consumed(**_about(subject, action, topic, space_id, meta))

    async def before_checkpoint(self) -> None:
        """What was handed out under review is in the audit before a group's checkpoint says it was settled."""
        if self._audit.unsynced:
            await to_thread.run_sync(self._audit.sync)

    async def close(self) -> None:
        """Close the audit trail."""
        await to_thread.run_sync(self._audit.close)

    def _authorise_publish(self, hop: Hop) -> None:
        subject = hop.subject
        asked = {(meta.topic, meta.space_id, meta.band): meta for meta in hop.metas}
        for (topic, space_id, band), meta in asked.items():
            decision = self._policy.decide(subject, "publish", topic, space_id, band)
            if not decision.allowed:
                raise self._refusal(decision, subject, "publish", topic, space_id, meta)
        for meta in hop.metas:
            if not fits(meta.actor, subject):
                decision = Decision(False, "the event's actor is not the bound subject")
                raise self._refusal(decision, subject, "publish", meta.topic, meta.space_id, meta)

    def _may_consume(self, hop: Hop, index: int, meta: EventMeta) -> bool:
        topic, space_id = meta.topic, meta.space_id
        decision = self._policy.decide(hop.subject, "consume", topic, space_id, meta.band, meta.caps, hop.capabilities)
        if decision.allowed and not self._policy.current.reviewed(topic, space_id):
            return True
        about = _about(hop.subject, "consume", topic, space_id, meta, hop.deliveries[index])
        if decision.allowed:
            self._audit.consumed(**about)
        else:
            self._audit.denied(decision, **about)
        return decision.allowed

    def _refusal(
        self,
        decision: Decision,
        subject: str | None,
        action: Action,
        topic: str,
        space_id: str,
        meta: EventMeta | None,
    ) -> Denied:
        self._audit.denied(decision, **_about(subject, action, topic, space_id, meta))
        return Denied(subject or "", action, str(topic), space_id, str(decision))

    def _look_is_due(self) -> bool:
        if self._reload_every_s is None or (now := self._clock()) < self._next_look:
            return False
        self._next_look = now + self._reload_every_s
        return True


def fits(actor: str | Actor | None, subject: str | None) -> bool:
    """Whether the actor that an event names is the subject that publishes it.

    A string must be the subject. An `Actor` is the agent if it names one, else the user: `agent:planner` fits
    `Actor(agent_id="planner", user_id=...)`, `user:alice` fits `Actor(user_id="alice")`, and a subject without
    a kind, or of another kind, fits either. Who is not bound cannot be any actor.
    """
    if actor is None or actor == subject:
        return True
    if isinstance(actor, str) or subject is None:
        return False
    kind, name = subject.split(":", 1) if ":" in subject else ("", subject)
    acts, acting_kind = (actor.user_id, "user") if actor.agent_id is None else (actor.agent_id, "agent")
    return acts in (name, subject) and (kind == acting_kind or kind not in ("agent", "user"))


def _about(
    subject: str | None,
    action: Action,
    topic: str,
    space_id: str,
    meta: EventMeta | None,
    delivery: Delivery | None = None,
) -> dict[str, Any]:
    """What the audit says of an event: names, never anything of its payload."""
    name = ANONYMOUS if subject is None else subject
    about = {"subject": name, "action": action, "topic": str(topic), "space_id": space_id}
    if meta is not None:
        about |= {"event_id": meta.event_id, "band": str(meta.band or SecurityBand.GREEN)}
    if delivery is None:
        return about
    return about | {"group": delivery.group, "offset": delivery.offset, "attempt": delivery.attempt}
