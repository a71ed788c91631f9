"""The deduplicator for asyncio.

What always holds is said in `deduplicator`; here every wait is awaited, and a cancelled block gives its claim up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidelog.client.errors import ClosedError
from tidelog.client.processing.claim_store import PURGE_AFTER, AsyncClaimStore, ClaimResult, Waiting
from tidelog.client.processing.claim_target import open_async_store
from tidelog.client.processing.claims import (
    DAY_S,
    AsyncClaim,
    Batch,
    ClaimSettings,
    NewRecords,
    RecordT,
    check_kept,
    claimed_keys,
    new_owner,
)
from tidelog.client.processing.errors import ClaimStoreError
from tidelog.client.processing.record_keys import ConsumedRecord, KeyFunction, by_offset

if TYPE_CHECKING:
    import redis.asyncio

logger = logging.getLogger(__name__)


class AsyncDeduplicator:
    """Lets a coroutine work once for every key, over Redis, PostgreSQL or SQLite.

    >>> from tidelog import AsyncDeduplicator
    >>> dedup = AsyncDeduplicator("redis://127.0.0.1:6379/0", name="billing")  # doctest: +SKIP
    >>> async with dedup.once(record) as first:  # doctest: +SKIP
    ...     if first:
    ...         await send_invoice(record.value)
    """

    def __init__(
        self,
        target: str | Path | redis.asyncio.Redis,
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
        """Nothing is opened yet; the first use connects, and makes the table of an SQL database.

        `name` tells apart handlers of the same records, each of which is to work once. `key` makes a key of a record.
        `when_busy` says what is done about a key that another process works on: "wait" for it, up to `wait_s` (a
        lease and a second unless given), "skip" it, or "raise" ClaimBusyError.
        """
        self._settings = ClaimSettings.checked(name, key, expiry_s, lease_s, when_busy, wait_s, table, timeout_s)
        self._store: AsyncClaimStore = open_async_store(target, self._settings)
        self._claimed_since_purge = 0
        self._is_closed = False

    @asynccontextmanager
    async def once(self, what: ConsumedRecord | str | bytes, *, connection: Any = None) -> AsyncIterator[AsyncClaim]:
        """Claim the key of a record, or the key itself, for the time of the `with` block.

        When the block ends the key is marked as done; when it raises, the claim is given up. With `connection`, which
        has an open transaction, the mark is part of that transaction, and a block that raises is undone up to here.
        """
        keys = [self._settings.key_of(what)]
        async with self._claims(keys, connection) as (results, owner, _):
            yield AsyncClaim(keys[0], results[0], lambda lease_s: self._extend(keys, owner, lease_s, connection))

    @asynccontextmanager
    async def filter_new(
        self, records: Iterable[RecordT], *, connection: Any = None
    ) -> AsyncIterator[NewRecords[RecordT]]:
        """Claim many records in one round trip; the block is given those to work on.

        When the block ends all of them are marked as done. When it raises, those that it noted by `done(record)` are
        marked and the others given up; with `connection` all of it is undone.
        """
        batch = Batch(records, self._settings)
        if not batch.keys:
            yield NewRecords(batch, [])
            return
        async with self._claims(batch.keys, connection) as (results, _, done):
            new = NewRecords(batch, results)
            try:
                yield new
            finally:
                done.update(new.done_keys)

    async def purge(self, limit: int = 10_000) -> int:
        """Remove expired marks, which otherwise happens little by little; how many went."""
        return await self._store.purge(limit)

    async def close(self) -> None:
        """End connections that it made; those it was given stay open."""
        self._is_closed = True
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # How it is done

    @asynccontextmanager
    async def _claims(
        self, keys: Sequence[bytes], connection: Any
    ) -> AsyncIterator[tuple[list[ClaimResult], str, set[bytes]]]:
        """Claim keys around a block, which may add those that are done to the set it is given."""
        if self._is_closed:
            raise ClosedError("the deduplicator is closed")
        owner = new_owner()
        if connection is not None:
            async with self._marks(keys, owner, connection) as results:
                yield results, owner, set()
            return
        await self._purge_now_and_then(len(keys), None)
        results = await self._claim(keys, owner)
        claimed = claimed_keys(keys, results)
        done: set[bytes] = set()
        try:
            yield results, owner, done
        except BaseException:
            await self._give_up(claimed, done, owner)
            raise
        if claimed:
            check_kept(claimed, await self._store.complete(claimed, owner, self._settings.expiry_ms))

    @asynccontextmanager
    async def _marks(self, keys: Sequence[bytes], owner: str, connection: Any) -> AsyncIterator[list[ClaimResult]]:
        waiting = Waiting(self._settings.when_busy, self._settings.wait_s, time.monotonic())
        while True:
            wait_ms = waiting.left_ms(time.monotonic())
            results = await self._store.begin_marks(
                connection, keys, owner, self._settings.expiry_ms, partly=waiting.may_skip, wait_ms=wait_ms
            )
            pause_s = waiting.pause_s(keys, results, time.monotonic())
            if pause_s is None:
                break
            await asyncio.sleep(pause_s)
        try:
            await self._purge_now_and_then(len(keys), connection)
            yield results
        except BaseException:
            await self._store.end_marks(connection, undo=True)
            raise
        await self._store.end_marks(connection, undo=False)

    async def _claim(self, keys: Sequence[bytes], owner: str) -> list[ClaimResult]:
        waiting = Waiting(self._settings.when_busy, self._settings.wait_s, time.monotonic())
        while True:
            results = await self._store.claim(keys, owner, self._settings.lease_ms(), partly=waiting.may_skip)
            pause_s = waiting.pause_s(keys, results, time.monotonic())
            if pause_s is None:
                return results
            await asyncio.sleep(pause_s)

    async def _give_up(self, claimed: Sequence[bytes], done: set[bytes], owner: str) -> None:
        """Mark what was done before a block raised, and give up the rest; its own error must not hide the block's."""
        finished = [key for key in claimed if key in done]
        unfinished = [key for key in claimed if key not in done]
        try:
            if finished:
                await self._store.complete(finished, owner, self._settings.expiry_ms)
            if unfinished:
                await self._store.release(unfinished, owner)
        except ClaimStoreError as error:
            lease_s = self._settings.lease_s
            logger.warning(
                "%d claims could not be released and expire with their lease of %s s: %s", len(claimed), lease_s, error
            )

    async def _extend(self, keys: Sequence[bytes], owner: str, lease_s: float | None, connection: Any) -> None:
        # In the caller's transaction there is no lease: the row is locked until it ends.
        if connection is None:
            check_kept(keys, await self._store.extend(keys, owner, self._settings.lease_ms(lease_s)))

    async def _purge_now_and_then(self, count: int, connection: Any) -> None:
        """Remove twice as many rows as were added since the last time, so that expired ones never pile up."""
        self._claimed_since_purge += count
        if self._claimed_since_purge >= PURGE_AFTER:
            limit, self._claimed_since_purge = 2 * self._claimed_since_purge, 0
            await self._store.purge(limit, connection)
