"""The workspace: where files live, who may read them, and that no name and no link leads out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from events.errors import BusError, InvalidGroup, InvalidMessage, InvalidSpace, InvalidTopic, WorkspaceLocked
from events.persistence.files import OsFileSystem
from events.persistence.repair import verify
from events.persistence.store import Checkpoint, Entry, GroupRecord, LogName
from events.persistence.wal import WalSettings, WalStore
from events.persistence.workspace import Layout, Workspace, dlq_naming, list_spaces, list_topics, read_holder
from events.testing.simulated import SimulatedFileSystem
from tests.events.persistence.logs import NAME, WORKSPACE, entries, read_all, store_on, wal_path

SMALL = WalSettings(ballast_bytes=100)


async def used(path: Path) -> WalStore:
    """A store on the real file system in which everything was used once."""
    store = WalStore(path, SMALL)
    await store.open(lambda log, records: None)
    log = await store.log(LogName("my space/ü", "actions"))
    await log.append(entries(1), timeout_s=30)
    await (await store.dead_letters(log.name)).append([Entry(b'"dead":1')], timeout_s=30)
    await (await store.journal(log.name.space_id, "gate", "actions__readers")).append(entries(1), timeout_s=30)
    await store.save_group(GroupRecord(name="readers", topic="actions", space="*"))
    await store.save_checkpoint(log.name, "readers", Checkpoint(log_id=log.log_id, committed=1))
    return store


async def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """On disk: every file stands where the documentation says, under its readable or escaped name."""
    await (await used(tmp_path)).close()
    found = sorted(str(path.relative_to(tmp_path / ".bus")) for path in tmp_path.rglob("*") if path.is_file())
    space = "spaces/my%20space%2F%C3%BC"
    assert found == [
        "ballast",
        "groups/readers.json",
        "lock",
        f"{space}/dlq/.actions.dlq.mark.json",
        f"{space}/dlq/actions.dlq.jsonl",
        f"{space}/gate/.actions__readers.mark.json",
        f"{space}/gate/actions__readers.00000001.jsonl",
        f"{space}/offsets/actions__readers.json",
        f"{space}/wal/.actions.mark.json",
        f"{space}/wal/actions.00000001.jsonl",
    ]
    assert list_spaces(OsFileSystem(), Layout(tmp_path)) == ["my space/ü"]
    assert list_topics(OsFileSystem(), Layout(tmp_path), "my space/ü") == ["actions"]


async def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    """0700 for directories and 0600 for files, whatever the umask of the process."""
    before = os.umask(0)
    try:
        await (await used(tmp_path)).close()
    finally:
        os.umask(before)
    for path in [tmp_path / ".bus", *(tmp_path / ".bus").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


LINKS = [
    ".bus",
    ".bus/lock",
    ".bus/groups",
    ".bus/spaces",
    ".bus/aside",
    ".bus/groups/readers.json",
    ".bus/spaces/home",
    ".bus/spaces/home/wal",
    ".bus/spaces/home/offsets",
    ".bus/spaces/home/dlq",
    ".bus/spaces/home/wal/t.00000001.jsonl",
    ".bus/spaces/home/wal/.t.mark.json",
    ".bus/spaces/home/offsets/t__readers.json",
    ".bus/spaces/home/dlq/t.dlq.jsonl",
]


@pytest.mark.parametrize("link", LINKS)
async def test_no_link_is_followed_out_of_it(tmp_path: Path, link: str) -> None:
    """A link in the place of any file or folder is refused, and what it leads to is neither read nor changed."""
    outside = tmp_path / "outside"
    workspace = tmp_path / "workspace"
    is_folder = "." not in Path(link).name or link == ".bus"
    if is_folder and link != ".bus/lock":
        outside.mkdir()
        (outside / "precious").write_bytes(b"precious")
    else:
        outside.write_bytes(b"precious")
    place = workspace / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)

    async def use_all() -> None:
        store = WalStore(workspace, SMALL)
        await store.open(lambda log, records: None)
        try:
            await store.groups()
            await store.load_checkpoint(NAME, "readers")
            log = await store.log(NAME)
            await log.append(entries(1), timeout_s=5)
            await (await store.dead_letters(NAME)).append(entries(1), timeout_s=5)
            await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=0))
            await log.sync()
        finally:
            await store.close()

    with pytest.raises((OSError, BusError)):
        await use_all()
    left = outside / "precious" if outside.is_dir() else outside
    assert left.read_bytes() == b"precious"
    assert not outside.is_dir() or os.listdir(outside) == ["precious"]


async def test_a_workspace_that_is_itself_reached_by_a_link(tmp_path: Path) -> None:
    """Where the workspace lies is the user's choice: a link that leads to it is followed, once."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    await (await used(tmp_path / "link")).close()
    assert (tmp_path / "real/.bus/groups/readers.json").exists()


HOSTILE = [
    "..",
    ".",
    "",
    "/",
    "a/b",
    "../x",
    "a\0b",
    "a\nb",
    "a" * 101,
    "-a",
    ".a",
    "a__b",
    "a..b",
    "ä",
    "*",
    "a b",
    "_",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_topic_or_group_is_refused(name: str) -> None:
    """F3: a topic or group outside the grammar is refused before anything is touched."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        before = fs.digest()
        for call in (store.log, store.dead_letters):
            with pytest.raises(InvalidTopic):
                await call(LogName("home", name))
        with pytest.raises(InvalidGroup):
            await store.save_group(GroupRecord(name=name, topic="t", space="*"))
        with pytest.raises(InvalidGroup):
            await store.save_checkpoint(NAME, name, Checkpoint(log_id="x", committed=0))
        with pytest.raises(InvalidGroup):
            await store.delete_group(name)
        if name != "a__b":
            with pytest.raises(InvalidTopic):
                await store.journal("home", "gate", name)
        with pytest.raises(InvalidMessage):
            await store.journal("home", name, "t")
        assert fs.digest() == before


@pytest.mark.parametrize("space", ["..", ".", "/", "a/b", "../../x", "ä", "a b", "*", "%2E", "CON", "a" * 200, "a%"])
async def test_any_printable_space_stays_inside(space: str) -> None:
    """F3: a space id may be any printable string; its directory is one level below `spaces`, under one name."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(LogName(space, "t"))
        await log.append(entries(1), timeout_s=5)
        assert await store.log_names() == [LogName(space, "t")]
    spaces = {path.split("/")[4] for path in fs.files() if path.startswith(f"{WORKSPACE}/.bus/spaces/")}
    assert len(spaces) == 1
    assert not spaces & {".", ".."}
    assert all(path.startswith(WORKSPACE + "/.bus/") for path in fs.files())


@pytest.mark.parametrize("space", ["", "a\nb", "a\0", "\ud800", "a" * 201, "ä" * 40, "\u202e"])
async def test_a_space_that_is_not_printable_or_too_long_is_refused(space: str) -> None:
    """F3: such a space id is refused before anything is touched."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        before = fs.digest()
        for call in (store.log, store.dead_letters):
            with pytest.raises(InvalidSpace):
                await call(LogName(space, "t"))
        with pytest.raises(InvalidSpace):
            await store.journal(space, "gate", "t")
        assert fs.digest() == before


@pytest.mark.parametrize("folder", ["wal", "dlq", "offsets"])
async def test_a_journal_has_a_folder_of_its_own(folder: str) -> None:
    """S4: a journal in a log's folder would be a second writer of the same files, so it is refused."""
    async with store_on(SimulatedFileSystem()) as store:
        with pytest.raises(InvalidMessage):
            await store.journal("home", folder, "t")


async def test_names_that_the_file_system_would_merge_are_refused() -> None:
    """F3: on a file system that folds case, a second spelling of a topic, space or group is refused."""
    fs = SimulatedFileSystem(folds_case=True)
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1), timeout_s=5)
        await store.save_group(GroupRecord(name="readers", topic="t", space="*"))
        before = fs.digest()
        for twin in (LogName("home", "T"), LogName("Home", "t"), LogName("HOME", "other")):
            with pytest.raises(InvalidMessage, match="cannot tell"):
                await store.log(twin)
        with pytest.raises(InvalidMessage, match="cannot tell"):
            await store.save_group(GroupRecord(name="Readers", topic="t", space="*"))
        assert fs.digest() == before
        assert [group.name for group in await store.groups()] == ["readers"]
        await store.save_group(GroupRecord(name="readers", topic="t", space="*", held=True))
        await (await store.log(LogName("home", "other"))).append(entries(1), timeout_s=5)
    async with store_on(fs) as store:
        assert len(await read_all(await store.log(NAME))) == 1
        with pytest.raises(InvalidMessage, match="cannot tell"):
            await store.log(LogName("home", "T"))


async def test_names_that_differ_by_case_are_two_elsewhere() -> None:
    """F3: where the file system tells them apart, so does the bus."""
    async with store_on(SimulatedFileSystem()) as store:
        for topic, space in (("t", "home"), ("T", "home"), ("t", "Home")):
            assert await (await store.log(LogName(space, topic))).append(entries(1), timeout_s=5) == [1]
        for group in ("readers", "Readers"):
            await store.save_group(GroupRecord(name=group, topic="t", space="*"))
        assert len(await store.groups()) == 2


async def test_foreign_files_are_ignored() -> None:
    """Files that the bus did not name are left alone: no listing, opening, deleting or verifying stumbles over them."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(NAME)
        await log.append(entries(1, 2), timeout_s=5)
        await store.save_group(GroupRecord(name="readers", topic="t", space="*"))
        await store.save_checkpoint(NAME, "readers", Checkpoint(log_id=log.log_id, committed=1))
    foreign = [
        *(wal_path(name) for name in ("b@d.00000001.jsonl", ".b@d.mark.json", "..mark.json", ".DS_Store", "t.jsonl")),
        *(
            wal_path(name)
            for name in ("t.00000000.jsonl", "t.00000001.jsonl~", "__.00000001.jsonl", "x y.00000001.jsonl")
        ),
        *(
            wal_path(name, "offsets")
            for name in ("t__readers.json.bak", "nonsense", "t__b@d.json", "b@d__readers.json")
        ),
        *(f"{WORKSPACE}/.bus/{name}" for name in ("spaces/file", "spaces/%zz", "groups/note.txt", "groups/b@d.json")),
    ]
    for path in foreign:
        fs.put(path, b"foreign")
    async with store_on(fs) as store:
        assert await store.log_names() == [NAME]
        log = await store.log(NAME)
        assert (log.next_offset, log.error) == (3, None)
        assert [group.name for group in await store.groups()] == ["readers"]
        assert [verified.name for verified in verify(WORKSPACE, fs=fs)] == [NAME]
        await store.delete_group("readers")
        assert await store.groups() == []
    assert all(fs.files()[path] == b"foreign" for path in foreign)


async def test_a_name_that_begins_like_another_is_another() -> None:
    """F3: the checkpoints of `a_` say nothing about `a`, though their files' names begin alike."""
    fs = SimulatedFileSystem()
    async with store_on(fs) as store:
        log = await store.log(LogName("home", "a_"))
        await log.append(entries(1, 2, 3), timeout_s=5)
        await store.save_checkpoint(log.name, "b", Checkpoint(log_id=log.log_id, committed=3))
        other = await store.log(LogName("home", "a"))
        assert other.error is None
        assert other.log_id != log.log_id
        assert await other.append(entries(1), timeout_s=5) == [1]


def test_a_directory_of_an_earlier_process_is_made_durable() -> None:
    """S1: a directory that is there may be there in memory only, since whoever made it was killed before its sync.

    A process is killed after each call; the next one finds the directories, uses them, and then the power fails.
    """
    fs = SimulatedFileSystem()
    fs.records = True
    workspace = Workspace(fs, Layout(WORKSPACE))
    workspace.acquire()
    workspace.ensure_folder("home", "wal")
    calls = len(fs.history)
    for killed_after in range(1, calls + 1):
        fs = SimulatedFileSystem()
        survivor = _killed_after(fs, killed_after)
        again = Workspace(survivor, Layout(WORKSPACE))
        again.acquire()
        folder = again.ensure_folder("home", "wal")
        assert survivor.crash().listdir(folder) == [], f"killed after call {killed_after}"


def _killed_after(fs: SimulatedFileSystem, calls: int) -> SimulatedFileSystem:
    class Killed(Exception):
        pass

    class Counting(SimulatedFileSystem):
        left = calls

        def _changed(self, *args: object) -> None:
            super()._changed(*args)  # type: ignore[arg-type]
            self.left -= 1
            if not self.left:
                raise Killed

    counting = Counting()
    workspace = Workspace(counting, Layout(WORKSPACE))
    try:
        workspace.acquire()
        workspace.ensure_folder("home", "wal")
    except Killed:
        pass
    return counting.after_kill()


def test_the_lock_names_its_holder() -> None:
    """LOCKED: the second opener learns the holder's pid; afterwards the workspace is free."""
    fs = SimulatedFileSystem()
    first, second = Workspace(fs, Layout(WORKSPACE)), Workspace(fs, Layout(WORKSPACE))
    first.acquire()
    with pytest.raises(WorkspaceLocked) as caught:
        second.acquire()
    assert caught.value.pid == os.getpid()
    first.release()
    first.release()
    second.acquire()
    second.release()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"17", b"{", b'{"pid":"x"}', b"\xff\xfe", b'{"pid":' + b"9" * 4000 + b"}"]
)
def test_a_lock_file_that_says_nothing_useful(content: bytes) -> None:
    """The note in the lock file is for people; whatever stands there, reading it raises nothing."""
    fs = SimulatedFileSystem()
    workspace = Workspace(fs, Layout(WORKSPACE))
    workspace.acquire()
    workspace.release()
    fs.put(workspace.layout.lock, content)
    pid = read_holder(fs, workspace.layout)
    assert pid is None or isinstance(pid, int)


def test_dead_letters_have_readable_names() -> None:
    """On disk: the one file that most people ever see is `<topic>.dlq.jsonl`."""
    assert dlq_naming("actions").segment(1) == "actions.dlq.jsonl"
    assert dlq_naming("actions").mark() == ".actions.dlq.mark.json"
