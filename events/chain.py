"""The middleware chain: checked for order, then composed once, outermost first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from events.contracts import Hop, HopResult, Middleware, Next, Stage
from events.errors import InvalidMessage


def stage_of(middleware: Middleware) -> Stage:
    """Where a middleware stands; one that does not say sees payloads, so it stands behind authorisation."""
    return Stage(getattr(middleware, "stage", Stage.CONTENT))


def name_of(middleware: Middleware) -> str:
    """A middleware as errors and metrics name it."""
    return getattr(middleware, "__name__", None) or type(middleware).__name__


def check_order(middlewares: Sequence[Middleware]) -> None:
    """Refuse a chain in which something would see what it must not, or would not see what it must."""
    for before, after in pairwise(middlewares):
        if stage_of(before) > stage_of(after):
            raise InvalidMessage(
                "middlewares",
                f"{name_of(before)} before {name_of(after)}",
                f"the chain runs {' -> '.join(stage.name.lower() for stage in Stage)}",
                hint=f"{name_of(after)} is {stage_of(after).name.lower()}: put it before {name_of(before)}",
            )


def compose(middlewares: Sequence[Middleware], terminal: Next) -> Next:
    """One callable for the whole chain. Payloads are opened behind the last stage that must not see them."""
    observers = [middleware for middleware in middlewares if stage_of(middleware) < Stage.CONTENT]
    chain = terminal
    for middleware in reversed(middlewares[len(observers) :]):
        chain = _link(middleware, chain)
    chain = _link(_open, chain)
    for middleware in reversed(observers):
        chain = _link(middleware, chain)
    return chain


def _link(middleware: Middleware, call_next: Next) -> Next:
    # By position: a function may call its arguments what it likes.
    return lambda hop: middleware(hop, call_next)


async def _open(hop: Hop, call_next: Next) -> HopResult:
    return await call_next(hop.unsealed())
