"""Hostile names, payloads and links: each is refused or escaped, and nothing outside the workspace is touched."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import os
import re
import stat
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from events.errors import BusError, InvalidMessage
from events.persistence.codec import event_members
from events.persistence.reader import WorkspaceReader
from events.persistence.repair import verify
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName
from events.persistence.wal import WalSettings, WalStore
from events.serialization import encode_event
from events.types import Event, EventMeta

SETTINGS = WalSettings(ballast_bytes=4096)
MAX_EVENT_BYTES = 100_000
ENTRY = Entry(b'"meta":{"topic":"notes","type":"NOTED","space_id":"home"},"payload":{}')
OUR_NAMES = re.compile(r"[A-Za-z0-9_.%-]+")


class Lying(str):
    """A string that says something else than it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "harmless"

    def __len__(self) -> int:
        return 3

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def hostile_names() -> list[Any]:
    """More than 200 names that somebody could hope to leave the workspace with, or to confuse it."""
    escapes = ["..", ".", "/", "//", "../..", "../../etc/passwd", "/etc/passwd", "a/b", "a/../b", "a/..", "./a", "a/."]
    escapes += ["a/../../../b", "....//", "..\\..\\b", "C:\\b", "\\\\host\\share", "%2e%2e", "%2E%2E%2Fb", "..%2fb"]
    escapes += ["%00", "%", "%%", "a%2Fb", "~", "~root", "$HOME", "${HOME}", "$(id)", "`id`", "a;b", "a|b", "a&b"]
    escapes += ["*", "?", "[a]", "{a,b}", "'", '"', "a'b", 'a"b', "<a>", "#", "!", "^", "=", "+", ",", ":", "@", "a:b"]
    shapes = ["", " ", "  ", " a", "a ", "a b", ".a", "a.", "a..b", "...", "_a", "__a", "a__b", "a__", "-", "--", "-rf"]
    shapes += ["_", "__", "a.__b", "--help", "a.b.c.", "-.-", "a" * 101, "a" * 200, "a" * 201, "a" * 256, "a" * 300]
    shapes += ["a." * 60, "%" * 67, "é" * 34, "é" * 150, "a" * 5_000, "/" * 300, "../" * 100, "\x00" * 10]
    ours = ["lock", "groups", "spaces", "wal", "offsets", "dlq", "aside", "ballast", ".bus", "notes.00000001.jsonl"]
    ours += ["notes.00000001", ".notes.mark.json", "notes.dlq", "notes.dlq.jsonl", "notes__readers", "readers.json"]
    ours += ["readers.json.prev", "readers.json.tmp", "00000001", "notes.00000001.00000001.jsonl", "x.prev", "x.tmp"]
    devices = ["CON", "con", "NUL", "nul.txt", "AUX", "COM1", "LPT1", "PRN"]
    twins = ["Notes", "notes", "NOTES", "nOtEs", "\u00e9", "e\u0301", "\u00c9", "E\u0301", "\u00c5", "\u212b"]
    twins += ["\ufb01", "fi", "\u00df", "ss", "\u0131", "i", "\u0130", "I", "\u017f", "s", "\u03c2", "\u03c3", "\u212a"]
    letters = ["k", "\uff0e\uff0e", "\uff0f", "\uff0e\uff0e\uff0fa", "\u2024\u2024", "\uff41", "\u0430", "\U0001d41a"]
    letters += ["\U0001f600", "a\U0001f600", "\u4e2d\u6587", "\u0627\u0644", "\u0301", "a\u0300\u0301\u0302"]
    unseen = ["\u200b", "a\u200bb", "\u202e", "a\u202eb", "\ufeff", "\u00a0", "\u2028", "\u2029", "\u00ad", "\u2060"]
    broken = ["\ud800", "a\udc80", "\udfff", "\ue000", "\U0010ffff", "\ufffe", "\x7f", "\x80", "\x9f", "a\x85b"]
    controls = [chr(code) for code in range(32)] + [f"a{chr(code)}b" for code in (0, 9, 10, 13, 27)] + ["a\r\nb"]
    lines = ["a\np, mallory, *", 'a","crc":"00000000"}', "a\n", "\na", "../a\x00.json", "a\x00/../b"]
    things = [None, 0, 7, 1.5, True, b"a", b"../a", ["a"], ("..",), {"a": 1}, object(), Path("../a"), Lying("../../a")]
    return [*escapes, *shapes, *ours, *devices, *twins, *letters, *unseen, *broken, *controls, *lines, *things]


class Surroundings:
    """A workspace among files that are none of its business, and the current directory among them too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outside = root / "outside"
        self.workspace = root / "workspace"
        for folder in ("outside/deep/deeper", "a", "..a", "etc", "b"):
            (root / folder).mkdir(parents=True)
        for file in ("outside/secret.json", "outside/deep/notes.00000001.jsonl", "etc/passwd", "canary", "lock"):
            (root / file).write_text("not ours\n")
        self.remember()

    def remember(self) -> None:
        """Take what is there now for what must stay."""
        self._before = self._everything()

    def _everything(self) -> dict[str, tuple[Any, ...]]:
        found: dict[str, tuple[Any, ...]] = {}
        for path in sorted(self.root.rglob("*")):
            if self.workspace not in (path, *path.parents):
                state = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(state.st_mode) else None
                found[str(path)] = (state.st_mode, state.st_size, state.st_mtime_ns, content)
        return found

    def check(self) -> None:
        """Nothing outside was made, changed or removed, and what is inside is ours by name and for us alone."""
        assert self._everything() == self._before
        bus = self.workspace / ".bus"
        for path in bus.rglob("*") if not bus.is_symlink() else ():
            assert OUR_NAMES.fullmatch(path.name), path
            assert len(path.name.encode()) <= 255
            if not path.is_symlink():
                assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One is enough: names, payloads and links are dealt with below the event loop."""
    return "asyncio"


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """Checked again when the test is over."""
    around = Surroundings(tmp_path / "root")
    monkeypatch.chdir(around.outside)
    yield around
    around.check()


async def opened(workspace: Path) -> WalStore:
    """A store that has the workspace."""
    store = WalStore(workspace, SETTINGS)
    await store.open(lambda log, records: None)
    return store


async def refused(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether a call refused its arguments; any other error is a failure of the test."""
    try:
        await call()
    except InvalidMessage as error:
        return error.code.startswith("INVALID_") and len(str(error)) < 1_000
    except TypeError:  # a name that is no text, and cannot even be looked up
        return True
    return False


# -- names -------------------------------------------------------------------------------------------------------


def twice(names: list[Any]) -> set[Any]:
    """The names that stand in the list more than once."""
    return {name for name in names if names.count(name) > 1}


async def test_hostile_space_ids_are_escaped_or_refused(
    around: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    """F3: a space id becomes one directory of its own inside the workspace, or is refused; none is another's."""
    names = hostile_names()
    store = await opened(around.workspace)
    accepted: list[str] = []
    for name in names:
        log_name = LogName(name, "notes")

        async def append(log_name: LogName = log_name) -> None:
            log = await store.log(log_name)
            assert await log.append([ENTRY], timeout_s=10) == [1], "nobody else has written here"

        is_refused = await refused(append)
        if not is_refused:
            accepted.append(str.__str__(name))  # as a plain string, whatever it says of itself
        checkpoint = Checkpoint(log_id="1", committed=0)
        for call in (
            partial(store.dead_letters, log_name),
            partial(store.journal, name, "gate", "notes__readers"),
            partial(store.save_checkpoint, log_name, "readers", checkpoint),
            partial(store.load_checkpoint, log_name, "readers"),
            partial(store.settled_by, log_name, "readers"),
            partial(read_outside, around.workspace, log_name),
        ):
            assert await refused(call) == is_refused, (name, call)
    assert len(names) >= 200
    assert not twice(accepted)
    assert {name.space_id for name in await store.log_names()} == set(accepted), "listed under their own names"
    await store.close()
    assert len(os.listdir(around.workspace / ".bus/spaces")) == len(accepted), "one directory each"
    assert set(WorkspaceReader(around.workspace).spaces()) == set(accepted)
    with capsys.disabled():
        print(f"\n{len(names)} hostile space ids: {len(accepted)} escaped, {len(names) - len(accepted)} refused")


async def read_outside(workspace: Path, name: LogName) -> None:
    """Read a log, by its hostile name, from outside."""
    reader = WorkspaceReader(workspace)
    for log in (reader.log(name), reader.dead_letters(name)):
        for record in log.read():
            assert record.offset == 1


async def test_hostile_topics_are_refused_or_harmless(around: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    """F3: what is outside the grammar is refused everywhere; what is inside it never meets another topic's files."""
    names = hostile_names()
    store = await opened(around.workspace)
    accepted: list[str] = []
    for name in names:
        log_name = LogName("home", name)

        async def append(log_name: LogName = log_name) -> None:
            log = await store.log(log_name)
            assert await log.append([ENTRY], timeout_s=10) == [1], "nobody else has written here"

        is_refused = await refused(append)
        if not is_refused:
            accepted.append(name)
        checkpoint = Checkpoint(log_id="1", committed=0)
        for call in (
            partial(store.dead_letters, log_name),
            partial(store.save_checkpoint, log_name, "readers", checkpoint),
            partial(store.load_checkpoint, log_name, "readers"),
            partial(store.settled_by, log_name, "readers"),
            partial(read_outside, around.workspace, log_name),
        ):
            assert await refused(call) == is_refused, (name, call)
        # The bus itself makes these names, so all that is asked is that they lead nowhere.
        for call in (partial(store.journal, "home", name, "notes"), partial(store.journal, "home", "gate", name)):
            with suppress(InvalidMessage, TypeError, AttributeError):
                await call()
    assert not twice(accepted)
    assert {name.topic for name in await store.log_names()} == set(accepted)
    await store.close()
    again = await opened(around.workspace)
    for name in accepted:
        log = await again.log(LogName("home", name))
        assert (log.error, log.next_offset) == (None, 2)
    await again.close()
    with capsys.disabled():
        print(f"\n{len(names)} hostile topics: {len(accepted)} keep the grammar, {len(names) - len(accepted)} refused")


async def test_hostile_groups_are_refused_or_harmless(around: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    """F3: a group's name never leads to another file than its own record and checkpoints."""
    names = hostile_names()
    store = await opened(around.workspace)
    home = LogName("home", "notes")
    log = await store.log(home)
    await log.append([ENTRY], timeout_s=10)
    accepted: list[str] = []
    for name in names:
        is_refused = await refused(partial(store.save_group, GroupRecord(name=name, topic="*", space="*")))
        if not is_refused:
            accepted.append(name)
        for call in (
            partial(store.save_checkpoint, home, name, Checkpoint(log_id=log.log_id, committed=1)),
            partial(store.load_checkpoint, home, name),
            partial(store.settled_by, home, name),
        ):
            assert await refused(call) == is_refused, (name, call)
        if is_refused:
            assert await refused(partial(store.delete_group, name))
    await store.close()
    again = await opened(around.workspace)
    assert {record.name for record in await again.groups()} == set(accepted)
    for name in accepted:
        await again.delete_group(name)
    assert os.listdir(around.workspace / ".bus/groups") == []
    await again.close()
    with capsys.disabled():
        print(f"\n{len(names)} hostile groups: {len(accepted)} keep the grammar, {len(names) - len(accepted)} refused")


# -- payloads ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plain:
    """An object that orjson would write as a dict."""

    field: int = 1


class Number(int):
    """A number that is written as another."""

    def __repr__(self) -> str:
        return "2"


def deep(levels: int, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    """Something inside something inside something."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else [value]
    return value


def hostile_values() -> list[Any]:
    """Values that are no JSON, are too much of it, or look like the log's own lines."""
    numbers: list[Any] = [
        float("nan"),
        float("inf"),
        float("-inf"),
        10**5_000,
        -(10**5_000),
        2**64,
        -(2**63) - 1,
        2**64 - 1,
    ]
    numbers += [-(2**63), 1e308, -0.0, 5e-324, Number(1), decimal.Decimal("1.1"), complex(1, 1)]
    texts = ["\ud800", "a\udfff", "\x00", "\n", "\r\n", "\u2028", "\x1b[2J", "\ufeff", "\U0010ffff", Lying("a")]
    texts += ['","crc":"00000000"}\n', '{"offset":1,"meta":{},"payload":{},"at":1,"batch":1,"crc":"00000000"}\n']
    texts += [
        '"},"at":1,"batch":99,"crc":"',
        ',"payload":{}',
        '"meta":{}',
        ',"at":99',
        '\n{"gap":[1,9]',
        "\\",
        '"',
        "\\u0000",
    ]
    texts += ["x" * (MAX_EVENT_BYTES + 1), "\u00e9" * MAX_EVENT_BYTES, "\x01" * (MAX_EVENT_BYTES // 5), "{" * 5_000]
    nests = [deep(100, dict), deep(300, dict), deep(10_000, dict), deep(100, list), deep(300, list), deep(10_000, list)]
    things = [
        b"a",
        bytearray(b"a"),
        memoryview(b"a"),
        {1, 2},
        frozenset(),
        object(),
        Plain(),
        len,
        Plain,
        ...,
        range(3),
    ]
    things += [datetime.datetime.now(datetime.UTC), datetime.date(2000, 1, 1), uuid.uuid4(), Path("a"), iter([1])]
    things += [orjson.Fragment(b'{"a":'), orjson.Fragment(b"1}\n"), [1, {2}], (1, (2, object())), [b""], [["\ud800"]]]
    keys: list[Any] = [{1: 1}, {None: 1}, {"\ud800": 1}, {b"a": 1}, {"": 1}, {"a" * 70_000: 1}, {"\n": 1}, {(1,): 1}]
    keys += [{',"payload":': 1}, {'"': 1}, {"offset": 5, "crc": "00000000"}, {"meta": {}, "payload": {}}, {"at": 1}]
    cycle_list: list[Any] = []
    cycle_list.append(cycle_list)
    cycle_dict: dict[str, Any] = {}
    cycle_dict["a"] = cycle_dict
    shared: list[Any] = [1]
    for _ in range(40):
        shared = [shared, shared]  # 2**40 of them, if somebody wrote them all
    return [*numbers, *texts, *nests, *things, *keys, cycle_list, cycle_dict, shared]


def hostile_payloads() -> list[Any]:
    """The values in several places of a payload, and as the payload."""
    values = hostile_values()
    payloads: list[Any] = []
    for value in values:
        payloads += [value, {"a": value}, {"a": [1, value]}, {"a": {"b": {"c": value}}}]
        if isinstance(value, str):
            payloads.append({value: 1})
    return payloads


def as_json(value: Any) -> Any:
    """What a value that was accepted must come back as."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    return str(value) if isinstance(value, uuid.UUID) else value


async def test_hostile_payloads_are_refused_or_come_back_as_they_were(
    around: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    """F1, S5: what is no JSON is refused before anything is written; what is comes back the same, in one line.

    A text that looks like the end of a line, or like a line, is text.
    """
    payloads = hostile_payloads()
    store = await opened(around.workspace)
    name = LogName("home", "notes")
    log = await store.log(name)
    meta = EventMeta(topic="notes", type="NOTED", space_id="home", headers={',"payload":{}': '"},"payload":{"'})
    written: list[bytes] = []
    messages: list[str] = []
    for payload in payloads:
        try:
            head, body = encode_event(Event(meta, payload), MAX_EVENT_BYTES)
        except InvalidMessage as error:
            messages.append(str(error))
            continue
        assert b"\n" not in body
        await log.append([Entry(event_members(head, body), meta, len(head))], timeout_s=10)
        written.append(body)
        [record] = await log.read(len(written), 1)
        assert record.event.payload == as_json(payload)
    await store.close()
    assert len(payloads) >= 300
    assert max(map(len, messages)) < 1_000, "an error does not repeat the payload, however large it is"
    records = list(WorkspaceReader(around.workspace).log(name).read())
    assert [record.raw_payload for record in records] == written
    assert all(record.meta == meta for record in records)
    assert all(verified.is_sound for verified in verify(around.workspace))
    assert next(iter((around.workspace / ".bus/spaces/home/wal").glob("*.jsonl"))).read_bytes().count(b"\n") == len(
        written
    )
    with capsys.disabled():
        print(
            f"\n{len(payloads)} hostile payloads: {len(payloads) - len(written)} refused, {len(written)} kept as text"
        )


# -- links -------------------------------------------------------------------------------------------------------

LINKS = [
    ".bus",
    ".bus/lock",
    ".bus/groups",
    ".bus/groups/readers.json",
    ".bus/groups/readers.json.tmp",
    ".bus/spaces",
    ".bus/spaces/home",
    ".bus/spaces/home/wal",
    ".bus/spaces/home/wal/notes.00000001.jsonl",
    ".bus/spaces/home/wal/notes.00000002.jsonl",
    ".bus/spaces/home/wal/.notes.mark.json",
    ".bus/spaces/home/offsets",
    ".bus/spaces/home/offsets/notes__readers.json",
    ".bus/spaces/home/offsets/notes__readers.json.tmp",
    ".bus/spaces/home/dlq",
    ".bus/spaces/home/dlq/notes.dlq.jsonl",
    ".bus/spaces/home/gate",
    ".bus/aside",
    ".bus/ballast",
]


async def use_everything(workspace: Path) -> list[bytes]:
    """Write all that can be written, as far as it goes; what the log of `home` hands out."""
    name = LogName("home", "notes")
    seen: list[bytes] = []
    store = WalStore(workspace, SETTINGS)

    async def attempt(call: Callable[[], Awaitable[Any]]) -> Any:
        with suppress(BusError, OSError):
            return await call()
        return None

    await attempt(lambda: store.open(lambda log, records: None))
    log = await attempt(lambda: store.log(name))
    if log is not None:
        seen += [record.line for record in await attempt(lambda: log.read(1, 10_000)) or ()]
        await attempt(lambda: log.append([ENTRY], timeout_s=1))
        await attempt(lambda: log.drop_before(2))
    await attempt(lambda: store.save_group(GroupRecord(name="readers", topic="*", space="*")))
    await attempt(lambda: store.load_checkpoint(name, "readers"))
    for _ in range(2):
        await attempt(lambda: store.save_checkpoint(name, "readers", Checkpoint(log_id="1", committed=0)))
    for journal in (lambda: store.dead_letters(name), lambda: store.journal("home", "gate", "notes__readers")):
        opened_log = await attempt(journal)
        if opened_log is not None:
            seen += [record.line for record in await attempt(lambda log=opened_log: log.read(1, 10_000)) or ()]  # type: ignore[misc]
            await attempt(lambda log=opened_log: log.append([ENTRY], timeout_s=1))  # type: ignore[misc]
    await attempt(lambda: store.delete_group("readers"))
    await attempt(store.close)
    return seen


def read_everything(workspace: Path) -> list[bytes]:
    """All that a reader hands out."""
    seen: list[bytes] = []
    with suppress(BusError, OSError):
        reader = WorkspaceReader(workspace)
        reader.is_held()
        for name in [LogName("home", "notes"), *reader.names()]:
            for log in (reader.log(name), reader.dead_letters(name), reader.journal("home", "gate", "notes__readers")):
                with suppress(BusError, OSError):
                    seen += [record.line for record in log.read()]
                with suppress(BusError, OSError):
                    log.offset_at(0)
    with suppress(BusError, OSError):
        list(verify(workspace))
    return seen


async def make_model(workspace: Path) -> None:
    """A sound workspace with something in each place, for links to point at."""
    store = await opened(workspace)
    name = LogName("home", "notes")
    for log in (
        await store.log(name),
        await store.dead_letters(name),
        await store.journal("home", "gate", "notes__readers"),
    ):
        await log.append([ENTRY, ENTRY], timeout_s=10)
    await store.save_group(GroupRecord(name="readers", topic="*", space="*"))
    for _ in range(2):
        await store.save_checkpoint(name, "readers", Checkpoint(log_id="1", committed=1))
    await store.close()
    for place in LINKS:
        if not (workspace / place).exists():
            (workspace / place).write_text("not ours")


@pytest.mark.parametrize("place", LINKS)
async def test_a_link_inside_the_workspace_is_not_followed(around: Surroundings, place: str) -> None:
    """F3: a link in the place of any file or folder leads nowhere: not for writing, and not for reading.

    It points at a sound copy of what it stands for, so that following it would go unnoticed.
    """
    model = around.outside / "model"
    await make_model(model)
    around.remember()
    link = around.workspace / place
    link.parent.mkdir(parents=True)
    for folder in link.relative_to(around.workspace).parents:
        (around.workspace / folder).chmod(0o700)
    link.symlink_to(model / place)
    assert read_everything(around.workspace) == [], "what is behind the link is not ours to hand out"
    around.check()
    assert await use_everything(around.workspace) == []
    around.check()
    read_everything(around.workspace)
