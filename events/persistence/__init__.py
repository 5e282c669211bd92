"""The write-ahead log, and everything else that must last.

What is on disk
===============

    <workspace>/.bus/
      lock                               held by flock for the bus's life; pid and boot id inside, for people
      groups/<group>.json                that a group exists: its patterns, filters and where it starts
      aside/                             bytes that recovery or a repair took out of a log
      ballast                            given up on a full disk, so that acks can still be written
      spaces/<space>/                    one directory a space, 0700, its name percent-escaped
        wal/<topic>.00000001.jsonl       the segments of a log
        wal/.<topic>.mark.json           how far it is proven durable; two slots, so that one may be torn
        offsets/<topic>__<group>.json    what a group has settled; `.prev` is the copy before it
        dlq/<topic>.dlq.jsonl            dead letters, in the same format (a second file is `.dlq.00000002.jsonl`)
        gate/<topic>__<group>.00000001.jsonl   what the attention gate decided, likewise (`events/attention/journal.py`)
        memories/episodic.sqlite3        episodic memories (`events/episodic_sqlite.py`)

A line of a log is

    {"offset":7,"meta":{..},"payload":{..},"at":1763455200000,"batch":5,"crc":"0a1b2c3d"}

`crc` is the CRC-32 of everything before `,"crc":`. `at` is when it was appended and never goes backwards in a log.
`batch` is a promise about the past: every offset below it was durable when this line was written.

The life of a record
====================

1. `committer` stages it with whatever else arrives meanwhile, and gives the batch offsets.
2. `log` writes the batch with one `write` and one `fdatasync`, in a thread; one batch is in flight at a time.
3. The batch is durable: it enters the `tail` in memory, the bus hears of it, and then its publishers do.
4. Within 100 ms the `mark` says so on disk, for readers in other processes (`reader`) and for recovery.
5. When its segment is full the next one is created; this one is synced first, and never changes again.
6. Once every group has settled it, `retention` may delete the segment; the mark says so first.

After a crash, `recovery` reads from the mark on and decides what is torn and what is corrupt; its docstring has the
rules. Rooms: `codec` and `segment` know lines; `files` is the only one that touches the disk; `log`, `committer`,
`wal` are one log, one log on the event loop, and all of them; `documents` and `checkpoints` are the small files that
are replaced as a whole; `store` is the contract that `wal` and `memory` keep.
"""

from events.persistence.memory import MemoryStore
from events.persistence.store import Store
from events.persistence.wal import WalSettings, WalStore

__all__ = ["MemoryStore", "Store", "WalSettings", "WalStore"]
