"""The bus without an event loop: from scripts, from many threads, from plain handlers (rule W19)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from events.blocking import BlockingBus
from events.config import BusConfig
from events.errors import BusClosed, GroupConflict, InvalidTopic, QueueFull, WorkspaceLocked, error_code_of
from events.persistence.wal import WalSettings
from events.types import Event, Nack
from filters import SimpleFilter
from tests.events.bus_support import PATIENCE_S, an_event, some_events

CONFIG = BusConfig(wal=WalSettings(ballast_bytes=0), backoff_base=0.001, backoff_max=0.01, checkpoint_interval_s=0.01)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[BlockingBus]:
    """A running bus on disk."""
    with BlockingBus(workspace=tmp_path / "w", config=CONFIG) as running:
        yield running


def test_a_script_publishes_and_consumes(bus: BlockingBus) -> None:
    """W19: receipts, handlers, statistics and history, all without an await."""
    seen: list[int] = []

    def handler(event: Event) -> None:
        seen.append(event.payload["n"])

    subscription = bus.subscribe("actions", "learner", handler)
    assert bus.publish(an_event(1)).offset == 1
    assert [receipt.offset for receipt in bus.publish_many(some_events([2, 3]))] == [2, 3]
    assert bus.publish(an_event(4), "notes").topic == "notes"
    assert bus.wait_settled(PATIENCE_S)
    assert seen == [1, 2, 3]
    assert bus.health().ok
    assert bus.statistics().groups["learner"]["acked"] == 3
    assert [record.offset for record in bus.replay("actions", space="home", start=2)] == [2, 3]
    bus.unsubscribe(subscription)
    bus.delete_group("learner")
    with pytest.raises(InvalidTopic):
        bus.publish(an_event(), "../up")


def test_eight_threads_publish_at_once(bus: BlockingBus) -> None:
    """W19: any thread may publish; offsets are those of one log, each given once."""
    seen: list[int] = []
    lock = threading.Lock()

    def handler(event: Event) -> None:
        with lock:
            seen.append(event.payload["n"])

    bus.subscribe("actions", "learner", handler, workers=4)
    with ThreadPoolExecutor(8) as threads:
        offsets = list(threads.map(lambda number: bus.publish(an_event(number)).offset, range(400)))
    assert sorted(offsets) == list(range(1, 401))
    assert bus.wait_settled(PATIENCE_S)
    assert sorted(seen) == list(range(400))


def test_first_use_from_many_threads_starts_one_bus(tmp_path: Path) -> None:
    """W19: no start at all, and eight threads that come first."""
    bus = BlockingBus(workspace=tmp_path / "w", config=CONFIG)
    with ThreadPoolExecutor(8) as threads:
        offsets = list(threads.map(lambda number: bus.publish(an_event(number)).offset, range(8)))
    assert sorted(offsets) == list(range(1, 9))
    bus.close()
    bus.close()


def test_a_plain_handler_publishes_through_the_same_bus(bus: BlockingBus) -> None:
    """W12, W19: from its worker thread, and without waiting for room in a window that is full."""
    results: list[int] = []
    let_go = threading.Event()

    def on_action(event: Event) -> None:
        bus.publish(an_event(event.payload["n"] * 10, topic="results"))

    def on_result(event: Event) -> None:
        let_go.wait(PATIENCE_S)
        results.append(event.payload["n"])

    bus.subscribe("results", "results", on_result, max_inflight=1)
    bus.subscribe("actions", "actions", on_action)
    bus.publish_many(some_events(range(5)))
    deadline = time.monotonic() + PATIENCE_S
    while bus.statistics().groups["actions"].get("acked", 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    let_go.set()
    assert bus.wait_settled(PATIENCE_S)
    assert results == [0, 10, 20, 30, 40]


def test_a_thread_waits_for_room_and_is_refused_in_time(bus: BlockingBus) -> None:
    """QUEUE_FULL (W12): errors of the bus reach the calling thread as themselves."""
    let_go = threading.Event()
    begun = threading.Event()

    def stuck(event: Event) -> None:
        begun.set()
        let_go.wait(PATIENCE_S)

    bus.subscribe("actions", "slow", stuck, max_inflight=1)
    bus.publish(an_event(1))
    assert begun.wait(PATIENCE_S)
    with pytest.raises(QueueFull):
        bus.publish(an_event(2), timeout_s=0.02)
    with pytest.raises(GroupConflict):
        bus.subscribe("notes", "slow", stuck)
    let_go.set()


def test_dead_letters_can_be_listed_and_retried(bus: BlockingBus) -> None:
    """W10, W19: the inspector's calls for code without a loop."""
    moods = [True]

    def handler(event: Event) -> Nack | None:
        return Nack("no") if moods[0] else None

    bus.subscribe("actions", "learner", handler, max_retries=0)
    bus.publish(an_event(1))
    assert bus.wait_settled(PATIENCE_S)
    assert [dead.offset for dead in bus.dead_letters(group="learner")] == [1]
    moods[0] = False
    assert bus.retry_dead_letters() == 1
    assert bus.wait_settled(PATIENCE_S)
    assert bus.dead_letters() == []


def test_history_longer_than_a_chunk_is_read_as_one_goes(bus: BlockingBus) -> None:
    """W19: replay is an iterator; it may be left early, and takes filters."""
    bus.publish_many(some_events(range(600)))
    assert [record.event.payload["n"] for record in bus.replay("actions")] == list(range(600))
    stream = bus.replay("actions", filters=[SimpleFilter("payload.n", 299, "gt")])
    assert next(stream).event.payload["n"] == 300


def test_a_closed_bus_says_so_in_every_thread(tmp_path: Path) -> None:
    """BUS_CLOSED (W17, W19): threads that publish while another one closes get a receipt or the refusal, none hangs."""
    bus = BlockingBus(workspace=tmp_path / "w", config=CONFIG)
    bus.start()
    outcomes: list[str | None] = []
    receipts: list[int] = []

    def publish() -> None:
        try:
            while True:
                receipts.append(bus.publish(an_event()).offset)
        except Exception as error:
            outcomes.append(error_code_of(error))

    threads = [threading.Thread(target=publish, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(receipts) < 20:
        time.sleep(0.001)
    bus.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert outcomes == ["BUS_CLOSED"] * 8
    with pytest.raises(BusClosed):
        bus.publish(an_event())
    with BlockingBus(workspace=tmp_path / "w", config=CONFIG) as again:
        there = {record.offset for record in again.replay("actions")}
    assert set(receipts) <= there


def test_what_goes_wrong_at_the_start_is_raised_there(tmp_path: Path) -> None:
    """LOCKED (W18): and no thread stays behind; once the workspace is free, it starts."""
    with BlockingBus(workspace=tmp_path / "w", config=CONFIG):
        second = BlockingBus(workspace=tmp_path / "w", config=CONFIG)
        with pytest.raises(WorkspaceLocked):
            second.start()
        before = threading.active_count()
        with pytest.raises(WorkspaceLocked):
            second.publish(an_event())
        deadline = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.01)  # an I/O thread ends once it has seen that its queue is closed
        assert threading.active_count() <= before
    with second:
        assert second.publish(an_event()).offset == 1


def test_leaving_the_block_waits_for_the_handlers(tmp_path: Path) -> None:
    """W17: the end of `with` is a close: what was taken is worked off."""
    seen: list[int] = []

    def slowly(event: Event) -> None:
        time.sleep(0.01)
        seen.append(event.payload["n"])

    with BlockingBus(workspace=tmp_path / "w", config=CONFIG) as bus:
        bus.subscribe("actions", "learner", slowly)
        bus.publish(an_event(0))
        bus.publish_many(some_events(range(1, 5)))
        deadline = time.monotonic() + PATIENCE_S
        while not bus.statistics().groups["learner"]["inflight"] and time.monotonic() < deadline and not seen:
            time.sleep(0.001)
    with BlockingBus(workspace=tmp_path / "w", config=CONFIG) as bus:
        bus.subscribe("actions", "learner", slowly)
        assert bus.wait_settled(PATIENCE_S)
    assert sorted(seen) == list(range(5))
