"""How many dead letters still need somebody, told from the dead-letter logs: each line of them is read once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from events.deadletters import Death, OpenDeaths, read_entries
from events.errors import BusError
from events.persistence.codec import Record
from events.persistence.store import LogName, Store, StoreLog

_NO_EVENT: Final = Record(0, b"", 0, 0)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A dead-letter log as far as it was read."""

    log: StoreLog
    next: int = 1
    open: OpenDeaths = field(default_factory=OpenDeaths)


class DeadLetterDepth:
    """Follows the dead-letter logs of a store: deaths, the ends of their retries, and purges alike."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: dict[LogName, _Followed] = {}
        self._found: set[LogName] = set()
        self._is_reading = False

    async def find(self) -> None:
        """Look for dead letters of earlier days."""
        for name in await self._store.log_names():
            if await self._store.has_dead_letters(name):
                self._found.add(name)
        await self.refresh()

    def expect(self, name: LogName) -> None:
        """A log has a dead letter now."""
        if name not in self._followed:
            self._found.add(name)

    async def refresh(self) -> None:
        """Read what was written since. May be called at any time; what cannot be read now is read next time."""
        if self._is_reading:
            return
        self._is_reading = True
        try:
            while self._found:
                name = next(iter(self._found))
                self._followed[name] = _Followed(await self._store.dead_letters(name))
                self._found.discard(name)
            for followed in self._followed.values():
                if followed.next < followed.log.next_offset:
                    await self._read(followed)
        except (OSError, BusError) as error:
            log.warning("the dead letters could not be counted: %s", error)
        finally:
            self._is_reading = False

    async def _read(self, followed: _Followed) -> None:
        async for entry in read_entries(followed.log, followed.next):
            followed.next = entry.line + 1
            # Only that it died is of interest: the event itself would be kept in memory for nothing.
            followed.open.add(replace(entry, record=_NO_EVENT, errors=()) if isinstance(entry, Death) else entry)

    def by_topic(self) -> Mapping[str, int]:
        """The open dead letters of each topic, over all spaces and groups."""
        depth: Counter[str] = Counter()
        for name, followed in list(self._followed.items()):
            depth[name.topic] += len(followed.open.deaths)
        return depth
