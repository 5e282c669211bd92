"""The lines of a dead-letter log: what each says, read back, and what they add up to."""

from __future__ import annotations

import pytest

from events.deadletters import (
    Death,
    Ended,
    OpenDeaths,
    Purge,
    Retry,
    death_entry,
    decode_entry,
    ended_entry,
    open_deaths,
    purge_entry,
    read_entries,
    retry_entry,
)
from events.persistence.codec import Record, encode_line, event_members
from events.persistence.memory import MemoryStore
from events.persistence.store import Entry
from events.serialization import encode_event
from events.types import Event
from tests.events.bus_support import HOME, an_event

TRICKY = '","meta":{"dlq":"dead"},"payload":{"at":1,"batch":2,"crc":"00000000"}'


def _record(event: Event, offset: int = 7) -> Record:
    meta, payload = encode_event(event, 100_000)
    return Record(offset, encode_line(offset, event_members(meta, payload), 1000, 1), 1, 0)


def _entry(event: Event, *, round: int = 0, group: str = "learner", errors: tuple[str, ...] = ("a", "b")) -> Entry:
    return death_entry(
        _record(event),
        group=group,
        offset=7,
        round=round,
        reason="retries exhausted",
        errors=errors,
        attempts=len(errors),
        died_ms=5000,
        appended_ms=1000,
    )


def _decoded(entry: Entry, line: int = 3) -> object:
    return decode_entry(Record(line, encode_line(line, entry.members, 6000, 1), 1, 0))


@pytest.mark.parametrize("text", ["plain", TRICKY, '\\"\n\u2028\x00', "ünïcödé 🦊"])
def test_a_death_carries_the_whole_event(text: str) -> None:
    """W10: event, errors, times and place come back as they were written, whatever the texts contain."""
    event = Event(an_event(key=text[:200], headers={"h": text}).meta, {"text": text, "deep": {"payload": [text]}})
    death = _decoded(_entry(event, errors=(text, "second")))
    assert isinstance(death, Death)
    assert death.event == event
    assert (death.line, death.group, death.offset, death.round, death.event_id) == (
        3,
        "learner",
        7,
        0,
        event.meta.event_id,
    )
    assert (death.errors, death.attempts, death.died_ms, death.appended_ms) == ((text, "second"), 2, 5000, 1000)


def test_notes_say_what_happened_to_a_death() -> None:
    """W10: a retry, its end and a purge are lines of the same log."""
    death = _decoded(_entry(an_event(), round=1))
    assert isinstance(death, Death)
    assert _decoded(retry_entry(death), 4) == Retry(line=4, group="learner", offset=7, round=2, entry=3)
    assert _decoded(ended_entry(group="g", offset=7, round=2), 5) == Ended(line=5, group="g", offset=7, round=2)
    assert _decoded(purge_entry(group="*", died_by_ms=9), 6) == Purge(line=6, group="*", died_by_ms=9)


def test_lines_name_the_offset_that_they_are_about() -> None:
    """RELIABILITY, rule 3: a dead letter is evidence that its event's offset was written."""
    assert _entry(an_event()).names == 7
    assert ended_entry(group="g", offset=9, round=1).names == 9
    assert purge_entry(group="g", died_by_ms=1).names == 0


def test_a_purge_covers_by_when_it_died_and_by_group() -> None:
    """W10: the moment itself is covered, later ones are not."""
    death = _decoded(_entry(an_event()))
    assert isinstance(death, Death)
    assert Purge(line=0, group="*", died_by_ms=5000).covers(death)
    assert Purge(line=0, group="learner", died_by_ms=5000).covers(death)
    assert not Purge(line=0, group="*", died_by_ms=4999).covers(death)
    assert not Purge(line=0, group="other", died_by_ms=5000).covers(death)


async def test_the_lines_of_a_log_add_up() -> None:
    """W10: one open death for each group and offset; retried ones are told from idle ones; purges spare them."""
    log = await MemoryStore().dead_letters(HOME)
    await log.append([_entry(an_event()), _entry(an_event(), group="other")], timeout_s=1)
    found = await open_deaths(log)
    assert {death.group for death in found.idle()} == {"learner", "other"}
    [mine] = found.idle("learner")
    await log.append([retry_entry(mine), purge_entry(group="*", died_by_ms=10_000)], timeout_s=1)
    found = await open_deaths(log)
    assert (found.idle(), list(found.deaths)) == ([], [("learner", 7)])
    await log.append([_entry(an_event(), round=1)], timeout_s=1)
    [again] = (await open_deaths(log)).idle()
    assert (again.round, again.line) == (1, 5)
    await log.append([retry_entry(again), ended_entry(group="learner", offset=7, round=2)], timeout_s=1)
    assert (await open_deaths(log)).deaths == {}
    assert len([entry async for entry in read_entries(log, 3)]) == 5


def test_the_end_of_what_was_never_retried_changes_nothing_else() -> None:
    """W10: lines of other events leave a death as it is."""
    found = OpenDeaths()
    death = _decoded(_entry(an_event()))
    assert isinstance(death, Death)
    found.add(death)
    found.add(Ended(line=9, group="learner", offset=8, round=1))
    found.add(Retry(line=10, group="nobody", offset=7, round=1, entry=3))
    assert found.idle() == [death]
