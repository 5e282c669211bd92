"""The names that OpenTelemetry's messaging conventions give to what we do, and the seed's own beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from anyio import get_cancelled_exc_class

from events.contracts import DeadLetter, Hop, HopResult, Skip, Verdict
from events.errors import error_code_of
from events.types import Nack

SYSTEM: Final = "cognitive_events"
PUBLISH: Final = "events.publish"
HANDLE: Final = "events.handle"
SETTLE: Final = "events.settle"

MESSAGING_SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
ERROR_TYPE: Final = "error.type"

SPACE: Final = "messaging.cognitive_events.space"
OFFSET: Final = "messaging.cognitive_events.offset"
ATTEMPT: Final = "messaging.cognitive_events.attempt"
OUTCOME: Final = "messaging.cognitive_events.outcome"

DURATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


def error_type_of(error: BaseException) -> str:
    """A name for an error that has few different values: the bus's own code, or the class."""
    # Each backend cancels with a class of its own, and dashboards should not know which one runs.
    if not isinstance(error, Exception) and isinstance(error, get_cancelled_exc_class()):
        return "cancelled"
    return error_code_of(error) or type(error).__qualname__


def verdict_of(hop: Hop, index: int, result: HopResult) -> Verdict:
    """How one delivery of a hop ends: as the whole of it, unless something inside decided otherwise."""
    whole = None if isinstance(result, Sequence) else result
    return hop.verdicts.get(hop.deliveries[index], whole) if hop.verdicts else whole


def failure_of(verdict: Verdict) -> str | None:
    """The error type of a verdict that means a failed attempt. Waiting at no charge is no failure."""
    match verdict:
        case Nack(count=True):
            return "nack"
        case DeadLetter():
            return "dead_letter"
        case _:
            return None


def outcome_of(verdict: Verdict) -> str | None:
    """What to call the end of a delivery that was not simply acked."""
    match verdict:
        case Nack(count=count):
            return "nack" if count else "wait"
        case DeadLetter():
            return "dead_letter"
        case Skip(reason=reason):
            return reason
        case _:
            return None
