"""The dead-letter inspector: what died and why, trying it again, forgetting it.

It needs a store, not a bus: `DLQInspector("workspace")` works on a workspace that nobody holds, and its reading
calls beside a running bus too. `bus.dlq` is the same on a live bus, and there a retry starts at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from events.clock import AnchoredClock, Clock
from events.contracts import Action
from events.deadletters import Death, OpenDeaths, Purge, decode_entry, open_deaths, purge_entry, retry_entry
from events.errors import UnknownGroup
from events.names import topic_matches
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName, Store
from events.persistence.wal import WalStore
from events.runtime import sole_error
from events.types import Event

_WRITE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """One dead letter. `round` is 0 for the first death, 1 for that of its first retry, and so on."""

    space_id: str
    topic: str
    group: str
    offset: int
    round: int
    event_id: str
    reason: str
    errors: tuple[str, ...]
    attempts: int
    died_ms: int
    appended_ms: int
    is_retrying: bool
    event: Event[Any]


Retried = Callable[[LogName, Death], None]
Authorise = Callable[[Action, LogName], None]


class DLQInspector:
    """Dead letters of a workspace, or of the bus that runs on one."""

    def __init__(
        self,
        workspace: str | Path | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        retried: Retried = lambda name, death: None,
        authorise: Authorise = lambda action, name: None,
        changing: anyio.Lock | None = None,
    ) -> None:
        self._workspace = "workspace" if workspace is None else workspace
        self._store = store
        self._clock = clock or AnchoredClock()
        self._retried = retried
        self._authorise = authorise
        # Whoever changes something looks first: two at once would begin the same round twice.
        self._changing = changing or anyio.Lock()

    async def list(
        self,
        *,
        topic: str = "*",
        space: str = "*",
        group: str | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[DeadLetterInfo]:
        """Dead letters, the latest first; `offset` and `limit` page through them."""
        found = await self._find(topic, space, group)
        latest_first = sorted(found, key=lambda info: (info.died_ms, info.offset), reverse=True)
        return latest_first[offset : offset + limit]

    async def show(self, *, topic: str, space: str, group: str, offset: int) -> DeadLetterInfo:
        """One dead letter; `UnknownGroup` when there is none."""
        for info in await self._find(topic, space, group):
            if info.offset == offset:
                return info
        raise UnknownGroup(f"group {group!r} has no dead letter at offset {offset} of {topic!r} in space {space!r}")

    async def retry(
        self,
        *,
        topic: str = "*",
        space: str = "*",
        group: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> int:
        """Deliver dead letters again, each to its own group alone, with fresh attempts; how many there were.

        Durable when this returns: on a workspace without a bus they are delivered when the group next consumes. A
        dead letter whose retry is still under way is left alone.
        """
        retried = 0
        async with self._changing, self._opened() as store:
            for name in await self._names(store, topic, space):
                self._authorise("dlq", name)
                log = await store.dead_letters(name)
                idle = (await open_deaths(log)).idle(group)
                deaths = [death for death in idle if offset in (None, death.offset)]
                if limit is not None:
                    deaths = deaths[: limit - retried]
                await log.append([retry_entry(death) for death in deaths], timeout_s=_WRITE_TIMEOUT_S)
                for death in deaths:
                    self._retried(name, death)
                retried += len(deaths)
        return retried

    async def purge(self, *, older_than_s: float, topic: str = "*", space: str = "*", group: str | None = None) -> int:
        """Forget dead letters that died so long ago or longer, by when they died; how many there were."""
        purged = 0
        async with self._changing, self._opened() as store:
            for name in await self._names(store, topic, space):
                self._authorise("dlq", name)
                log = await store.dead_letters(name)
                found = await open_deaths(log)
                died_by_ms = self._clock.now_ms() - int(older_than_s * 1000)
                before = len(found.deaths)
                found.add(Purge(line=0, group=group or "*", died_by_ms=died_by_ms))
                if len(found.deaths) < before:
                    entry = purge_entry(group=group or "*", died_by_ms=died_by_ms)
                    await log.append([entry], timeout_s=_WRITE_TIMEOUT_S)
                    left = [death.line for death in found.deaths.values()]
                    await log.drop_before(min(left, default=log.next_offset))
                    purged += before - len(found.deaths)
        return purged

    # -- where the dead letters are ----------------------------------------------------------------------------

    async def _names(self, store: Store, topic: str, space: str) -> Sequence[LogName]:
        wanted = [name for name in await store.log_names() if _covers(topic, space, name)]
        return [name for name in wanted if await store.has_dead_letters(name)]

    async def _find(self, topic: str, space: str, group: str | None) -> Sequence[DeadLetterInfo]:
        if self._store is None and await self._is_held():
            found = await anyio.to_thread.run_sync(self._look_from_outside, topic, space)
        else:
            async with self._opened() as store:
                found = [
                    (name, await open_deaths(await store.dead_letters(name)))
                    for name in await self._names(store, topic, space)
                ]
        for name, _ in found:
            self._authorise("dlq", name)
        return [
            _info(name, death, is_retrying=key in deaths.retrying)
            for name, deaths in found
            for key, death in deaths.deaths.items()
            if group in (None, death.group)
        ]

    async def _is_held(self) -> bool:
        return await anyio.to_thread.run_sync(WorkspaceReader(self._workspace).is_held)

    def _look_from_outside(self, topic: str, space: str) -> Sequence[tuple[LogName, OpenDeaths]]:
        """A bus has the workspace: read what is proven durable, and touch nothing."""
        found: dict[LogName, OpenDeaths] = {}
        with WorkspaceReader(self._workspace) as reader:
            for name in reader.names():
                if _covers(topic, space, name):
                    deaths = found[name] = OpenDeaths()
                    for record in reader.dead_letters(name).read():
                        entry = decode_entry(record)
                        if entry is not None:
                            deaths.add(entry)
        return list(found.items())

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store]:
        """The store at hand, or the workspace's, opened for as long as it takes."""
        if self._store is not None:
            yield self._store
            return
        store = WalStore(self._workspace, clock=self._clock)
        await store.open(lambda log, records: None)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.run)
                try:
                    yield store
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise sole_error(group) from None
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()


def _covers(topic: str, space: str, name: LogName) -> bool:
    return space in ("*", name.space_id) and topic_matches(topic, name.topic)


def _info(name: LogName, death: Death, *, is_retrying: bool) -> DeadLetterInfo:
    return DeadLetterInfo(
        space_id=name.space_id,
        topic=name.topic,
        group=death.group,
        offset=death.offset,
        round=death.round,
        event_id=death.event_id,
        reason=death.reason,
        errors=death.errors,
        attempts=death.attempts,
        died_ms=death.died_ms,
        appended_ms=death.appended_ms,
        is_retrying=is_retrying,
        event=death.event,
    )
