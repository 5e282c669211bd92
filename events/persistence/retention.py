"""Deleting old segments: compaction takes what every group has settled, retention what its limits say."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from events.names import topic_matches
from events.persistence.store import GroupRecord, LogName, Store

logger = logging.getLogger("events.retention")


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was deleted of a log, and which groups had not settled it yet, with what they lost."""

    name: LogName
    first_before: int
    first_now: int
    robbed: tuple[tuple[str, int], ...] = ()


def groups_of(name: LogName, groups: Iterable[GroupRecord]) -> list[GroupRecord]:
    """The registered groups whose patterns cover a log."""
    return [group for group in groups if group.space in ("*", name.space_id) and topic_matches(group.topic, name.topic)]


async def compact(store: Store, name: LogName) -> Dropped:
    """Delete the sealed segments that every group of the log has settled (rule F5). No group, no compaction."""
    log = await store.log(name)
    before = log.first_offset
    groups = groups_of(name, await store.groups())
    if not groups:
        return Dropped(name, before, before)
    settled = min([await store.settled_by(name, group.name) for group in groups])
    return Dropped(name, before, await log.drop_before(settled + 1))


async def retain(
    store: Store, name: LogName, *, now_ms: int, max_age_s: float | None = None, max_bytes: int | None = None
) -> Dropped:
    """Delete the sealed segments beyond the limits, settled or not. Says which group it robbed."""
    log = await store.log(name)
    before = log.first_offset
    keep_from = before
    if max_age_s is not None:
        keep_from = max(keep_from, await log.offset_at(now_ms - int(max_age_s * 1000)))
    if max_bytes is not None:
        keep_from = max(keep_from, await log.offset_within(max_bytes))
    first = await log.drop_before(keep_from)
    robbed: list[tuple[str, int]] = []
    if first > before:
        for group in groups_of(name, await store.groups()):
            settled = await store.settled_by(name, group.name)
            if settled + 1 < first:
                robbed.append((group.name, first - 1 - max(settled, before - 1)))
                where = {"space": name.space_id, "topic": name.topic, "group": group.name, "events": robbed[-1][1]}
                logger.warning("retention deleted events that a group had not settled", extra=where)
    return Dropped(name, before, first, tuple(robbed))
