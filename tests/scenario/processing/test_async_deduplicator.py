"""The deduplicator for asyncio keeps the same promises, and shares its marks with the other one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import redis.asyncio

from tidelog import AsyncDeduplicator, Deduplicator
from tidelog.client.errors import ClosedError, ConfigError
from tidelog.client.processing.errors import ClaimBusyError, ClaimLostError, ClaimStoreError

pytestmark = pytest.mark.xdist_group("processing")


@dataclass(frozen=True)
class Record:
    offset: int
    topic: str = "orders"
    partition: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 50))


def test_the_work_is_done_once(database: Any) -> None:
    async def main() -> None:
        async with AsyncDeduplicator(database.url, name="billing") as dedup:
            async with dedup.once(Record(7)) as first:
                assert first
                await first.extend()
            async with dedup.once(Record(7)) as again:
                assert not again
            with suppress(RuntimeError):
                async with dedup.once("k"):
                    raise RuntimeError
            async with dedup.once("k") as first:
                assert first

    run(main())
    with Deduplicator(database.url, name="billing") as dedup, dedup.once(Record(7)) as first:
        assert not first


def test_of_many_tasks_one_works(database: Any) -> None:
    worked: list[str] = []

    async def work(dedup: AsyncDeduplicator) -> None:
        for key in map(str, range(10)):
            async with dedup.once(key) as first:
                if first:
                    await asyncio.sleep(0)
                    worked.append(key)

    async def main() -> None:
        async with AsyncDeduplicator(database.url, name="billing") as dedup:
            await asyncio.gather(*(work(dedup) for _ in range(6)))

    run(main())
    assert sorted(worked) == list(map(str, range(10)))


def test_a_cancelled_block_gives_its_claim_up(database: Any) -> None:
    async def work(dedup: AsyncDeduplicator, entered: asyncio.Event) -> None:
        async with dedup.once("k"):
            entered.set()
            await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncDeduplicator(database.url, name="billing", when_busy="raise") as dedup:
            entered = asyncio.Event()
            task = asyncio.create_task(work(dedup, entered))
            await entered.wait()
            with pytest.raises(ClaimBusyError):
                async with dedup.once("k"):
                    pytest.fail("the block must not run")
            task.cancel()
            await asyncio.wait([task])
            async with dedup.once("k") as first:
                assert first

    run(main())


def test_a_lost_lease_is_told(database: Any) -> None:
    async def be_slow(dedup: AsyncDeduplicator) -> None:
        async with dedup.once("k") as first:
            database.end_all_times()
            async with dedup.once("k") as second:
                assert second.fence > first.fence

    async def main() -> None:
        async with AsyncDeduplicator(database.url, name="billing") as dedup:
            with pytest.raises(ClaimLostError):
                await be_slow(dedup)

    run(main())


def test_batches_and_removal(database: Any) -> None:
    async def main() -> None:
        async with AsyncDeduplicator(database.url, name="billing") as dedup:
            records = [Record(offset) for offset in range(5)]
            async with dedup.filter_new(records[:2]) as new:
                assert list(new) == records[:2]
            with suppress(RuntimeError):
                async with dedup.filter_new(records) as new:
                    assert list(new) == records[2:]
                    new.done(records[2])
                    raise RuntimeError
            async with dedup.filter_new(records) as new:
                assert list(new) == records[3:]
            database.end_all_times()
            await dedup.purge()
        assert database.count() == 0
        with pytest.raises(ClosedError):
            async with dedup.once("k"):
                pytest.fail("the block must not run")

    run(main())


def test_one_transaction_of_postgresql(postgres_database: Any) -> None:
    postgres_database.execute("CREATE TABLE effects (id text)")

    async def work(dedup: AsyncDeduplicator) -> None:
        connecting = psycopg.AsyncConnection.connect(postgres_database.url)
        async with await connecting as connection, dedup.once("k", connection=connection) as first:
            if first:
                await connection.execute("INSERT INTO effects VALUES ('k')")

    async def main() -> None:
        async with AsyncDeduplicator(postgres_database.url, name="billing") as dedup:
            await asyncio.gather(*(work(dedup) for _ in range(4)))
            with pytest.raises(ConfigError, match="AsyncConnection"):
                async with dedup.once("k", connection=object()):
                    pytest.fail("the block must not run")

    run(main())
    assert postgres_database.execute("SELECT count(*) FROM effects") == [(1,)]


def test_one_transaction_of_sqlite(sqlite_database: Any) -> None:
    sqlite_database.execute("CREATE TABLE effects (id text)")

    async def main() -> None:
        connection = sqlite3.connect(sqlite_database.path)
        async with AsyncDeduplicator(sqlite_database.url, name="billing") as dedup:
            for _ in range(2):
                with connection:
                    async with dedup.once("k", connection=connection) as first:
                        if first:
                            connection.execute("INSERT INTO effects VALUES ('k')")
        connection.close()

    run(main())
    assert sqlite_database.execute("SELECT count(*) FROM effects") == [(1,)]


def test_a_client_of_the_users_own(redis_database: Any) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(redis_database.url) as client:
            for expected in (True, False):
                async with AsyncDeduplicator(client, name="billing") as dedup, dedup.once("k") as first:
                    assert bool(first) is expected
            assert await client.ping()

    run(main())


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "postgresql://tidelog@127.0.0.1:1/postgres"])
def test_a_server_that_is_not_there(url: str) -> None:
    async def main() -> None:
        async with AsyncDeduplicator(url, name="billing", timeout_s=0.2) as dedup:
            with pytest.raises(ClaimStoreError, match=r"could not be (reached|used)"):
                async with dedup.once("k"):
                    pytest.fail("the block must not run")

    run(main())
