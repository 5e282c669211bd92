"""Payloads by their models: checked when published, as far as the topic asks for it, and lifted when read.

`payload_schema` of a topic's policy is `off`, `lenient` (a payload that does not fit is let through, counted, and
logged once for each fault) or `strict` (it is refused). A type that the taxonomy does not know is nobody's business.
Put it before redaction: what is checked is what the producer said.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final, Literal

from events.config import TopicSettings
from events.contracts import Hop, HopResult, Next, Stage
from events.taxonomy import Taxonomy
from events.types import Event

Mode = Literal["off", "lenient", "strict"]
_MAX_KNOWN_FAULTS: Final = 1_000
logger = logging.getLogger("events.schemas")


class PayloadSchemaMiddleware:
    """Checks what is published, and hands every consumer the newest version of what it reads.

    `topics` are the topic policies; without them, and for a topic that sets nothing, `default` holds. `faults` counts
    the payloads that did not fit, by topic and type.
    """

    stage = Stage.CONTENT

    def __init__(self, taxonomy: Taxonomy, topics: TopicSettings | None = None, *, default: Mode = "lenient") -> None:
        self._taxonomy = taxonomy
        self._topics = topics
        self._default = default
        self._reported: set[tuple[str, str, str]] = set()
        self.faults: Counter[tuple[str, str]] = Counter()

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish":
            for event in hop.events:
                self._check(event)
            return await call_next(hop)
        lifted = [self._taxonomy.lifted(event) for event in hop.events]
        if any(after is not before for before, after in zip(hop.events, lifted, strict=True)):
            hop = hop.with_events(lifted)
        return await call_next(hop)

    def _check(self, event: Event[Any]) -> None:
        mode = self._mode(str(event.meta.topic))
        if mode == "off":
            return
        fault = self._taxonomy.fault(event)
        if fault is None:
            return
        topic, type = str(event.meta.topic), str(event.meta.type)
        self.faults[topic, type] += 1
        if mode == "strict":
            raise fault
        first_seen = (topic, type, fault.field)
        if first_seen not in self._reported and len(self._reported) < _MAX_KNOWN_FAULTS:
            self._reported.add(first_seen)
            # Field and rule, never the value: a payload has no place in a log that is shipped elsewhere.
            where = {"topic": topic, "space": event.meta.space_id, "type": type, "event_id": event.meta.event_id}
            logger.warning("a payload does not fit its model: %s: %s", fault.field, fault.allowed, extra=where)

    def _mode(self, topic: str) -> Mode:
        asked: Mode | None = None
        if self._topics is not None:
            asked = getattr(self._topics.for_topic(topic), "payload_schema", None)
        return self._default if asked is None else asked
