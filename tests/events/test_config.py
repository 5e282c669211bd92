"""The settings of a bus: frozen, with defaults that the design names, and policies by topic above them."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest

from events.config import BusConfig, OnExpired, Ordering, Overflow
from events.group import GroupOptions


def test_settings_are_frozen_and_keyword_only() -> None:
    """One object, every limit in it, and nobody changes it under a running bus."""
    config = BusConfig(workers=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.workers = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        BusConfig(3)  # type: ignore[arg-type, call-arg]
    assert dataclasses.replace(config, batch=2).workers == 3


def test_the_defaults_are_those_of_the_design() -> None:
    """W6, W7, W9, W12: what somebody gets who sets nothing."""
    config = BusConfig()
    assert (config.backoff_base, config.backoff_mult, config.backoff_max, config.max_retries) == (0.5, 2.0, 30.0, 5)
    assert (config.publish_timeout_s, config.overflow, config.ordering, config.on_expired) == (
        30.0,
        "block",
        "key",
        "drop",
    )
    assert (config.strict_topics, config.compact, config.ack_deadline_s) == (None, False, None)
    assert (config.wal.sync, config.wal.segment_bytes) == ("always", 16 * 1024 * 1024)


def test_every_setting_of_a_subscription_has_a_default() -> None:
    """Settings: what `subscribe` takes, `BusConfig` has under the same name."""
    names = {field.name for field in dataclasses.fields(BusConfig)}
    assert {field.name for field in dataclasses.fields(GroupOptions)} <= names


def test_the_choices_are_those_of_the_design() -> None:
    """W5, W9, W12."""
    assert get_args(Ordering) == ("key", "topic", "none")
    assert get_args(Overflow) == ("block", "spill")
    assert get_args(OnExpired) == ("drop", "dlq", "deliver")


def test_a_policy_speaks_for_its_topic_and_no_other() -> None:
    """Settings: by the name of the setting; None where it says nothing, and for patterns."""

    class Policy:
        workers = 7

    class Policies:
        def for_topic(self, topic: str) -> Any:
            return Policy() if topic == "actions" else None

    config = BusConfig(topics=Policies())
    assert config.topic("actions")("workers") == 7
    assert config.topic("actions")("batch") is None
    assert config.topic("notes")("workers") is None
    assert config.topic("*")("workers") is None
    assert BusConfig().topic("actions")("workers") is None
