"""Writing memories: validated, encoded, stored once, told of; whatever happens in between."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from events.bus import EventBus
from events.cognitive_events import HippoEncode, standard
from events.config import BusConfig
from events.consolidation import ConsolidationPolicy, Consolidator
from events.episodic import Memory, Recall
from events.episodic_sqlite import SqliteEpisodicStore
from events.errors import StorageFull
from events.persistence.memory import MemoryStore
from events.types import Actor, Event, EventMeta, SecurityBand
from events.write_handler import WriteHandler, encode, source_of
from tests.events.bus_support import group_of, history, settled

CONFIG = BusConfig(backoff_base=0.001, backoff_max=0.01, max_retries=3)


def request(payload: dict[str, Any], **meta: Any) -> Event:
    """A request to remember something."""
    return Event(EventMeta(**{"topic": "hippo", "type": "HIPPO_ENCODE", "space_id": "home", **meta}), payload)


@pytest.fixture
async def memories() -> AsyncIterator[SqliteEpisodicStore]:
    """An empty store."""
    store = SqliteEpisodicStore(None)
    yield store
    await store.close()


async def remembered(memories: SqliteEpisodicStore, space: str = "home") -> list[Memory]:
    """All memories of a space, oldest first."""
    return list(await memories.find(Recall(space_id=space, newest_first=False)))


async def told(bus: EventBus, type: str) -> list[Event]:
    """The events of a type, in order."""
    return [one.event for one in await history(bus) if one.event.meta.type == type]


async def test_a_request_becomes_a_memory_and_is_told(memories: SqliteEpisodicStore) -> None:
    """Stored with what was said; WRITE_ACCEPTED and WORKING_MEMORY_UPDATE name it, and follow from the request."""
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        asked = request(
            {"text": "The stove is hot", "tags": ["fire"], "valence": -0.4, "salience": 0.8, "degrees": 230},
            actor=Actor(user_id="alice"),
            key="stove",
            band="AMBER",
            caps=("read:kitchen",),
            correlation_id="c-1",
        )
        await bus.publish(asked)
        await settled(bus)
        (memory,) = await remembered(memories)
        assert (memory.text, memory.tags, memory.actor, memory.key) == ("The stove is hot", ("fire",), "alice", "stove")
        assert (memory.valence, memory.salience, memory.ts) == (-0.4, 0.8, asked.meta.ts)
        assert memory.content == asked.payload
        (accepted,) = await told(bus, "WRITE_ACCEPTED")
        (update,) = await told(bus, "WORKING_MEMORY_UPDATE")
        assert accepted.payload["memory_id"] == update.payload["item_id"] == memory.memory_id
        assert accepted.payload["event_id"] == asked.meta.event_id
        assert (update.payload["op"], update.payload["summary"], update.payload["strength"]) == (
            "add",
            "The stove is hot",
            0.8,
        )
        for event in (accepted, update):
            assert standard().fault(event) is None
            assert (event.meta.causation_id, event.meta.correlation_id) == (asked.meta.event_id, "c-1")
            assert (event.meta.band, event.meta.caps) == (SecurityBand.AMBER, ("read:kitchen",))
        assert await memories.unannounced("home") == []


async def test_the_same_request_makes_no_second_memory(memories: SqliteEpisodicStore) -> None:
    """By the producer's idempotency key or the event's id, in its space; told of once, since it was noted."""
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        once = request({"text": "once"}, idem_key="k")
        await bus.publish(once)
        await bus.publish(once)
        await bus.publish(request({"text": "another event, same key"}, idem_key="k"))
        await bus.publish(request({"text": "same key elsewhere"}, idem_key="k", space_id="work"))
        await bus.publish(request({"text": "no key"}))
        await settled(bus)
        assert [memory.text for memory in await remembered(memories)] == ["once", "no key"]
        assert [memory.text for memory in await remembered(memories, "work")] == ["same key elsewhere"]
        assert len(await told(bus, "WRITE_ACCEPTED")) == 3


class Dying(SqliteEpisodicStore):
    """A store under which the process dies at one of the steps, a few times, as far as anybody can tell."""

    def __init__(self, step: str, times: int) -> None:
        super().__init__(None)
        self._step, self._left = step, times

    def _die(self, step: str) -> None:
        if step == self._step and self._left:
            self._left -= 1
            raise RuntimeError(f"died at {step}")

    async def remember(self, memory: Memory, now_ms: int) -> Any:
        self._die("before store")
        stored = await super().remember(memory, now_ms)
        self._die("after store")
        return stored

    async def mark_announced(self, memory: Memory) -> None:
        self._die("before note")
        await super().mark_announced(memory)
        self._die("after note")


@pytest.mark.parametrize(
    ("step", "announcements"), [("before store", 1), ("after store", 1), ("before note", 3), ("after note", 1)]
)
async def test_an_interrupted_write_is_finished_by_the_next_delivery(step: str, announcements: int) -> None:
    """Wherever it stopped: one memory, told of at least once; what is told twice has the same id and key."""
    memories = Dying(step, times=2)
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        await bus.publish(request({"text": "important"}))
        await settled(bus)
        assert await bus.dlq.list() == []
        assert len(await remembered(memories)) == 1
        accepted = await told(bus, "WRITE_ACCEPTED")
        assert len(accepted) == len(await told(bus, "WORKING_MEMORY_UPDATE")) == announcements
        assert len({(event.meta.event_id, event.meta.idem_key) for event in accepted}) == 1
    await memories.close()


async def test_what_an_earlier_process_did_not_tell_is_told_at_the_start(memories: SqliteEpisodicStore) -> None:
    """Stored, and then the process was gone for good: the next one tells of it before it consumes."""
    made = replace(encode(request({"text": "unsaid"}), HippoEncode(text="unsaid")), memory_id="mem-1", source="ev-1")
    await memories.remember(replace(made, band=SecurityBand.RED), 5)
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        (accepted,) = await told(bus, "WRITE_ACCEPTED")
        assert accepted.payload["memory_id"] == "mem-1"
        assert accepted.meta.band is SecurityBand.RED  # and it is told to nobody who could not have read it
        assert await memories.unannounced("home") == []


@pytest.mark.parametrize("payload", [{}, {"valence": 3}, {"tags": "no list"}, {"ts": "yesterday"}])
async def test_what_is_no_memory_goes_to_the_dead_letters_at_once(
    memories: SqliteEpisodicStore, payload: dict[str, Any]
) -> None:
    """Trying again would not help: no retries, and the dead letter says which field and why, not what it held."""
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        await bus.publish(request(payload))
        await settled(bus)
        (dead,) = await bus.dlq.list()
        assert dead.reason.startswith("not a memory: payload")
        assert dead.attempts == 0
        assert await remembered(memories) == []


async def test_other_events_on_the_topic_are_passed_over(memories: SqliteEpisodicStore) -> None:
    """The handler hears its own WRITE_ACCEPTED too, and makes no memory of a memory."""
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        await bus.publish(request({"text": "a"}))
        await bus.publish(request({"text": "b"}, type="WRITE_REQUEST"))
        await bus.publish(request({"text": "c"}, type="METACOG_REPORT"))
        await settled(bus)
        assert [memory.text for memory in await remembered(memories)] == ["a", "b"]
        assert group_of(bus, "hippocampus")["not a write"] == 3


async def test_an_older_request_is_lifted_first(memories: SqliteEpisodicStore) -> None:
    """A taxonomy with upcasters lets the handler read what older producers say."""
    taxonomy = standard()
    kind = taxonomy.kind("HIPPO_ENCODE")
    assert kind is not None
    taxonomy.register(type(kind)(type=kind.type, model=kind.model, topic=kind.topic, version=2))

    @taxonomy.upcaster("HIPPO_ENCODE", 1)
    def renamed(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "text": payload.pop("words")}

    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories, taxonomy=taxonomy).follow(bus)
        await bus.publish(request({"words": "in the old way"}))
        await bus.publish(request({"text": "in the new way"}, schema_version=2))
        await settled(bus)
    assert [memory.text for memory in await remembered(memories)] == ["in the old way", "in the new way"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_encoder_of_ones_own(memories: SqliteEpisodicStore, is_async: bool) -> None:
    """It may change everything but what identifies the memory, and may take its time."""

    def shout(event: Event, asked: HippoEncode) -> Memory:
        return replace(encode(event, asked), text=(asked.text or "").upper(), source="forged", space_id="elsewhere")

    async def slowly(event: Event, asked: HippoEncode) -> Memory:
        return shout(event, asked)

    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories, encoder=slowly if is_async else shout).follow(bus)
        asked = request({"text": "hello"})
        await bus.publish(asked)
        await settled(bus)
        (memory,) = await remembered(memories)
    assert (memory.text, memory.source) == ("HELLO", asked.meta.event_id)


async def test_a_full_disk_costs_no_attempt() -> None:
    """StorageFull from the store is nobody's fault: the event waits and is delivered again, and never dies of it."""

    class Full(Dying):
        def _die(self, step: str) -> None:
            if step == "before store" and self._left:
                self._left -= 1
                raise StorageFull("memories", 0.0)

    memories = Full("before store", times=10)
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories).follow(bus)
        await bus.publish(request({"text": "patience"}))
        await settled(bus)
        assert len(await remembered(memories)) == 1
        assert await bus.dlq.list() == []
    await memories.close()


async def test_writes_make_consolidation_due(memories: SqliteEpisodicStore) -> None:
    """With a consolidator, every so many writes it is told that consolidation is due."""
    consolidator = Consolidator(memories, ConsolidationPolicy(count=4))
    async with EventBus(store=MemoryStore(), config=CONFIG) as bus:
        await WriteHandler(memories, consolidator=consolidator).follow(bus)
        await bus.publish_many([request({"text": f"{number}"}) for number in range(9)])
        await settled(bus)
        due = await told(bus, "CONSOLIDATION_DUE")
    assert [event.payload["through"] for event in due] == [4, 8]


def test_the_usual_encoder() -> None:
    """Text, else summary, else every word there is; when it happened, if that is said with its zone."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    event = request({"note": "milk", "list": [{"item": "bread"}, 3], "ts": at.isoformat()}, actor="agent:shopper")
    made = encode(event, HippoEncode.model_validate(event.payload))
    assert (made.text, made.ts, made.actor) == ("milk bread 2026-01-01T00:00:00+00:00", at, "agent:shopper")
    assert encode(event, HippoEncode(summary="shopping")).text == "shopping"
    assert encode(event, HippoEncode(summary="s", text="t", ts=datetime(2026, 1, 1))).ts == event.meta.ts  # noqa: DTZ001
    assert source_of(request({}, idem_key="k")) == "hippo:k"
