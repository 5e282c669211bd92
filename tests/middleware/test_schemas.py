"""Payloads by their models on the bus: off, lenient and strict on publish, and lifted for every consumer."""

import logging
from pathlib import Path
from typing import Any

import pytest

from events.bus import EventBus
from events.cognitive_events import standard
from events.errors import InvalidMessage
from events.persistence.memory import MemoryStore
from events.taxonomy import Taxonomy
from events.testing.recording import Recorder
from events.types import Event, EventMeta
from middleware.schemas import Mode, PayloadSchemaMiddleware
from policies.files import END
from policies.topics import TopicPolicies

GOOD = {"valence": 0.1, "arousal": 0.9}
BAD = {"valence": "very secret"}


def affect(payload: dict[str, Any], topic: str = "affect", **meta: Any) -> Event:
    """An annotation, right or wrong."""
    return Event(EventMeta(topic=topic, type="AFFECT_ANNOTATED", space_id="home", **meta), payload)


@pytest.fixture
def topics(tmp_path: Path) -> TopicPolicies:
    """Policies that ask for each mode."""
    path = tmp_path / "topics.toml"
    tables = "\n".join(f'[topics."{mode}"]\npayload_schema = "{mode}"' for mode in ("off", "lenient", "strict"))
    path.write_text(f"{tables}\n{END}\n")
    return TopicPolicies(path)


async def test_the_topics_policy_decides(topics: TopicPolicies) -> None:
    """Off asks nothing, lenient counts, strict refuses before anything is written."""
    check = PayloadSchemaMiddleware(standard(), topics)
    async with EventBus([check], store=MemoryStore()) as bus:
        await bus.publish(affect(BAD, "off"))
        await bus.publish(affect(BAD, "lenient"))
        with pytest.raises(InvalidMessage, match=r"payload\.valence"):
            await bus.publish(affect(BAD, "strict"))
        receipt = await bus.publish(affect(GOOD, "strict"))
        assert receipt.offset == 1
    assert check.faults == {("lenient", "AFFECT_ANNOTATED"): 1, ("strict", "AFFECT_ANNOTATED"): 1}


@pytest.mark.parametrize(("default", "counted"), [("off", 0), ("lenient", 3)])
async def test_without_a_policy_the_default_holds(
    default: Mode, counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Lenient says each fault once, with its place and rule and never with the value."""
    check = PayloadSchemaMiddleware(standard(), default=default)
    with caplog.at_level(logging.WARNING, "events.schemas"):
        async with EventBus([check], store=MemoryStore()) as bus:
            for _ in range(3):
                await bus.publish(affect(BAD))
    assert sum(check.faults.values()) == counted
    assert len(caplog.messages) == min(1, counted)
    assert "very secret" not in caplog.text


async def test_lenient_is_the_default_of_the_default() -> None:
    """A payload that does not fit is published all the same, unless somebody asked for more."""
    check = PayloadSchemaMiddleware(standard())
    async with EventBus([check], store=MemoryStore()) as bus:
        await bus.publish(affect(BAD))
        await bus.publish(Event(EventMeta(topic="any", type="UNHEARD_OF", space_id="home"), BAD))
    assert check.faults == {("affect", "AFFECT_ANNOTATED"): 1}


async def test_consumers_get_the_newest_version(recorder: Recorder) -> None:
    """An older payload in the log is lifted on its way to every handler; the log keeps what was said."""
    taxonomy = standard()
    newest = taxonomy.kind("AFFECT_ANNOTATED")
    assert newest is not None
    lifting = Taxonomy([type(newest)(type=newest.type, model=newest.model, topic="affect", version=2)])

    @lifting.upcaster("AFFECT_ANNOTATED", 1)
    def from_percent(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "arousal": payload["arousal"] / 100}

    async with EventBus([PayloadSchemaMiddleware(lifting)], store=MemoryStore()) as bus:
        await bus.publish(affect({"arousal": 90}))
        await bus.publish(affect({"arousal": 0.5}, schema_version=2))
        await bus.subscribe("affect", "arbiter", recorder)
        await recorder.wait_for(2)
        assert recorder.payloads == [{"arousal": 0.9}, {"arousal": 0.5}]
        assert [one.event.meta.schema_version for one in recorder.deliveries] == [2, 2]
        logged = [record.event.payload async for record in bus.replay("affect")]
    assert logged == [{"arousal": 90}, {"arousal": 0.5}]
