"""The causal tree of a conversation: events that share a correlation, and what caused what, across topics.

Logs can be long and an id is short, so a line is decoded only where its bytes hold one of the ids that are looked for.
What an event caused is found also where it does not carry the correlation, by its `causation_id`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from events.history import as_replayed
from events.persistence.reader import WorkspaceReader
from events.persistence.store import LogName
from events.replay import ReplayRecord

_MAX_PASSES: Final = 32
_IDS_PER_PATTERN: Final = 512

Place = tuple[str, str, int]
Progress = Callable[[LogName], None]


@dataclass(slots=True)
class Node:
    """An event, and the events that name it as their cause, in the order of their append."""

    record: ReplayRecord
    effects: list[Node] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """This event and all that followed from it, each with its depth; causes first."""
        # Not recursive: a chain of causes can be longer than Python's stack.
        waiting = [(depth, self)]
        while waiting:
            level, node = waiting.pop()
            yield level, node
            waiting += [(level + 1, effect) for effect in reversed(node.effects)]


def trace(
    reader: WorkspaceReader,
    names: Sequence[LogName],
    identifier: str,
    *,
    progress: Progress = lambda name: None,
) -> list[Node]:
    """The events of a correlation as trees, oldest first; empty when no event carries it.

    `identifier` is a correlation id, a trace id, or the id of one event, which then brings its causes and effects.
    """
    found: dict[Place, ReplayRecord] = {}
    ids, causes, asked = {identifier}, set[str](), set[str]()
    wanted = {identifier}
    for _ in range(_MAX_PASSES):
        added: list[ReplayRecord] = []
        for record in _mentions(reader, names, wanted, progress):
            meta = record.event.meta
            is_named = identifier in (meta.correlation_id, meta.trace_id)
            if is_named or meta.causation_id in ids or meta.event_id in ids or meta.event_id in causes:
                added += [record] if found.setdefault(_place(record), record) is record else []
        asked |= wanted
        # Each new event may have effects, and a cause, that do not carry the correlation.
        ids |= {record.event.meta.event_id for record in added}
        causes |= {cause for record in added if (cause := record.event.meta.causation_id) is not None}
        wanted = (ids | causes) - asked
        if not wanted:
            break
    return _trees(found.values())


def _mentions(
    reader: WorkspaceReader, names: Sequence[LogName], ids: Iterable[str], progress: Progress
) -> Iterator[ReplayRecord]:
    """Records whose line holds one of the ids anywhere; whether it means anything is decided by the meta."""
    written = sorted({orjson.dumps(one)[1:-1] for one in ids})
    chunks = [written[at : at + _IDS_PER_PATTERN] for at in range(0, len(written), _IDS_PER_PATTERN)]
    patterns = [re.compile(b"|".join(map(re.escape, chunk))) for chunk in chunks]
    for name in names:
        progress(name)
        for record in reader.log(name).read():
            if not record.is_gap and any(pattern.search(record.line) for pattern in patterns):
                yield as_replayed(name, record)


def _trees(records: Iterable[ReplayRecord]) -> list[Node]:
    ordered = sorted(records, key=lambda record: (record.at_ms, record.topic, record.offset))
    nodes = [Node(record) for record in ordered]
    by_id: dict[str, Node] = {}
    for node in nodes:
        by_id.setdefault(node.record.event.meta.event_id, node)  # a republished event keeps its first place
    roots: list[Node] = []
    for node in nodes:
        cause = by_id.get(node.record.event.meta.causation_id or "")
        if cause is None or cause is node or _leads_to(node, cause, by_id):
            roots.append(node)
        else:
            cause.effects.append(node)
    return roots


def _leads_to(start: Node, end: Node, by_id: dict[str, Node]) -> bool:
    """Whether following causes from `end` comes back to `start`: two events that blame each other are both shown."""
    seen: set[int] = set()
    node: Node | None = end
    while node is not None and id(node) not in seen:
        if node is start:
            return True
        seen.add(id(node))
        node = by_id.get(node.record.event.meta.causation_id or "")
    return False


def _place(record: ReplayRecord) -> Place:
    return record.space_id, record.topic, record.offset
