"""What a running bus deletes by itself: what topic policies say is too old or too much, and what all have settled."""

from __future__ import annotations

import logging
from collections import Counter

from events.clock import Clock
from events.config import BusConfig
from events.errors import BusError
from events.persistence.retention import Dropped, compact, retain
from events.persistence.store import LogName, Store

logger = logging.getLogger("events.maintenance")


class Maintenance:
    """One task for the bus. Retention is per topic and explicit; compaction is off unless the settings ask for it."""

    def __init__(self, store: Store, clock: Clock, config: BusConfig) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self.robbed: Counter[str] = Counter()

    async def run(self) -> None:
        """Look at every log now and then, until cancelled."""
        while True:
            await self._clock.sleep(self._config.maintenance_interval_s)
            await self.once()

    async def once(self) -> list[Dropped]:
        """Look at every log now; what was deleted."""
        dropped: list[Dropped] = []
        for name in await self._store.log_names():
            try:
                dropped += await self._tend(name)
            except (OSError, BusError) as error:
                where = {"space": name.space_id, "topic": name.topic}
                logger.warning("a log could not be trimmed, and will be tried again: %s", error, extra=where)
        return [one for one in dropped if one.first_now > one.first_before]

    async def _tend(self, name: LogName) -> list[Dropped]:
        done: list[Dropped] = []
        if self._config.compact:
            done.append(await compact(self._store, name))
        settings = self._config.topic(name.topic)
        max_age_s, max_bytes = settings("retention_s"), settings("retention_bytes")
        if max_age_s is not None or max_bytes is not None:
            now_ms = self._clock.now_ms()
            kept = await retain(self._store, name, now_ms=now_ms, max_age_s=max_age_s, max_bytes=max_bytes)
            self.robbed.update(dict(kept.robbed))
            done.append(kept)
        return done
