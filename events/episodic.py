"""Episodic memories: what one is, how they are asked for, and the contract of a store that keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from events.types import SecurityBand


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Something that happened, as it was encoded.

    `source` is what it was made of: one memory is kept for each source in a space, however often it is offered.
    `ts` is when it happened, `text` what a search looks at, `content` everything that was said of it. `band`
    and `caps` are those of its event: whoever tells of it tells nobody who could not have read that. `sequence` is its
    place in the store, in order of arrival; the store gives it.
    """

    memory_id: str
    space_id: str
    source: str
    event_id: str
    ts: datetime
    text: str
    actor: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    valence: float | None = None
    arousal: float | None = None
    salience: float | None = None
    band: SecurityBand | None = None
    caps: tuple[str, ...] = ()
    correlation_id: str | None = None
    content: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Which memories of a space are wanted: all that fulfil everything that is given. `until` is not included.

    `tags` are all carried by the memory. `text` is words that all occur in it, in any order and form of letters.
    """

    space_id: str
    since: datetime | None = None
    until: datetime | None = None
    actor: str | None = None
    key: str | None = None
    tags: tuple[str, ...] = ()
    text: str | None = None
    newest_first: bool = True
    limit: int = 100


class Stored(NamedTuple):
    """A memory as the store has it, and whether it was told of."""

    memory: Memory
    is_new: bool
    is_announced: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The memories of a space that no consolidation was asked for yet: those after `after`, through `through`."""

    count: int
    after: int
    through: int
    oldest_ms: int
    newest_ms: int


class EpisodicStore(Protocol):
    """Keeps memories, each space's apart from the others'. Every call may be made from any task, and at once."""

    async def remember(self, memory: Memory, now_ms: int) -> Stored:
        """Return when the memory is durable. Of one that is there already by its source, the first one is returned."""
        ...

    async def mark_announced(self, memory: Memory) -> None:
        """Note that the world was told of it. Safe to call twice."""
        ...

    async def unannounced(self, space_id: str, limit: int = 100) -> Sequence[Memory]:
        """Memories that the world may not have been told of, oldest first."""
        ...

    async def get(self, space_id: str, memory_id: str) -> Memory | None:
        """One memory."""
        ...

    async def find(self, wanted: Recall) -> Sequence[Memory]:
        """The memories that fulfil everything that is asked, by when they happened."""
        ...

    async def waiting(self, space_id: str) -> Waiting:
        """What waits to be consolidated."""
        ...

    async def mark_consolidating(self, space_id: str, through: int) -> None:
        """Note that consolidation was asked for, of everything up to a sequence. Never goes back."""
        ...

    async def spaces(self) -> Sequence[str]:
        """The spaces that have memories."""
        ...

    async def close(self) -> None:
        """Let go of files. Safe to call twice."""
        ...
