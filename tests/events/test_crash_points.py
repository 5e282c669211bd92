"""Crashes at chosen moments: what the next process finds, and what it does with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.attention_gate import Admit, Decision, Defer, GateContext
from events.bus import EventBus
from events.config import BusConfig
from events.contracts import Delivery, Verdict
from events.persistence.files import OsFileSystem
from events.persistence.store import Checkpoint, Entry, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore
from events.persistence.workspace import Layout
from events.types import Event, EventMeta, Nack
from tests.events.process_support import checkpoint_of, deaths_of, keep_quiet, lines_of, received, started

HOME = LogName("home", "actions")
GROUP = "workers"
CRASHED = 9
PATIENCE_S = 30.0
Handle = Callable[[Event[Any], Delivery], Verdict]


def event_of(number: int, *, name: LogName = HOME, key: str | None = None) -> Event[Any]:
    return Event(EventMeta(topic=name.topic, type="ACTED", space_id=name.space_id, key=key), {"number": number})


def bus_on(workspace: str | Path, *, store: WalStore | None = None, gate: Any = None, **settings: Any) -> EventBus:
    """A bus that saves at once and retries at once, so that a test waits for neither."""
    config = BusConfig(**{"checkpoint_interval_s": 0.005, "backoff_base": 0.001, "backoff_max": 0.01, **settings})
    return EventBus(workspace=workspace, config=config, store=store, gate=gate)


async def deliveries(workspace: Path, handle: Handle = lambda event, delivery: None, **settings: Any) -> list[Delivery]:
    """Open the workspace again, consume what is owed, close in order; what was delivered, in order."""
    seen: list[Delivery] = []

    async def handler(event: Event[Any], delivery: Delivery) -> Verdict:
        seen.append(delivery)
        return handle(event, delivery)

    async with bus_on(workspace) as bus:
        await bus.subscribe(settings.pop("topic", HOME.topic), GROUP, handler, **settings)
        assert await bus.wait_settled(PATIENCE_S), bus.statistics()
    return seen


def offsets(seen: Sequence[Delivery]) -> list[int]:
    return [delivery.offset for delivery in seen]


def crash(target: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a child until it crashes as it was told to; what it sent before."""
    with started(run, target, *args) as (process, connection):
        sent = list(received(connection))
        process.join(PATIENCE_S)
        assert process.exitcode == CRASHED, f"{target.__name__} ended with {process.exitcode}"
    return sent


def run(connection: Connection, target: Callable[..., Any], *args: Any) -> None:
    """Any of the scripts below, in a process of its own."""
    keep_quiet()
    anyio.run(target, connection, *args)


async def never(event: Event[Any]) -> None:
    """A handler that is still running when the process ends."""
    await anyio.sleep_forever()


# -- right after subscribing -------------------------------------------------------------------------------------


async def subscribe_and_crash(connection: Connection, workspace: str, topic: str) -> None:
    async with bus_on(workspace) as bus:
        await bus.publish_many([event_of(number) for number in range(3)])
        await bus.subscribe(topic, GROUP, never, start="latest")
        await bus.publish(event_of(4))
        await bus.publish(event_of(5, name=LogName("later", HOME.topic)))
        os._exit(CRASHED)


@pytest.mark.parametrize("topic", [HOME.topic, "*"])
async def test_crash_right_after_subscribing_at_the_end(workspace: Path, topic: str) -> None:
    """W3, W4: `subscribe(start="latest")` returned, an event was published, the process died: the next one delivers
    that event and none from before. A space that came later is delivered from its first event.
    """
    crash(subscribe_and_crash, str(workspace), topic)
    seen = await deliveries(workspace, topic=topic, start="latest")
    assert sorted((delivery.space_id, delivery.offset) for delivery in seen) == [("home", 4), ("later", 1)]


# -- between the dead letter and the checkpoint --------------------------------------------------------------------


class DyingAfterDeath(WalStore):
    """Ends the process once a dead-letter line of some number is durable, or at the next checkpoint behind it."""

    def __init__(self, workspace: str, line: int, *, at_checkpoint: bool) -> None:
        super().__init__(workspace)
        self.line, self.at_checkpoint = line, at_checkpoint

    async def dead_letters(self, name: LogName) -> StoreLog:
        log = await super().dead_letters(name)
        if not self.at_checkpoint and not isinstance(log, DyingLog):
            return DyingLog(log, self.line)
        return log

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        if self.at_checkpoint:
            lines = list(lines_of(Path(self.layout.workspace), name, dead_letters=True))
            if len(lines) >= self.line:
                os._exit(CRASHED)
        await super().save_checkpoint(name, group, checkpoint)


class DyingLog:
    def __init__(self, log: StoreLog, line: int) -> None:
        self._log, self._line = log, line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        appended = await self._log.append(entries, timeout_s=timeout_s)
        if self._line in appended:
            os._exit(CRASHED)
        return appended


async def die_after_death(connection: Connection, workspace: str, rounds: int, at_checkpoint: bool) -> None:
    """Three events of one key, the second of which always fails; after its death it is retried `rounds` times."""
    lines = 1 + 2 * rounds  # a death, and for each round its beginning and its death
    store = DyingAfterDeath(workspace, lines, at_checkpoint=at_checkpoint)

    async def handler(event: Event[Any]) -> Verdict:
        return Nack("never") if event.payload["number"] == 2 else None

    async with bus_on(workspace, store=store, max_retries=1) as bus:
        await bus.subscribe(HOME.topic, GROUP, handler)
        await bus.publish_many([event_of(number, key="k") for number in (1, 2, 3)])
        for _ in range(rounds):
            assert await bus.wait_settled(PATIENCE_S)
            assert await bus.dlq.retry() == 1
        await anyio.sleep_forever()


@pytest.mark.parametrize("at_checkpoint", [False, True], ids=["after the append", "at the checkpoint"])
@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_crash_between_dead_letter_and_checkpoint(workspace: Path, rounds: int, at_checkpoint: bool) -> None:
    """W10: a death is durable before it is settled, and settles its event when the log is opened again: no attempt
    more, one entry a round, nothing both acked and dead.
    """
    crash(die_after_death, str(workspace), rounds, at_checkpoint)
    before = checkpoint_of(workspace, HOME, GROUP)
    if before is not None:
        assert before.dead_letters <= 2 * rounds, "the crash came too late to show anything"
    seen = await deliveries(workspace)
    assert 2 not in offsets(seen), "dead, and yet delivered"
    deaths = deaths_of(workspace, HOME)
    assert [(death.offset, death.round, death.attempts) for death in deaths] == [
        (2, number, 2) for number in range(rounds + 1)
    ]
    after = checkpoint_of(workspace, HOME, GROUP)
    assert after is not None
    assert (after.committed, dict(after.attempts), dict(after.retries)) == (3, {}, {})


async def retry_and_crash(connection: Connection, workspace: str) -> None:
    async with bus_on(workspace, max_retries=0) as bus:
        died = anyio.Event()

        async def handler(event: Event[Any], delivery: Delivery) -> Verdict:
            if delivery.replayed:
                await anyio.sleep_forever()
            died.set()
            return Nack("not the first time")

        await bus.subscribe(HOME.topic, GROUP, handler)
        await bus.publish(event_of(1))
        await died.wait()
        assert await bus.wait_settled(PATIENCE_S)
        assert await bus.dlq.retry() == 1
        os._exit(CRASHED)


async def test_crash_right_after_a_retry(workspace: Path) -> None:
    """W10: a retry that returned is durable: the next process delivers it, to that group alone, with fresh attempts;
    once it succeeds the dead letter is gone.
    """
    crash(retry_and_crash, str(workspace))
    seen = await deliveries(workspace)
    assert [(delivery.offset, delivery.attempt, delivery.replayed) for delivery in seen] == [(1, 1, True)]
    async with bus_on(workspace) as bus:
        assert await bus.dlq.list() == []
    assert await deliveries(workspace) == []


async def test_several_retries_at_once_begin_one_round(workspace: Path) -> None:
    """W10: however many ask for a retry at one moment, the dead letter gets one round, and one entry if it fails."""
    rounds: list[bool] = []

    async def handler(event: Event[Any], delivery: Delivery) -> Verdict:
        rounds.append(delivery.replayed)
        return Nack("never")

    async with bus_on(workspace, max_retries=0) as bus:
        await bus.subscribe(HOME.topic, GROUP, handler, workers=4)
        await bus.publish(event_of(1))
        assert await bus.wait_settled(PATIENCE_S)
        asked: list[int] = []

        async def ask() -> None:
            asked.append(await bus.dlq.retry())

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
        assert await bus.wait_settled(PATIENCE_S)
    deaths = deaths_of(workspace, HOME)
    assert [death.round for death in deaths] == list(range(sum(asked) + 1))
    assert len(rounds) == len(deaths)


# -- what waits over a crash ---------------------------------------------------------------------------------------


async def fail_and_crash(connection: Connection, workspace: str, delay_s: float) -> None:
    async with bus_on(workspace) as bus:

        async def handler(event: Event[Any], delivery: Delivery) -> Verdict:
            return Nack(f"failure {delivery.attempt}", delay=0.001 if delivery.attempt < 2 else delay_s)

        await bus.subscribe(HOME.topic, GROUP, handler, max_retries=3)
        await bus.publish(event_of(1))
        while True:
            held = checkpoint_of(Path(workspace), HOME, GROUP)
            if held is not None and 1 in held.attempts and held.attempts[1].count == 2:
                os._exit(CRASHED)
            await anyio.sleep(0.005)


async def test_attempts_survive_a_crash(workspace: Path) -> None:
    """W6: attempts that are on disk count after a crash, and after an orderly restart: no event gets more of them
    than it has, and the dead letter has every error.
    """
    crash(fail_and_crash, str(workspace), 0.01)
    seen = await deliveries(workspace, lambda event, delivery: Nack(f"failure {delivery.attempt}"), max_retries=3)
    assert [delivery.attempt for delivery in seen] == [3, 4]
    (death,) = deaths_of(workspace, HOME)
    assert (death.attempts, death.errors) == (4, ("failure 1", "failure 2", "failure 3", "failure 4"))


async def test_a_backoff_keeps_its_time_over_a_crash(workspace: Path) -> None:
    """W6: an event that backs off when the process dies is delivered no earlier than it would have been."""
    crash(fail_and_crash, str(workspace), 1.0)
    held = checkpoint_of(workspace, HOME, GROUP)
    assert held is not None
    assert held.attempts[1].delay_ms == 1000
    began_ms: list[int] = []

    def handle(event: Event[Any], delivery: Delivery) -> None:
        began_ms.append(now_ms())

    await deliveries(workspace, handle, max_retries=3)
    assert began_ms[0] >= held.attempts[1].due_ms - CLOCK_MS


CLOCK_MS = 20  # two processes read the wall clock at different moments, and carry it on by the monotonic one


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class DeferOnce:
    """A gate that puts every event off once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def decide(self, event: Event[Any], context: GateContext) -> Decision:
        self.asked.append(context.deferrals)
        return Defer(self.seconds) if context.deferrals == 0 else Admit()


async def defer_and_crash(connection: Connection, workspace: str) -> None:
    async with bus_on(workspace, gate=DeferOnce(1.0)) as bus:
        await bus.subscribe(HOME.topic, GROUP, never)
        await bus.publish_many([event_of(1), event_of(2, key="k"), event_of(3, key="k")])
        while True:
            held = checkpoint_of(Path(workspace), HOME, GROUP)
            if held is not None and len(held.deferrals) == 2:
                os._exit(CRASHED)
            await anyio.sleep(0.005)


async def test_a_deferred_event_keeps_its_time_over_a_crash(workspace: Path) -> None:
    """W7, W13: what the gate put off stays put off until it was due, and the gate hears that it asked before; the
    event behind it in its lane waits with it.
    """
    crash(defer_and_crash, str(workspace))
    held = checkpoint_of(workspace, HOME, GROUP)
    assert held is not None
    assert sorted(held.deferrals) == [1, 2], "the third stands behind the second, and was not asked about"
    gate = DeferOnce(1.0)
    began: dict[int, int] = {}

    async def handler(event: Event[Any], delivery: Delivery) -> None:
        began[delivery.offset] = now_ms()

    async with bus_on(workspace, gate=gate) as bus:
        await bus.subscribe(HOME.topic, GROUP, handler)
        assert await bus.wait_settled(PATIENCE_S)
    for offset, deferral in held.deferrals.items():
        assert began[offset] >= deferral.due_ms - CLOCK_MS
    assert began[3] >= began[2]
    assert sorted(gate.asked) == [0, 1, 1, 1], "the deferrals of the last process were forgotten"


# -- damaged offset files ------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x20
    path.write_bytes(data)


async def settle_in_two_steps(workspace: Path, **settings: Any) -> Path:
    """Twenty events settled, ten at a time; the offset file, whose previous copy knows of fewer."""
    for first in (1, 11):
        async with bus_on(workspace) as bus:
            await bus.publish_many([event_of(number) for number in range(first, first + 10)])
        await deliveries(workspace, **settings)
    return Path(Layout(workspace).checkpoint(*HOME, GROUP))


async def test_a_damaged_offset_file(workspace: Path) -> None:
    """Checkpoints: where the file is damaged its previous copy counts, where both are the group begins where it was
    registered; never at the end. What it did not know of is delivered again.
    """
    path = await settle_in_two_steps(workspace)
    previous = Path(f"{path}.prev")
    known = checkpoint_of(workspace, HOME, GROUP)
    assert known is not None
    assert known.committed == 20
    damage(path)
    older = checkpoint_of(workspace, HOME, GROUP)
    assert older is not None
    assert 10 <= older.committed < 20
    assert offsets(await deliveries(workspace)) == list(range(older.committed + 1, 21))
    assert await deliveries(workspace) == [], "settled again, and for good"
    damage(path)
    damage(previous)
    assert offsets(await deliveries(workspace)) == list(range(1, 21))


async def test_damaged_offset_files_of_a_group_that_began_at_the_end(workspace: Path) -> None:
    """Checkpoints: without a readable one, a group that was registered at the end of the log begins there again."""
    async with bus_on(workspace) as bus:
        await bus.publish_many([event_of(number) for number in range(5)])
    assert await deliveries(workspace, start="latest") == []
    async with bus_on(workspace) as bus:
        await bus.publish_many([event_of(number) for number in range(5)])
    assert offsets(await deliveries(workspace, start="latest")) == [6, 7, 8, 9, 10]
    path = Path(Layout(workspace).checkpoint(*HOME, GROUP))
    for copy in (path, Path(f"{path}.prev")):
        if copy.exists():
            damage(copy)
    assert offsets(await deliveries(workspace, start="latest")) == [6, 7, 8, 9, 10]


class DyingAtRename(OsFileSystem):
    """Ends the process before a checkpoint takes its place, and after the old one has left it."""

    def rename(self, source: str, target: str) -> None:
        if f"__{GROUP}.json" in target and not target.endswith(".prev"):
            os._exit(CRASHED)
        super().rename(source, target)


async def save_and_crash(connection: Connection, workspace: str) -> None:
    async with bus_on(workspace, store=WalStore(workspace, fs=DyingAtRename())) as bus:

        async def handler(event: Event[Any]) -> None:
            return None

        await bus.subscribe(HOME.topic, GROUP, handler)
        await bus.publish(event_of(21))
        await anyio.sleep_forever()


@pytest.mark.parametrize("damaged", [False, True])
async def test_crash_while_a_checkpoint_is_replaced(workspace: Path, damaged: bool) -> None:
    """Checkpoints: a crash between the two renames leaves the previous copy; also where the file itself was damaged
    before, so that it must not have pushed out the copy that stood in for it.
    """
    path = await settle_in_two_steps(workspace)
    if damaged:
        damage(path)
    known = checkpoint_of(workspace, HOME, GROUP)
    assert known is not None
    crash(save_and_crash, str(workspace))
    left = checkpoint_of(workspace, HOME, GROUP)
    assert left is not None
    assert left.committed == known.committed >= 10
    assert offsets(await deliveries(workspace)) == list(range(known.committed + 1, 22))


# -- at every checkpoint -------------------------------------------------------------------------------------------


class DyingAtSave(WalStore):
    """Ends the process at its n-th checkpoint: before it is written, or once it is durable."""

    def __init__(self, workspace: str, number: int, *, durable: bool) -> None:
        super().__init__(workspace, WalSettings(ballast_bytes=0))
        self.left, self.once_durable = number, durable

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        self.left -= 1
        if self.left == 0 and not self.once_durable:
            os._exit(CRASHED)
        await super().save_checkpoint(name, group, checkpoint)
        if self.left == 0:
            os._exit(CRASHED)


async def work_and_crash(connection: Connection, workspace: str, number: int, durable: bool, publish: bool) -> None:
    async with bus_on(workspace, store=DyingAtSave(workspace, number, durable=durable), max_retries=MANY) as bus:

        async def handler(event: Event[Any], delivery: Delivery) -> Verdict:
            connection.send((delivery.offset, delivery.attempt))
            return answer(event, delivery)

        await bus.subscribe(HOME.topic, GROUP, handler, workers=2)
        if publish:
            await bus.publish_many([event_of(number, key=f"k{number % 3}") for number in range(1, 13)])
        await bus.wait_settled(PATIENCE_S)
    os._exit(0)


MANY = 12  # an event that runs alone each time the process dies looks guilty in the end; here none is


def answer(event: Event[Any], delivery: Delivery) -> Verdict:
    """Four and eight fail once, six always."""
    number = event.payload["number"]
    return Nack("fails") if number == 6 or (number in (4, 8) and delivery.attempt == 1) else None


@pytest.mark.parametrize("durable", [False, True], ids=["before it is durable", "after"])
async def test_crash_at_each_checkpoint(workspace: Path, durable: bool) -> None:
    """S2, S3: a process that dies at its first checkpoint, the next at its second, and so on: each goes on with what
    is not durably settled, in each key's order, and the end is the same as without a crash.
    """
    seen: list[list[tuple[int, int]]] = []
    for number in range(1, 40):
        settled = checkpoint_of(workspace, HOME, GROUP)
        dead = {death.offset for death in deaths_of(workspace, HOME)}
        script = (work_and_crash, str(workspace), 1 + number // 4, durable, number == 1)
        with started(run, *script) as (process, connection):
            seen.append(list(received(connection)))
            process.join(PATIENCE_S)
        for offset, _ in seen[-1]:
            assert settled is None or not is_settled(settled, offset), f"{offset} was settled before life {number}"
            assert offset not in dead
        for key in range(3):
            life = [offset for offset, _ in seen[-1] if offset % 3 == key]
            assert life == sorted(life), f"key {key} out of order in life {number}: {life}"
        if process.exitcode == 0:
            break
        assert process.exitcode == CRASHED
    else:
        pytest.fail("it never got through")
    print(f"\n{len(seen)} lives, {sum(map(len, seen))} deliveries of 12 events")
    final = checkpoint_of(workspace, HOME, GROUP)
    assert final is not None
    assert (final.committed, dict(final.attempts)) == (12, {})
    assert {offset for life in seen for offset, _ in life} == set(range(1, 13))
    assert [death.offset for death in deaths_of(workspace, HOME)] == [6]


def is_settled(checkpoint: Checkpoint, offset: int) -> bool:
    return offset <= checkpoint.committed or any(first <= offset <= last for first, last in checkpoint.ranges)
