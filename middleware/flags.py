"""Turns middlewares on and off while the bus runs, and says which are on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from events.chain import name_of, stage_of
from events.contracts import Hop, HopResult, Middleware, Next, Settlement, Stage
from events.errors import InvalidMessage
from middleware.instruments import Registry, Sample

_OBSERVES: Final = "settled"


class FeatureFlags:
    """Named switches. Any thread may turn them; a hop that has begun ends as it began.

    The chain stays as it was composed: a middleware that is off is passed by. Flags start `on` unless `initial` says
    otherwise. With a registry, `events_middleware_enabled` tells how each flag stands, and
    `events_middleware_hops_total` how many hops its middleware took, and how many passed it by.
    """

    def __init__(self, initial: Mapping[str, bool] | None = None, *, registry: Registry | None = None) -> None:
        self._states: dict[str, bool] = dict(initial or {})
        self._flagged: dict[str, list[Flagged]] = {}
        if registry is not None:
            registry.gauge("events_middleware_enabled", "1 while it is on.", ("middleware",), self._enabled)
            registry.counter(
                "events_middleware_hops_total", "Hops, by whether it was on.", ("middleware", "enabled"), self._hops
            )

    def flagged(self, middleware: Middleware, name: str) -> Flagged:
        """The middleware behind the switch of that name. Several may share one."""
        if stage_of(middleware) is Stage.AUTHORISE:
            raise InvalidMessage(
                "flagged", name_of(middleware), "authorisation has no switch: off, everything would be allowed"
            )
        self._states.setdefault(name, True)
        one = Flagged(middleware, name, self.is_on)
        self._flagged.setdefault(name, []).append(one)
        return one

    def is_on(self, name: str) -> bool:
        """Whether a flag is on; one that nobody has heard of is not."""
        return self._states.get(name, False)

    def set(self, name: str, on: bool) -> None:
        """Turn a flag. `InvalidMessage` for one that switches nothing: it would be a typing mistake."""
        if name not in self._states:
            close = difflib.get_close_matches(name, self._states, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else ""
            raise InvalidMessage("flag", name, f"the flags are {', '.join(self._states) or 'none'}", hint=hint)
        self._states[name] = on

    def turn_on(self, name: str) -> None:
        """Use the middleware from the next hop on."""
        self.set(name, True)

    def turn_off(self, name: str) -> None:
        """Pass the middleware by from the next hop on."""
        self.set(name, False)

    def _enabled(self) -> Iterable[Sample]:
        return [((name,), int(on)) for name, on in list(self._states.items())]

    def _hops(self) -> Iterable[Sample]:
        for name, wrapped in list(self._flagged.items()):
            yield (name, "true"), sum(one.taken for one in wrapped)
            yield (name, "false"), sum(one.passed for one in wrapped)


class Flagged:
    """A middleware that can be off. What it offers besides hops stays reachable: what it holds must still be saved."""

    def __init__(self, middleware: Middleware, name: str, is_on: Callable[[str], bool]) -> None:
        self._middleware, self._flag, self._is_on = middleware, name, is_on
        self.stage = stage_of(middleware)
        self.__name__ = name_of(middleware)
        self.taken = 0
        self.passed = 0

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if self._is_on(self._flag):
            self.taken += 1
            return await self._middleware(hop, call_next)
        self.passed += 1
        return await call_next(hop)

    def __getattr__(self, name: str) -> Any:
        # The bus asks each middleware for the optional parts of its contract: this one has what that one has.
        offered = getattr(self._middleware, name)
        return self._settled if name == _OBSERVES else offered

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        if self._is_on(self._flag):
            observe: Callable[[Sequence[Settlement]], None] = getattr(self._middleware, _OBSERVES)
            observe(settlements)
