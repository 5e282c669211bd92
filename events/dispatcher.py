"""From a durable batch to the groups that want it, and back: who must be waited for before the next one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from events.clock import Clock
from events.errors import QueueFull
from events.names import topic_matches
from events.persistence.codec import Record
from events.persistence.store import LogName, StoreLog

if TYPE_CHECKING:
    from events.group import Group

logger = logging.getLogger("events.dispatcher")


class Dispatcher:
    """Knows which groups a log has. Groups on one exact topic are found by it, however many there are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.groups: dict[str, Group] = {}
        self._exact: dict[str, list[Group]] = {}
        self._patterns: list[Group] = []
        self._by_log: dict[LogName, tuple[Group, ...]] = {}

    def add(self, group: Group) -> None:
        """Have a group's events brought to it from now on."""
        self.groups[group.name] = group
        if "*" in group.record.topic:
            self._patterns.append(group)
        else:
            self._exact.setdefault(group.record.topic, []).append(group)
        self._by_log.clear()

    def remove(self, group: Group) -> None:
        """Bring a group nothing more."""
        self.groups.pop(group.name, None)
        if group in self._patterns:
            self._patterns.remove(group)
        same_topic = self._exact.get(group.record.topic, [])
        if group in same_topic:
            same_topic.remove(group)
        self._by_log.clear()

    def groups_of(self, name: LogName) -> tuple[Group, ...]:
        """The groups whose patterns cover a log."""
        found = self._by_log.get(name)
        if found is None:
            candidates = [
                *self._exact.get(name.topic, ()),
                *(group for group in self._patterns if topic_matches(group.record.topic, name.topic)),
            ]
            found = tuple(group for group in candidates if group.record.space in ("*", name.space_id))
            self._by_log[name] = found
        return found

    def durable(self, log: StoreLog, records: Sequence[Record]) -> None:
        """A batch is on disk: step 5. Called by the store, in offset order, before the publishers hear of it."""
        for group in self.groups_of(log.name):
            try:
                group.offer(log, records)
            except Exception:
                # A fault of our own. The batch is durable all the same, and everybody else must hear of it.
                where = {"group": group.name, "space": log.name.space_id, "topic": log.name.topic}
                logger.exception("a group could not take a batch", extra=where)

    async def wait_room(self, name: LogName, timeout_s: float) -> None:
        """Return when every blocking group at the head of the log has some room; `QueueFull` when none comes."""
        started = self._clock.monotonic()
        while True:
            full = next((group for group in self.groups_of(name) if group.holds_back(name)), None)
            if full is None:
                return
            left = timeout_s - (self._clock.monotonic() - started)
            if left <= 0 or not await full.wait_room(left):
                raise QueueFull(name.topic, full.name, timeout_s)
