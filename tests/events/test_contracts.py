"""The contracts between the bus and what is plugged into it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from events.contracts import DeadLetter, Delivery, Filter, Hop, Skip, Stage
from events.handlers import Delivered
from events.types import Event, EventMeta, SecurityBand
from filters import SimpleFilter
from tests.events.bus_support import an_event


def _delivery(offset: int) -> Delivery:
    return cast(Delivery, Delivered("home", "actions", offset, 0, "learner", 1, lambda seconds: None))


def _hop(*events: Event) -> Hop:
    deliveries = [_delivery(offset) for offset, _ in enumerate(events, 1)]
    metas = [event.meta for event in events]
    return Hop(kind="handle", metas=metas, sizes=[1] * len(events), deliveries=deliveries, _events=events)


def test_the_stages_stand_in_the_order_of_the_chain() -> None:
    """Step 3: tracing, metrics, authorisation, then all that sees payloads."""
    assert list(Stage) == sorted(Stage)
    assert [stage.name for stage in Stage] == ["TRACE", "MEASURE", "AUTHORISE", "CONTENT"]


def test_a_sealed_hop_shows_names_and_sizes_only() -> None:
    """Step 3: asking for a payload before authorisation is an error, not an empty answer."""
    hop = _hop(an_event(1))
    assert hop.metas[0].topic == "actions"
    with pytest.raises(PermissionError):
        _ = hop.events
    assert hop.unsealed().events[0].payload == {"n": 1}


def test_metas_may_change_without_the_payload_being_opened() -> None:
    """Tracing: another meta, the same undecoded payload."""
    raw = b'{"n":1}'
    event: Event = Event.from_log(an_event().meta, raw)
    changed = _hop(event).with_metas([event.meta.replace(trace_id="abc")])
    assert changed.metas[0].trace_id == "abc"
    assert changed.unsealed().events[0].raw_payload is raw
    with pytest.raises(ValueError, match="argument 2"):
        _hop(event).with_metas([])


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "notes"},
        {"space_id": "work"},
        {"band": SecurityBand.GREEN},
        {"actor": "somebody"},
        {"caps": ["mic"]},
    ],
)
def test_what_was_authorised_cannot_change_behind_it(changes: dict[str, Any]) -> None:
    """Redaction may touch the payload and the rest of the meta, not what the decision was about."""
    hop = _hop(an_event(1)).unsealed()
    with pytest.raises(ValueError, match="authorised"):
        hop.with_events([an_event(1).replace(**changes)])
    assert hop.with_events([an_event(2, key="k")]).events[0].payload == {"n": 2}
    with pytest.raises(ValueError, match="2"):
        hop.with_events([an_event(1), an_event(2)])


def test_a_hop_can_go_on_without_some_of_its_deliveries() -> None:
    """W11: those taken out keep their verdict; metas, sizes, deliveries and events stay in step."""
    hop = _hop(*[an_event(number) for number in range(4)]).unsealed()
    rest = hop.without({0: Skip("filtered"), 2: DeadLetter("no")})
    assert [event.payload["n"] for event in rest.events] == [1, 3]
    assert [delivery.offset for delivery in rest.deliveries] == [2, 4]
    assert (len(rest.metas), len(rest.sizes)) == (2, 2)
    assert {delivery.offset: verdict for delivery, verdict in hop.verdicts.items()} == {
        1: Skip("filtered"),
        3: DeadLetter("no"),
    }
    assert rest.verdicts is hop.verdicts


def test_a_filter_is_known_by_what_it_can_do() -> None:
    """Contracts: cost, matches, describe; no base class needed."""

    class Mine:
        cost = 1

        def matches(self, event: Event) -> bool:
            return True

        def describe(self) -> dict[str, Any]:
            return {}

    assert isinstance(Mine(), Filter)
    assert isinstance(SimpleFilter("payload.n", 1, "exact"), Filter)
    assert not isinstance(object(), Filter)


def test_verdicts_are_values() -> None:
    """Two verdicts that say the same are the same."""
    assert Skip("a") == Skip("a") != Skip("b")
    assert DeadLetter("a") == DeadLetter("a")
    assert isinstance(an_event().meta, EventMeta)
