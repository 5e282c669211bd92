"""A simulated world around a real bus: its disk, its clock, its handlers and its publishers, one step at a time.

Every process of the world runs the real `EventBus` over the real `WalStore`; the disk is simulated, file work is
done inline, time stands still between steps and handlers wait for a verdict. So each run of the same steps does the
same, and the world can stop after any change of the disk, forget what came later, and see what a crash had left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import DeadLetter, Skip, Verdict
from events.errors import BusClosed, QueueFull
from events.handlers import Delivered
from events.persistence.io import InlineIo
from events.persistence.log import Sync
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName
from events.persistence.wal import WalSettings, WalStore
from events.subscription import Subscription
from events.testing.clock import FakeClock
from events.testing.crashes import fates
from events.testing.facts import Facts, Place, read_facts
from events.testing.images import Choice, Image
from events.testing.model import Consumer, GroupPlan, Handed, Ledger, Outcome, Progress, Running, Sent, Violation
from events.testing.simulated import SimulatedFileSystem, crashed
from events.testing.stepping import SteppedLoop
from events.types import Ack, Event, EventMeta, Nack, Receipt

T = TypeVar("T")
Ruling = Literal["ack", "nack", "raise", "later", "bury", "skip", "relay"]

WORKSPACE: Final = "/world"
SPACES: Final = ("home", "work space")
TOPICS: Final = ("actions", "memories.recall")
LOGS: Final = tuple(LogName(space, topic) for space in SPACES for topic in TOPICS)
PLANS: Final = (
    GroupPlan(name="keyed", topic="actions", settings={"workers": 2, "max_inflight": 3}),
    GroupPlan(
        name="watcher",
        topic="**",
        shape="plain",
        max_retries=1,
        settings={"workers": 2, "max_inflight": 4, "overflow": "spill"},
    ),
    GroupPlan(
        name="flaky",
        topic="memories.*",
        space="home",
        ordering="topic",
        max_retries=1,
        ack_deadline_s=4.0,
        settings={"max_inflight": 2},
    ),
    GroupPlan(
        name="batcher",
        topic="*",
        space="work space",
        shape="batch",
        settings={"batch": 3, "max_inflight": 5, "max_parked": 4, "overflow": "spill"},
    ),
    GroupPlan(name="late", topic="actions", start="latest", settings={"workers": 2, "overflow": "spill"}),
)
"""Groups of every kind: exact and glob, keyed and in topic order, blocking and spilling, plain and in batches."""

_HISTORY: Final = 64
_CHECKPOINT_S: Final = 0.1
_SAVED_S: Final = 0.25
_PATIENCE_S: Final = 100.0
_BACKOFF: Final[Mapping[str, Any]] = {"backoff_base": 0.5, "backoff_mult": 2.0, "backoff_max": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a world is like: small segments and windows, so that little is needed to reach their ends."""

    sync: Sync = "always"
    segment_lines: int = 3
    tail_bytes: int = 0
    settle_span: int = 6
    read_bytes: int = 400

    @property
    def config(self) -> BusConfig:
        """The bus's settings."""
        wal = WalSettings(segment_lines=self.segment_lines, sync=self.sync, tail_bytes=self.tail_bytes, ballast_bytes=0)
        return BusConfig(
            wal=wal,
            publish_timeout_s=10.0,
            checkpoint_interval_s=_CHECKPOINT_S,
            settle_span=self.settle_span,
            read_bytes=self.read_bytes,
            compact=True,
            maintenance_interval_s=1e9,  # `compact` is a step of its own
        )


class _History(list[Image]):
    """The last images of a disk, and the time of each."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.trimmed = 0
        self.times: list[float] = []

    @property
    def moment(self) -> int:
        """How many changes the disk has seen."""
        return self.trimmed + len(self)

    def append(self, image: Image) -> None:
        super().append(image)
        self.times.append(self._world.time_s)

    def trim(self) -> None:
        """Forget what is too long ago to be gone back to."""
        surplus = max(0, len(self) - _HISTORY)
        del self[:surplus], self.times[:surplus]
        self.trimmed += surplus


@dataclass(eq=False, slots=True)
class _Delivery:
    """A delivery whose handler waits for a ruling."""

    running: Running
    ruling: asyncio.Future[Ruling] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False, slots=True)
class _Publishing:
    """A call of publish that has not returned: a group has no room."""

    task: asyncio.Task[None]
    sent: Sequence[Sent]


class World:
    """Processes on one disk, one after the other. Every public method is a step, and ends when everybody waits.

    A broken promise raises `Violation` from the step that showed it.
    """

    def __init__(self, terms: Terms | None = None, plans: Sequence[GroupPlan] = PLANS) -> None:
        self.terms = terms or Terms()
        self.ledger = Ledger(plans, LOGS, self._moment)
        self.wanted: dict[str, None] = {}
        self.consumers: dict[str, Consumer] = {}
        self.present: dict[LogName, dict[int, str]] = {log: {} for log in LOGS}
        self.restarts = 0
        self._loop = SteppedLoop()
        self._began_s = self._ended_s = 0.0
        self._now_ms = 1_700_000_000_000
        self._subscriptions: dict[str, Subscription] = {}
        self._deliveries: list[_Delivery] = []
        self._publishes: list[_Publishing] = []
        self._violations: list[Violation] = []
        self._is_over = True
        self._acks_all = False
        self._boot(SimulatedFileSystem(), Facts())

    # -- time and place ----------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        """Seconds since the world began, over all its processes."""
        return self._ended_s if self._is_over else self._began_s + self._clock.monotonic()

    def _moment(self) -> int:
        return self._history.moment

    def facts(self) -> Facts:
        """What the files say now, to a program that reads them."""
        return self._facts_of(self._fs)

    def _facts_of(self, fs: SimulatedFileSystem) -> Facts:
        return read_facts(fs.files(), WORKSPACE, LOGS, self.ledger.plans)

    # -- steps: publishing -------------------------------------------------------------------------------------

    def publish(self, drafts: Sequence[tuple[LogName, str | None]], *, at_once: bool = False) -> None:
        """Publish events to these logs with these keys: one by one, or `at_once` with `publish_many`."""
        for share in [drafts] if at_once else [[draft] for draft in drafts]:
            events = [self._event(*draft) for draft in share]
            sent = [self.ledger.sent[event.meta.event_id] for event in events]
            task = self._step(self._publish(events))
            if not task.done():
                self._publishes.append(_Publishing(task, sent))
            self._after_step()

    def _event(self, log: LogName, key: str | None) -> Event[Any]:
        number = len(self.ledger.sent) + 1
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        priority = (None, "low", "high")[number % 3]
        meta = EventMeta(
            topic=log.topic,
            type="NOTED",
            space_id=log.space_id,
            key=key,
            priority=priority,
            event_id=f"ev-{number}",
            ts=now,
        )
        sent = Sent(meta.event_id, log, key, {"n": number, "text": "x" * (number % 5 * 20)})
        self.ledger.sent[sent.event_id] = sent
        return Event(meta, dict(sent.payload))

    async def _publish(self, events: Sequence[Event[Any]]) -> None:
        process, bus = self._history, self._bus
        try:
            receipts = [await bus.publish(events[0])] if len(events) == 1 else await bus.publish_many(events)
        except QueueFull:
            if process is self._history and len({event.meta.topic + event.meta.space_id for event in events}) == 1:
                self._refused(event.meta.event_id for event in events)
        except BusClosed:
            pass
        else:
            if process is self._history:
                self._returned(receipts)

    def _returned(self, receipts: Iterable[Receipt]) -> None:
        for receipt in receipts:
            self.present[LogName(receipt.space_id, receipt.topic)][receipt.offset] = receipt.event_id
            with self._watched():
                place = Place(LogName(receipt.space_id, receipt.topic), receipt.offset)
                self.ledger.saw(place, receipt.event_id, self.time_s, "published")

    def _refused(self, event_ids: Iterable[str]) -> None:
        """W2: it was given up before anything was written, so it must never appear."""
        for event_id in event_ids:
            self.ledger.refused[event_id] = None

    def cancel_publish(self, index: int) -> None:
        """A publisher loses its patience."""
        if self._publishes:
            publishing = self._publishes.pop(index % len(self._publishes))
            publishing.task.cancel()
            self._go_on()
            if publishing.task.cancelled() and len({sent.log for sent in publishing.sent}) == 1:
                self._refused(sent.event_id for sent in publishing.sent)
            self._after_step()

    # -- steps: consuming --------------------------------------------------------------------------------------

    def subscribe(self, group: str) -> None:
        """Consume as a group, from where it left."""
        self.wanted[group] = None
        if group not in self.consumers:
            self._subscribe(group, self.facts())
            self._after_step()

    def _subscribe(self, group: str, facts: Facts) -> None:
        ledger, plan = self.ledger, self.ledger.plans[group]
        starts = ledger.starts.get(group)
        if starts is None:
            starts = ledger.first_starts(plan, facts)
        self.consumers[group] = Consumer(ledger, plan, facts, starts)
        deadline = {"ack_deadline_s": plan.ack_deadline_s} if plan.ack_deadline_s is not None else {}
        settings = {**_BACKOFF, "ordering": plan.ordering, "max_retries": plan.max_retries, **deadline, **plan.settings}
        work = self._bus.subscribe(
            plan.topic, group, self._handler(plan), space=plan.space, start=plan.start, **settings
        )
        self._subscriptions[group] = self._finished(work)
        ledger.journal.put(ledger.starts, group, starts)
        ledger.journal.put(ledger.subscribed, group)

    def unsubscribe(self, group: str) -> None:
        """Stop consuming; what the group did is saved, and what was running is released."""
        consumer = self.consumers.get(group)
        if consumer is None:
            return
        del self.wanted[group]
        consumer.is_stopping = True
        self._finished(self._bus.unsubscribe(self._subscriptions.pop(group)))
        del self.consumers[group]
        self._after_step()
        self._check_saved(consumer, consumer.progress)

    def _handler(self, plan: GroupPlan) -> Any:
        async def delivered(event: Event[Any], delivery: Delivered) -> Verdict:
            return await self._handle(plan, [event], [delivery])

        async def plain(event: Event[Any]) -> Verdict:
            return await self._handle(plan, [event], [None])

        async def batch(events: list[Event[Any]], deliveries: list[Delivered]) -> Verdict:
            return await self._handle(plan, events, deliveries)

        return {"delivery": delivered, "plain": plain, "batch": batch}[plan.shape]

    async def _handle(
        self, plan: GroupPlan, events: Sequence[Event[Any]], deliveries: Sequence[Delivered | None]
    ) -> Verdict:
        """What every handler does: have the model check the delivery, and wait for a ruling."""
        if self._is_over:
            await asyncio.get_running_loop().create_future()
        consumer = self.consumers[plan.name]
        running: Running | None = None
        with self._watched():
            items = [self._handed(consumer, event, one) for event, one in zip(events, deliveries, strict=True)]
            others = [one.running for one in self._deliveries]
            running = consumer.begin(items, self.present, others, self._clock.monotonic())
        if running is None:
            return None  # the step ends in the violation
        delivery = _Delivery(running)
        self._deliveries.append(delivery)
        if self._acks_all:
            delivery.ruling.set_result("ack")
        try:
            ruling = await delivery.ruling
            if ruling == "relay":
                await self._publish([self._event(LOGS[len(self.ledger.sent) % len(LOGS)], None)])
        except asyncio.CancelledError:
            self._interrupted(delivery)
            raise
        self._deliveries.remove(delivery)
        outcome, verdict = _RULINGS[ruling]
        consumer.conclude(running, outcome)
        if ruling == "raise":
            raise RuntimeError("as it was told")
        return verdict

    def _handed(self, consumer: Consumer, event: Event[Any], delivery: Delivered | None) -> Handed:
        """S2: what is delivered was published, as it is, and there."""
        meta, log = event.meta, LogName(event.meta.space_id, str(event.meta.topic))
        sent = self.ledger.sent.get(meta.event_id)
        if sent is None or sent != Sent(meta.event_id, log, meta.key, event.payload):
            raise Violation(f"S2: group {consumer.plan.name} is given what nobody published: {event}")
        place = Place(log, delivery.offset) if delivery is not None else self._place_of(meta.event_id)
        self.ledger.saw(place, meta.event_id, self.time_s, "delivered")
        if delivery is None:
            return Handed(place, consumer.round_of(place), None, meta.key)
        if not delivery.round:  # the copy of a dead letter outlives the log's
            self.present[log][place.offset] = meta.event_id
        return Handed(place, delivery.round, delivery.attempt, meta.key)

    def _place_of(self, event_id: str) -> Place:
        """Where an event is, for a handler that is not told."""
        if event_id not in self.ledger.where:  # it was published just now, and the publisher has not heard of it
            self._look(facts := self.facts())
            for log, events in facts.logs.items():
                for offset, kept in events.items():
                    if kept.event_id == event_id:
                        return Place(log, offset)
            raise Violation(f"S2: {event_id} was delivered and is in no log")
        return self.ledger.where[event_id]

    def _interrupted(self, delivery: _Delivery) -> None:
        self._deliveries.remove(delivery)
        if self._is_over:
            return
        running, plan = delivery.running, delivery.running.consumer.plan
        late = plan.ack_deadline_s is not None and self._clock.monotonic() >= running.started_s + plan.ack_deadline_s
        if not running.consumer.is_stopping and not late:
            self._violations.append(Violation(f"W8: group {plan.name} interrupted {running.items} before its time"))
        running.consumer.conclude(running, "failed" if late else "interrupted")

    def rule(self, group: str, ruling: Ruling, times: int = 1) -> None:
        """Let some handlers of a group finish, the oldest first, and those that come after them."""
        for _ in range(times):
            waiting = [one for one in self._deliveries if one.running.consumer.plan.name == group]
            if not waiting:
                return
            waiting[0].ruling.set_result(ruling)
            self._go_on()
            self._after_step()

    @property
    def busy_groups(self) -> list[str]:
        """The groups with a handler that waits for a ruling."""
        return list(dict.fromkeys(one.running.consumer.plan.name for one in self._deliveries))

    @property
    def waiting_publishes(self) -> int:
        """How many calls of publish have not returned."""
        return len(self._publishes)

    @property
    def has_dead_letters(self) -> bool:
        """Whether there are dead letters that nobody is retrying."""
        return any(not under_way for consumer in self.consumers.values() for _, under_way in consumer.rounds.values())

    # -- steps: time, compaction, dead letters -----------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass. What groups had done before is saved then, if it was long enough."""
        before = {group: consumer.progress for group, consumer in self.consumers.items()}
        self._loop.run_until_complete(self._clock.advance(seconds))
        self._after_step()
        if seconds < _SAVED_S:
            return
        for group, progress in before.items():
            self._check_saved(self.consumers[group], progress)
        if seconds >= _PATIENCE_S and not self._deliveries:
            self._check_alive(patient=True)

    def _check_saved(self, consumer: Consumer, progress: Progress) -> None:
        """W1: a checkpoint has what was settled before, and nothing that was not; and it stays."""
        facts, group = self.facts(), consumer.plan.name
        for log in facts.logs:
            start = consumer.starts.get(log, 1)
            found = {Place(log, offset) for offset in facts.settled(group, log) if offset >= start}
            expected = {place for place in progress.settled if place.log == log and place.offset in facts.logs[log]}
            if not expected <= found:
                raise Violation(f"W1: group {group} did not save that it settled {sorted(expected - found)}")
            unknown = {place for place in found - consumer.settled if (group, place, 0) not in consumer.doomed}
            if unknown:
                raise Violation(f"S2: group {group} saved that it settled {sorted(unknown)}, and has not")
        self.ledger.saw_saved(group, progress)

    def compact(self) -> None:
        """Delete the segments that all groups have settled."""
        self._finished(self._bus.maintenance.once())
        self.present = {log: {} for log in LOGS}
        self._look(self.facts())
        self._after_step()

    def retry(self, index: int, *, all_of_group: bool = False) -> None:
        """Try dead letters again: one, or all of its group."""
        dead = [
            (consumer, place)
            for consumer in self.consumers.values()
            for place, (_, under_way) in consumer.rounds.items()
            if not under_way
        ]
        if not dead:
            return
        consumer, place = dead[index % len(dead)]
        chosen = [one for owner, one in dead if owner is consumer] if all_of_group else [place]
        for one in chosen:
            consumer.retry(one)
        rounds = {one: consumer.rounds[one][0] for one in chosen}
        selection: dict[str, Any] = {"group": consumer.plan.name}
        if not all_of_group:
            selection |= {"topic": place.log.topic, "space": place.log.space_id, "offset": place.offset}
        count = self._finished(self._bus.dlq.retry(**selection))
        self._after_step()
        if count != len(chosen):
            raise Violation(f"W10: {count} dead letters were retried, not {chosen}")
        for one, number in rounds.items():
            consumer.retried(one, number)

    def look_from_outside(self) -> None:
        """F6: a reader beside the bus hands out nothing that a power cut could take back."""
        durable = self._facts_of(self._fs.crash())
        reader = WorkspaceReader(WORKSPACE, fs=self._fs.after_kill())
        for name in reader.names():
            for record in reader.log(name).read():
                kept = durable.logs.get(name, {}).get(record.offset)
                if kept is None or kept.event_id != record.meta.event_id:
                    raise Violation(f"F6: a reader was given offset {record.offset} of {name}, which is not durable")

    def replay(self) -> None:
        """S1: history has everything that the logs hold, in order."""

        async def read(log: LogName) -> dict[int, str]:
            replayed = self._bus.replay(log.topic, space=log.space_id)
            return {record.offset: record.event.meta.event_id async for record in replayed}

        facts = self.facts()
        for log in LOGS:
            found = self._finished(read(log))
            expected = {offset: kept.event_id for offset, kept in facts.logs.get(log, {}).items()}
            if found != expected:
                raise Violation(f"S1: a replay of {log} gave {found}, not {expected}")

    # -- steps: the end of a process ---------------------------------------------------------------------------

    def close(self, timeout_s: float = 0.0, *, jump_s: float = 0.0) -> None:
        """End in order, and start again."""
        self._close(timeout_s)
        self._restart(self._fs, jump_s)

    def _close(self, timeout_s: float) -> None:
        for consumer in self.consumers.values():
            consumer.is_stopping = True
        task = self._step(self._bus.close(timeout_s))
        for _ in range(int(timeout_s) + 1):
            if not task.done():
                self._loop.run_until_complete(self._clock.advance(1.0))
        if not task.done():
            raise Violation("W17: close did not return")
        self._after_step()
        for consumer in self.consumers.values():
            self._check_saved(consumer, consumer.progress)
        if self._fs.open_handles:
            raise Violation(f"W17: {self._fs.open_handles} files are open after close")

    def kill(self, back: int = 0, *, jump_s: float = 0.0) -> None:
        """Kill the process after the last change of the disk, or some changes before it. The page cache survives."""
        image = self._go_back(back)
        self._restart(SimulatedFileSystem(image), jump_s)

    def power_cut(self, back: int = 0, choice: Sequence[int] = (), *, jump_s: float = 0.0) -> None:
        """Cut the power after the last change of the disk, or some changes before it.

        `choice` picks a fate for each change that was not synced, over and over; all of them are lost without.
        """
        image = self._go_back(back)
        known_s = {"always": math.inf, "interval": self.time_s - _SAVED_S, "never": -math.inf}[self.terms.sync]
        self._restart(crashed(image, choose(image, choice)), jump_s, known_s=known_s)

    def _go_back(self, back: int) -> Image:
        """The process is over since some changes of the disk, and nothing happened after that."""
        index = max(0, len(self._history) - 1 - back)
        self._end_process()
        self.ledger.journal.rewind(self._history.trimmed + index + 1)
        if back:
            self._ended_s = self._history.times[index]
        return self._history[index]

    def leave_loop(self, *, jump_s: float = 0.0) -> None:
        """The application's event loop ends around the bus, without a close: Ctrl-C."""
        for consumer in self.consumers.values():
            consumer.is_stopping = True
        self._loop.end()
        self._after_step()
        self._restart(self._fs.after_kill(), jump_s)

    def _restart(self, fs: SimulatedFileSystem, jump_s: float = 0.0, *, known_s: float = math.inf) -> None:
        """The next process finds this disk. What was seen up to `known_s` must be there."""
        self._end_process()
        self.restarts += 1
        facts = self._facts_of(fs)
        self.ledger.check(facts, known_s=known_s)
        self._now_ms += int((self.time_s - self._began_s + jump_s) * 1000)
        self._began_s = self.time_s
        self._boot(fs, facts)

    def _end_process(self) -> None:
        if self._is_over:
            return
        self._ended_s = self.time_s
        self._is_over = True
        self._loop.end("events-bus")
        self._loop.end()
        self.consumers.clear()
        self._deliveries.clear()
        self._publishes.clear()
        self._subscriptions.clear()
        self._violations.clear()

    def _boot(self, fs: SimulatedFileSystem, facts: Facts) -> None:
        """Start a process: a new bus on this disk, and every group that the application wants."""
        self._fs = fs
        self._history = _History(self)
        fs.history, fs.records = self._history, True
        self._clock = FakeClock(self._now_ms, quiet=self._loop.quiet)
        store = WalStore(WORKSPACE, self.terms.config.wal, fs=fs, io=InlineIo(), clock=self._clock)
        self._bus = EventBus(workspace=WORKSPACE, config=self.terms.config, store=store)
        self._is_over = False
        self.present = {log: {} for log in LOGS}
        self._look(facts)
        self._finished(self._bus.start())
        for group in self.wanted:
            self._subscribe(group, facts)
        self._check_recovered(store, facts)
        self._after_step()

    def _look(self, facts: Facts) -> None:
        for log, events in facts.logs.items():
            self.present[log].update({offset: kept.event_id for offset, kept in events.items()})

    def _check_recovered(self, store: WalStore, facts: Facts) -> None:
        """S1, S4: recovery loses nothing, calls nothing corrupt, and makes all of it durable before it serves."""
        for name in self._finished(store.log_names()):
            error = self._finished(store.log(name)).error
            if error is not None:
                raise Violation(f"S1: {name} cannot be used after a crash: {error}")
        durable = self._facts_of(self._fs.crash())
        for log, events in facts.logs.items():
            kept = durable.logs.get(log, {})
            lost = {offset for offset in events if offset not in kept and offset >= durable.first(log)}
            if lost or any(events[offset] != kept[offset] for offset in kept if offset in events):
                raise Violation(f"S1: {log} had {events}, and after recovery {kept} is durable")
            for offset, one in kept.items():
                self.ledger.saw(Place(log, offset), one.event_id, self.time_s, "recovered")
        for log, lines in facts.dead_letters.items():
            if durable.dead_letters.get(log, [])[: len(lines)] != lines:
                raise Violation(f"W10: the dead letters of {log} are not durable after recovery")

    # -- the end of the world ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """L: once the faults stop every group drains, ends in order, and gets nothing again."""
        self._acks_all = True
        for group in self.ledger.plans:
            self.subscribe(group)
        self.acknowledge()
        for _ in range(20):
            if not self._open_work():
                break
            self.advance(_PATIENCE_S)
        if left := self._open_work():
            raise Violation(f"L: groups did not drain: {left}, {self._bus.health()}, {self._bus.statistics().groups}")
        self._close(30.0)
        for group, consumer in list(self.consumers.items()):
            if list(consumer.unsettled(self.present)):
                raise Violation(f"L: group {group} ended without settling everything")
        self._restart(self._fs)
        if any(consumer.settled != self._settled_on_disk(consumer) for consumer in self.consumers.values()):
            raise Violation("S3: a group was given something after it had settled everything")
        self._close(0.0)

    def acknowledge(self) -> None:
        """Let every handler that waits succeed."""
        for delivery in list(self._deliveries):
            if not delivery.ruling.done():
                delivery.ruling.set_result("ack")
        self._go_on()
        self._after_step()

    def _open_work(self) -> dict[str, Any]:
        """What groups have not settled, nor given up for dead."""
        self._learn_deaths()
        found: dict[str, Any] = {}
        for group, consumer in self.consumers.items():
            left = list(consumer.unsettled(self.present))
            left += [place for place, (_, under_way) in consumer.rounds.items() if under_way]
            if left or consumer.running:
                found[group] = left
        return found

    def _settled_on_disk(self, consumer: Consumer) -> set[Place]:
        facts = self.facts()
        return {Place(log, offset) for log in facts.logs for offset in facts.settled(consumer.plan.name, log)}

    def end(self) -> None:
        """Let go of everything."""
        self._end_process()
        self._loop.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _step(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.step(work)

    def _go_on(self) -> None:
        """Let the others run until they wait."""
        self._loop.run_until_complete(self._loop.quiet())

    def _finished(self, work: Coroutine[Any, Any, T]) -> T:
        """A call that nothing can hold up but a fault."""
        task = self._step(work)
        if not task.done():
            raise Violation(f"L: {work} did not return")
        return task.result()

    def _watched(self) -> Any:
        """Keep a violation for the end of the step: raised inside the bus it would be a handler's failure."""
        return _Keeping(self._violations)

    def _after_step(self) -> None:
        """Check what must hold whenever everybody waits."""
        self._publishes = [one for one in self._publishes if not one.task.done()]
        if self._publishes:
            self._look(self.facts())  # some logs of a publish_many may have taken their share
        if self._violations:
            raise self._violations[0]
        self._learn_deaths()
        self._check_bounds()
        if not self._deliveries:
            self._check_alive()
        self._history.trim()

    def _learn_deaths(self) -> None:
        """What the last process died of once too often is buried without being delivered."""
        for consumer in self.consumers.values():
            if consumer.doomed:
                consumer.learn_deaths(self.facts())

    def _check_bounds(self) -> None:
        """M, W12: a window holds what it may hold; F5: no group was robbed of anything."""
        for group, numbers in self._bus.statistics().groups.items():
            limit = self.ledger.plans[group].settings.get("max_inflight")
            if limit is not None and numbers["inflight"] > limit:
                raise Violation(f"W12: group {group} holds {numbers['inflight']} events of {limit}")

    def _check_alive(self, *, patient: bool = False) -> None:
        """L: where no handler runs and nothing waits for its time, everything is settled."""
        for group, consumer in self.consumers.items():
            if consumer.is_stopping or consumer.running or (consumer.failed and not patient):
                continue
            left = list(consumer.unsettled(self.present))
            if left:
                raise Violation(f"L: group {group} does nothing, and has not settled {left}")


class _Keeping:
    """Catches a violation and keeps it."""

    def __init__(self, violations: list[Violation]) -> None:
        self._violations = violations

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Violation):
            self._violations.append(error)
            return True
        return False


def choose(image: Image, picks: Sequence[int]) -> Choice:
    """A fate for each change that was not synced, picked in turn; the lock file's never matters."""
    chosen = []
    for number, change in enumerate(image.unsynced()):
        options = fates(change, 3)
        pick = 0 if change.path.endswith("/lock") else picks[number % len(picks)] if picks else 1
        chosen.append(options[pick % len(options)])
    return tuple(chosen)


_RULINGS: Final[Mapping[Ruling, tuple[Outcome, Verdict]]] = {
    "ack": ("acked", None),
    "nack": ("failed", Nack("as it was told")),
    "raise": ("failed", None),
    "later": ("put off", Nack("later", delay=1.5, count=False)),
    "bury": ("buried", DeadLetter("as it was told")),
    "skip": ("acked", Skip("unwanted")),
    "relay": ("acked", Ack()),
}
