"""Every store that ships keeps the one contract: the WAL on a real disk and on a simulated one, and memory."""

from __future__ import annotations

from pathlib import Path

from events.clock import Clock
from events.persistence.io import InlineIo
from events.persistence.memory import MemoryStore
from events.persistence.store import Store
from events.persistence.wal import WalSettings, WalStore
from events.testing.conformance import StoreConformance, StoreFeatures
from events.testing.simulated import SimulatedFileSystem


class TestWalStore(StoreConformance):
    """The write-ahead log with its threads, on whatever file system the tests run on."""

    features = StoreFeatures(shares_batches=True, bounds_reads=False)

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """A workspace in the test's folder."""
        return WalStore(folder, WalSettings(ballast_bytes=4096), clock=clock)


class TestWalStoreInTinySegments(StoreConformance):
    """Everything rotates, few files are open, nothing is in memory: every read goes to the disk."""

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """A workspace whose segments have three lines."""
        settings = WalSettings(ballast_bytes=0, segment_lines=3, max_open_files=2, tail_bytes=0)
        return WalStore(folder, settings, clock=clock)


class TestWalStoreBetweenSyncs(StoreConformance):
    """With `sync=interval`: the same contract, a larger loss window."""

    features = StoreFeatures(shares_batches=True)

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """A workspace that is synced now and then."""
        settings = WalSettings(ballast_bytes=0, segment_bytes=4000, sync="interval", tail_bytes=0)
        return WalStore(folder, settings, clock=clock)


class TestWalStoreSimulated(StoreConformance):
    """The same on the simulated file system, all file work inline."""

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """A workspace on a simulated disk that lives as long as the test."""
        disk: SimulatedFileSystem = self.__dict__.setdefault("disk", SimulatedFileSystem())
        settings = WalSettings(ballast_bytes=0, segment_lines=4, tail_bytes=0)
        return WalStore(folder, settings, fs=disk, io=InlineIo(), clock=clock)


class TestMemoryStore(StoreConformance):
    """The in-memory store; closing keeps it, so the object itself is what is opened again."""

    def make_store(self, folder: Path, clock: Clock) -> Store:
        """One store for the length of a test."""
        store: MemoryStore = self.__dict__.setdefault("store", MemoryStore())
        store.clock = clock
        return store
