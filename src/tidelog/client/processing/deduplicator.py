"""Runs a handler once per key, even if records are delivered more than once.

What always holds: of all processes that ask for a key at once, exactly one is told to work. Work that raised is not
marked. A mark is kept for `expiry_s`. In the caller's own transaction (`connection=`), mark and effect commit together,
so the effect happens exactly once. Otherwise the mark follows the effect: a process that dies between the two leaves a
claim that ends with its lease, and the work is done again. Several threads may share a Deduplicator, and several tasks
of one event loop an AsyncDeduplicator; there, a cancelled block releases its claim. The two share one source; see
`blocking`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from tidelog.client.errors import ClosedError
from tidelog.client.processing.blocking import BlockingContext, pause, run_blocking
from tidelog.client.processing.claim_store import PURGE_AFTER, ClaimResult, ClaimStore, Waiting
from tidelog.client.processing.claim_target import open_store
from tidelog.client.processing.claims import (
    DAY_S,
    AsyncClaim,
    Batch,
    Claim,
    ClaimBase,
    ClaimSettings,
    NewRecords,
    RecordT,
    check_kept,
    claimed_keys,
    new_owner,
)
from tidelog.client.processing.errors import ClaimStoreError
from tidelog.client.processing.record_keys import ConsumedRecord, KeyFunction, by_offset
from tidelog.common.closing import AsyncClosing, Closing

if TYPE_CHECKING:
    import redis
    import redis.asyncio

logger = logging.getLogger(__name__)

RedisClient: TypeAlias = "redis.Redis"
AsyncRedisClient: TypeAlias = "redis.asyncio.Redis"
RedisT = TypeVar("RedisT")
ClaimT = TypeVar("ClaimT", bound=ClaimBase)


class DeduplicatorBase(Generic[RedisT]):
    """The code of both deduplicators; they differ in the Redis clients they accept, and in how they wait."""

    _is_async: ClassVar[bool]

    def __init__(
        self,
        target: str | Path | RedisT,
        *,
        name: str,
        key: KeyFunction = by_offset,
        expiry_s: float = 7 * DAY_S,
        lease_s: float = 60.0,
        when_busy: str = "wait",
        wait_s: float | None = None,
        table: str = "tidelog_dedup",
        timeout_s: float = 10.0,
    ) -> None:
        """Nothing is opened yet; the first use connects, and creates the table in an SQL database.

        `name` distinguishes handlers of the same records, each of which should work once. `key` derives a key from a
        record. `when_busy` says what to do about a key that another process is working on: "wait" for it, up to
        `wait_s` (by default a lease plus one second), "skip" it, or "raise" ClaimBusyError.
        """
        self._settings = ClaimSettings.checked(name, key, expiry_s, lease_s, when_busy, wait_s, table, timeout_s)
        self._store: ClaimStore = open_store(target, self._settings, is_async=self._is_async)
        self._claimed_since_purge = 0
        self._is_closed = False

    async def _close(self) -> None:
        self._is_closed = True
        await self._store.close()

    async def _purge_now_and_then(self, count: int, connection: Any) -> None:
        """Remove twice as many rows as were added since the last time, so that expired ones never pile up."""
        self._claimed_since_purge += count
        if self._claimed_since_purge >= PURGE_AFTER:
            limit, self._claimed_since_purge = 2 * self._claimed_since_purge, 0
            await self._store.purge(limit, connection)


class _Claims:
    """Claims on keys around a block: taken before it, marked as done or released after it."""

    def __init__(self, dedup: DeduplicatorBase[Any], keys: Sequence[bytes], connection: Any) -> None:
        self._dedup = dedup
        self._settings = dedup._settings
        self._store = dedup._store
        self._keys = keys
        self._connection = connection
        self._owner = new_owner()
        self._claimed: list[bytes] = []

    async def begin(self) -> list[ClaimResult]:
        if self._dedup._is_closed:
            raise ClosedError("the deduplicator is closed")
        if self._connection is not None:
            return await self._begin_marks()
        await self._dedup._purge_now_and_then(len(self._keys), None)
        waiting = Waiting(self._settings.when_busy, self._settings.wait_s, time.monotonic())
        while True:
            results = await self._store.claim(
                self._keys, self._owner, self._settings.lease_ms(), partly=waiting.may_skip
            )
            pause_s = waiting.pause_s(self._keys, results, time.monotonic())
            if pause_s is None:
                self._claimed = claimed_keys(self._keys, results)
                return results
            await pause(pause_s, is_async=self._dedup._is_async)

    async def end(self, error: BaseException | None, done: Collection[bytes] = ()) -> None:
        """If the block raised, only the keys in `done` are marked."""
        if self._connection is not None:
            await self._store.end_marks(self._connection, undo=error is not None)
        elif error is not None:
            await self._give_up(done)
        elif self._claimed:
            check_kept(self._claimed, await self._store.complete(self._claimed, self._owner, self._settings.expiry_ms))

    async def extend(self, lease_s: float | None) -> None:
        # In the caller's transaction there is no lease: the row is locked until the transaction ends.
        if self._connection is None:
            kept = await self._store.extend(self._keys, self._owner, self._settings.lease_ms(lease_s))
            check_kept(self._keys, kept)

    async def _begin_marks(self) -> list[ClaimResult]:
        waiting = Waiting(self._settings.when_busy, self._settings.wait_s, time.monotonic())
        while True:
            results = await self._store.begin_marks(
                self._connection,
                self._keys,
                self._owner,
                self._settings.expiry_ms,
                partly=waiting.may_skip,
                wait_ms=waiting.left_ms(time.monotonic()),
            )
            pause_s = waiting.pause_s(self._keys, results, time.monotonic())
            if pause_s is None:
                break
            await pause(pause_s, is_async=self._dedup._is_async)
        try:
            await self._dedup._purge_now_and_then(len(self._keys), self._connection)
        except BaseException as error:
            await self.end(error)
            raise
        return results

    async def _give_up(self, done: Collection[bytes]) -> None:
        """Mark what was done before the block raised, and release the rest; an error here must not hide the block's."""
        finished = [key for key in self._claimed if key in done]
        unfinished = [key for key in self._claimed if key not in done]
        try:
            if finished:
                await self._store.complete(finished, self._owner, self._settings.expiry_ms)
            if unfinished:
                await self._store.release(unfinished, self._owner)
        except ClaimStoreError as error:
            logger.warning(
                "%d claims could not be released and expire with their lease of %s s: %s",
                len(self._claimed),
                self._settings.lease_s,
                error,
            )


class _Once(AbstractAsyncContextManager[ClaimT]):
    """The object `once` returns for `with` and `async with`."""

    def __init__(
        self,
        dedup: DeduplicatorBase[Any],
        what: ConsumedRecord | str | bytes,
        connection: Any,
        claim_type: type[ClaimT],
    ) -> None:
        self._key = dedup._settings.key_of(what)
        self._claims = _Claims(dedup, [self._key], connection)
        self._claim_type = claim_type

    async def __aenter__(self) -> ClaimT:
        (result,) = await self._claims.begin()
        return self._claim_type(self._key, result, self._claims.extend)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._claims.end(error)


class _FilterNew(AbstractAsyncContextManager[NewRecords[RecordT]]):
    """The object `filter_new` returns for `with` and `async with`."""

    def __init__(self, dedup: DeduplicatorBase[Any], records: Iterable[RecordT], connection: Any) -> None:
        self._batch = Batch(records, dedup._settings)
        self._claims = _Claims(dedup, self._batch.keys, connection)

    async def __aenter__(self) -> NewRecords[RecordT]:
        self._new = NewRecords(self._batch, await self._claims.begin() if self._batch.keys else [])
        return self._new

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch.keys:
            await self._claims.end(error, self._new.done_keys)


class Deduplicator(DeduplicatorBase[RedisClient], Closing):
    """Runs a handler once per key, backed by Redis, PostgreSQL or SQLite.

    >>> from tidelog import Deduplicator
    >>> dedup = Deduplicator("redis://127.0.0.1:6379/0", name="billing")  # doctest: +SKIP
    >>> with dedup.once(record) as first:  # doctest: +SKIP
    ...     if first:
    ...         send_invoice(record.value)
    """

    _is_async = False

    def once(self, what: ConsumedRecord | str | bytes, *, connection: Any = None) -> AbstractContextManager[Claim]:
        """Claim the key of a record, or the key itself, for the duration of the `with` block.

        When the block ends the key is marked as done; if it raises, the claim is released. With `connection`, which has
        an open transaction, the mark is part of that transaction, and a block that raises is undone up to here.
        """
        return BlockingContext(_Once(self, what, connection, Claim))

    def filter_new(
        self, records: Iterable[RecordT], *, connection: Any = None
    ) -> AbstractContextManager[NewRecords[RecordT]]:
        """Claim many records in one round trip; the block gets those to work on.

        When the block ends, all of them are marked as done. If it raises, those that it noted with `done(record)` are
        marked and the others released; with `connection`, all of it is undone.
        """
        return BlockingContext(_FilterNew(self, records, connection))

    def purge(self, limit: int = 10_000) -> int:
        """Remove expired marks, which otherwise happens gradually; returns how many were removed."""
        return run_blocking(self._store.purge(limit))

    def close(self) -> None:
        """Close the connections that it opened; those it was given stay open."""
        run_blocking(self._close())


class AsyncDeduplicator(DeduplicatorBase[AsyncRedisClient], AsyncClosing):
    """Runs a coroutine once per key, backed by Redis, PostgreSQL or SQLite.

    >>> from tidelog import AsyncDeduplicator
    >>> dedup = AsyncDeduplicator("redis://127.0.0.1:6379/0", name="billing")  # doctest: +SKIP
    >>> async with dedup.once(record) as first:  # doctest: +SKIP
    ...     if first:
    ...         await send_invoice(record.value)
    """

    _is_async = True

    def once(
        self, what: ConsumedRecord | str | bytes, *, connection: Any = None
    ) -> AbstractAsyncContextManager[AsyncClaim]:
        """The same as `Deduplicator.once`, for `async with`."""
        return _Once(self, what, connection, AsyncClaim)

    def filter_new(
        self, records: Iterable[RecordT], *, connection: Any = None
    ) -> AbstractAsyncContextManager[NewRecords[RecordT]]:
        """The same as `Deduplicator.filter_new`, for `async with`."""
        return _FilterNew(self, records, connection)

    async def purge(self, limit: int = 10_000) -> int:
        """Remove expired marks, which otherwise happens gradually; returns how many were removed."""
        return await self._store.purge(limit)

    async def close(self) -> None:
        """Close the connections that it opened; those it was given stay open."""
        await self._close()
