"""Episodic memories in SQLite: one for each source, each space apart, found by time, actor, tag, key and words."""

import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from events.episodic import EpisodicStore, Memory, Recall, Waiting
from events.episodic_sqlite import SqliteEpisodicStore
from events.errors import InvalidSpace, ReadOnly, StorageFull
from events.types import SecurityBand

START = datetime(2026, 11, 18, 8, 0, 0, 123_456, tzinfo=UTC)


def memory(number: int, *, space: str = "home", **changes: Any) -> Memory:
    """A memory that is told from others by its number."""
    made = Memory(
        memory_id=f"mem-{number}",
        space_id=space,
        source=f"source-{number}",
        event_id=f"ev-{number}",
        ts=START + timedelta(minutes=number),
        text=f"memory number {number}",
    )
    return replace(made, **changes)


@pytest.fixture(params=["disk", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqliteEpisodicStore]:
    """A store on disk, and one that lives in memory."""
    made = SqliteEpisodicStore(tmp_path / "workspace" if request.param == "disk" else None)
    yield made
    await made.close()


async def ids(store: EpisodicStore, **wanted: Any) -> list[str]:
    """The numbers of the memories that are found, in order."""
    found = await store.find(Recall(**{"space_id": "home", "newest_first": False, **wanted}))
    return [one.memory_id.removeprefix("mem-") for one in found]


async def test_a_memory_comes_back_as_it_was(store: SqliteEpisodicStore) -> None:
    """Every field, to the microsecond, with the sequence that the store gave it."""
    whole = memory(
        1,
        actor="alice",
        key="stove",
        tags=("fire", "kitchen"),
        valence=-0.5,
        arousal=0.9,
        salience=0.7,
        band=SecurityBand.AMBER,
        caps=("read:private",),
        correlation_id="c-1",
        content={"nested": [1, {"two": None}], "ü": "ß"},
    )
    stored = await store.remember(whole, 5)
    assert stored == (replace(whole, sequence=1), True, False)
    assert await store.get("home", "mem-1") == replace(whole, sequence=1)
    assert await store.get("home", "mem-2") is None


async def test_one_source_makes_one_memory(store: SqliteEpisodicStore) -> None:
    """Offered again, the first one is returned, whatever the second says; and whether it was announced."""
    first = await store.remember(memory(1), 5)
    again = await store.remember(memory(2, source="source-1", text="another text"), 6)
    assert again == (first.memory, False, False)
    await store.mark_announced(first.memory)
    await store.mark_announced(first.memory)
    assert (await store.remember(memory(1), 7)).is_announced
    assert await ids(store) == ["1"]


async def test_at_the_same_time_too(store: SqliteEpisodicStore) -> None:
    """Many tasks that offer the same source at once make one memory between them."""
    results = []

    async def offer(number: int) -> None:
        results.append(await store.remember(memory(number, source="the same"), 5))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(offer, number)
    assert sum(one.is_new for one in results) == 1
    assert len({one.memory.memory_id for one in results}) == 1


async def test_memories_are_found_by_what_is_known_of_them(store: SqliteEpisodicStore) -> None:
    """By time, actor, key, tags and words; all that is given must hold."""
    for made in (
        memory(1, actor="alice", key="stove", tags=("fire",), text="The stove is HOT, said Ana"),
        memory(2, actor="alice", key="door", tags=("fire", "noise"), text="somebody knocked"),
        memory(3, actor="bob", key="stove", tags=("noise",), text="the über-stove whistled"),
    ):
        await store.remember(made, 5)
    assert await ids(store) == ["1", "2", "3"]
    assert await ids(store, newest_first=True, limit=2) == ["3", "2"]
    assert await ids(store, since=START + timedelta(minutes=2)) == ["2", "3"]
    assert await ids(store, until=START + timedelta(minutes=2)) == ["1"]
    assert await ids(store, actor="alice") == ["1", "2"]
    assert await ids(store, key="stove") == ["1", "3"]
    assert await ids(store, tags=("fire",)) == ["1", "2"]
    assert await ids(store, tags=("fire", "noise")) == ["2"]
    assert await ids(store, text="stove") == ["1", "3"]
    assert await ids(store, text="hot STOVE") == ["1"]
    assert await ids(store, text="uber") == ["3"]
    assert await ids(store, text="stove", actor="bob", tags=("noise",)) == ["3"]
    assert await ids(store, actor="nobody") == []


@pytest.mark.parametrize(
    "text", ['stove" OR "door', "stove*", "NOT stove", "(stove", '"', "^", "text:stove AND", "", "-", "a:b"]
)
async def test_what_people_type_is_no_query_language(store: SqliteEpisodicStore, text: str) -> None:
    """Quotes, operators and punctuation are words or nothing: no input is an error, or finds more than its words."""
    await store.remember(memory(1, text="the stove"), 5)
    await store.remember(memory(2, text="the door"), 5)
    assert set(await ids(store, text=text)) <= {"1"}


async def test_spaces_know_nothing_of_each_other(store: SqliteEpisodicStore) -> None:
    """The same source in two spaces is two memories, and each space finds its own."""
    for space in ("home", "work/ü"):
        await store.remember(memory(1, space=space), 5)
    assert [one.space_id for one in await store.find(Recall(space_id="work/ü"))] == ["work/ü"]
    assert sorted(await store.spaces()) == ["home", "work/ü"]
    assert await store.get("elsewhere", "mem-1") is None
    with pytest.raises(InvalidSpace):
        await store.get("", "mem-1")


async def test_who_was_not_announced_is_found(store: SqliteEpisodicStore) -> None:
    """Oldest first, until it is announced."""
    stored = [(await store.remember(memory(number), 5)).memory for number in range(3)]
    await store.mark_announced(stored[1])
    assert [one.memory_id for one in await store.unannounced("home")] == ["mem-0", "mem-2"]
    assert [one.memory_id for one in await store.unannounced("home", limit=1)] == ["mem-0"]


async def test_what_waits_for_consolidation(store: SqliteEpisodicStore) -> None:
    """Counted from where consolidation was last asked for; that never goes back."""
    assert await store.waiting("home") == Waiting(0, 0, 0, 0, 0)
    for number in range(4):
        await store.remember(memory(number), 100 + number)
    assert await store.waiting("home") == Waiting(4, 0, 4, 100, 103)
    await store.mark_consolidating("home", 3)
    await store.mark_consolidating("home", 1)
    assert await store.waiting("home") == Waiting(1, 3, 4, 103, 103)


async def test_memories_outlive_the_store(tmp_path: Path) -> None:
    """What was remembered is there when the workspace is opened again, beside the logs of its space."""
    first = SqliteEpisodicStore(tmp_path)
    await first.remember(memory(1), 5)
    await first.close()
    await first.close()
    second = SqliteEpisodicStore(tmp_path)
    assert await second.spaces() == ["home"]
    assert await ids(second) == ["1"]
    await second.close()
    file = tmp_path / ".bus" / "spaces" / "home" / "memories" / "episodic.sqlite3"
    assert file.exists()
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_many_spaces_do_not_keep_many_files_open(tmp_path: Path) -> None:
    """M: what was not used lately is closed, and opened again when it is wanted."""
    store = SqliteEpisodicStore(tmp_path)
    for number in range(40):
        await store.remember(memory(number, space=f"space-{number}"), 5)
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    assert len({path for path in opened if path.endswith("episodic.sqlite3")}) <= 16
    assert (await store.get("space-0", "mem-0")) is not None
    await store.close()


def _is_link(descriptor: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


async def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    """A schema that this version does not know is refused, and not changed."""
    store = SqliteEpisodicStore(tmp_path)
    await store.remember(memory(1), 5)
    await store.close()
    file = tmp_path / ".bus" / "spaces" / "home" / "memories" / "episodic.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ReadOnly, match="newer release"):
        await store.get("home", "mem-1")


async def test_a_full_disk_is_said_as_the_bus_says_it(tmp_path: Path) -> None:
    """StorageFull, which charges a handler no attempt; and nothing of the memory is there."""
    store = SqliteEpisodicStore(tmp_path)
    await store.remember(memory(1), 5)
    with store._used("home") as space:
        pages = space.connection.execute("PRAGMA page_count").fetchone()[0]
        space.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFull):
        await store.remember(memory(2, text="word " * 100_000), 6)
    assert await ids(store) == ["1"]
    await store.close()
