"""Idempotency: what succeeded once is not run again, across lanes, redeliveries and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from events.bus import EventBus
from events.config import BusConfig
from events.contracts import DeadLetter, Delivery, Hop, HopResult, Skip
from events.persistence.memory import MemoryStore
from events.persistence.store import Checkpoint, LogName
from events.persistence.wal import WalSettings
from events.testing.clock import FakeClock
from events.types import Ack, Event, Nack
from middleware.idempotency import IdempotencyMiddleware
from tests.events.bus_support import Held, group_of, killed, settled, until
from tests.middleware.hop_support import FakeDelivery, Terminal, chained_bus, cross, event, handle_hop

DUPLICATE = Skip("duplicate")


async def delivered(
    idempotency: IdempotencyMiddleware, *offsets: int, key: str = "k", verdict: HopResult = None, **delivery: Any
) -> list[HopResult]:
    """How deliveries of one key end, one after the other."""
    ends = []
    for offset in offsets:
        hop = handle_hop(event(idem_key=key), deliveries=[FakeDelivery(offset, **delivery)])
        ends.append(await cross(idempotency, hop, Terminal(lambda hop: verdict)))
    return ends


# -- what is the same --------------------------------------------------------------------------------------------


async def test_a_key_that_succeeded_is_not_handled_again() -> None:
    """W14: the second event with the key is settled as a duplicate; other keys are not concerned."""
    idempotency = IdempotencyMiddleware()
    assert await delivered(idempotency, 1, 2, 3) == [None, DUPLICATE, DUPLICATE]
    assert await delivered(idempotency, 4, key="other") == [None]


async def test_without_a_key_the_events_id_is_it() -> None:
    """A redelivery of the same event is a duplicate; another event is not."""
    idempotency, one = IdempotencyMiddleware(), event()
    ends = [await cross(idempotency, handle_hop(each), Terminal()) for each in (one, one, event())]
    assert ends == [None, DUPLICATE, None]


@pytest.mark.parametrize("other", [{"group": "actor"}, {"space_id": "work"}, {"topic": "plans"}])
async def test_keys_count_in_one_group_space_and_topic(other: dict[str, Any]) -> None:
    """W14: the same key elsewhere is another key."""
    idempotency = IdempotencyMiddleware()
    assert await delivered(idempotency, 1) == [None]
    assert await delivered(idempotency, 1, **other) == [None]


@pytest.mark.parametrize("verdict", [Nack("no"), Nack("wait", count=False), Skip("filtered"), DeadLetter("bad")])
async def test_only_success_is_kept(verdict: HopResult) -> None:
    """W14: what failed, waits, or was skipped further inside has not been done."""
    idempotency = IdempotencyMiddleware()
    assert await delivered(idempotency, 1, verdict=verdict) == [verdict]
    assert await delivered(idempotency, 2) == [None]


async def test_an_exception_keeps_nothing_and_claims_nothing() -> None:
    """The next delivery runs, and does not find the key taken."""
    idempotency = IdempotencyMiddleware()

    async def fail(hop: Hop) -> HopResult:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await idempotency(handle_hop(event(idem_key="k")).unsealed(), fail)
    assert await delivered(idempotency, 2) == [None]


async def test_a_retried_dead_letter_has_an_identity_of_its_own() -> None:
    """W14: asking for a retry is not answered with "done already"; but one round runs once."""
    idempotency = IdempotencyMiddleware()
    assert await delivered(idempotency, 1) == [None]
    assert await delivered(idempotency, 1, round=1) == [None]
    assert await delivered(idempotency, 1, round=1) == [DUPLICATE]
    assert await delivered(idempotency, 1, round=2) == [None]


async def test_publishing_is_not_its_business() -> None:
    """Two events with one key are both in the log: groups decide, each for itself."""
    terminal = Terminal()
    for _ in range(2):
        hop = Hop(kind="publish", metas=[event(idem_key="k").meta], sizes=[2], _events=[event()])
        await cross(IdempotencyMiddleware(), hop, terminal)
    assert len(terminal.hops) == 2


# -- two lanes ---------------------------------------------------------------------------------------------------


async def test_two_lanes_with_one_key_do_not_run_at_once() -> None:
    """W14: the second waits for the first, and is a duplicate when that has succeeded."""
    idempotency, running, go, ends = IdempotencyMiddleware(wait_s=30), [0], anyio.Event(), list[HopResult]()

    async def handler(hop: Hop) -> HopResult:
        running[0] += 1
        assert running[0] == 1
        await go.wait()
        running[0] -= 1
        return None

    async def deliver(offset: int) -> None:
        hop = handle_hop(event(idem_key="k"), deliveries=[FakeDelivery(offset)])
        ends.append(await idempotency(hop.unsealed(), handler))

    async with anyio.create_task_group() as tasks:
        for offset in range(5):
            tasks.start_soon(deliver, offset)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert ends == [None] + [DUPLICATE] * 4


async def test_when_the_first_fails_the_second_runs() -> None:
    """Whoever waited takes the key over."""
    idempotency, go, ends = IdempotencyMiddleware(wait_s=30), anyio.Event(), list[HopResult]()

    async def handler(hop: Hop) -> HopResult:
        await go.wait()
        return Nack("no") if hop.deliveries[0].offset == 0 else None

    async def deliver(offset: int) -> None:
        hop = handle_hop(event(idem_key="k"), deliveries=[FakeDelivery(offset)])
        ends.append(await idempotency(hop.unsealed(), handler))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deliver, 0)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(deliver, 1)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert ends == [Nack("no"), None]


async def test_who_waits_too_long_comes_back_at_no_charge() -> None:
    """A long tool call must not hold every worker of the group."""
    idempotency, go, ends = IdempotencyMiddleware(wait_s=0.01), anyio.Event(), list[HopResult]()

    async def handler(hop: Hop) -> HopResult:
        await go.wait()
        return None

    async def deliver() -> None:
        await idempotency(handle_hop(event(idem_key="k")).unsealed(), handler)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deliver)
        await anyio.wait_all_tasks_blocked()
        ends += await delivered(idempotency, 2)
        go.set()
    (nack,) = ends
    assert isinstance(nack, Nack)
    assert (nack.count, nack.delay) == (False, 0.01)


async def test_a_cancelled_handler_lets_its_key_go() -> None:
    """A missed deadline is a failed attempt: the next one runs."""
    idempotency = IdempotencyMiddleware()

    async def hang(hop: Hop) -> HopResult:
        await anyio.sleep_forever()
        return None

    with anyio.move_on_after(0.01):
        await idempotency(handle_hop(event(idem_key="k")).unsealed(), hang)
    assert await delivered(idempotency, 2) == [None]


# -- batches -----------------------------------------------------------------------------------------------------


async def test_a_batch_runs_each_key_once() -> None:
    """The first event of a key runs; its twin in the batch, and what was done before, are duplicates."""
    idempotency, terminal = IdempotencyMiddleware(), Terminal()
    await delivered(idempotency, 9, key="done")
    hop = handle_hop(*[event(idem_key=key) for key in ("a", "b", "a", "done")])
    assert await cross(idempotency, hop, terminal) is None
    assert [meta.idem_key for meta in terminal.hops[0].metas] == ["a", "b"]
    assert hop.verdicts == {hop.deliveries[2]: DUPLICATE, hop.deliveries[3]: DUPLICATE}
    assert await delivered(idempotency, 10, key="b") == [DUPLICATE]


async def test_a_twin_in_a_failed_batch_comes_again() -> None:
    """Nothing was done, so nothing is a duplicate."""
    idempotency = IdempotencyMiddleware()
    hop = handle_hop(event(idem_key="a"), event(idem_key="a"))
    assert await cross(idempotency, hop, Terminal(lambda hop: Nack("no"))) == Nack("no")
    verdict = hop.verdicts[hop.deliveries[1]]
    assert isinstance(verdict, Nack)
    assert not verdict.count
    assert await delivered(idempotency, 3, key="a") == [None]


async def test_a_batch_of_duplicates_does_not_reach_the_handler() -> None:
    """All of it is settled."""
    idempotency, terminal = IdempotencyMiddleware(), Terminal()
    await delivered(idempotency, 1, key="a")
    hop = handle_hop(event(idem_key="a"), event(idem_key="a"))
    await cross(idempotency, hop, terminal)
    assert list(hop.verdicts.values()) == [DUPLICATE, DUPLICATE]
    assert not terminal.hops


async def test_of_a_batch_only_what_succeeded_is_kept() -> None:
    """Somebody inside may give single events another end."""
    idempotency = IdempotencyMiddleware()
    hop = handle_hop(event(idem_key="a"), event(idem_key="b"))

    async def inside(hop: Hop) -> HopResult:
        hop.without({0: Nack("no")})
        return Ack()

    await idempotency(hop.unsealed(), inside)
    assert await delivered(idempotency, 3, key="a") == [None]
    assert await delivered(idempotency, 4, key="b") == [DUPLICATE]


# -- on a bus ----------------------------------------------------------------------------------------------------


async def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    """W14: another event with the same key, published in another process, is not handled."""
    handled: list[int] = []

    async def handler(one: Event[Any]) -> None:
        handled.append(one.payload["n"])

    for n in (1, 2):
        async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
            await bus.subscribe("actions", "learner", handler)
            await bus.publish(event({"n": n}, idem_key="act:a1|ok"))
            await settled(bus)
    assert handled == [1]


class WatchedStore(MemoryStore):
    """A store that looks, before it saves a checkpoint, for the keys of all that the checkpoint settles."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = 0
        self.missing: set[str] = set()

    async def save_checkpoint(self, name: LogName, group: str, checkpoint: Checkpoint) -> None:
        journal = await self.journal(name.space_id, "idempotency", f"{name.topic}__{group}")
        written = {record.members()["key"] for record in journal.recent(1)}
        settled = [*range(1, checkpoint.committed + 1)]
        settled += [offset for first, last in checkpoint.ranges for offset in range(first, last + 1)]
        self.missing |= {f"key:k{offset}" for offset in settled} - written
        self.saved += 1
        await super().save_checkpoint(name, group, checkpoint)


async def test_no_checkpoint_is_ahead_of_its_keys() -> None:
    """W14: whenever the process is killed, what is settled on disk has its key on disk."""
    store = WatchedStore()
    bus = EventBus([IdempotencyMiddleware()], store=store, config=BusConfig(checkpoint_interval_s=0.001))

    async def handler(one: Event[Any]) -> None:
        await anyio.sleep(one.payload["n"] % 3 / 1000)

    await bus.subscribe("actions", "learner", handler, workers=4)
    for n in range(1, 101):
        await bus.publish(event({"n": n}, idem_key=f"k{n}"))
    await settled(bus)
    await bus.close()
    assert store.saved > 3
    assert not store.missing


async def test_a_redelivery_after_a_crash_before_the_checkpoint_may_repeat(tmp_path: Path) -> None:
    """W14: at least once is still the promise where the process dies between the handler and its checkpoint."""
    handled: list[int] = []

    async def handler(one: Event[Any]) -> None:
        handled.append(one.payload["n"])

    async with chained_bus(tmp_path / "w", IdempotencyMiddleware(), checkpoint_interval_s=30) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event({"n": 1}, idem_key="k"))
        await until(lambda: handled == [1])
        copy = killed(tmp_path / "w")
    async with chained_bus(copy, IdempotencyMiddleware()) as bus:
        await bus.subscribe("actions", "learner", handler)
        await settled(bus)
    assert handled == [1, 1]


async def test_a_failed_attempt_is_retried(tmp_path: Path) -> None:
    """Its key was not kept, so the retry is not a duplicate of it; after success it is."""
    attempts: list[int] = []

    async def handler(one: Event[Any], delivery: Delivery) -> Nack | None:
        attempts.append(delivery.attempt)
        return Nack("again") if delivery.attempt < 3 else None

    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event(idem_key="k"))
        await settled(bus)
        await bus.publish(event(idem_key="k"))
        await settled(bus)
        assert group_of(bus, "learner")["duplicate"] == 1
    assert attempts == [1, 2, 3]


async def test_two_workers_never_run_one_key_at_once(tmp_path: Path) -> None:
    """W14: different ordering keys, one idempotency key, four workers: one runs, the others are duplicates."""
    held = Held()
    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
        await bus.subscribe("actions", "learner", held, workers=4)
        await bus.publish_many([event({"n": n}, key=f"lane-{n}", idem_key="k") for n in range(4)])
        await until(lambda: held.begun)
        await anyio.sleep(0.05)
        assert len(held.begun) == 1
        held.let_go()
        await settled(bus)
        assert group_of(bus, "learner")["duplicate"] == 3
    assert len(held.ended) == 1


async def test_a_dead_letters_retry_runs_although_its_key_is_done(tmp_path: Path) -> None:
    """W14: the retry does not hit its own dedupe."""
    handled: list[int] = []

    async def handler(one: Event[Any]) -> DeadLetter | None:
        handled.append(one.payload["n"])
        return DeadLetter("bad") if len(handled) == 1 else None

    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event({"n": 1}, idem_key="k"))
        await settled(bus)
        await bus.publish(event({"n": 2}, idem_key="k"))
        await settled(bus)
        assert await bus.dlq.retry() == 1
        await settled(bus)
    assert handled == [1, 2, 1]


async def test_a_group_that_is_made_again_has_done_nothing(tmp_path: Path) -> None:
    """W3: deleting a group forgets its keys too, in this process and for the next."""
    handled: list[int] = []

    async def handler(one: Event[Any]) -> None:
        handled.append(one.payload["n"])

    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
        for _ in range(2):
            await bus.subscribe("actions", "learner", handler)
            if not handled:
                await bus.publish(event({"n": 1}, idem_key="k"))
            await settled(bus)
            await bus.delete_group("learner")
            await anyio.sleep(0.002)
    assert handled == [1, 1]
    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:
        await bus.subscribe("actions", "learner", handler)
        await settled(bus)
    assert handled == [1, 1, 1]


async def test_the_window_is_bounded_in_number_and_time() -> None:
    """The oldest keys give way to new ones, and none is remembered for longer than the window."""
    clock = FakeClock()
    bus = EventBus([], store=MemoryStore(clock=clock))
    idempotency = IdempotencyMiddleware(max_keys=3, window_s=60)
    idempotency.attach(bus)
    for key in ("a", "b", "c", "d"):
        assert await delivered(idempotency, 1, key=key) == [None]
    assert await delivered(idempotency, 2, key="b") == [DUPLICATE]
    assert await delivered(idempotency, 2, key="a") == [None], "a gave way to d"
    await clock.advance(61)
    assert await delivered(idempotency, 3, key="d") == [None]


async def test_the_journal_is_bounded_on_disk(tmp_path: Path) -> None:
    """Segments that hold nothing but keys out of the window are deleted."""
    config = BusConfig(wal=WalSettings(segment_lines=50, ballast_bytes=0), checkpoint_interval_s=0.001, settle_span=100)
    bus = EventBus([IdempotencyMiddleware(max_keys=100)], workspace=tmp_path / "w", config=config)

    async def handler(one: Event[Any]) -> None: ...

    await bus.subscribe("actions", "learner", handler)
    for _ in range(20):
        await bus.publish_many([event() for _ in range(50)])
        await settled(bus)
    await bus.close()
    folder = tmp_path / "w" / ".bus" / "spaces" / "home" / "idempotency"
    lines = sum(path.read_text().count("\n") for path in folder.glob("actions__learner.*.jsonl"))
    assert 100 <= lines <= 350


async def test_memory_is_bounded_over_all_scopes() -> None:
    """Scopes that were not used for long are let go, and read again from their journals."""
    store = MemoryStore()
    idempotency = IdempotencyMiddleware(max_keys_in_memory=20)
    idempotency.attach(EventBus([], store=store))
    for space in range(10):
        for key in range(5):
            await delivered(idempotency, 1, key=f"k{key}", space_id=f"s{space}")
        await idempotency.before_checkpoint()
    assert sum(len(scope.done) for scope in idempotency._scopes.values()) <= 25
    for space in range(10):
        assert await delivered(idempotency, 2, key="k3", space_id=f"s{space}") == [DUPLICATE]


async def test_a_journal_that_cannot_be_written_holds_the_checkpoint_back() -> None:
    """W14: the keys are kept for the next try, and whoever saves the checkpoint hears of it."""
    store = MemoryStore()
    idempotency = IdempotencyMiddleware()
    idempotency.attach(EventBus([], store=store))
    await delivered(idempotency, 1)
    journal = await store.journal("home", "idempotency", "actions__learner")
    append = journal.append

    async def full(*args: Any, **kwargs: Any) -> list[int]:
        raise OSError(28, "no space left on device")

    journal.append = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space"):
        await idempotency.before_checkpoint()
    journal.append = append  # type: ignore[method-assign]
    await idempotency.before_checkpoint()
    assert [record.members()["key"] for record in journal.recent(1)] == ["key:k"]


async def test_checkpoints_at_the_same_time_write_each_key_once() -> None:
    """W14: whoever comes second waits for the first, and then writes what has come since."""
    store, go = MemoryStore(), anyio.Event()
    idempotency = IdempotencyMiddleware()
    idempotency.attach(EventBus([], store=store))
    await delivered(idempotency, 1, key="a")
    journal = await store.journal("home", "idempotency", "actions__learner")
    append, finished = journal.append, list[int]()

    async def slow(*args: Any, **kwargs: Any) -> list[int]:
        await go.wait()
        return await append(*args, **kwargs)

    async def checkpoint(number: int) -> None:
        await idempotency.before_checkpoint()
        finished.append(number)

    journal.append = slow  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(checkpoint, 1)
        await anyio.wait_all_tasks_blocked()
        await delivered(idempotency, 2, key="b")
        tasks.start_soon(checkpoint, 2)
        await anyio.wait_all_tasks_blocked()
        assert not finished
        go.set()
    assert [record.members()["key"] for record in journal.recent(1)] == ["key:a", "key:b"]


async def test_the_journal_stands_beside_the_log(tmp_path: Path) -> None:
    """One line a key, in a folder of its own: a person can read what was done."""
    async with chained_bus(tmp_path / "w", IdempotencyMiddleware()) as bus:

        async def handler(one: Event[Any]) -> None: ...

        await bus.subscribe("actions", "learner", handler)
        await bus.publish(event(idem_key="act:a1|ok"))
        await settled(bus)
        assert LogName("home", "actions") in await bus.store.log_names()
    path = tmp_path / "w/.bus/spaces/home/idempotency/actions__learner.00000001.jsonl"
    assert '"key":"key:act:a1|ok"' in path.read_text()
