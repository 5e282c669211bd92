"""What the doctor looks at: the machine under the workspace, the files in it, and who uses them."""

from __future__ import annotations

import os
import platform
import resource
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from events.cli.output import joined, plural
from events.cli.problems import command_of
from events.errors import BusError
from events.inspection import Inspector
from events.persistence.files import OsFileSystem
from events.persistence.reader import WorkspaceReader
from events.persistence.workspace import read_holder
from events.settings import Settings
from events.units import show_bytes, show_seconds

Verdict = Literal["ok", "warn", "fail", "info"]

_SYNCS: Final = 40
_SYNC_BYTES: Final = 4096
_SLOW_SYNC_S: Final = 0.02
_UNLIKELY_SYNC_S: Final = 0.000_015
_LOW_SPACE_BYTES: Final = 256 * 1024 * 1024
_NETWORK: Final = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "ceph", "gluster", "afs", "virtiofs")
_VOLATILE: Final = ("tmpfs", "ramfs")
_MAX_SKEW_S: Final = 2.0
_SPARE_FILES: Final = 128


@dataclass(frozen=True, slots=True)
class Check:
    """One finding, and what to do about it where something is to be done."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def check_machine(settings: Settings) -> Iterator[Check]:
    """What is under the workspace, whether or not it holds events."""
    yield Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.release()}")
    place = _nearest(settings.workspace)
    yield _file_system(place)
    yield from _space(place)
    yield from _sync_latency(settings, place)
    yield _open_files(settings)


def check_workspace(settings: Settings, inspector: Inspector) -> Iterator[Check]:
    """What is in the workspace."""
    reader = inspector.reader
    yield _lock(reader)
    yield _permissions(reader)
    yield _clock(inspector)
    yield _stale(reader)
    yield _aside(reader)
    yield from _logs(inspector)
    yield _groups(inspector)
    yield _dead_letters(inspector)


def _nearest(path: Path) -> Path:
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


# -- the machine -----------------------------------------------------------------------------------------------


def _file_system(place: Path) -> Check:
    kind, mount = file_system_of(place)
    found = f"{kind} at {mount}"
    if kind.startswith(_NETWORK):
        advice = "A network file system may not keep flock and fsync; use a local disk"
        return Check("file system", "warn", found, advice)
    if kind in _VOLATILE:
        return Check("file system", "warn", found, "This is memory: a reboot loses everything; use a disk")
    if kind == "overlay":
        return Check("file system", "warn", found, "A container's own layer goes with the container; mount a volume")
    return Check("file system", "ok" if kind != "unknown" else "info", found)


def file_system_of(place: Path) -> tuple[str, str]:
    """The type of the file system and where it is mounted, where the system tells."""
    best = ("unknown", "/")
    with suppress(OSError):
        real = os.path.realpath(place)
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, mount, kind, *_ = line.split(" ")
            mount = mount.encode().decode("unicode_escape")
            if (real == mount or real.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best[1]):
                best = (kind, mount)
    return best


def _space(place: Path) -> Iterator[Check]:
    facts = os.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    low = free < _LOW_SPACE_BYTES
    advice = "Free some: `events compact`, `events retention`" if low else ""
    yield Check("free space", "warn" if low else "ok", show_bytes(free), advice)
    if facts.f_files and facts.f_favail < 1000:
        yield Check("free inodes", "warn", f"{facts.f_favail}", "Each topic and group takes some files: free inodes")


def _sync_latency(settings: Settings, place: Path) -> Iterator[Check]:
    """Write and sync a small file, as each commit does; it is deleted again."""
    try:
        times = sorted(measure_syncs(place))
    except OSError as error:
        where = f"{place}: {error.strerror}"
        yield Check("fsync", "fail", where, "The bus cannot write here: make the folder writable")
        return
    middle, slowest = times[len(times) // 2], times[-1]
    found = f"median {show_seconds(middle)}, slowest {show_seconds(slowest)} of {len(times)}"
    if settings.bus.wal.sync != "always":
        advice = f"sync is {settings.bus.wal.sync!r}: a power cut may take the last events that were 'published'"
        yield Check("fsync", "warn", found, advice)
    elif middle > _SLOW_SYNC_S:
        advice = "A single publish waits for one; publish_many and concurrent publishers share it"
        yield Check("fsync", "warn", found, advice)
    elif middle < _UNLIKELY_SYNC_S:
        yield Check("fsync", "warn", found, "Too fast for a disk: it may only pretend, and lose data in a power cut")
    else:
        yield Check("fsync", "ok", found)


def measure_syncs(place: Path, number: int = _SYNCS) -> list[float]:
    """Seconds of some small writes, each synced, in a file that has no name and leaves nothing behind."""
    fs, times = OsFileSystem(), []
    with tempfile.TemporaryFile(dir=place) as file:
        for index in range(number):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * _SYNC_BYTES, index * _SYNC_BYTES)
            fs.sync(file.fileno())
            times.append(time.perf_counter() - began)
    return times


def _open_files(settings: Settings) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.bus.wal.max_open_files + _SPARE_FILES
    found = f"{soft:,} allowed, {settings.bus.wal.max_open_files:,} for logs"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = "" if hard != resource.RLIM_INFINITY and hard < wanted else f" (`ulimit -n {wanted}`)"
        return Check("open files", "warn", found, f"Raise the limit{raised}, or lower max_open_files")
    return Check("open files", "ok", found)


# -- the workspace ---------------------------------------------------------------------------------------------


def _lock(reader: WorkspaceReader) -> Check:
    if not reader.is_held():
        return Check("lock", "ok", "free")
    pid = read_holder(reader.fs, reader.layout)
    who = "a process that does not say which" if pid is None else f"process {pid}"
    command = command_of(pid) if pid is not None else ""
    return Check("lock", "info", f"held by {who}{f' ({command})' if command else ''}")


def _permissions(reader: WorkspaceReader) -> Check:
    """Directories 0700 and files 0600, all of one owner: payloads are private."""
    opened: list[str] = []
    foreign: list[str] = []
    root = Path(reader.layout.root)
    for folder, _, files in os.walk(root):
        for path in [Path(folder), *(Path(folder) / name for name in files)]:
            with suppress(OSError):  # it may be gone by now
                facts = path.lstat()
                if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and not stat.S_ISLNK(facts.st_mode):
                    opened.append(str(path))
                if facts.st_uid != os.geteuid():
                    foreign.append(str(path))
    if foreign and os.geteuid() != 0:
        advice = f"Run as their owner, or `chown -R {os.geteuid()} {root}`"
        return Check("permissions", "fail", f"{plural(len(foreign), 'file')} of another owner: {foreign[0]}", advice)
    if opened:
        advice = f"Others may read payloads: `chmod -R go= {root}`"
        return Check("permissions", "warn", f"{plural(len(opened), 'file')} open to others: {opened[0]}", advice)
    return Check("permissions", "ok", "yours alone")


def _clock(inspector: Inspector) -> Check:
    """The wall clock against what the logs and the file system have seen."""
    now_s = time.time()
    newest_ms = 0
    for name in inspector.names():
        with suppress(BusError, OSError):
            state = inspector.topic_state(name, {})
            newest_ms = max(newest_ms, state.last_at_ms or 0)
    ahead_s = newest_ms / 1000 - now_s
    if ahead_s > _MAX_SKEW_S:
        found = f"the newest event is {show_seconds(ahead_s)} in the future"
        return Check("clock", "warn", found, "The clock was set back; the log goes on from its own last time")
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=inspector.reader.layout.workspace) as file:
        file.write(b".")
        file.flush()
        skew_s = os.stat(file.name).st_mtime - time.time()
        if abs(skew_s) > _MAX_SKEW_S:
            found = f"the file system's clock is {show_seconds(abs(skew_s))} off"
            return Check("clock", "warn", found, "Set both clocks by NTP")
    return Check("clock", "ok", "agrees with the log and the file system")


def _stale(reader: WorkspaceReader) -> Check:
    """Temporary files of a crash. Harmless, and replaced when their turn comes again."""
    held = reader.is_held()
    left = [
        os.path.join(folder, name)
        for folder, _, files in os.walk(reader.layout.root)
        for name in files
        if name.endswith((".tmp", ".repair"))
    ]
    if not left or held:
        return Check("stale files", "ok", "none" if not left else "a bus is writing")
    found = f"{plural(len(left), 'file')} of an interrupted write: {joined(left, 2)}"
    return Check("stale files", "info", found, "Harmless; the next write in their place removes them")


def _aside(reader: WorkspaceReader) -> Check:
    folder = Path(reader.layout.aside)
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    if not files:
        return Check("set aside", "ok", "nothing")
    size = show_bytes(sum(path.stat().st_size for path in files))
    found = f"{plural(len(files), 'file')}, {size}, in {folder}"
    return Check("set aside", "info", found, "Bytes that recovery or a repair took out; delete them when looked at")


def _logs(inspector: Inspector) -> Iterator[Check]:
    names = inspector.names()
    states = [inspector.topic_state(name, {}) for name in names]
    broken = [state for state in states if state.trouble]
    withheld = sum(state.withheld for state in states)
    for state in broken:
        advice = "`events verify` says more; `events repair` mends"
        yield Check("log", "fail", f"{state.space_id}/{state.topic}: {state.trouble}", advice)
    size = show_bytes(sum(state.size_bytes for state in states))
    yield Check("logs", "ok", f"{plural(len(states), 'log')}, {size}; `events verify` reads every byte")
    if withheld and not inspector.reader.is_held():
        found = f"{plural(withheld, 'line')} not proven durable"
        yield Check("withheld", "warn", found, "A process died: opening the bus, or `events repair`, recovers them")
    else:
        yield Check("withheld", "ok", "nothing" if not withheld else f"{plural(withheld, 'line')} in flight")


def _groups(inspector: Inspector) -> Check:
    records = inspector.group_records().values()
    held = sorted(record.name for record in records if record.held)
    if held and not inspector.reader.is_held():
        found = f"interrupted: {joined(held)}"
        advice = "Their process died; nothing is lost, and they start with care when they next consume"
        return Check("groups", "warn", found, advice)
    return Check("groups", "ok", f"{plural(len(records), 'group')}, {len(held)} consuming")


def _dead_letters(inspector: Inspector) -> Check:
    try:
        number = len(inspector.dead_letters())
    except (BusError, OSError) as error:
        return Check("dead letters", "fail", str(error), "`events verify` says more")
    if number:
        return Check("dead letters", "warn", f"{number:,}", "`events dlq list` shows what they died of")
    return Check("dead letters", "ok", "none")
