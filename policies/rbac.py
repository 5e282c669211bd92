"""Who may do what: decisions, the lines that made them, and the policy files they come from.

A request is allowed when a line allows it, no line denies it, and the subject's clearance reaches the band of
the event at stake. What a topic asks for itself (its allow-list and band in topics.toml) can only take away.
A request for a pattern must be allowed for everything that the pattern covers.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from events.errors import InvalidMessage, shown
from events.names import check_space, check_topic_pattern
from events.types import SecurityBand
from policies.files import Line, PolicyError, Reloading, Source, replace_file
from policies.judge import Function, Judge, Model
from policies.matching import space_applies, topic_applies
from policies.rules import (
    ACTIONS,
    ANONYMOUS,
    EVERYONE,
    SUBJECT_RULE,
    Clearance,
    Membership,
    Permission,
    Review,
    Rule,
    is_subject,
    parse_policy,
    render_policy,
)
from policies.topics import TopicPolicies

_CACHED_DECISIONS: Final = 65_536
_CACHED_SUBJECTS: Final = 8_192
_CACHED_JUDGES: Final = 256

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Decision:
    """Yes or no, why, and the line that said no if one did."""

    allowed: bool
    reason: str
    line: Line | None = None

    def __str__(self) -> str:
        return f"{self.reason} ({self.line})" if self.line else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision and how it came about: the line that decided, and the lines which that one rests on."""

    subject: str
    action: str
    topic: str
    space_id: str
    allowed: bool
    reason: str
    line: Line | None = None
    because: tuple[Line, ...] = ()

    def __str__(self) -> str:
        asked = f"{self.subject} {self.action} {shown(self.topic)} in {shown(self.space_id)}"
        lines = [f"{'yes' if self.allowed else 'no'}: {asked}: {self.reason}"]
        lines += [f"  {self.line}"] if self.line else []
        return "\n".join([*lines, *(f"  because {line}" for line in self.because)])


class Policy:
    """One policy, immutable, with a cache of its own: a new policy cannot start with an old one's decisions.

    Any thread may ask. An exception is no decision, and is not remembered.
    """

    def __init__(self, rules: Iterable[Rule], model: Model, *, cache_size: int = _CACHED_DECISIONS) -> None:
        self.rules = tuple(rules)
        self.digest = hashlib.sha256("\n".join([model.text, *map(str, self.rules)]).encode()).hexdigest()
        self._model = model
        self._permissions = [rule for rule in self.rules if isinstance(rule, Permission)]
        self._lines: dict[tuple[str, str], list[int]] = {}
        for index, permission in enumerate(self._permissions):
            self._lines.setdefault((permission.effect, permission.subject), []).append(index)
        self._clearances = [rule for rule in self.rules if isinstance(rule, Clearance)]
        self._reviews = [rule for rule in self.rules if isinstance(rule, Review)]
        self._memberships: dict[str, list[Membership]] = {}
        for rule in self.rules:
            if isinstance(rule, Membership):
                self._memberships.setdefault(rule.subject, []).append(rule)
        self._functions: dict[str, Function] = {
            "holds": self._holds,
            "in_space": space_applies,
            "on_topic": topic_applies,
            "does": _does,
        }
        self._judge = lru_cache(_CACHED_JUDGES)(self._new_judge)
        self._names = lru_cache(_CACHED_SUBJECTS)(self._find_names)
        self._clearance = lru_cache(_CACHED_SUBJECTS)(self._find_clearance)
        self._decide = lru_cache(cache_size)(lambda *request: self._find(*request)[0])
        self._reviewed = lru_cache(_CACHED_SUBJECTS)(self._find_review)

    def decide(
        self, subject: str | None, action: str, topic: str, space_id: str, band: SecurityBand | None = None
    ) -> Decision:
        """Whether the subject may. Raises only when that cannot be told."""
        return self._decide(subject, action, topic, space_id, band)

    def explain(
        self, subject: str | None, action: str, topic: str, space_id: str, band: SecurityBand | None = None
    ) -> Explanation:
        """The same decision, found anew, with the lines that led to it."""
        name = ANONYMOUS if subject is None else subject
        decision, rule = self._find(subject, action, topic, space_id, band)
        cleared = None
        if decision.allowed:
            rule = self._first_allowing(name, action, topic, space_id)
            cleared = self._clearance(name, space_id)[1]
        because = [] if rule is None else [*self._way_to(rule, name, space_id), cleared]
        return Explanation(
            subject=name,
            action=action,
            topic=topic,
            space_id=space_id,
            allowed=decision.allowed,
            reason=decision.reason,
            line=rule.line if rule else None,
            because=tuple(step.line for step in because if step and step.line),
        )

    def names(self, subject: str | None, space_id: str) -> Collection[str]:
        """Every name by which a line may allow the subject something in a space: its own, and its roles."""
        return self._names(ANONYMOUS if subject is None else subject, space_id, "allow").keys()

    def clearance(self, subject: str | None, space_id: str) -> SecurityBand:
        """The highest band that the subject may see in a space."""
        return self._clearance(ANONYMOUS if subject is None else subject, space_id)[0]

    def reviewed(self, topic: str, space_id: str) -> bool:
        """Whether what is consumed there must be audited."""
        return self._reviewed(topic, space_id)

    def _find(
        self, subject: str | None, action: str, topic: str, space_id: str, band: SecurityBand | None
    ) -> tuple[Decision, Permission | Clearance | None]:
        name = ANONYMOUS if subject is None else subject
        wrong = _wrong_name(name, action, topic, space_id)
        if wrong:
            return Decision(False, wrong), None
        topic = check_topic_pattern(topic)
        lines = self._lines_about(name, space_id)
        allowed, denying = self._judge(lines).ask(name, space_id, topic, action) if lines else (False, None)
        if denying is not None:
            return Decision(False, "a line denies it", denying.line), denying
        if not allowed:
            return Decision(False, "no line allows it"), None
        needed = SecurityBand.GREEN if band is None else SecurityBand(band)
        clearance, rule = self._clearance(name, space_id)
        if needed > clearance:
            reason = f"the band is {needed}, and the clearance there {clearance}"
            return Decision(False, reason, rule.line if rule else None), rule
        return Decision(True, f"allowed, with clearance up to {clearance}"), None

    def _lines_about(self, subject: str, space_id: str) -> tuple[int, ...]:
        """The lines for which the matcher's first term holds: casbin is slow, so it gets only those."""
        about = [
            index
            for effect in ("allow", "deny")
            for name in self._names(subject, space_id, effect)
            for index in self._lines.get((effect, name), ())
        ]
        return tuple(sorted(about))

    def _new_judge(self, lines: tuple[int, ...]) -> Judge:
        return Judge(self._model, [self._permissions[i] for i in lines], self._functions)

    def _holds(self, subject: str, ruled: str, space_id: str, effect: str) -> bool:
        return ruled in self._names(subject, space_id, effect)

    def _find_names(self, subject: str, space_id: str, effect: str) -> dict[str, tuple[Membership, ...]]:
        """The names of a subject, each with the memberships that lead to it.

        Casbin's role manager stops after ten levels and takes an error in a domain matcher for "no", so that
        a role which is denied something could get lost; and it keeps every name it was ever asked for.
        """
        names: dict[str, tuple[Membership, ...]] = {subject: ()}
        if ":" in subject:
            names[subject.split(":", 1)[0] + ":*"] = ()
        if subject != ANONYMOUS or effect != "allow":
            names[EVERYONE] = ()
        waiting = deque(names)
        while waiting:
            name = waiting.popleft()
            for membership in self._memberships.get(name, ()):
                if membership.role not in names and space_applies(space_id, membership.space, effect):
                    names[membership.role] = (*names[name], membership)
                    waiting.append(membership.role)
        return names

    def _find_clearance(self, subject: str, space_id: str) -> tuple[SecurityBand, Clearance | None]:
        highest: tuple[SecurityBand, Clearance | None] = (SecurityBand.GREEN, None)
        for rule in self._clearances:
            held = self._holds(subject, rule.subject, space_id, "allow")
            if held and space_applies(space_id, rule.space, "allow") and SecurityBand(rule.band) > highest[0]:
                highest = SecurityBand(rule.band), rule
        return highest

    def _find_review(self, topic: str, space_id: str) -> bool:
        return any(
            space_applies(space_id, rule.space, "deny") and topic_applies(topic, rule.topic, "deny")
            for rule in self._reviews
        )

    def _first_allowing(self, subject: str, action: str, topic: str, space_id: str) -> Permission:
        """The first line that allows it by itself: casbin names only the lines that deny."""
        for index in self._lines_about(subject, space_id):
            if self._judge((index,)).ask(subject, space_id, topic, action)[0]:
                return self._permissions[index]
        raise RuntimeError("the lines allow together what none of them allows")

    def _way_to(self, rule: Permission | Clearance, subject: str, space_id: str) -> tuple[Rule, ...]:
        effect = rule.effect if isinstance(rule, Permission) else "allow"
        return self._names(subject, space_id, effect)[rule.subject]


class PolicyEngine(Reloading[Policy]):
    """The policy in force, from the user's files or the packaged ones. Any thread may use it."""

    def __init__(
        self,
        policy: FilePath | None = None,
        model: FilePath | None = None,
        *,
        topics: TopicPolicies | None = None,
        cache_size: int = _CACHED_DECISIONS,
    ) -> None:
        self._policy, self._model = Source.of(policy, "policy.csv"), Source.of(model, "model.conf")
        self._own_file = None if policy is None else Path(policy)
        self._cache_size = cache_size
        self.topics = topics
        super().__init__([self._policy, self._model], self._read)

    @classmethod
    def of_folder(cls, folder: FilePath) -> PolicyEngine:
        """The policies in a folder; a file that is not there now stays the packaged one."""
        paths = [Path(folder) / name for name in ("policy.csv", "model.conf", "topics.toml")]
        policy, model, topics = (path if path.exists() else None for path in paths)
        return cls(policy, model, topics=TopicPolicies(topics))

    def decide(
        self,
        subject: str | None,
        action: str,
        topic: str,
        space_id: str,
        band: SecurityBand | None = None,
        caps: Collection[str] | None = None,
        capabilities: Collection[str] = frozenset(),
    ) -> Decision:
        """Whether the subject may, by policy, by what the topic asks for, and by what the event asks for.

        `caps` are the event's, `capabilities` what the subject's subscription holds of them.
        """
        policy = self.current
        decision = policy.decide(subject, action, topic, space_id, self._band(topic, band))
        if not decision.allowed:
            return decision
        if self.topics is not None:
            for allow_list in self.topics.allow_lists(topic):
                if allow_list.names.isdisjoint(policy.names(subject, space_id)):
                    return Decision(False, "the topic's allow-list does not name the subject", allow_list.line)
        if caps and not frozenset(capabilities).issuperset(caps):
            missing = ", ".join(sorted(set(caps) - set(capabilities)))
            return Decision(False, f"the event asks for capabilities that are not held: {missing}")
        return decision

    def explain(
        self,
        subject: str | None,
        action: str,
        topic: str,
        space_id: str,
        band: SecurityBand | None = None,
        caps: Collection[str] | None = None,
        capabilities: Collection[str] = frozenset(),
    ) -> Explanation:
        """What `decide` says, and the line that decided."""
        decision = self.decide(subject, action, topic, space_id, band, caps, capabilities)
        explanation = self.current.explain(subject, action, topic, space_id, self._band(topic, band))
        if decision.allowed or not explanation.allowed:
            return explanation
        return replace(explanation, allowed=False, reason=decision.reason, line=decision.line, because=())

    def save(self, rules: Iterable[Rule]) -> bool:
        """Write the rules in the place of the policy file, and reload. Comments in the file are not kept."""
        if self._own_file is None:
            raise PolicyError(self._policy.name, None, "the packaged policy is not written to; give a path")
        replace_file(self._own_file, render_policy(rules))
        return self.reload()

    def changed(self) -> bool:
        """Whether any of the files, topics.toml included, differs from what was last read."""
        return super().changed() or (self.topics is not None and self.topics.changed())

    def reload(self) -> bool:
        """Read the files anew, each keeping its last good content. True when all of them are in force."""
        topics_in_force = self.topics is None or self.topics.reload()
        return super().reload() and topics_in_force

    def _read(self) -> Policy:
        model = Model(self._model.read(), self._model.name)
        rules = parse_policy(self._policy.read(), self._policy.name)
        return Policy(rules, model, cache_size=self._cache_size)

    def _band(self, topic: str, band: SecurityBand | None) -> SecurityBand | None:
        return band if self.topics is None else self.topics.band_of(topic, band)


def _does(asked: str, ruled: str) -> bool:
    return ruled == "*" or asked in ruled.split("|")


def _wrong_name(subject: object, action: object, topic: str, space_id: str) -> str:
    """Why casbin must not even see these names; empty when it may."""
    if not is_subject(subject):
        return f"{shown(subject)} is nobody who can ask: {SUBJECT_RULE}, and a role is not a subject"
    if action not in ACTIONS:
        return f"{shown(action)} is no action: {', '.join(ACTIONS)}"
    try:
        check_topic_pattern(topic)
        check_space(space_id)
    except InvalidMessage as error:
        return str(error)
    return ""
