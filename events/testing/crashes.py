"""Enumerating what crashes may leave behind: after every recorded call, every fate of what was not synced.

Where the combinations are few all of them are tried. Where they are many, each change meets each of its fates once
with everything else kept and once with everything else lost, and a seeded sample of the rest fills up the limit.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import product

from events.testing.images import DROPPED, Choice, Fate, Image, Unsynced
from events.testing.simulated import SimulatedFileSystem, crashed

Spared = AbstractSet[str]


@dataclass(frozen=True, slots=True)
class CrashState:
    """What a crash left: `moment` and `choice` name it, and `replay` builds it again."""

    moment: int
    call: str
    choice: Choice
    digest: bytes
    fs: SimulatedFileSystem

    def __str__(self) -> str:
        fates = ", ".join(str(tuple(fate)) for fate in self.choice)
        return f"crash after call {self.moment} ({self.call or 'the start'}), choice ({fates})"


def replay(history: Sequence[Image], state: CrashState) -> SimulatedFileSystem:
    """The same crash again, for a closer look."""
    return crashed(history[state.moment], state.choice)


def fates(change: Unsynced, cuts: int) -> list[Fate]:
    """What may be left of one change: first all of it, then nothing, then parts; `cuts` places to tear a write."""
    if change.kind == "names":
        return [Fate(0, kept) for kept in (change.size, *range(change.size))]
    if change.kind == "truncate":
        return [Fate(0, 1), DROPPED]
    size = change.size
    found = [Fate(0, size, True), DROPPED, Fate(0, 0, True)]
    for cut in _cuts(change.data, cuts):
        found += [Fate(0, cut), Fate(0, cut, True), Fate(cut, size, True)]
    return found


def _cuts(data: bytes, count: int) -> list[int]:
    """Places to tear a write: near its ends, behind a line's end and inside a line, and evenly in between."""
    size = len(data)
    newline = data.find(b"\n") + 1
    places = [newline, size - 1, 1, newline - 1, size // 2]
    places += [size * part // (count + 1) for part in range(1, count + 1)]
    return list(dict.fromkeys(place for place in places if 0 < place < size))[:count]


def _is_spared(change: Unsynced, spared: Spared) -> bool:
    return change.kind != "names" and os.path.basename(change.path) in spared


def choices(
    image: Image, *, limit: int, cuts: int = 3, seed: int = 0, spared: Spared = frozenset()
) -> Iterator[Choice]:
    """Up to about `limit` choices for a crash at one moment; the same ones every time.

    Files of the names in `spared` lose nothing: what stands in them means nothing.
    """
    changes = image.unsynced()
    options = [fates(change, cuts)[: 1 if _is_spared(change, spared) else None] for change in changes]
    if math.prod(map(len, options)) <= limit:
        yield from product(*options)
        return
    tried: set[Choice] = set()
    for rest in (0, 1):  # the others all kept, then all lost
        base = [option[min(rest, len(option) - 1)] for option in options]
        for index, option in enumerate(options):
            for fate in option:
                tried.add((*base[:index], fate, *base[index + 1 :]))
    yield from sorted(tried)
    chance = random.Random(seed)
    for _ in range(limit - len(tried)):
        choice = tuple(chance.choice(option) for option in options)
        if choice not in tried:
            tried.add(choice)
            yield choice


def crash_states(
    history: Sequence[Image],
    *,
    limit: int = 64,
    cuts: int = 3,
    seed: int = 0,
    spared: Spared = frozenset(),
    promised: Callable[[int], Hashable] = lambda moment: None,
    seen: set[tuple[bytes, Hashable]] | None = None,
    moments: Iterable[int] | None = None,
) -> Iterator[CrashState]:
    """Every distinct state that a crash during a recorded workload may leave.

    Two states that look alike are one, unless more had been `promised` at the later moment: then the later one may
    be a loss where the earlier is none. `seen` collects what was visited, across several calls if it is shared.
    """
    seen = set() if seen is None else seen
    for moment in range(len(history)) if moments is None else moments:
        image, promises = history[moment], promised(moment)
        for choice in choices(image, limit=limit, cuts=cuts, seed=seed + moment, spared=spared):
            fs = crashed(image, choice)
            digest = fs.digest()
            if (digest, promises) not in seen:
                seen.add((digest, promises))
                yield CrashState(moment, image.call, choice, digest, fs)
