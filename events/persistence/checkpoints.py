"""Group records and checkpoints as the JSON that stands in their files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from events.persistence.store import Attempts, Checkpoint, Deferral, GroupRecord


def group_to(record: GroupRecord) -> dict[str, Any]:
    """The data of a group's record."""
    return {
        "group": record.name,
        "topic": record.topic,
        "space": record.space,
        "filters": [dict(described) for described in record.filters],
        "start": record.start,
        "start_value": record.start_value,
        "ends": {space: dict(topics) for space, topics in record.ends.items()},
        "held": record.held,
        "created_ms": record.created_ms,
    }


def group_from(data: Mapping[str, Any]) -> GroupRecord:
    """The record of a group, as it was saved."""
    return GroupRecord(
        name=data["group"],
        topic=data["topic"],
        space=data["space"],
        filters=tuple(data["filters"]),
        start=data["start"],
        start_value=data["start_value"],
        ends=data["ends"],
        held=data["held"],
        created_ms=data["created_ms"],
    )


def checkpoint_to(checkpoint: Checkpoint, now_ms: int) -> dict[str, Any]:
    """The data of a checkpoint; `ts` is for people."""
    return {
        "log": checkpoint.log_id,
        "committed": checkpoint.committed,
        "ts": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "ranges": checkpoint.ranges,
        "attempts": {str(offset): _attempts_to(attempts) for offset, attempts in checkpoint.attempts.items()},
        "deferrals": {
            str(offset): [held.due_ms, held.delay_ms, held.times] for offset, held in checkpoint.deferrals.items()
        },
        "retries": [[*identity, _attempts_to(attempts)] for identity, attempts in checkpoint.retries.items()],
        "dead_letters": checkpoint.dead_letters,
    }


def checkpoint_from(data: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint, as it was saved."""
    return Checkpoint(
        log_id=data["log"],
        committed=data["committed"],
        ranges=tuple((first, last) for first, last in data["ranges"]),
        attempts={int(offset): _attempts_from(attempts) for offset, attempts in data["attempts"].items()},
        deferrals={int(offset): Deferral(*held) for offset, held in data["deferrals"].items()},
        retries={
            (offset, dlq_round, entry): _attempts_from(attempts)
            for offset, dlq_round, entry, attempts in data["retries"]
        },
        dead_letters=data["dead_letters"],
    )


def _attempts_to(attempts: Attempts) -> dict[str, Any]:
    return {
        "count": attempts.count,
        "due_ms": attempts.due_ms,
        "delay_ms": attempts.delay_ms,
        "errors": attempts.errors,
        "running": attempts.running,
        "alone": attempts.alone,
        "spared": attempts.spared,
    }


def _attempts_from(data: Mapping[str, Any]) -> Attempts:
    return Attempts(
        count=data["count"],
        due_ms=data["due_ms"],
        delay_ms=data["delay_ms"],
        errors=tuple(data["errors"]),
        running=data["running"],
        alone=data.get("alone", False),
        spared=data.get("spared", 0),
    )
