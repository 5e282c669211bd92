"""Waking whoever waits for a change, at no cost when nobody does."""

from __future__ import annotations

import anyio


class Signal:
    """Says "look again" to all who wait at that moment. Whoever waits checks the state, then calls `next`.

    An `anyio.Event` made anew for every change would cost more than most changes do.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    @property
    def next(self) -> anyio.Event:
        """An event that the next change will set."""
        if self._event is None:
            self._event = anyio.Event()
        return self._event

    def tell(self) -> None:
        """Something changed."""
        event = self._event
        if event is not None:
            self._event = None
            event.set()
