"""What the log costs: appending against bare writes, reading against bare decoding. `python -m perf.log`"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
from pydantic import BaseModel

from events.persistence.codec import encode_line, event_members
from events.persistence.reader import WorkspaceReader
from events.persistence.store import Entry, LogName, StoreLog
from events.persistence.wal import WalStore
from events.serialization import encode_event
from events.types import Event, EventMeta
from perf.harness import Ratio, Report, Round, measure

MAX_EVENT_BYTES: Final = 1_000_000
PUBLISHERS: Final = 100
BATCH: Final = 500
SPACE: Final = "home"
_numbers = count()


def build() -> Event[dict[str, Any]]:
    """One small event, as a module of an agent would publish it."""
    number = next(_numbers)
    meta = EventMeta(topic="actions", type="ACTION_EXECUTED", space_id=SPACE, actor="agent:planner")
    return Event(meta, {"action": "lights.on", "room": "kitchen", "step": number, "confidence": 0.87})


def encode(event: Event[Any]) -> Entry:
    """The event as the store takes it."""
    meta, payload = encode_event(event, MAX_EVENT_BYTES)
    return Entry(event_members(meta, payload), event.meta, len(meta))


class Bare:
    """The least that can be done: lines of the same bytes, one write and one fdatasync for so many of them."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._offset = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Make some lines durable."""
        data = b"".join(lines)
        assert os.write(self._handle, data) == len(data)
        os.fdatasync(self._handle)

    def encode_lines(self, members: Sequence[bytes]) -> list[bytes]:
        """Give them offsets and a CRC."""
        first = self._offset + 1
        self._offset += len(members)
        return [encode_line(first + index, each, 1_763_455_200_000, first) for index, each in enumerate(members)]


def in_batches(events: int, size: int, work: Callable[[int], object]) -> Round:
    """A round that does `work(size)` until so many events are through."""

    async def run() -> int:
        for _ in range(events // size):
            work(size)
        return events

    return run


def awaited_in_batches(events: int, size: int, work: Callable[[int], Awaitable[object]]) -> Round:
    """The same for work that is awaited."""

    async def run() -> int:
        for _ in range(events // size):
            await work(size)
        return events

    return run


def concurrently(events: int, work: Callable[[int], Awaitable[object]]) -> Round:
    """The same by 100 publishers, each awaiting one event after the other."""

    async def publish(times: int) -> None:
        for _ in range(times):
            await work(1)

    async def run() -> int:
        async with anyio.create_task_group() as tasks:
            for _ in range(PUBLISHERS):
                tasks.start_soon(publish, events // PUBLISHERS)
        return events

    return run


async def measure_appends(report: Report, store: WalStore, folder: Path, *, scale: int, repeats: int) -> None:
    """One by one, 100 publishers, and batches of 500: each against bare loops of the same batch size."""
    bare = Bare(folder / "bare.jsonl")
    prepared = [encode(build()) for _ in range(BATCH)]
    lines = bare.encode_lines([entry.members for entry in prepared])
    report.parameters["line_bytes"] = sum(map(len, lines)) // len(lines)
    logs: dict[str, StoreLog] = {}
    for topic in ("encoded", "typed"):
        logs[topic] = await store.log(LogName(SPACE, topic))

    def bare_build(size: int) -> None:
        bare.write_lines(bare.encode_lines([encode(build()).members for _ in range(size)]))

    async def append_encoded(size: int) -> None:
        await logs["encoded"].append(prepared[:size], timeout_s=30)

    async def append_typed(size: int) -> None:
        await logs["typed"].append([encode(build()) for _ in range(size)], timeout_s=30)

    modes: dict[str, tuple[int, int]] = {
        "one by one": (200 * scale, 1),
        f"{PUBLISHERS} concurrent": (2_000 * scale, PUBLISHERS),
        f"batches of {BATCH}": (5_000 * scale, BATCH),
    }
    for mode, (events, size) in modes.items():
        is_concurrent = mode.endswith("concurrent")
        subjects = {
            f"{mode}: bare write+fdatasync": in_batches(events, size, lambda n: bare.write_lines(lines[:n])),
            f"{mode}: append": concurrently(events, append_encoded)
            if is_concurrent
            else awaited_in_batches(events, size, append_encoded),
            f"{mode}: bare build+encode+write+fdatasync": in_batches(events, size, bare_build),
            f"{mode}: build+encode+append": concurrently(events, append_typed)
            if is_concurrent
            else awaited_in_batches(events, size, append_typed),
        }
        plain, append, built, typed = subjects
        goal_plain, goal_built = _GOALS.get(mode, (None, None))
        ratios = [
            Ratio(f"{mode}: append / bare write+fdatasync", append, plain, goal_plain),
            Ratio(f"{mode}: build+append / bare build+write+fdatasync", typed, built, goal_built),
        ]
        report.add(await measure(subjects, repeats=repeats), ratios)
    bare.close()


# G1 and G3 of the goals; they are asked of the whole bus, so the log alone must be above them.
_GOALS: Final = {"one by one": (0.7, None), f"batches of {BATCH}": (None, 0.6)}


class _Line(BaseModel):
    """A line as pydantic alone would read it."""

    meta: EventMeta
    payload: dict[str, Any]


async def measure_reads(report: Report, workspace: Path, *, repeats: int) -> None:
    """Sequential reading of a log with CRCs checked, raw and typed, against bare decoding of the same lines."""
    reader = WorkspaceReader(workspace).log(LogName(SPACE, "typed"))
    folder = workspace / ".bus/spaces" / SPACE / "wal"
    limit = 10_000
    first = reader.prove().first

    def all_lines() -> Iterator[bytes]:
        left = limit
        for path in sorted(folder.glob("typed.*.jsonl")):
            with path.open("rb") as file:
                for line in file:
                    if not left:
                        return
                    left -= 1
                    yield line

    async def bare_raw() -> int:
        read = 0
        for line in all_lines():
            assert orjson.loads(line)
            read += 1
        return read

    async def raw() -> int:
        read = 0
        for _ in reader.read(first, through=first + limit - 1):
            read += 1
        return read

    async def bare_typed() -> int:
        read = 0
        for line in all_lines():
            assert _Line.model_validate_json(line)
            read += 1
        return read

    async def typed() -> int:
        read = 0
        for record in reader.read(first, through=first + limit - 1):
            event = record.event
            read += event.meta is not None and event.payload is not None
        return read

    subjects = {
        "read: bare orjson.loads per line": bare_raw,
        "read: records, CRC checked": raw,
        "read: bare model_validate_json per line": bare_typed,
        "read: typed events, CRC checked": typed,
    }
    ratios = [
        Ratio(
            "read: records / bare orjson.loads", "read: records, CRC checked", "read: bare orjson.loads per line", 0.6
        ),
        Ratio(
            "read: typed events / bare model_validate_json",
            "read: typed events, CRC checked",
            "read: bare model_validate_json per line",
            0.6,
        ),
    ]
    report.parameters["read_events"] = limit
    report.add(await measure(subjects, repeats=repeats), ratios)


@contextmanager
def scratch(directory: str | None) -> Iterator[Path]:
    """A folder on the disk that is to be measured."""
    with tempfile.TemporaryDirectory(prefix="perf-log-", dir=directory) as folder:
        yield Path(folder)


async def main(arguments: argparse.Namespace) -> None:
    """Measure, print, save."""
    report = Report(
        "log",
        "The log: appends a second, durable, and reads",
        {"backend": arguments.backend, "repeats": arguments.repeats, "scale": arguments.scale},
    )
    with scratch(arguments.directory) as folder:
        store = WalStore(folder / "workspace")
        report.parameters["sync"] = store.settings.sync
        report.parameters["segment_bytes"] = store.settings.segment_bytes
        await store.open(lambda log, records: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            await measure_appends(report, store, folder, scale=arguments.scale, repeats=arguments.repeats)
            tasks.cancel_scope.cancel()
        await store.close()
        await measure_reads(report, folder / "workspace", repeats=arguments.repeats)
    report.show()
    report.save()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m perf.log", description=__doc__)
    parser.add_argument("--repeats", type=int, default=25, help="rounds of each subject that count")
    parser.add_argument("--scale", type=int, default=1, help="how long a round is")
    parser.add_argument("--directory", help="where to write; the disk of this folder is measured")
    parser.add_argument("--backend", default="asyncio", choices=("asyncio", "trio"))
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    anyio.run(main, given, backend=given.backend)
