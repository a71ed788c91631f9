"""One face for Redis, PostgreSQL and SQLite, as deduplicators work over them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from database_servers import PostgresServer, RedisServer, running_postgres, running_redis

KINDS = ("redis", "postgres", "sqlite")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@dataclass
class Database:
    """A database that a deduplicator works over, and the test's own look into it."""

    kind: str
    url: str
    table: str

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run SQL that both databases know; `?` stands for values."""
        if self.kind == "postgres":
            with psycopg.connect(self.url) as postgres:
                cursor = postgres.execute(sql.replace("?", "%s").encode(), values)
                return cursor.fetchall() if cursor.description else []
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def end_all_times(self) -> None:
        """Let every lease and mark run out."""
        if self.kind == "redis":
            with redis.Redis.from_url(self.url) as client:
                for key in client.scan_iter("tidelog:dedup:*:key:*"):
                    client.delete(key)
        elif self.kind == "postgres":
            self.execute(f"UPDATE {self.table} SET expires_at = now() - interval '1 s'")
        else:
            self.execute(f"UPDATE {self.table} SET expires_at_ms = 0")

    def count(self) -> int:
        """How many keys it holds."""
        if self.kind == "redis":
            with redis.Redis.from_url(self.url) as client:
                return len(list(client.scan_iter("tidelog:dedup:*:key:*")))
        ((count,),) = self.execute(f"SELECT count(*) FROM {self.table}")
        return int(count)


def new_database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    table = "tidelog_dedup"
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        with redis.Redis.from_url(url) as client:
            client.flushall()
        return Database(kind, url, table)
    if kind == "postgres":
        url = request.getfixturevalue("postgres_server").url
        with psycopg.connect(url) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return Database(kind, url, table)
    return Database(kind, f"sqlite:///{tmp_path}/dedup.db", table)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each of the databases in turn, empty."""
    return new_database(request.param, request, tmp_path)


@pytest.fixture(params=KINDS[1:])
def sql_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each of the SQL databases in turn, empty."""
    return new_database(request.param, request, tmp_path)


@pytest.fixture
def redis_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return new_database("redis", request, tmp_path)


@pytest.fixture
def postgres_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return new_database("postgres", request, tmp_path)


@pytest.fixture
def sqlite_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return new_database("sqlite", request, tmp_path)
