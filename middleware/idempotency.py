"""A handler that succeeded for a key is not run for it again: across redeliveries, lanes and restarts (rule W14).

The key of an event is its `idem_key`, else its `event_id`, within one group, space and topic. It is claimed while the
handler runs, and kept only if the handler succeeded. What is kept goes to a journal beside the log, one line a key,
and is durable before the checkpoint that settles the event:

    <workspace>/.bus/spaces/<space>/idempotency/<topic>__<group>.00000001.jsonl
    {"offset":1,"key":"key:act:a1|ok","at":1795000000000,"batch":1,"crc":"8 hex"}

A crash inside the handler, or before that checkpoint, may run it again: at least once is still the promise. A retried
dead letter has a key of its own, so that asking for a retry is never answered with "done already".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import orjson

from events.clock import AnchoredClock, Clock
from events.contracts import Delivery, Hop, HopResult, Next, Skip, Stage, Verdict
from events.persistence.store import Entry, Store, StoreLog
from events.types import Ack, EventMeta, Nack
from middleware.conventions import verdict_of

if TYPE_CHECKING:
    from events.bus import EventBus

_FOLDER: Final = "idempotency"
_READ_BYTES: Final = 1024 * 1024
_WRITE_TIMEOUT_S: Final = 30.0
_DUPLICATE: Final = Skip("duplicate")


class _ScopeName(NamedTuple):
    """Where a key counts."""

    group: str
    space_id: str
    topic: str


class _Scope:
    """The keys of one group in one log, oldest first."""

    __slots__ = ("claims", "done", "journal", "pending", "tidied", "users")

    def __init__(self, journal: StoreLog | None) -> None:
        self.journal = journal
        self.done: OrderedDict[str, int] = OrderedDict()
        # The keys that are being handled, each with an event once somebody waits for it.
        self.claims: dict[str, anyio.Event | None] = {}
        self.pending: list[str] = []
        self.tidied = 0
        self.users = 0

    @property
    def is_idle(self) -> bool:
        """Whether nobody has it in hand, and the journal says all that it would."""
        return not self.users and not self.pending and self.journal is not None


class _Wanted(NamedTuple):
    """A key that is to be handled, and where it counts."""

    name: _ScopeName
    scope: _Scope
    key: str


class IdempotencyMiddleware:
    """Settles what was handled before as skipped, `duplicate`.

    A scope remembers its last `max_keys` keys, none for longer than `window_s`. Of all scopes at most
    `max_keys_in_memory` keys are held, the others are read again when they are needed. An event whose key is being
    handled waits up to `wait_s`, then comes back later, at no charge.
    """

    stage = Stage.CONTENT

    def __init__(
        self,
        *,
        max_keys: int = 10_000,
        window_s: float = 24 * 3600.0,
        wait_s: float = 1.0,
        max_keys_in_memory: int = 500_000,
    ) -> None:
        if max_keys < 1 or window_s <= 0:
            raise ValueError("a window remembers at least one key, for some time")
        self._max_keys, self._window_ms, self._wait_s = max_keys, int(window_s * 1000), wait_s
        self._max_keys_in_memory = max_keys_in_memory
        self._store: Store | None = None
        self._clock: Clock = AnchoredClock()
        self._scopes: OrderedDict[_ScopeName, _Scope] = OrderedDict()
        self._held = 0
        self._dirty: dict[_ScopeName, _Scope] = {}
        self._loading = anyio.Lock()
        self._flushing = anyio.Lock()

    # -- with the bus ------------------------------------------------------------------------------------------

    def attach(self, bus: EventBus) -> None:
        """Keep the journals in this bus's store. Without a bus, keys last as long as this object."""
        self._store, self._clock = bus.store, bus.clock
        self._scopes.clear()
        self._dirty.clear()
        self._held = 0

    async def before_checkpoint(self) -> None:
        """Make durable what was kept: a checkpoint must not know of a success that this has forgotten."""
        await self._flush()

    async def close(self) -> None:
        """The last keys."""
        await self._flush()

    async def forget_group(self, group: str) -> None:
        """A deleted group has done nothing; if it is made again, its journals from before do not count."""
        async with self._flushing:
            for name in [name for name in self._scopes if name.group == group]:
                self._held -= len(self._scopes.pop(name).done)
                self._dirty.pop(name, None)

    # -- deliveries --------------------------------------------------------------------------------------------

    async def __call__(self, hop: Hop, call_next: Next) -> HopResult:
        if hop.kind == "publish" or not hop.deliveries:
            return await call_next(hop)
        names = [_ScopeName(one.group, one.space_id, one.topic) for one in hop.deliveries]
        scopes: list[_Scope] = []
        try:
            for name in names:
                scopes.append(await self._scope(name))
            keys = list(map(_key_of, hop.metas, hop.deliveries))
            wanted = list(map(_Wanted, names, scopes, keys))
            return await (self._handle if len(wanted) == 1 else self._handle_batch)(hop, call_next, wanted)
        finally:
            for scope in scopes:
                scope.users -= 1

    async def _handle(self, hop: Hop, call_next: Next, wanted: Sequence[_Wanted]) -> HopResult:
        _, scope, key = wanted[0]
        has_waited = False
        while not self._knows(scope, key):
            if key not in scope.claims:
                return await self._run(hop, call_next, wanted)
            if has_waited:
                return self._later()
            finished = scope.claims[key] = scope.claims[key] or anyio.Event()
            has_waited = not await self._clock.wait(finished, self._wait_s)
        return _DUPLICATE

    async def _handle_batch(self, hop: Hop, call_next: Next, wanted: Sequence[_Wanted]) -> HopResult:
        """Of a key the first event of a batch runs, and the others end as it does. With claims, nobody waits."""
        claims: dict[tuple[_ScopeName, str], _Wanted] = {}
        ended: dict[int, Verdict] = {}
        for index, one in enumerate(wanted):
            if self._knows(one.scope, one.key):
                ended[index] = _DUPLICATE
            elif one.key in one.scope.claims or (one.name, one.key) in claims:
                ended[index] = self._later()
            else:
                claims[one.name, one.key] = one
        rest = hop.without(ended) if ended else hop
        if not claims:
            return _DUPLICATE
        result = await self._run(rest, call_next, list(claims.values()))
        for index in ended:
            if self._knows(wanted[index].scope, wanted[index].key):
                hop.verdicts[hop.deliveries[index]] = _DUPLICATE
        return result

    def _later(self) -> Nack:
        return Nack("the same idempotency key is being handled", delay=self._wait_s, count=False)

    async def _run(self, hop: Hop, call_next: Next, claims: Sequence[_Wanted]) -> HopResult:
        """Run the handler for events whose keys nobody else has."""
        for _, scope, key in claims:
            scope.claims[key] = None
        try:
            result = await call_next(hop)
            for index, (name, scope, key) in enumerate(claims):
                verdict = verdict_of(hop, index, result)
                if verdict is None or isinstance(verdict, Ack):
                    self._keep(name, scope, key)
            return result
        finally:
            for _, scope, key in claims:
                finished = scope.claims.pop(key, None)
                if finished is not None:
                    finished.set()

    # -- keys --------------------------------------------------------------------------------------------------

    def _knows(self, scope: _Scope, key: str) -> bool:
        at_ms = scope.done.get(key)
        return at_ms is not None and self._clock.now_ms() - at_ms <= self._window_ms

    def _keep(self, name: _ScopeName, scope: _Scope, key: str) -> None:
        self._held += key not in scope.done
        scope.done[key] = self._clock.now_ms()
        scope.done.move_to_end(key)
        if len(scope.done) > self._max_keys:
            scope.done.popitem(last=False)
            self._held -= 1
        if scope.journal is not None:
            scope.pending.append(key)
            self._dirty[name] = scope

    # -- scopes ------------------------------------------------------------------------------------------------

    async def _scope(self, name: _ScopeName) -> _Scope:
        """The scope, in the caller's hands until it counts itself out of `users`."""
        scope = self._scopes.get(name)
        if scope is None:
            async with self._loading:
                scope = self._scopes.get(name) or await self._load(name)
                self._scopes[name] = scope
        scope.users += 1
        self._scopes.move_to_end(name)
        if self._held > self._max_keys_in_memory:
            self._evict()
        return scope

    async def _load(self, name: _ScopeName) -> _Scope:
        if self._store is None:
            return _Scope(None)
        born_ms = {record.name: record.created_ms for record in await self._store.groups()}.get(name.group, 0)
        journal = await self._store.journal(name.space_id, _FOLDER, f"{name.topic}__{name.group}")
        scope = _Scope(journal)
        offset = max(journal.first_offset, journal.next_offset - self._max_keys)
        while records := await journal.read(offset, _READ_BYTES):
            offset = records[-1].last + 1
            for record in records:
                # Earlier lines are of a group of that name that was deleted since.
                if not record.is_gap and record.at >= born_ms:
                    key = record.members()["key"]
                    scope.done[key] = record.at
                    scope.done.move_to_end(key)
        self._held += len(scope.done)
        return scope

    def _evict(self) -> None:
        """Let go of the scopes that were used longest ago; their journals remember."""
        for name in [name for name, scope in self._scopes.items() if scope.is_idle]:
            if self._held <= self._max_keys_in_memory:
                break
            self._held -= len(self._scopes.pop(name).done)

    async def _flush(self) -> None:
        # One at a time: whoever comes second must not go on before the first has written.
        async with self._flushing:
            while self._dirty:
                name, scope = next(iter(self._dirty.items()))
                assert scope.journal is not None
                keys = scope.pending[:]
                entries = [Entry(b'"key":' + orjson.dumps(key)) for key in keys]
                await scope.journal.append(entries, timeout_s=_WRITE_TIMEOUT_S)
                await scope.journal.sync()
                del scope.pending[: len(keys)]
                if not scope.pending:
                    self._dirty.pop(name, None)
                await self._tidy(scope, scope.journal)

    async def _tidy(self, scope: _Scope, journal: StoreLog) -> None:
        """Delete segments that hold nothing but keys out of the window; not asked for more often than it can help."""
        keep_from = journal.next_offset - self._max_keys
        if keep_from - max(scope.tidied, journal.first_offset) > self._max_keys:
            scope.tidied = keep_from
            await journal.drop_before(keep_from)


def _key_of(meta: EventMeta, delivery: Delivery) -> str:
    return f"retry:{delivery.identity}" if delivery.replayed else f"key:{meta.idem_key or meta.event_id}"
