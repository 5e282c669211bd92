"""The public surface of `events` is what this list says: a name that comes or goes is a decision, not an accident."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import events

NAMES = [
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

SEED_PATHS = {
    "events.bus": ["EventBus"],
    "events.types": ["Event", "EventMeta", "EventType", "Ack", "Nack", "Actor", "Device", "QoS", "SecurityBand"],
    "events.subscription": ["SubscriptionRegistry"],
    "events.filters": ["SimpleFilter", "CompoundFilter", "JSONPathFilter", "CustomFunctionFilter"],
    "events.middleware": ["TracingMiddleware", "MetricsMiddleware"],
    "events.attention_gate": ["AttentionGate"],
    "events.testing.clock": ["FakeClock"],
    "events.testing.recording": ["Recorder"],
    "events.testing.faulty": ["FaultyStore"],
}


def test_the_list_is_the_surface() -> None:
    """What `from events import *` brings, in the order in which it is kept."""
    assert sorted(events.__all__) == sorted(NAMES)
    assert list(events.__all__) == sorted(events.__all__)
    assert events.__version__.count(".") == 2


@pytest.mark.parametrize("name", NAMES)
def test_each_name_can_be_imported(name: str) -> None:
    """A name on the list is there, and says what it is."""
    value = getattr(events, name)
    assert value is not None
    if isinstance(value, type):
        assert value.__doc__


@pytest.mark.parametrize(("module", "names"), SEED_PATHS.items())
def test_the_paths_of_the_seed_lead_there(module: str, names: list[str]) -> None:
    """The import paths that users know are kept; where a thing lives elsewhere, it is the same thing."""
    found = importlib.import_module(module)
    for name in names:
        assert hasattr(found, name)
        if hasattr(events, name):
            assert getattr(events, name) is getattr(found, name)


def test_importing_the_bus_loads_nothing_heavy() -> None:
    """A module that publishes should not pay for Spark, casbin or a test framework."""
    code = (
        "import sys, events; print(*[name for name in ('pyspark', 'casbin', 'pytest', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
