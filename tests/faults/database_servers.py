"""Real servers of Redis and PostgreSQL on loopback, for tests of what talks to a database.

Servers run in temporary directories on free ports and are stopped by their process ids. PostgreSQL refuses to run as
root, so root runs it as the user that its Debian package made. They write to disk without waiting for it: processes are
killed here, machines do not lose their power.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from tidelog.bench.brokers import free_port

START_DEADLINE_S = 60


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


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="tidelog-redis-") as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(prefix="tidelog-postgres-") as directory:
        server = PostgresServer(Path(directory))
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
