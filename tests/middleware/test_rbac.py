"""Authorisation in the chain: who is refused, what is settled, and that no payload is looked at."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from events.chain import check_order, compose
from events.contracts import Hop, HopResult, Middleware, Skip, Stage
from events.errors import Denied, InvalidMessage
from events.types import Ack, Actor, Event, EventMeta, EventType, Receipt, SecurityBand
from middleware.audit import AuditRecord, AuditTrail
from middleware.rbac import RBACMiddleware, fits
from policies.files import END
from policies.rbac import PolicyEngine
from policies.topics import TopicPolicies

POLICY = """\
p, role:agent, home:*, **, publish|consume|ack, allow
p, role:agent, home:*, secret.**, *, deny
p, user:owner, *, **, *, allow
g, agent:*, role:agent, *
clearance, agent:*, *, AMBER
clearance, user:owner, *, BLACK
p, anonymous, public, news, publish, allow
review, home:kids, **
# end of policy
"""


@dataclass
class Recorder:
    """An audit sink that remembers, or fails."""

    records: list[AuditRecord] = field(default_factory=list)
    synced: int = 0
    error: Exception | None = None

    def write(self, record: AuditRecord) -> None:
        if self.error:
            raise self.error
        self.records.append(record)

    def sync(self) -> None:
        self.synced += 1

    def close(self) -> None:
        pass

    def facts(self) -> list[str]:
        """What was recorded, in order."""
        return [record.fact for record in self.records]


@dataclass(frozen=True)
class FakeDelivery:
    """One attempt at one event."""

    space_id: str
    topic: str
    offset: int
    group: str = "learner"
    attempt: int = 1
    replayed: bool = False

    @property
    def identity(self) -> str:
        return f"{self.space_id}/{self.topic}/{self.offset}"

    def extend(self, seconds: float) -> None:
        raise NotImplementedError


class Untouchable(dict[str, Any]):
    """A payload that complains when anybody looks into it."""

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("the payload was touched")

    __getitem__ = __iter__ = __len__ = __contains__ = get = items = keys = values = _refuse


@dataclass
class Terminal:
    """What stands behind the chain: counts what reaches it."""

    hops: list[Hop] = field(default_factory=list)

    async def __call__(self, hop: Hop) -> HopResult:
        self.hops.append(hop)
        return [] if hop.kind == "publish" else Ack()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The policy file."""
    path = tmp_path / "policy.csv"
    path.write_text(POLICY)
    return path


@pytest.fixture
def sink() -> Recorder:
    """Where the audit goes."""
    return Recorder()


@pytest.fixture
def rbac(path: Path, sink: Recorder) -> RBACMiddleware:
    """The middleware under test."""
    return RBACMiddleware(PolicyEngine(path), audit=AuditTrail(sink))


@pytest.fixture
def terminal() -> Terminal:
    """The end of the chain."""
    return Terminal()


def meta(topic: str = "actions", space_id: str = "home:kitchen", **more: Any) -> EventMeta:
    """An envelope."""
    return EventMeta(topic=topic, type="ACTION_EXECUTED", space_id=space_id, **more)


def publish(*metas: EventMeta, subject: str | None = "agent:planner") -> Hop:
    """A publish of events with these envelopes."""
    events = [Event(envelope, Untouchable()) for envelope in metas]
    return Hop("publish", metas, [10] * len(metas), subject=subject, _events=events)


def handle(*metas: EventMeta, subject: str | None = "agent:planner", capabilities: Sequence[str] = ()) -> Hop:
    """A delivery of events with these envelopes, at offsets from 1 on."""
    deliveries = [FakeDelivery(envelope.space_id, envelope.topic, n) for n, envelope in enumerate(metas, 1)]
    return Hop(
        "handle",
        metas,
        [10] * len(metas),
        subject=subject,
        capabilities=frozenset(capabilities),
        group="learner",
        deliveries=deliveries,
        _events=[Event(envelope, Untouchable()) for envelope in metas],
    )


async def test_an_allowed_publish_goes_on(rbac: RBACMiddleware, terminal: Terminal, sink: Recorder) -> None:
    """What the policy allows reaches the log as it came, and is not audited."""
    hop = publish(meta(), meta("affect", band=SecurityBand.AMBER), meta(EventType.HIPPO_ENCODE))
    assert await rbac(hop, terminal) == []
    assert terminal.hops == [hop]
    assert sink.records == []


@pytest.mark.parametrize(
    ("refused", "subject", "reason"),
    [
        (meta("secret.x"), "agent:planner", "policy.csv:2: p, role:agent"),
        (meta(space_id="work"), "agent:planner", "no line allows it"),
        (meta(band=SecurityBand.RED), "agent:planner", "the band is RED"),
        (meta(), None, "no line allows it"),
        (meta(), "user:stranger", "no line allows it"),
        (meta(), "role:agent", "a role is not a subject"),
        (meta(), "", "nobody who can ask"),
        (meta(actor="agent:other"), "agent:planner", "actor is not the bound subject"),
    ],
)
async def test_a_denied_publish_is_refused_whole(
    rbac: RBACMiddleware, terminal: Terminal, sink: Recorder, refused: EventMeta, subject: str | None, reason: str
) -> None:
    """One event that is denied refuses the publish: nothing is written, and the denial is audited."""
    with pytest.raises(Denied) as caught:
        await rbac(publish(meta("affect"), refused, meta("affect"), subject=subject), terminal)
    assert reason in str(caught.value)
    assert (caught.value.code, caught.value.action) == ("DENIED", "publish")
    assert terminal.hops == []
    assert sink.facts() == ["denied"]
    assert sink.records[0].subject == ("anonymous" if subject is None else subject)


async def test_anonymous_publishes_what_the_policy_gives_it(rbac: RBACMiddleware, terminal: Terminal) -> None:
    """Whoever is not bound has the lines for anonymous, and may not name an actor."""
    await rbac(publish(meta("news", "public"), subject=None), terminal)
    with pytest.raises(Denied):
        await rbac(publish(meta("news", "public", actor="user:owner"), subject=None), terminal)


@pytest.mark.parametrize(
    ("actor", "subject", "expected"),
    [
        (None, "agent:planner", True),
        (None, None, True),
        ("agent:planner", "agent:planner", True),
        ("planner", "agent:planner", False),
        ("agent:other", "agent:planner", False),
        ("alice", None, False),
        (Actor(user_id="alice"), None, False),
        (Actor(agent_id="planner"), "agent:planner", True),
        (Actor(agent_id="agent:planner"), "agent:planner", True),
        (Actor(agent_id="planner", user_id="alice"), "agent:planner", True),
        (Actor(user_id="planner"), "agent:planner", False),
        (Actor(agent_id="other", user_id="planner"), "agent:planner", False),
        (Actor(user_id="alice"), "user:alice", True),
        (Actor(user_id="alice", agent_id="planner"), "user:alice", False),
        (Actor(user_id="alice"), "alice", True),
        (Actor(agent_id="alice"), "alice", True),
        (Actor(user_id="mallory"), "alice", False),
        (Actor(session_id="s"), "alice", False),
        (Actor(agent_id="a:b"), "agent:a:b", True),
    ],
)
def test_which_actors_fit_which_subjects(actor: str | Actor | None, subject: str | None, expected: bool) -> None:
    """An event's actor is the bound subject or nobody: no module can write in another's name."""
    assert fits(actor, subject) is expected


async def test_an_allowed_delivery_goes_on(rbac: RBACMiddleware, terminal: Terminal) -> None:
    """A delivery that may be seen is handed on as it came."""
    hop = handle(meta(), meta(band=SecurityBand.AMBER))
    assert await rbac(hop, terminal) == Ack()
    assert terminal.hops == [hop]


async def test_a_denied_delivery_is_settled_and_never_seen(
    rbac: RBACMiddleware, terminal: Terminal, sink: Recorder
) -> None:
    """W11: of a batch, what is denied is settled as skipped, and the rest goes on without it."""
    hop = handle(meta(), meta("secret.x"), meta("affect"), meta(band=SecurityBand.BLACK))
    assert await rbac(hop, terminal) == Ack()
    assert [envelope.topic for envelope in terminal.hops[0].metas] == ["actions", "affect"]
    assert [delivery.offset for delivery in terminal.hops[0].deliveries] == [1, 3]
    assert hop.verdicts == {hop.deliveries[1]: Skip("denied"), hop.deliveries[3]: Skip("denied")}
    assert [(record.fact, record.offset, record.group) for record in sink.records] == [
        ("denied", 2, "learner"),
        ("denied", 4, "learner"),
    ]


async def test_a_batch_of_denied_deliveries_ends_here(rbac: RBACMiddleware, terminal: Terminal) -> None:
    """When nothing is left, what stands behind is not called at all."""
    hop = handle(meta("secret.x"), meta("secret.y"))
    assert await rbac(hop, terminal) == Skip("denied")
    assert terminal.hops == []
    assert hop.verdicts == dict.fromkeys(hop.deliveries, Skip("denied"))


async def test_capabilities_of_the_subscription(rbac: RBACMiddleware, terminal: Terminal, sink: Recorder) -> None:
    """An event that asks for capabilities goes to a subscription that holds them all, whoever its subject is."""
    event = meta(caps=("camera", "speech"))
    assert await rbac(handle(event, capabilities=["camera", "speech"]), terminal) == Ack()
    assert await rbac(handle(event, capabilities=["camera"]), terminal) == Skip("denied")
    assert await rbac(handle(event, subject="user:owner"), terminal) == Skip("denied")
    assert "not held: camera, speech" in str(sink.records[-1].reason)


async def test_an_error_while_deciding_is_raised(
    rbac: RBACMiddleware, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W11: only a definite no settles; an error fails the attempt, or the publish, and opens nothing."""

    def fail(*_: object) -> bool:
        raise RuntimeError("cannot decide")

    monkeypatch.setattr(PolicyEngine, "decide", fail)
    for hop in (handle(meta()), publish(meta())):
        with pytest.raises(RuntimeError, match="cannot decide"):
            await rbac(hop, terminal)
        assert hop.verdicts == {}
    with pytest.raises(RuntimeError, match="cannot decide"):
        rbac.authorise("user:owner", "admin", "actions", "home:kitchen")
    assert terminal.hops == []


async def test_the_payload_stays_sealed(rbac: RBACMiddleware, terminal: Terminal) -> None:
    """RBAC works on a sealed hop: it can neither see nor decode a payload, also not of what it denies."""
    chain = compose([rbac], terminal)
    hop = handle(meta(), meta("secret.x"))
    with pytest.raises(PermissionError):
        _ = hop.events
    await chain(hop)
    raw = Event.from_log(meta(), b"not even JSON")
    await rbac(Hop("publish", [raw.meta], [1], subject="agent:planner", _events=[raw]), terminal)
    assert raw.raw_payload == b"not even JSON"
    assert len(terminal.hops[0].events) == 1, "opened behind it"


def test_rbac_stands_before_whatever_sees_payloads(rbac: RBACMiddleware) -> None:
    """Behind a content middleware it is refused: that one would see what is about to be denied."""

    async def content(hop: Hop, call_next: Callable[[Hop], Any]) -> HopResult:
        raise NotImplementedError

    chain: list[Middleware] = [rbac, content]
    check_order(chain)
    assert rbac.stage is Stage.AUTHORISE
    with pytest.raises(InvalidMessage, match="put it before content"):
        check_order(chain[::-1])


def test_actions_that_cross_no_chain(rbac: RBACMiddleware, sink: Recorder) -> None:
    """Subscribing, replaying, the dead letters and administration are asked one by one."""
    rbac.authorise("user:owner", "replay", "**", "*")
    rbac.authorise("user:owner", "admin", "actions", "work")
    rbac.authorise("agent:planner", "consume", "actions.*", "home:*")
    for action, topic, space in (
        ("consume", "**", "home:*"),
        ("consume", "actions.*", "*"),
        ("replay", "actions", "home:kitchen"),
        ("dlq", "actions", "home:kitchen"),
        ("admin", "actions", "home:kitchen"),
    ):
        with pytest.raises(Denied):
            rbac.authorise("agent:planner", action, topic, space)  # type: ignore[arg-type]  # mypy widens the tuple
    assert sink.facts() == ["denied"] * 5


def test_one_event_at_stake_counts_with_its_band_and_caps(rbac: RBACMiddleware, sink: Recorder) -> None:
    """Where an action hands out one event, its band and what it asks for are checked, and reviews recorded."""
    event = meta(space_id="home:kids", band=SecurityBand.RED, caps=("camera",))
    with pytest.raises(Denied, match="the band is RED"):
        rbac.authorise("agent:planner", "consume", "actions", "home:kids", event)
    with pytest.raises(Denied, match="not held: camera"):
        rbac.authorise("user:owner", "replay", "actions", "home:kids", event)
    rbac.authorise("user:owner", "replay", "actions", "home:kids", event, capabilities={"camera"})
    rbac.authorise("user:owner", "publish", "actions", "home:kids", event)
    assert [(record.fact, record.action) for record in sink.records[2:]] == [("consumed", "replay")]


async def test_everything_consumed_under_review_is_audited(
    rbac: RBACMiddleware, terminal: Terminal, sink: Recorder
) -> None:
    """In a space under review each delivery is recorded before anybody sees it, and synced before a checkpoint."""
    await rbac(handle(meta(), meta(space_id="home:kids")), terminal)
    (record,) = sink.records
    assert (record.fact, record.subject, record.space_id, record.offset) == (
        "consumed",
        "agent:planner",
        "home:kids",
        2,
    )
    await rbac.before_checkpoint()
    await rbac.before_checkpoint()
    assert sink.synced == 1, "nothing new to make durable"


async def test_what_cannot_be_audited_is_not_handed_out(
    rbac: RBACMiddleware, terminal: Terminal, sink: Recorder
) -> None:
    """Under review an audit that fails is a failed attempt; a denial stays one even if it cannot be recorded."""
    sink.error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        await rbac(handle(meta(space_id="home:kids")), terminal)
    assert terminal.hops == []
    assert await rbac(handle(meta("secret.x")), terminal) == Skip("denied")
    with pytest.raises(Denied):
        await rbac(publish(meta("secret.x")), terminal)


async def test_a_changed_policy_takes_effect_in_traffic(path: Path, sink: Recorder, terminal: Terminal) -> None:
    """The files are looked at while there is traffic, not more often than asked; changes are audited."""
    now = 0.0
    rbac = RBACMiddleware(PolicyEngine(path), audit=AuditTrail(sink), reload_every_s=5, clock=lambda: now)
    await rbac(publish(meta()), terminal)
    path.write_text(POLICY.replace("p, role:agent, home:*, **, publish|", "p, role:agent, home:*, **, "))
    await rbac(publish(meta()), terminal)
    now = 5.0
    with pytest.raises(Denied):
        await rbac(publish(meta()), terminal)
    path.write_text("nonsense")
    now = 10.0
    assert await rbac(handle(meta()), terminal) == Ack(), "the last good policy"
    path.write_text(POLICY)
    now = 15.0
    rbac.authorise("agent:planner", "publish", "actions", "home:kitchen")
    assert sink.facts() == ["policy_changed", "denied", "policy_rejected", "policy_changed"]
    assert sink.records[0].added == ("p, role:agent, home:*, **, consume|ack, allow",)
    assert sink.records[0].removed == ("p, role:agent, home:*, **, publish|consume|ack, allow",)


async def test_reloading_can_be_left_to_the_operator(path: Path, terminal: Terminal) -> None:
    """Without an interval the files are never looked at by themselves."""
    engine = PolicyEngine(path)
    rbac = RBACMiddleware(engine, reload_every_s=None)
    path.write_text(f"p, user:owner, *, **, *, allow\n{END}\n")
    await rbac(publish(meta()), terminal)
    assert engine.reload_if_changed()
    with pytest.raises(Denied):
        await rbac(publish(meta()), terminal)


async def test_topic_policies_restrict_hops(tmp_path: Path, path: Path, sink: Recorder, terminal: Terminal) -> None:
    """A topic's allow-list and band hold for publishing and for consuming."""
    topics = tmp_path / "topics.toml"
    topics.write_text(f'[topics.diary]\nallow = ["user:owner"]\n[topics.health]\nband = "RED"\n{END}\n')
    rbac = RBACMiddleware(PolicyEngine(path, topics=TopicPolicies(topics)), audit=AuditTrail(sink))
    await rbac(publish(meta("diary"), meta("health"), subject="user:owner"), terminal)
    for topic in ("diary", "health"):
        with pytest.raises(Denied):
            await rbac(publish(meta(topic)), terminal)
        assert await rbac(handle(meta(topic)), terminal) == Skip("denied")


async def test_no_fact_holds_anything_of_a_payload(rbac: RBACMiddleware, terminal: Terminal, sink: Recorder) -> None:
    """An audited event is named by its envelope; its payload, headers and key stay out."""
    envelope = meta("secret.x", key="private-key", headers={"h": "private-header"})
    event = Event(envelope, {"text": "private-payload"})
    with pytest.raises(Denied):
        await rbac(Hop("publish", [envelope], [1], subject="agent:planner", _events=[event]), terminal)
    (line,) = [record.to_json() for record in sink.records]
    assert "private" not in line
    assert json.loads(line)["event_id"] == envelope.event_id


async def test_receipts_pass_through(rbac: RBACMiddleware) -> None:
    """What the log answers is what the publisher gets."""
    receipts = [Receipt("home:kitchen", "actions", 7, "ev-1")]

    async def log(_: Hop) -> HopResult:
        return receipts

    assert await rbac(publish(meta()), log) is receipts
    await rbac.close()
