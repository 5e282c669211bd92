"""Takes out of a payload, or refuses, what must not be written, before anything is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol

import orjson
from anyio import to_thread

from events.contracts import Hop, HopResult, Next, Stage
from events.errors import InvalidMessage, shown
from events.names import topic_matches
from events.types import Event, EventMeta, FrozenDict, SecurityBand, dump_model
from middleware.detectors import Detector, Span, TextDetector, ValueDetector, standard_detectors
from middleware.instruments import Registry, Sample

RedactionAction = Literal["off", "redact", "refuse"]
Decide = Callable[[str, SecurityBand | None], RedactionAction]

_IN_THREAD_BYTES: Final = 64 * 1024
_TRACE_HEADERS: Final = frozenset({"traceparent", "tracestate"})


class RedactionSettings(Protocol):
    """What `policies.topics.TopicPolicies` knows of redaction."""

    def for_topic(self, topic: str) -> Any: ...
    def band_of(self, topic: str, band: SecurityBand | None) -> SecurityBand | None: ...


Policy = RedactionAction | Mapping[str, RedactionAction] | Decide | RedactionSettings


class RedactionMiddleware:
    """Looks through payloads and headers on their way into the log.

    `policy` says where, and what then: one action for everything; a mapping of topics or globs to actions, the first
    that matches; a function of topic and band; or topic policies (`redaction`, `redaction_bands`). `redact` puts
    `[redacted:email]` in the place of what was found; `refuse` makes the publish an `InvalidMessage` that says where
    it was found, and does not repeat it. A detector that raises fails the publish: nothing unseen is written.
    """

    stage = Stage.CONTENT

    def __init__(
        self,
        policy: Policy = "redact",
        *,
        detectors: Sequence[Detector] | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._decide = _decider(policy)
        self._detectors = tuple(standard_detectors() if detectors is None else detectors)
        self.found: Counter[str] = Counter()
        if registry is not None:
            registry.counter("events_redacted_total", "What was found in payloads.", ("detector",), self._counts)

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind != "publish":
            return await call_next(hop)
        events = list(hop.events)
        changed = False
        for index, event in enumerate(events):
            action = self._decide(event.meta.topic, event.meta.band)
            if action == "off":
                continue
            clean = partial(self._cleaned, event, action)
            # A long payload takes milliseconds, in which the loop must not stand still.
            events[index] = await to_thread.run_sync(clean) if hop.sizes[index] > _IN_THREAD_BYTES else clean()
            changed = changed or events[index] is not event
        return await call_next(hop.with_events(events) if changed else hop)

    def _cleaned(self, event: Event[Any], action: RedactionAction) -> Event[Any]:
        # Decoded here and not by the event: one that nobody decoded is written byte for byte.
        raw = event.raw_payload
        detectors = self._detectors if raw is None or event.meta.headers else _promising(self._detectors, raw)
        if not detectors:
            return event
        looking = _Looking(detectors, event.meta.topic, action == "refuse")
        payload = _plain(event.payload) if raw is None else orjson.loads(raw)
        cleaned = looking.through(payload, "payload")
        meta = self._clean_headers(event.meta, looking)
        self.found.update(looking.found)
        if cleaned is not payload:
            event = event.replace(payload=cleaned)
        return event if meta is event.meta else Event.remade(event, meta)

    def _clean_headers(self, meta: EventMeta, looking: _Looking) -> EventMeta:
        if not meta.headers:
            return meta
        free = {name: text for name, text in meta.headers.items() if name not in _TRACE_HEADERS}
        cleaned = looking.through(free, "meta.headers")
        if cleaned is free:
            return meta
        kept = {name: text for name, text in meta.headers.items() if name in _TRACE_HEADERS}
        return meta.amended({"headers": FrozenDict({**kept, **cleaned})})

    def _counts(self) -> Iterable[Sample]:
        return [((name,), count) for name, count in list(self.found.items())]


class _Looking:
    """One payload being looked through. What it returns is a copy only where something was found."""

    def __init__(self, detectors: Sequence[Detector], topic: str, refuses: bool) -> None:
        self._whole = [one for one in detectors if isinstance(one, ValueDetector)]
        self._parts = [one for one in detectors if isinstance(one, TextDetector)]
        self._topic, self._refuses = topic, refuses
        # Where we are. Joined only for an error: a long name would be copied for everything below it.
        self._path: list[str | int] = []
        self.found: Counter[str] = Counter()

    def through(self, value: Any, root: str) -> Any:
        """The value without what was found; the same object where nothing was."""
        self._path = [root]
        return self._at(value, None)

    def _at(self, value: Any, key: str | None) -> Any:
        for whole in self._whole:
            if whole.covers(value, key):
                self._take(whole.name)
                return _mask(whole.name)
        if isinstance(value, str):
            return self._text(value, key)
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            cleaned = [self._below(index, one, key) for index, one in enumerate(value)]
            return cleaned if any(new is not old for new, old in zip(cleaned, value, strict=True)) else value
        return value

    def _below(self, step: str | int, value: Any, key: str | None) -> Any:
        self._path.append(step)
        cleaned = self._at(value, key)
        self._path.pop()
        return cleaned

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        changed = False
        for name, inner in value.items():
            new_name = self._text(name, None)
            new = self._below(new_name, inner, name)
            changed = changed or new is not inner or new_name is not name
            cleaned[_unused(new_name, cleaned, value) if new_name is not name else name] = new
        return cleaned if changed else value

    def _text(self, text: str, key: str | None) -> str:
        spans: list[tuple[Span, str]] = []
        for part in self._parts:
            for span in part.find(text, key):
                self._take(part.name)
                spans.append((span, part.name))
        if not spans:
            return text
        pieces, end = [], 0
        # Of two that overlap the one that begins first is named; both are gone.
        for (start, stop), name in sorted(spans, key=lambda found: (found[0][0], -found[0][1])):
            if start >= end:
                pieces += [text[end:start], _mask(name)]
            end = max(end, stop)
        return "".join([*pieces, text[end:]])

    def _take(self, name: str) -> None:
        if self._refuses:
            steps = (f"[{step}]" if isinstance(step, int) else f".{step[:80]}" for step in self._path[:20])
            raise InvalidMessage(
                shown("".join(steps)[1:])[1:-1],
                f"[{name}]",
                f"the policy of topic {str(self._topic)!r} refuses it, and nothing was written",
                hint="Take it out, or put a reference in its place",
            )
        self.found[name] += 1


def _promising(detectors: Sequence[Detector], raw: bytes) -> Sequence[Detector]:
    """The detectors that might find something in a payload; all of them where its bytes are not its text."""
    if not raw.isascii() or b"\\" in raw:
        return detectors
    return [one for one in detectors if not hasattr(one, "may_find") or one.may_find(raw)]


def _mask(name: str) -> str:
    return f"[redacted:{name}]"


def _unused(name: str, taken: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Two names that were redacted alike must both stay."""
    number, free = 1, name
    while free in taken or free in others:
        number += 1
        free = f"{name}#{number}"
    return free


def _plain(payload: Any) -> Any:
    return dict(payload) if isinstance(payload, Mapping) else dump_model(payload)


def _decider(policy: Policy) -> Decide:
    if isinstance(policy, str):
        action = policy
        return lambda topic, band: action
    if isinstance(policy, Mapping):
        actions = tuple(policy.items())
        return lambda topic, band: next((action for glob, action in actions if topic_matches(glob, topic)), "off")
    if callable(policy):
        return policy
    return partial(_by_settings, policy)


def _by_settings(settings: RedactionSettings, topic: str, band: SecurityBand | None) -> RedactionAction:
    found = settings.for_topic(topic)
    bands = found.redaction_bands
    if bands is not None and (settings.band_of(topic, band) or SecurityBand.GREEN) not in bands:
        return "off"
    action: RedactionAction = found.redaction or "off"
    return action
