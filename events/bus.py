"""The event bus: opens the store, composes the chain, starts and stops everything else."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
from anyio.abc import TaskGroup

from events.attention.keeper import Gatekeeper
from events.attention_gate import Gate
from events.chain import check_order, compose
from events.checkpointer import Checkpointer
from events.clock import AnchoredClock, Clock
from events.config import BusConfig
from events.contracts import Action, Filter, Hop, HopResult, Middleware
from events.dispatcher import Dispatcher
from events.dlq import DLQInspector
from events.errors import BusClosed, BusError, Denied, GroupConflict, InvalidMessage, PayloadTooLarge, UnknownGroup
from events.group import Group, GroupOptions, checked_options
from events.handlers import HandlerShape, Pipeline
from events.maintenance import Maintenance
from events.names import check_space, check_topic_pattern, topic_matches
from events.persistence.codec import event_members
from events.persistence.store import Entry, GroupRecord, LogName, Store, StoreLog
from events.persistence.wal import WalStore
from events.replay import Replay, ReplayRecord
from events.runtime import sole_error, spawn_root
from events.services import Services, runs_bus_code
from events.signals import Signal
from events.solo import Solo
from events.subscription import Start, Subscription, SubscriptionRegistry, start_of
from events.surface import Identity, Surface
from events.types import Event, EventMeta, EventType, Receipt
from events.validation import Draft, Topology, checked, payload_of

if TYPE_CHECKING:
    from events.attention.inspector import AttentionInspector

logger = logging.getLogger("events.bus")


class _State(Enum):
    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the bus can do its work, and what stands in the way. `ok` is false as soon as anything does."""

    ok: bool
    state: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """A snapshot of what the bus has done and holds."""

    published: int
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    store: Mapping[str, int] = field(default_factory=dict)
    storage_full: bool = False


class EventBus(Surface):
    """An embedded, durable, at-least-once event bus over one workspace.

    `async with EventBus(workspace="...") as bus:` starts and closes it; without that, first use starts it. It lives
    on the event loop that started it, and any task of that loop may use it.
    """

    def __init__(
        self,
        middlewares: Sequence[Middleware] = (),
        *,
        workspace: str | Path | None = None,
        config: BusConfig | None = None,
        store: Store | None = None,
        gate: Gate | None = None,
        registry: SubscriptionRegistry | None = None,
    ) -> None:
        self.config = config or BusConfig()
        self.workspace = Path(workspace if workspace is not None else os.environ.get("EVENTS_WORKSPACE") or "workspace")
        self._middlewares = tuple(middlewares)
        check_order(self._middlewares)
        self._store: Store = store if store is not None else WalStore(self.workspace, self.config.wal)
        self._clock: Clock = getattr(self._store, "clock", None) or AnchoredClock()
        self._keeper = Gatekeeper(gate) if gate is not None else None
        self._registry = registry
        self._topology = Topology(self.config.strict_topics)
        self._dispatcher = Dispatcher(self._clock)
        self.maintenance = Maintenance(self._store, self._clock, self.config)
        self._chain = compose(self._middlewares, self._append_hop) if self._middlewares else None
        self._state = _State.NEW
        self._published = 0
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._subscribing = anyio.Lock()
        self._changing_dead_letters = anyio.Lock()
        self._ready = anyio.Event()
        self._stop = anyio.Event()
        self._finished = anyio.Event()
        self._changed = Signal()
        self._failure: BaseException | None = None
        self._services: Services
        self._tasks: TaskGroup

    @property
    def _bus(self) -> EventBus:
        return self

    @property
    def _identity(self) -> Identity:
        return _NOBODY

    @property
    def store(self) -> Store:
        """Where everything is kept. A middleware may keep journals of its own there."""
        return self._store

    @property
    def clock(self) -> Clock:
        """Time as this bus sees it."""
        return self._clock

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the workspace and recover it. First use does the same; calling it again is harmless."""
        if self._state is _State.NEW:
            self._state = _State.STARTING
            spawn_root(self._main, self._failed)
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        if self._state in (_State.CLOSING, _State.CLOSED):
            raise BusClosed("start")

    async def _ensure_running(self, attempted: str) -> None:
        if self._state is _State.RUNNING:
            return
        if self._state in (_State.NEW, _State.STARTING):
            await self.start()
        elif not (attempted == "publish" and self._state is _State.CLOSING and self._services.runs_caller):
            raise BusClosed(attempted) from self._failure

    async def _main(self) -> None:
        """The root task: everything that the bus runs is below it."""
        try:
            await self._store.open(self._dispatcher.durable)
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._store.run)
                    await self._set_up()
                    self._state = _State.RUNNING
                    self._ready.set()
                    await self._stop.wait()
                    self._tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._store.close()
        finally:
            if self._registry is not None:
                self._registry.detach(self._subscribe_soon)
            self._state = _State.CLOSED
            self._ready.set()
            self._finished.set()
            self._changed.tell()

    def _failed(self, error: BaseException) -> None:
        self._failure = error = sole_error(error)
        logger.error("the bus stopped: %s", error, exc_info=error)

    def _hooks(self, name: str) -> list[Callable[..., Any]]:
        """What the middlewares and the gate offer under an optional name of their contract, outermost first."""
        plugged = (*self._middlewares, self._keeper)
        return [hook for one in plugged if (hook := getattr(one, name, None)) is not None]

    async def _set_up(self) -> None:
        for attach in self._hooks("attach"):
            attach(self)
        hooks = self._hooks("before_checkpoint")
        checkpointer = Checkpointer(self._store, self._clock, self.config.checkpoint_interval_s, hooks)
        self._services = Services(
            store=self._store,
            clock=self._clock,
            config=self.config,
            checkpointer=checkpointer,
            solo=Solo(self._clock),
            threads=anyio.CapacityLimiter(self.config.sync_handler_threads),
            keeper=self._keeper,
            changed=self._changed.tell,
            observers=self._hooks("settled"),
        )
        self._tasks.start_soon(checkpointer.run)
        self._tasks.start_soon(self.maintenance.run)
        for begin in self._hooks("start"):
            await begin()
        if self._keeper is not None:
            self._tasks.start_soon(self._keeper.run, self._services)
        if self._registry is not None:
            for subscription in self._registry:
                await self._subscribe(_NOBODY, subscription)
            self._registry.attach(self._subscribe_soon)

    def _subscribe_soon(self, subscription: Subscription) -> None:
        self._tasks.start_soon(self._subscribe_late, subscription)

    async def _subscribe_late(self, subscription: Subscription) -> None:
        try:
            await self._subscribe(_NOBODY, subscription)
        except (OSError, BusError) as error:  # whoever registered it has long gone on
            logger.error("could not subscribe %r: %s", subscription, error)

    async def close(self, timeout_s: float = 30.0) -> None:
        """Refuse new publishes, let what is in flight finish for up to `timeout_s`, save, and let go (rule W17).

        What is still running then is cancelled and released without charging it an attempt. May be called twice,
        from any task, while others publish; from inside a handler it returns at once and happens behind it.
        """
        if self._state is _State.NEW:
            self._state = _State.CLOSED
            self._ready.set()
            self._finished.set()
            return
        if self._state is _State.STARTING:
            await self._ready.wait()
        if self._state is _State.RUNNING:
            self._state = _State.CLOSING
            self._changed.tell()
            self._tasks.start_soon(self._shut_down, timeout_s)
        if not (self._state is _State.CLOSING and self._services.runs_caller):
            await self._finished.wait()

    async def _shut_down(self, timeout_s: float) -> None:
        async with self._subscribing:  # whoever is just subscribing is stopped with the others
            groups = list(self._dispatcher.groups.values())
        for group in groups:
            group.drain()
        deadline = self._clock.monotonic() + timeout_s
        while any(group.window.inflight for group in groups) and self._clock.monotonic() < deadline:
            await self._clock.wait(self._changed.next, min(0.5, deadline - self._clock.monotonic()))
        ends: list[Callable[[], Any]] = [*(partial(self._stop_group, group) for group in groups), *self._hooks("close")]
        for end in ends:
            try:
                await end()
            except Exception as error:  # the others still have something to save
                logger.error("the bus closes in spite of an error: %s", error, exc_info=error)
        self._stop.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def run_until_terminated(self, timeout_s: float = 30.0) -> None:
        """Serve until SIGTERM or SIGINT, then close as `close` does: the last line of a small application.

        Returns too when somebody else closed the bus, and raises what stopped it when it stopped by itself.
        """
        await self._ensure_running("run")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wait_for_signal, tasks.cancel_scope)
            await self._finished.wait()
            tasks.cancel_scope.cancel()
        await self.close(timeout_s)
        if self._failure is not None:
            raise self._failure

    async def _wait_for_signal(self, waiting: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for received in signals:
                logger.info("closing on %s", received.name)
                waiting.cancel()
                return

    # -- publishing: steps 1 to 4 ------------------------------------------------------------------------------

    async def publish_as(
        self, identity: Identity, events: Sequence[Event[Any]], topic: str | EventType | None, timeout_s: float | None
    ) -> Sequence[Receipt]:
        """Check, pass through the chain, and append: the events are durable when this returns."""
        await self._ensure_running("publish")
        limit = self.config.max_event_bytes
        drafts = [checked(event, topic, identity.subject, limit) for event in events]
        if self._topology.is_strict:
            for meta, _ in drafts:
                self._topology.publish(meta.topic, meta.space_id)
        may_wait = not runs_bus_code.get()
        timeout_s = self.config.publish_timeout_s if timeout_s is None else timeout_s
        if self._chain is None:
            return await self._append(drafts, timeout_s, may_wait=may_wait)
        hop = Hop(
            kind="publish",
            metas=[meta for meta, _ in drafts],
            sizes=[len(payload) for _, payload in drafts],
            subject=identity.subject,
            capabilities=identity.capabilities,
            timeout_s=timeout_s,
            may_wait=may_wait,
            _events=[Event.from_log(meta, payload) for meta, payload in drafts],
        )
        token = runs_bus_code.set(True)
        try:
            receipts = await self._chain(hop)
        finally:
            runs_bus_code.reset(token)
        if not isinstance(receipts, Sequence):
            raise InvalidMessage("middleware", receipts, "a middleware around publish returns what call_next returned")
        return receipts

    async def _append_hop(self, hop: Hop) -> HopResult:
        limit = self.config.max_event_bytes
        drafts = [Draft(event.meta, payload_of(event, limit)) for event in hop.events]
        return await self._append(drafts, hop.timeout_s, may_wait=hop.may_wait)

    async def _append(self, drafts: Sequence[Draft], timeout_s: float, *, may_wait: bool) -> Sequence[Receipt]:
        """Step 4: every draft into its log, all logs at once."""
        by_log: dict[tuple[str, str], list[int]] = {}
        entries: list[Entry] = []
        for index, draft in enumerate(drafts):
            entries.append(self._entry(draft))
            meta = draft.meta
            indices = by_log.get((meta.space_id, meta.topic))
            if indices is None:
                by_log[meta.space_id, str(meta.topic)] = [index]
            else:
                indices.append(index)
        offsets = [0] * len(drafts)

        async def append(name: LogName, indices: list[int]) -> None:
            if may_wait:
                await self._dispatcher.wait_room(name, timeout_s)
            log = await self._store.log(name)
            share = entries if len(indices) == len(entries) else [entries[index] for index in indices]
            for index, offset in zip(indices, await log.append(share, timeout_s=timeout_s), strict=True):
                offsets[index] = offset

        if len(by_log) == 1:
            ((name, indices),) = by_log.items()
            await append(LogName(*name), indices)
        else:
            await _together([(append, LogName(*name), indices) for name, indices in by_log.items()])
        self._published += len(drafts)
        return [
            Receipt(meta.space_id, str(meta.topic), offset, meta.event_id)
            for (meta, _), offset in zip(drafts, offsets, strict=True)
        ]

    def _entry(self, draft: Draft) -> Entry:
        meta = draft.meta.to_json()
        size, limit = len(meta) + len(draft.payload), self.config.max_event_bytes
        if size > limit:
            raise PayloadTooLarge(size, limit)
        return Entry(event_members(meta, draft.payload), draft.meta, len(meta))

    # -- subscribing -------------------------------------------------------------------------------------------

    async def subscribe_as(self, identity: Identity, subscription: Subscription) -> None:
        """Consume as a group; see `subscribe`."""
        await self._ensure_running("subscribe")
        await self._subscribe(identity, subscription)

    async def _subscribe(self, identity: Identity, subscription: Subscription) -> None:
        async with self._subscribing:
            if self._state in (_State.CLOSING, _State.CLOSED):
                raise BusClosed("subscribe")
            for action in _CONSUMING:
                self.authorise(identity, action, subscription.topic, subscription.space)
            described = tuple(one.describe() for one in subscription.filters)
            group = self._dispatcher.groups.get(subscription.group)
            options = self._options(subscription)
            pipeline = self._pipeline(identity, subscription, options if group is None else group.options)
            if group is not None:
                _check_same(group.record, subscription, described)
                group.workers.add(pipeline, options.workers)
            else:
                with self._topology.subscribing(subscription.topic, subscription.space, subscription.group):
                    await self._start_group(subscription, described, options, pipeline)
            self._pipelines[subscription.id] = pipeline
            self._subscriptions.setdefault(subscription.group, []).append(subscription)
            subscription.is_active = True

    def _pipeline(self, identity: Identity, subscription: Subscription, options: GroupOptions) -> Pipeline:
        return Pipeline(
            HandlerShape.of(subscription.handler, batch=options.batch),
            self._middlewares,
            subscription.filters,
            batch=options.batch,
            subject=identity.subject,
            capabilities=identity.capabilities,
            group=subscription.group,
            threads=self._services.threads,
        )

    async def _start_group(
        self,
        subscription: Subscription,
        described: tuple[Mapping[str, Any], ...],
        options: GroupOptions,
        pipeline: Pipeline,
    ) -> None:
        known = {record.name: record for record in await self._store.groups()}.get(subscription.group)
        if known is not None:
            _check_same(known, subscription, described)
            record = replace(known, held=True)
        else:
            record = await self._new_record(subscription, described)
        await self._store.save_group(record)
        group = Group(self._services, record, options, pipeline, careful=known is not None and known.held)
        self._dispatcher.add(group)
        for name in await self._store.log_names():
            if group in self._dispatcher.groups_of(name):
                group.want(name)
        await self._tasks.start(group.run)

    async def _new_record(self, subscription: Subscription, described: tuple[Mapping[str, Any], ...]) -> GroupRecord:
        """A group is born: where it starts is fixed here and now, on disk, whatever happens next (rule W3)."""
        kind, value = start_of(subscription.start, subscription.topic, subscription.space)
        ends: dict[str, dict[str, int]] = {}
        if kind == "latest":
            for log in await self._logs(subscription.topic, subscription.space):
                await log.sync()
                ends.setdefault(log.name.space_id, {})[log.name.topic] = log.next_offset
        return GroupRecord(
            name=subscription.group,
            topic=subscription.topic,
            space=subscription.space,
            filters=described,
            start=kind,
            start_value=value,
            ends=ends,
            held=True,
            created_ms=self._clock.now_ms(),
        )

    def _options(self, subscription: Subscription) -> GroupOptions:
        """Settings: the subscription's own, over the topic's policy, over the bus's."""
        known = GroupOptions.__dataclass_fields__
        unknown = [name for name in subscription.settings if name not in known]
        if unknown:
            raise InvalidMessage("subscribe", unknown[0], f"a subscription's settings are {', '.join(known)}")
        policy = self.config.topic(subscription.topic)
        values = {name: _first(policy(name), getattr(self.config, name)) for name in known}
        values |= dict(subscription.settings)
        return checked_options(values)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop consuming with this subscription. The group stays on disk, and its place with it.

        From inside a handler it returns at once and happens behind it: nobody can wait for the end of oneself.
        """
        if subscription not in self._subscriptions.get(subscription.group, []):
            return
        if self._services.runs_caller:
            self._retire(subscription)
            self._tasks.start_soon(self._unsubscribe, subscription)
        else:
            await self._unsubscribe(subscription)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        async with self._subscribing:
            members = self._subscriptions.get(subscription.group, [])
            if subscription not in members:
                return
            members.remove(subscription)
            subscription.is_active = False
            group = self._dispatcher.groups.get(subscription.group)
            if group is None:
                return
            if members:
                self._retire(subscription)
            else:
                await self._stop_group(group)
            self._pipelines.pop(subscription.id, None)

    def _retire(self, subscription: Subscription) -> None:
        """Have the workers of a subscription take nothing more."""
        group, pipeline = self._dispatcher.groups.get(subscription.group), self._pipelines.get(subscription.id)
        if group is not None and pipeline is not None:
            group.workers.remove(pipeline)

    async def _stop_group(self, group: Group) -> None:
        """Stop, save what was settled, and note that the group ended in order."""
        self._dispatcher.remove(group)
        self._topology.unsubscribe(group.record.topic)
        await group.stop()
        await self._services.checkpointer.flush()
        self._services.checkpointer.forget(group)
        self._changed.tell()
        await self._store.save_group(replace(group.record, held=False))

    async def delete_group(self, group: str) -> None:
        """Forget a group for good: its record, its place in every log. Its dead letters stay.

        From inside a handler it returns at once and happens behind it.
        """
        await self._ensure_running("delete_group")
        if group not in {record.name for record in await self._store.groups()}:
            raise UnknownGroup(f"there is no group {group!r}")
        if self._services.runs_caller:
            self._tasks.start_soon(self._delete_group, group)
        else:
            await self._delete_group(group)

    async def _delete_group(self, group: str) -> None:
        async with self._subscribing:
            running = self._dispatcher.groups.get(group)
            if running is not None:
                await self._stop_group(running)
            for subscription in self._subscriptions.pop(group, []):
                subscription.is_active = False
                self._pipelines.pop(subscription.id, None)
            await self._store.delete_group(group)
            for forget in self._hooks("forget_group"):
                await forget(group)

    # -- history, dead letters, and who may see them -----------------------------------------------------------

    def replay_as(
        self,
        identity: Identity,
        topic: str,
        space: str,
        start: Start,
        stop: datetime | int | None,
        filters: Sequence[Filter],
    ) -> AsyncIterator[ReplayRecord]:
        """The history that an identity may see; see `replay`."""

        async def logs() -> list[StoreLog]:
            await self._ensure_running("replay")
            check_topic_pattern(topic)
            self.authorise(identity, "replay", topic, space)
            start_of(start, topic, space)
            return await self._logs(topic, space)

        def allowed(log: StoreLog, meta: EventMeta) -> bool:
            return self.is_allowed(identity, "replay", log.name.topic, log.name.space_id, meta)

        return Replay(logs, start, stop, filters, allowed)

    async def _logs(self, topic: str, space: str) -> list[StoreLog]:
        if space != "*":
            check_space(space)
        names = await self._store.log_names()
        return [
            await self._store.log(name)
            for name in names
            if space in ("*", name.space_id) and topic_matches(topic, name.topic)
        ]

    @property
    def dlq(self) -> DLQInspector:
        """The dead letters of this bus; a retry starts at once."""
        return self.dlq_as(_NOBODY)

    @property
    def attention(self) -> AttentionInspector:
        """What the attention gate decided, and why; and what another policy would have decided."""
        return self.attention_as(_NOBODY)

    def attention_as(self, identity: Identity) -> AttentionInspector:
        """The gate's decisions as an identity may see them."""
        from events.attention.inspector import AttentionInspector  # it knows filters, and the bus does not

        return AttentionInspector(
            store=self._store,
            authorise=lambda action, name: self.authorise(identity, action, name.topic, name.space_id),
            refresh=self._save_all,
        )

    async def _save_all(self) -> None:
        await self._ensure_running("attention")
        await self._services.checkpointer.flush()

    def dlq_as(self, identity: Identity) -> DLQInspector:
        """The dead letters as an identity may see them."""

        def retried(name: LogName, death: Any) -> None:
            group = self._dispatcher.groups.get(death.group)
            if group is not None:
                group.retry(name, death)

        return DLQInspector(
            self.workspace,
            store=self._store,
            clock=self._clock,
            retried=retried,
            authorise=lambda action, name: self.authorise(identity, action, name.topic, name.space_id),
            changing=self._changing_dead_letters,
        )

    def authorise(
        self, identity: Identity, action: Action, topic: str, space: str, meta: EventMeta | None = None
    ) -> None:
        """Ask every middleware that decides such things; `Denied` when one says no."""
        for one in self._middlewares:
            decide = getattr(one, "authorise", None)
            if decide is not None:
                decide(identity.subject, action, topic, space, meta, identity.capabilities)

    def is_allowed(
        self, identity: Identity, action: Action, topic: str, space: str, meta: EventMeta | None = None
    ) -> bool:
        """Like `authorise`, as a question. An error while deciding is an error, not a no."""
        try:
            self.authorise(identity, action, topic, space, meta)
        except Denied:
            return False
        return True

    # -- how it is doing ---------------------------------------------------------------------------------------

    def health(self) -> Health:
        """What stands in the way, in words. Cheap enough for a probe."""
        problems = []
        if self._store.storage_full:
            problems.append("no space left on the device: publishers wait")
        problems += [f"{found.damage}" for _, found in self._store.reports if found.damage is not None]
        problems += [f"{error}" for error in self._store.poisoned]
        for group in list(self._dispatcher.groups.values()):
            if group.workers.late_count:
                problems.append(f"group {group.name}: {group.workers.late_count} handlers are past their deadline")
            problems += [f"group {group.name}: {trouble}" for trouble in group.troubles.values()]
        if self._failure is not None:
            problems.append(f"the bus stopped: {self._failure}")
        return Health(not problems and self._state is _State.RUNNING, self._state.value, tuple(problems))

    def statistics(self) -> Statistics:
        """An immutable snapshot."""
        return Statistics(
            published=self._published,
            groups={name: group.statistics() for name, group in list(self._dispatcher.groups.items())},
            store=dict(self._store.statistics()),
            storage_full=self._store.storage_full,
        )

    async def wait_settled(self, timeout_s: float | None = None) -> bool:
        """Wait until every running group has settled everything that was published; whether that came in time."""
        await self._ensure_running("wait_settled")
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        groups = self._dispatcher.groups
        while (busy := next((group for group in groups.values() if not group.is_settled), None)) is not None:
            # One of them is watched at a time: asking all of them after every change would cost more than the change.
            while groups.get(busy.name) is busy and not busy.is_settled:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    return False
                await self._clock.wait(self._changed.next, left)
                if self._state is not _State.RUNNING:
                    raise BusClosed("wait_settled") from self._failure
        return True

    def __repr__(self) -> str:
        return f"EventBus({self.workspace}, {self._state.value})"


_NOBODY = Identity()
_CONSUMING: Final[tuple[Action, ...]] = ("consume", "ack")


def _first(chosen: Any, otherwise: Any) -> Any:
    return otherwise if chosen is None else chosen


def _check_same(record: GroupRecord, wanted: Subscription, described: tuple[Mapping[str, Any], ...]) -> None:
    """A group is one thing: whoever joins it wants what it is (rule W3)."""
    if record.topic != wanted.topic:
        raise GroupConflict(record.name, "topic", record.topic, wanted.topic)
    if record.space != wanted.space:
        raise GroupConflict(record.name, "space", record.space, wanted.space)
    if [dict(one) for one in record.filters] != [dict(one) for one in described]:
        raise GroupConflict(record.name, "filters", list(record.filters), list(described))


async def _together(calls: Sequence[tuple[Any, ...]]) -> None:
    """Run calls at once; the first error is raised as itself, not as a group."""
    try:
        async with anyio.create_task_group() as tasks:
            for function, *arguments in calls:
                tasks.start_soon(function, *arguments)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
