"""How much work a query may do on one event before it is given up: counted in steps, so the same on every machine."""

from __future__ import annotations

from typing import Final

# A step takes up to about a microsecond, so the worst query holds the loop for a tenth of a second; one over a
# kilobyte of JSON takes some hundred steps.
MAX_STEPS: Final = 100_000
MAX_EXPRESSION_CHARS: Final = 1_000


class Overrun(Exception):
    """A query was given up because it reached its bound. The filter counts it; no caller sees it."""


class Budget:
    """The steps that are left for one query on one event.

    Steps, not seconds: whether an event matches must not depend on how busy the machine is, or a replay would
    decide otherwise than the delivery did.
    """

    __slots__ = ("left",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take some steps; `Overrun` when there are not that many left."""
        self.left -= steps
        if self.left < 0:
            raise Overrun
