"""Cognitive Events: an embedded, durable, at-least-once event bus for the modules of an agent.

Layout, for whoever comes next. `types`, `errors`, `names`, `contracts` know nothing of each other's users.
`persistence` is everything on disk, behind the `Store` contract. `bus` opens it and starts the rest: `dispatcher`
brings durable batches to a `group`, `feeding` reads what it missed, `working` runs handlers, `settling` ends
deliveries, `checkpointer` saves. `surface` is what people call; `blocking` is that without an event loop; `testing`
is for testing what is built on it. Filters and middleware live in packages of their own beside this one.
"""

from events.attention_gate import Admit, AttentionGate, Boost, CompositeGate, Defer, Drop, GateContext
from events.blocking import BlockingBus
from events.bus import EventBus, Health, Statistics
from events.config import BusConfig
from events.contracts import DeadLetter, Delivery, Filter, Hop, Middleware, Skip, Stage
from events.dlq import DeadLetterInfo, DLQInspector
from events.errors import (
    BusClosed,
    BusError,
    CorruptLog,
    Denied,
    GroupConflict,
    InvalidGroup,
    InvalidMessage,
    InvalidSpace,
    InvalidTopic,
    NoSubscriber,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    StorageError,
    StorageFull,
    TopicAlreadyHandled,
    TopicFrozen,
    UnknownGroup,
    WorkspaceLocked,
    error_code_of,
)
from events.persistence import MemoryStore, WalSettings, WalStore
from events.publisher import Publisher
from events.replay import ReplayRecord
from events.subscription import Subscription, SubscriptionRegistry
from events.types import (
    Ack,
    Actor,
    Capability,
    Device,
    Event,
    EventMeta,
    EventType,
    Nack,
    QoS,
    Receipt,
    SecurityBand,
)

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Actor",
    "Admit",
    "AttentionGate",
    "BlockingBus",
    "Boost",
    "BusClosed",
    "BusConfig",
    "BusError",
    "Capability",
    "CompositeGate",
    "CorruptLog",
    "DLQInspector",
    "DeadLetter",
    "DeadLetterInfo",
    "Defer",
    "Delivery",
    "Denied",
    "Device",
    "Drop",
    "Event",
    "EventBus",
    "EventMeta",
    "EventType",
    "Filter",
    "GateContext",
    "GroupConflict",
    "Health",
    "Hop",
    "InvalidGroup",
    "InvalidMessage",
    "InvalidSpace",
    "InvalidTopic",
    "MemoryStore",
    "Middleware",
    "Nack",
    "NoSubscriber",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "Publisher",
    "QoS",
    "QueueFull",
    "Receipt",
    "ReplayRecord",
    "SecurityBand",
    "Skip",
    "Stage",
    "Statistics",
    "StorageError",
    "StorageFull",
    "Subscription",
    "SubscriptionRegistry",
    "TopicAlreadyHandled",
    "TopicFrozen",
    "UnknownGroup",
    "WalSettings",
    "WalStore",
    "WorkspaceLocked",
    "error_code_of",
]
