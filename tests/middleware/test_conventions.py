"""The names of errors and outcomes: few, stable, and the same on every backend."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from events.contracts import DeadLetter, Skip, Verdict
from events.errors import Denied, QueueFull
from events.types import Ack, Nack
from middleware.conventions import error_type_of, failure_of, outcome_of, verdict_of
from tests.middleware.hop_support import event, handle_hop


class Inner(Exception):
    """An error with a cause."""


def test_an_error_is_named_by_its_code_or_class() -> None:
    """The bus's own code comes first, also where it is the cause of something else."""
    wrapped = Inner("x")
    wrapped.__cause__ = QueueFull("t", "g", 1.0)
    assert error_type_of(Denied("a", "publish", "t", "s", "")) == "DENIED"
    assert error_type_of(ValueError("x")) == "ValueError"
    assert error_type_of(Inner("x")) == "Inner"
    assert error_type_of(wrapped) == "QUEUE_FULL"


async def test_a_cancellation_has_one_name() -> None:
    """Both backends cancel with a class of their own."""
    names = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException as error:
            names.append(error_type_of(error))
            raise
    assert names == ["cancelled"]


@pytest.mark.parametrize(
    ("verdict", "failure", "outcome"),
    [
        (None, None, None),
        (Ack(), None, None),
        (Nack("no"), "nack", "nack"),
        (Nack("wait", count=False), None, "wait"),
        (DeadLetter("bad"), "dead_letter", "dead_letter"),
        (Skip("expired"), None, "expired"),
    ],
)
def test_verdicts(verdict: Verdict, failure: str | None, outcome: str | None) -> None:
    """What charges an attempt is a failure; what is not simply acked has an outcome."""
    assert failure_of(verdict) == failure
    assert outcome_of(verdict) == outcome


def test_a_delivery_ends_as_the_whole_unless_it_has_an_end_of_its_own() -> None:
    """The verdicts inside a hop win over what the chain returned."""
    hop = handle_hop(event(), event())
    hop.without({0: Skip("filtered")})
    assert verdict_of(hop, 0, Nack("no")) == Skip("filtered")
    assert verdict_of(hop, 1, Nack("no")) == Nack("no")
