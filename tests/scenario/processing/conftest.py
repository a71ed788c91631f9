"""Real servers of Redis and PostgreSQL on loopback, and one face for them and SQLite.

Servers run in temporary directories on free ports and are stopped by their process ids. PostgreSQL refuses to run as
root, so root runs it as the user that its Debian package made. They write to disk without waiting for it: processes are
killed here, machines do not lose their power.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tidelog.bench.brokers import free_port

START_DEADLINE_S = 60
KINDS = ("redis", "postgres", "sqlite")


def wait_for_server(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    deadline_s = time.monotonic() + START_DEADLINE_S
    pause = threading.Event()
    while not answers():
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline_s, log.read_text(errors="replace")
        pause.wait(0.02)


class RedisServer:
    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self._directory / "redis.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)),
                    *("--appendonly", "yes", "--appendfsync", "no", "--save", ""),
                ],
                stdout=output,
                stderr=output,
            )
        wait_for_server(self._process, self._answers, log)

    def _answers(self) -> bool:
        try:
            with redis.Redis(port=self.port, retry=None) as client:  # type: ignore[arg-type] # None: no retries
                return bool(client.ping())
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(START_DEADLINE_S)
            self._process = None


class PostgresServer:
    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"postgresql://tidelog@127.0.0.1:{self.port}/postgres"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._bin = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1].parent
        # Others than root run it as themselves.
        self._user: dict[str, Any] = (
            {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        )
        if self._user:
            shutil.chown(directory, "postgres", "postgres")

    def create(self) -> None:
        command = [str(self._bin / "initdb"), "-D", str(self._directory / "data"), "-U", "tidelog"]
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run([*command, *options], cwd=self._directory, capture_output=True, text=True, **self._user)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        log = self._directory / "postgres.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(str(self._bin / "postgres"), "-D", str(self._directory / "data"), "-p", str(self.port)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
                    *("-c", "shared_buffers=16MB", "-c", "max_connections=50", "-c", "fsync=off"),
                ],
                cwd=self._directory,
                stdout=output,
                stderr=output,
                **self._user,
            )
        wait_for_server(self._process, self._answers, log)

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(START_DEADLINE_S)
            self._process = None


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tidelog-redis-") as directory:
        server = RedisServer(Path(directory))
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="tidelog-postgres-") as directory:
        server = PostgresServer(Path(directory))
        server.create()
        server.start()
        yield server
        server.stop()


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
