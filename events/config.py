"""The settings of a bus: one frozen object, every limit in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from events.persistence.wal import WalSettings

Ordering = Literal["key", "topic", "none"]
Overflow = Literal["block", "spill"]
OnExpired = Literal["drop", "dlq", "deliver"]


class TopicSettings(Protocol):
    """Settings by topic, from a policy file: an object whose attributes are named like those of `BusConfig`.

    An attribute that is missing or None is not set there. `policies.TopicPolicies` is one.
    """

    def for_topic(self, topic: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """Defaults for everything; `subscribe` and topic policies say otherwise where they want to.

    Retries wait a random time up to `backoff_base * backoff_mult ** i` seconds, at most `backoff_max`. A group holds
    up to `max_inflight` events that are queued or running, and `max_parked` offsets of events that back off, are
    deferred, or stand behind one that does. `settle_span` is how far beyond its last checkpoint a group may work: the
    most that must be handled with care after a crash. `topics` are policies by topic, which come before these; and
    `compact` has the bus delete segments that every group has settled. `gate_journal_bytes` bounds what is kept of the
    attention gate's decisions for each group of a topic, by whole segments.
    """

    wal: WalSettings = field(default_factory=WalSettings)
    max_event_bytes: int = 1024 * 1024
    publish_timeout_s: float = 30.0
    workers: int = 1
    max_inflight: int = 1024
    max_parked: int = 10_000
    batch: int = 1
    ordering: Ordering = "key"
    overflow: Overflow = "block"
    backoff_base: float = 0.5
    backoff_mult: float = 2.0
    backoff_max: float = 30.0
    max_retries: int = 5
    ack_deadline_s: float | None = None
    on_expired: OnExpired = "drop"
    checkpoint_interval_s: float = 0.1
    settle_span: int = 16_384
    max_deferrals: int = 10
    gate_journal_bytes: int = 64 * 1024 * 1024
    max_error_chars: int = 500
    sync_handler_threads: int = 64
    read_bytes: int = 256 * 1024
    strict_topics: tuple[str, ...] | None = None
    topics: TopicSettings | None = None
    compact: bool = False
    maintenance_interval_s: float = 60.0

    def topic(self, topic: str) -> Callable[[str], Any]:
        """What the policies say of a topic, by the name of the setting; None where they say nothing."""
        policy = self.topics.for_topic(topic) if self.topics is not None and "*" not in topic else None
        return lambda name: getattr(policy, name, None)
