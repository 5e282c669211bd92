"""Reading a log while another thread appends to it, starts segments and deletes old ones."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel

from events.errors import OffsetGone
from events.persistence.store import Entry, LogName, StoreLog
from events.persistence.wal import WalSettings, WalStore

NAME = LogName("home", "notes")
# No tail in memory and few open files: every read goes to the disk, and opens what it reads.
SETTINGS = WalSettings(segment_bytes=4 * 1024, tail_bytes=0, max_open_files=3, ballast_bytes=0, sync="never")
KEEPS_EVENTS = 150
EVENTS = 3_000


def entry_of(number: int) -> Entry:
    """The event that must get the offset `number`."""
    return Entry(b'"meta":{"topic":"notes","type":"NOTED","space_id":"home"},"payload":{"number":%d}' % number)


class Readers:
    """Several tasks that read and seek at random places for as long as the log grows."""

    def __init__(self, log: StoreLog) -> None:
        self.log = log
        self.is_over = False
        self.read = self.gone = self.sought = 0

    async def follow(self) -> None:
        """W4: whoever reads from an offset gets that one and all behind it, or hears that it is gone."""
        offset = 1
        while not self.is_over or offset < self.log.next_offset:
            try:
                records = await self.log.read(offset, 2_000)
            except OffsetGone as gone:
                self.gone += 1
                offset = max(offset + 1, gone.first_retained)
                continue
            if offset < self.log.next_offset and not records:
                raise AssertionError(f"offset {offset} is neither there nor gone")
            for record in records:
                assert record.offset == offset
                assert record.members()["payload"] == {"number": offset}
                offset += 1
            self.read += len(records)
            await anyio.lowlevel.checkpoint()

    async def seek(self) -> None:
        """The first offset of a time is found while segments come and go."""
        while not self.is_over:
            try:
                record = (await self.log.read(max(self.log.first_offset, self.log.next_offset - 20), 1))[0]
                assert await self.log.offset_at(record.at) <= max(record.offset, self.log.first_offset)
            except OffsetGone:
                self.gone += 1
            self.sought += 1
            await anyio.lowlevel.checkpoint()


async def test_reads_beside_appends_and_deletions_skip_nothing(workspace: Path) -> None:
    """W4: no read passes over an offset in silence, whatever another thread does to the segments meanwhile."""
    store = WalStore(workspace, SETTINGS)
    await store.open(lambda log, records: None)
    log = await store.log(NAME)
    await log.append([entry_of(1)], timeout_s=10)
    readers = Readers(log)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(readers.follow)
        tasks.start_soon(readers.seek)
        for first in range(2, EVENTS, 7):
            await log.append([entry_of(number) for number in range(first, first + 7)], timeout_s=10)
            if first % 3 == 0:
                await log.drop_before(log.next_offset - KEEPS_EVENTS)
        readers.is_over = True
    assert readers.read > 500
    assert readers.sought > 10
    await store.close()
