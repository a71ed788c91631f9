"""Mark and effect in one transaction of the user's own: both are there, or neither is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import apsw
import psycopg
import pytest

from tidelog import Deduplicator
from tidelog.client.errors import ConfigError
from tidelog.client.processing.errors import ClaimBusyError

pytestmark = pytest.mark.xdist_group("processing")


@dataclass(frozen=True)
class Record:
    offset: int
    topic: str = "orders"
    partition: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@contextmanager
def transaction(database: Any) -> Iterator[Any]:
    """A transaction of the user's, which commits unless the block raises."""
    if database.kind == "postgres":
        with psycopg.connect(database.url) as postgres:
            yield postgres
        return
    connection = sqlite3.connect(database.path, timeout=20)
    try:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
    finally:
        connection.close()


@pytest.fixture
def ledger(sql_database: Any) -> Any:
    """The database with a table for effects."""
    sql_database.execute("CREATE TABLE effects (id text, worker text)")
    return sql_database


def insert(connection: Any, key: str, worker: str = "") -> None:
    connection.execute(f"INSERT INTO effects VALUES ('{key}', '{worker}')")


def effects(ledger: Any) -> list[str]:
    return sorted(row[0] for row in ledger.execute("SELECT id FROM effects"))


def test_mark_and_effect_are_committed_together(ledger: Any) -> None:
    with Deduplicator(ledger.url, name="billing") as dedup:
        for expected in (True, False):
            with transaction(ledger) as connection, dedup.once("k", connection=connection) as first:
                assert bool(first) is expected
                if first:
                    assert first.fence > 0
                    first.extend()
                    insert(connection, "k")
    assert effects(ledger) == ["k"]


def test_a_rolled_back_transaction_takes_the_mark_with_it(ledger: Any) -> None:
    with Deduplicator(ledger.url, name="billing") as dedup:
        with suppress(RuntimeError), transaction(ledger) as connection:
            with dedup.once("k", connection=connection):
                insert(connection, "k")
            raise RuntimeError
        assert effects(ledger) == []
        with transaction(ledger) as connection, dedup.once("k", connection=connection) as first:
            assert first


def test_a_block_that_raises_is_undone_and_the_rest_stays(ledger: Any) -> None:
    """Also after an error of the database itself, for which PostgreSQL would refuse the rest of the transaction."""
    with Deduplicator(ledger.url, name="billing") as dedup, transaction(ledger) as connection:
        insert(connection, "before")
        for key, broken in (("a", "no_such_table"), ("b", "effects")):
            with suppress(psycopg.Error, sqlite3.Error), dedup.once(key, connection=connection):
                insert(connection, key)
                connection.execute(f"SELECT * FROM {broken}")
        with dedup.once("a", connection=connection) as first:
            assert first
    assert effects(ledger) == ["b", "before"]


def test_a_second_transaction_waits_for_the_first(ledger: Any) -> None:
    """It is told that the work is done when the first commits, and works itself when that rolls back."""

    def told(dedup: Deduplicator, key: str) -> bool:
        with transaction(ledger) as connection, dedup.once(key, connection=connection) as first:
            return bool(first)

    with Deduplicator(ledger.url, name="billing") as dedup, ThreadPoolExecutor(1) as pool:
        with transaction(ledger) as connection, dedup.once("k", connection=connection):
            waiter = pool.submit(told, dedup, "k")
            insert(connection, "k")
        assert not waiter.result(20)
        with suppress(RuntimeError), transaction(ledger) as connection, dedup.once("l", connection=connection):
            waiter = pool.submit(told, dedup, "l")
            raise RuntimeError
        assert waiter.result(20)


def test_of_many_transactions_one_has_the_effect(ledger: Any) -> None:
    begin = threading.Barrier(6)
    keys = [str(key) for key in range(15)]

    def work(worker: int) -> None:
        begin.wait(20)
        with Deduplicator(ledger.url, name="billing") as dedup:
            for key in keys:
                with transaction(ledger) as connection, dedup.once(key, connection=connection) as first:
                    if first:
                        insert(connection, key, str(worker))

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, worker) for worker in range(6)]:
            future.result(60)
    assert effects(ledger) == sorted(keys)


def test_a_batch_in_one_transaction(ledger: Any) -> None:
    records = [Record(offset) for offset in range(10)]
    with Deduplicator(ledger.url, name="billing") as dedup:
        with transaction(ledger) as connection, dedup.filter_new(records[:4], connection=connection) as new:
            assert list(new) == records[:4]
        with suppress(RuntimeError), transaction(ledger) as connection:
            with dedup.filter_new(records, connection=connection) as new:
                assert list(new) == records[4:]
            raise RuntimeError
        with transaction(ledger) as connection, dedup.filter_new(records, connection=connection) as new:
            assert list(new) == records[4:]


def test_a_claim_with_a_lease_is_seen_by_transactions(ledger: Any) -> None:
    with Deduplicator(ledger.url, name="billing", when_busy="skip") as dedup:
        with dedup.once("k"), transaction(ledger) as connection:
            with dedup.once("k", connection=connection) as first:
                assert not first
                assert first.is_busy
            patient = Deduplicator(ledger.url, name="billing", wait_s=0.05)
            with pytest.raises(ClaimBusyError), patient.once("k", connection=connection):
                pytest.fail("the block must not run")
            patient.close()
        with transaction(ledger) as connection, dedup.once("k", connection=connection) as first:
            assert not first
            assert not first.is_busy


def test_what_another_transaction_of_postgresql_holds_may_be_skipped(postgres_database: Any) -> None:
    records = [Record(offset) for offset in range(3)]
    with (
        Deduplicator(postgres_database.url, name="billing", when_busy="skip") as dedup,
        transaction(postgres_database) as one,
        transaction(postgres_database) as two,
        dedup.once(records[1], connection=one),
    ):
        with dedup.once(records[1], connection=two) as first:
            assert first.is_busy
        with dedup.filter_new(records, connection=two) as new:
            assert list(new) == [records[0], records[2]]
            assert new.busy == [records[1]]
        assert two.execute("SHOW lock_timeout").fetchone() == ("0",)
        raiser = Deduplicator(postgres_database.url, name="billing", when_busy="raise")
        with pytest.raises(ClaimBusyError, match="orders-0-1"), raiser.once(records[1], connection=two):
            pytest.fail("the block must not run")
        raiser.close()
        assert two.execute("SELECT 1").fetchone() == (1,), "the transaction can be used on"


def test_a_connection_without_a_transaction_is_refused(ledger: Any) -> None:
    with Deduplicator(ledger.url, name="billing") as dedup:
        if ledger.kind == "postgres":
            connection: Any = psycopg.connect(ledger.url, autocommit=True)
        else:
            connection = sqlite3.connect(ledger.path, isolation_level=None)
        with pytest.raises(ConfigError, match="no open transaction"), dedup.once("k", connection=connection):
            pytest.fail("the block must not run")
        connection.close()
        with pytest.raises(ConfigError, match="connection= takes a"), dedup.once("k", connection=object()):
            pytest.fail("the block must not run")


def test_rows_as_dicts_and_a_block_of_transaction(postgres_database: Any) -> None:
    """The user's connection may be set up in the ways that psycopg knows."""
    options: Any = {"row_factory": psycopg.rows.dict_row, "autocommit": True}
    with (
        Deduplicator(postgres_database.url, name="billing") as dedup,
        psycopg.connect(postgres_database.url, **options) as connection,
    ):
        for expected in (True, False):
            with connection.transaction(), dedup.once("k", connection=connection) as first:
                assert bool(first) is expected


def test_connections_of_apsw(sqlite_database: Any) -> None:
    connection = apsw.Connection(sqlite_database.path)
    with Deduplicator(sqlite_database.url, name="billing") as dedup:
        for expected in (True, False):
            with connection, dedup.once("k", connection=connection) as first:
                assert bool(first) is expected
        with pytest.raises(ConfigError, match="no open transaction"), dedup.once("k", connection=connection):
            pytest.fail("the block must not run")
    connection.close()


def test_a_writer_in_the_way_of_sqlite_is_told(sqlite_database: Any) -> None:
    with Deduplicator(sqlite_database.url, name="billing") as dedup, transaction(sqlite_database):
        other = sqlite3.connect(sqlite_database.path, timeout=0.01)
        with pytest.raises(ClaimBusyError, match="BEGIN IMMEDIATE"), dedup.once("k", connection=other):
            pytest.fail("the block must not run")
        other.close()


def test_a_lease_is_not_waited_for_with_the_lock_of_sqlite(sqlite_database: Any) -> None:
    """Its owner would need the lock that the waiting transaction holds."""
    with (
        Deduplicator(sqlite_database.url, name="billing") as dedup,
        dedup.once("k"),
        transaction(sqlite_database) as connection,
        pytest.raises(ClaimBusyError, match="roll back"),
        dedup.once("k", connection=connection),
    ):
        pytest.fail("the block must not run")


def test_redis_refuses_transactions(redis_database: Any) -> None:
    with (
        Deduplicator(redis_database.url, name="billing") as dedup,
        pytest.raises(ConfigError, match="SQL"),
        dedup.once("k", connection=object()),
    ):
        pytest.fail("the block must not run")
