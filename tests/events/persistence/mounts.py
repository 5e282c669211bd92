"""Small real file systems for tests: one that fills up, one whose power can be cut.

They need root, or what else may mount. Where that is missing the test cannot be run, and must not pass for one
that was: it says so on the terminal and in the summary.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

Kind = Literal["tmpfs", "ext4"]
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2  # neither data nor journal reaches the device any more: a power cut


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Disk:
    """A file system of our own, mounted at `path` while the block lasts."""

    def __init__(self, kind: Kind, path: Path, size_bytes: int) -> None:
        self.path = path
        self._kind = kind
        self._size_bytes = size_bytes
        self._device: str | None = None

    def create(self) -> None:
        """Make the file system, and mount it."""
        self.path.mkdir()
        if self._kind == "ext4":
            image = self.path.with_suffix(".img")
            with image.open("wb") as file:
                file.truncate(self._size_bytes)
            _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-m", "0", str(image))
            self._device = _run("losetup", "--find", "--show", str(image))
        self.mount()

    def mount(self) -> None:
        """Mount it, again after a cut: that replays the journal, as a machine does when it comes up."""
        if self._device is None:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs", str(self.path))
        else:
            _run("mount", "-t", "ext4", self._device, str(self.path))

    def cut_power(self) -> None:
        """From here on nothing reaches the device. Whoever has files open gets errors."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("i", _NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        """Let go of it. Nobody may have a file open there."""
        _run("umount", str(self.path))

    def destroy(self) -> None:
        """Unmount whatever the state is, and give the device back. Safe to call twice."""
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
        if self._device is not None:
            subprocess.run(["losetup", "-d", self._device], check=False, capture_output=True)

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def fill(self) -> Path:
        """Write a file until nothing more fits; deleting it makes room again."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
        return filler


@contextmanager
def mounted(kind: Kind, path: Path, size_bytes: int, capsys: pytest.CaptureFixture[str]) -> Iterator[Disk]:
    """A disk at a path that does not exist yet. Loudly skips the test where nothing can be mounted."""
    disk = Disk(kind, path, size_bytes)
    try:
        try:
            disk.create()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", None) or error).splitlines()[0]
            notice = f"NOT PROVEN HERE, no {kind} can be mounted (run as root): {reason}"
            with capsys.disabled():
                print(f"\n{notice}")
            pytest.skip(notice)
        yield disk
    finally:
        disk.destroy()
