"""Group commit: appends that arrive together share one write and one sync, one batch in flight a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from events.errors import OffsetGone, OutcomeUnknown, StorageFull
from events.persistence.codec import Record, encode_line, payload_starts, published_record
from events.persistence.log import DiskFull, Log
from events.persistence.store import Entry, LogName

if TYPE_CHECKING:
    from events.persistence.wal import WalStore

T = TypeVar("T")
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_FULL_RETRY_S: Final = 0.1
_FULL_GRACE_S: Final = 1.0
_FAILED_PAUSE_S: Final = 1.0


class _Ticket:
    """One call of `append`, on its way to the disk."""

    __slots__ = ("deadline", "entries", "error", "is_abandoned", "offsets", "staged_at", "taken", "turn")

    def __init__(self, entries: Sequence[Entry], now: float, timeout_s: float) -> None:
        self.entries = entries
        self.staged_at = now
        self.deadline = now + timeout_s
        self.offsets: list[int] = []
        self.taken = 0
        self.error: BaseException | None = None
        self.is_abandoned = False
        self.turn: anyio.Event

    @property
    def is_done(self) -> bool:
        return self.error is not None or len(self.offsets) == len(self.entries)


class _Batch:
    """What one write puts on disk, and who waits for it."""

    __slots__ = ("at", "data", "names", "records", "shares", "turn")

    def __init__(self, turn: anyio.Event) -> None:
        self.turn = turn
        self.shares: list[tuple[_Ticket, int]] = []
        self.records: list[Record] = []
        self.data = b""
        self.at = 0
        self.names = 0


class CommittedLog:
    """A log on the event loop: stages appends, hands batches to a thread, tells everyone when they are durable.

    All of it runs on the loop, but for `Log.write`, `Log.sync` and the like, of which one runs at a time.
    """

    def __init__(self, store: WalStore, name: LogName, log: Log) -> None:
        self.name = name
        self._store = store
        self._log = log
        self._key = id(self)
        self._next_offset = log.next_offset
        self._staged: deque[_Ticket] = deque()
        self._turn: anyio.Event | None = None
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._batch: _Batch | None = None
        self._busy = False
        self._retry_at: float | None = None
        self._keep_after = 0.0
        self.tells_durable = True

    # -- what the contract asks for ----------------------------------------------------------------------------

    @property
    def log_id(self) -> str:
        return self._log.mark_file.mark.log_id

    @property
    def first_offset(self) -> int:
        return self._log.first_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def error(self) -> Exception | None:
        return self._log.poison or self._log.damage

    async def append(self, entries: Sequence[Entry], *, timeout_s: float) -> list[int]:
        self._store.check_writable()
        self._log.check_writable()
        if not entries:
            return []
        await checkpoint_if_cancelled()  # behind this it is staged, and may be written
        ticket = _Ticket(entries, self._store.clock.monotonic(), timeout_s)
        if self._turn is None:
            self._turn = anyio.Event()
        ticket.turn = self._turn
        self._staged.append(ticket)
        self._store.attend(self)
        self._pump()
        try:
            while not ticket.is_done:
                await ticket.turn.wait()
        except BaseException:
            ticket.is_abandoned = True
            self._withdraw(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.offsets

    async def read(self, offset: int, max_bytes: int) -> list[Record]:
        through = self._next_offset - 1
        if offset > through:
            return []
        if offset < self._log.first_offset:  # memory may still have it
            raise OffsetGone(self.name.topic, offset, self._log.first_offset)
        recent = self.recent(offset)
        if recent:
            return list(recent)
        return await self._store.run_blocking(lambda: self._log.read(offset, through, max_bytes))

    def recent(self, offset: int) -> Sequence[Record]:
        return self._store.tail.find(self._key, offset)

    async def offset_at(self, at_ms: int) -> int:
        return await self._store.run_blocking(lambda: self._log.offset_at(at_ms))

    async def offset_within(self, max_bytes: int) -> int:
        return await self.exclusively(lambda: self._log.offset_within(max_bytes))

    async def sync(self) -> None:
        self._store.check_writable()
        if self._log.limits.sync != "always" or self._busy:
            await self.exclusively(self._log.sync)
            self._store.attend(self)  # the mark follows, for readers outside

    async def drop_before(self, offset: int) -> int:
        ballast = self._store.ballast
        await self.exclusively(lambda: ballast.spent_on(lambda: self._log.drop_before(offset)))
        return self._log.first_offset

    # -- the pipeline ------------------------------------------------------------------------------------------

    async def exclusively(self, work: Callable[[], T]) -> T:
        """Run blocking work on the log while no batch is being written."""
        self._store.check_writable()
        finished = anyio.Event()
        outcome: list[Any] = []

        def done(result: Any, error: BaseException | None) -> None:
            outcome.extend((result, error))
            finished.set()

        self._jobs.append((work, done))
        self._pump()
        with anyio.CancelScope(shield=True):
            await finished.wait()
        result, error = outcome
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _pump(self) -> None:
        """Start the next piece of work, if none is under way."""
        if self._busy:
            return
        if self._jobs:
            work, done = self._jobs.popleft()
            self._busy = True

            def finished(result: Any, error: BaseException | None) -> None:
                self._busy = False
                done(result, error)
                self._pump()

            self._store.io.submit(work, finished)
        elif self._staged and self._retry_at is None:
            batch = self._gather()
            self._busy = True
            self._batch = batch
            self._store.io.submit(lambda: self._write(batch), lambda _, error: self._written(batch, error))

    def _write(self, batch: _Batch) -> None:
        """In a thread. Events wait for room; dead letters and journals may use the ballast's."""
        log, ballast = self._log, self._store.ballast
        if self.tells_durable:
            ballast.demand()
            log.write(batch.data, len(batch.records), batch.at)
        else:
            ballast.spent_on(lambda: log.write(batch.data, len(batch.records), batch.at))

    def _gather(self) -> _Batch:
        """Take what is staged, up to the limits of a batch, and make its lines."""
        assert self._turn is not None
        batch, self._turn = _Batch(self._turn), None
        log = self._log
        offset, durable_below = log.next_offset, log.durable + 1
        batch.at = at = max(log.last_at, self._store.clock.now_ms())
        max_lines = _lines_that_fit(log)
        lines: list[bytes] = []
        size = 0
        while self._staged and size < MAX_BATCH_BYTES and len(lines) < max_lines:
            ticket = self._staged[0]
            share = 0
            for entry in ticket.entries[ticket.taken : ticket.taken + max_lines - len(lines)]:
                line = encode_line(offset + len(lines), entry.members, at, durable_below)
                lines.append(line)
                size += len(line)
                share += 1
                if size >= MAX_BATCH_BYTES:
                    break
            batch.shares.append((ticket, share))
            ticket.turn = batch.turn
            ticket.taken += share
            if ticket.taken < len(ticket.entries):
                break
            self._staged.popleft()
        if self._staged:
            self._turn = anyio.Event()
            for ticket in self._staged:
                ticket.turn = self._turn
        batch.data = b"".join(lines)
        segment, position = log.place(size, len(lines))
        index = 0
        for ticket, share in batch.shares:
            begin = ticket.taken - share
            for entry in ticket.entries[begin : ticket.taken]:
                line = lines[index]
                if entry.meta is not None:
                    start = payload_starts(offset, entry.meta_bytes)
                    record = published_record(offset, line, segment, position, entry.meta, start)
                else:
                    record = Record(offset, line, segment, position)
                    batch.names = max(batch.names, entry.names)
                batch.records.append(record)
                position += len(line)
                offset += 1
                index += 1
        return batch

    def _written(self, batch: _Batch, error: BaseException | None) -> None:
        """Back on the loop: the batch is durable, or it is not, or nobody knows."""
        self._busy = False
        self._batch = None
        if error is None:
            self._next_offset = batch.records[-1].offset + 1
            self._store.tail.add(self._key, batch.records, len(batch.data))
            if self._log.limits.sync != "always":
                self._store.wrote_unsynced(self)
            self._log.names = max(self._log.names, batch.names)
            offset = batch.records[0].offset
            for ticket, share in batch.shares:
                ticket.offsets.extend(range(offset, offset + share))
                offset += share
            if self.tells_durable:
                self._store.durable(self, batch.records)
                self._store.storage_full = False
        elif isinstance(error, DiskFull):
            self._put_back(batch)
        else:
            for ticket, _ in batch.shares:
                self._fail(ticket, error)
            if self._staged and self._staged[0].error is not None:
                self._staged.popleft()  # the rest of a call that was just told that it failed
        batch.turn.set()
        if self._log.poison is not None:
            self._fail_staged(self._log.poison)
        self._pump()

    def _put_back(self, batch: _Batch) -> None:
        """No room: the lines were cut off again, so their tickets wait for room like those behind them."""
        self._store.storage_full = True
        self._retry_at = self._store.clock.monotonic() + _FULL_RETRY_S
        for ticket, share in reversed(batch.shares):
            ticket.taken -= share
            if ticket.is_abandoned or ticket.error is not None:
                self._withdraw(ticket)
            elif not self._staged or self._staged[0] is not ticket:
                self._staged.appendleft(ticket)
        if self._turn is None:
            self._turn = anyio.Event()
        for ticket in self._staged:
            ticket.turn = self._turn

    def _withdraw(self, ticket: _Ticket) -> None:
        """A caller went away: what was not taken for a batch will not be written."""
        if ticket in self._staged:
            if ticket.taken:
                ticket.entries = ticket.entries[: ticket.taken]
            self._staged.remove(ticket)

    def _fail(self, ticket: _Ticket, error: BaseException) -> None:
        """Tell a caller. Where some of its entries are durable, "not written" would be wrong (rule W2)."""
        if ticket.offsets and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(self.name.topic, f"a part of it is durable, but then {error}")
        ticket.error = ticket.error or error

    def _fail_staged(self, error: BaseException) -> None:
        for ticket in self._staged:
            self._fail(ticket, error)
        self._staged.clear()
        if self._turn is not None:
            self._turn.set()
            self._turn = None

    # -- housekeeping, a few times a second while there is anything to keep ------------------------------------

    def keep(self, now: float, *, sync_due: bool) -> bool:
        """Do what is due; False when nothing is left to come back for."""
        self._expire(now)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._pump()
        if self._log.poison is None and self._log.damage is None and not self._jobs and now >= self._keep_after:
            if sync_due and self._log.limits.sync == "interval" and self._log.durable < self._log.next_offset - 1:
                self._jobs.append((self._log.sync, self._kept))
            if self._log.mark_is_behind:
                self._jobs.append((lambda: self._store.ballast.spent_on(self._log.write_mark), self._kept))
            self._pump()
        has_unsynced = self._log.limits.sync == "interval" and self._log.durable < self._log.next_offset - 1
        is_behind = self.error is None and (has_unsynced or self._log.mark_is_behind)
        return self._busy or bool(self._staged or self._jobs) or is_behind

    def sync_soon(self) -> None:
        """Sync what was appended, as soon as nothing else is under way."""
        if self._log.poison is None and self._log.damage is None:
            self._jobs.append((self._log.sync, self._kept))
            self._store.attend(self)
            self._pump()

    def _kept(self, _result: object, error: BaseException | None) -> None:
        if error is not None:
            self._keep_after = self._store.clock.monotonic() + _FAILED_PAUSE_S
            self._store.note_failure(self.name, error)

    def _expire(self, now: float) -> None:
        """Deadlines without a timer each: whoever has waited too long is told what became of the line."""
        late = [ticket for ticket in self._staged if now >= ticket.deadline and ticket.taken == len(ticket.offsets)]
        for ticket in late:
            self._staged.remove(ticket)
            if self._store.storage_full:
                self._fail(ticket, StorageFull(self.name.topic, now - ticket.staged_at))
            else:
                self._fail(ticket, OutcomeUnknown(self.name.topic, "the disk did not answer in time"))
        # A line that is tried again on a full disk is about to be known as written or as withdrawn: worth a moment.
        overdue = now - (_FULL_GRACE_S if self._store.storage_full else 0.0)
        stuck = self._batch is not None and [ticket for ticket, _ in self._batch.shares if overdue >= ticket.deadline]
        for ticket in stuck or ():
            reason = f"the disk did not answer for {now - ticket.staged_at:.3g} s"
            self._fail(ticket, OutcomeUnknown(self.name.topic, reason))
            self._withdraw(ticket)
        for ticket in [*late, *(stuck or ())]:
            # Waking the whole turn is cheap and rare; who is not done waits for it again.
            self._wake(ticket)

    def _wake(self, ticket: _Ticket) -> None:
        woken, fresh = ticket.turn, anyio.Event()
        if woken.is_set():
            return
        if self._turn is woken:
            self._turn = fresh
        if self._batch is not None and self._batch.turn is woken:
            self._batch.turn = fresh
            for waiting, _ in self._batch.shares:
                waiting.turn = fresh
        for waiting in self._staged:
            if waiting.turn is woken:
                waiting.turn = fresh
        woken.set()

    async def close(self) -> None:
        """Make everything that was appended durable, and say so in the mark."""
        while self._busy or self._jobs or (self._staged and self._retry_at is None):
            await self.exclusively(lambda: None)
        if self._retry_at is not None:
            self._fail_staged(StorageFull(self.name.topic, 0.0))
        if self._log.poison is None and self._log.damage is None:
            await self.exclusively(self._log.sync)
            if self._log.mark_is_behind or self._log.next_offset > 1:
                await self.exclusively(lambda: self._log.write_mark(sync=True))


def _lines_that_fit(log: Log) -> int:
    limit = log.limits.segment_lines
    if limit is None:
        return 1 << 20
    left = limit - log.active_lines
    return left if left > 0 else limit
