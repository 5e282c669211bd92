"""A group's place in a log: what it remembers, and how it takes up where it left."""

from __future__ import annotations

from typing import Any

import pytest

from events.cursor import Cursor, open_cursor
from events.deadletters import death_entry, ended_entry, open_deaths, retry_entry
from events.lanes import Place
from events.persistence.codec import event_members
from events.persistence.memory import MemoryStore
from events.persistence.store import Attempts, Checkpoint, Deferral, Entry, GroupRecord, LogName, StoreLog
from events.serialization import encode_event
from events.testing.clock import FakeClock
from tests.events.bus_support import HOME, an_event

GROUP = GroupRecord(name="learner", topic="actions", space="*")


async def _filled(store: MemoryStore, number: int, name: LogName = HOME) -> StoreLog:
    log = await store.log(name)
    for index in range(number):
        meta, payload = encode_event(an_event(index), 10_000)
        await log.append([Entry(event_members(meta, payload))], timeout_s=1)
    return log


async def _opened(store: MemoryStore, group: GroupRecord = GROUP, **settings: Any) -> Cursor:
    return await open_cursor(store, HOME, group, **{"careful": False, "span": 1000, **settings})


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (GroupRecord(name="g", topic="actions", space="*"), 1),
        (GroupRecord(name="g", topic="actions", space="*", start="offset", start_value=4), 4),
        (GroupRecord(name="g", topic="actions", space="*", start="latest", ends={"home": {"actions": 6}}), 6),
        (GroupRecord(name="g", topic="actions", space="*", start="latest", ends={"home": {"notes": 6}}), 1),
        (GroupRecord(name="g", topic="actions", space="*", start="timestamp", start_value=1_700_000_003_000), 4),
        (GroupRecord(name="g", topic="actions", space="*", start="timestamp", start_value=2_000_000_000_000), 7),
    ],
)
async def test_without_a_checkpoint_the_groups_record_says_where_to_begin(group: GroupRecord, expected: int) -> None:
    """W4: earliest, an offset, the end as it was when the group was born, a time; later logs begin at 1."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    log = await store.log(HOME)
    for index in range(6):
        meta, payload = encode_event(an_event(index), 10_000)
        await log.append([Entry(event_members(meta, payload))], timeout_s=1)
        await clock.advance(1)
    assert (await _opened(store, group)).next == expected


async def test_a_checkpoint_comes_before_the_record() -> None:
    """W1: committed, ranges, attempts, deferrals and retries are taken up as they were saved."""
    store = MemoryStore()
    log = await _filled(store, 20)
    checkpoint = Checkpoint(
        log_id=log.log_id,
        committed=5,
        ranges=((8, 9),),
        attempts={6: Attempts(2, 10, 20, ("a", "b"))},
        deferrals={7: Deferral(5, 6, 2)},
        retries={(3, 1, 4): Attempts()},
        dead_letters=9,
    )
    await store.save_checkpoint(HOME, "learner", checkpoint)
    cursor = await _opened(store)
    assert cursor.next == 6
    assert cursor.snapshot() == checkpoint
    assert cursor.lag == 20 - 5 - 2
    assert (cursor.is_settled(Place(8)), cursor.is_settled(Place(7)), cursor.is_settled(Place(3, 1, 4))) == (
        True,
        False,
        False,
    )


async def test_settling_forgets_what_was_held_for_the_event() -> None:
    """W1: attempts and deferrals of a settled event are not saved again, and a round is apart from its event."""
    store = MemoryStore()
    await _filled(store, 3)
    cursor = await _opened(store)
    cursor.hold_attempts(Place(1), Attempts(1))
    cursor.deferrals[1] = Deferral(1)
    cursor.hold_attempts(Place(1, 1, 1), Attempts(3))
    cursor.settle(Place(1))
    assert cursor.held_attempts(Place(1)) is None
    assert cursor.held_attempts(Place(1, 1, 1)) == Attempts(3)
    assert not cursor.deferrals
    assert not cursor.is_idle
    cursor.settle(Place(1, 1, 1))
    cursor.settle(Place(2), 3)
    assert cursor.is_idle


async def test_dead_letters_settle_their_offsets_before_anything_is_delivered() -> None:
    """W10: a crash between the dead letter and the checkpoint must not make an event both dead and alive."""
    store = MemoryStore()
    log = await _filled(store, 4)
    records = await log.read(1, 100_000)
    dead_letters = await store.dead_letters(HOME)

    async def bury(offset: int, group: str = "learner", round: int = 0) -> None:
        entry = death_entry(
            records[offset - 1],
            group=group,
            offset=offset,
            round=round,
            reason="test",
            errors=(),
            attempts=1,
            died_ms=1,
            appended_ms=1,
        )
        await dead_letters.append([entry], timeout_s=1)

    await bury(1)
    await bury(2, "another")
    await bury(3)
    deaths = (await open_deaths(dead_letters)).idle("learner")
    await dead_letters.append([retry_entry(death) for death in deaths], timeout_s=1)
    await dead_letters.append([ended_entry(group="learner", offset=1, round=1)], timeout_s=1)
    cursor = await _opened(store)
    assert [offset for offset in range(1, 5) if offset in cursor.settled] == [1, 3]
    assert list(cursor.retries) == [Place(3, 1, 3)]
    assert cursor.dead_letters == 6
    # The round died, too, and the crash came before the checkpoint: one entry a round, nothing both ways.
    await bury(3, round=1)
    cursor = await _opened(store)
    assert cursor.retries == {}


async def test_after_an_unclean_end_what_was_running_is_known() -> None:
    """W6: attempts marked as running are suspects, and so is everything that the group may have held."""
    store = MemoryStore()
    log = await _filled(store, 20)
    running = {4: Attempts(1, running=True), 6: Attempts(1)}
    checkpoint = Checkpoint(log_id=log.log_id, committed=3, ranges=((8, 9),), attempts=running)
    await store.save_checkpoint(HOME, "learner", checkpoint)
    cursor = await _opened(store, careful=True, span=5)
    assert cursor.solo == {Place(4)}
    assert cursor.suspects_through == 14
    assert (await _opened(store, careful=True)).suspects_through == 20
    assert (await _opened(store)).suspects_through == 0


async def test_lag_is_never_negative() -> None:
    """Statistics: a group that begins at an offset still to come is not behind."""
    store = MemoryStore()
    await _filled(store, 2)
    cursor = await _opened(store, GroupRecord(name="g", topic="a", space="b", start="offset", start_value=50))
    assert cursor.lag == 0
