"""What tests of pipelines need beside a session and a cluster: a place, and databases to write to."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pipeline_place import DEADLINE_S, Place
from tidelog import ConsumerRecord
from tidelog.bench.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(spark: SparkSession, cluster: BrokerProcess, tmp_path: Path) -> Place:
    return Place(cluster.bootstrap, tmp_path / "state", spark)


@pytest.fixture
def headers_of() -> Callable[[ConsumerRecord], dict[str, str]]:
    return lambda record: {name: (value or b"").decode() for name, value in record.headers}


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL of the tests' own."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1].parent
    with tempfile.TemporaryDirectory(prefix="tidelog-pipelines-") as name:
        directory = Path(name)
        user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if user:
            shutil.chown(directory, "postgres", "postgres")
        made = [str(programs / "initdb"), "-D", str(directory / "data"), "-U", "tidelog", "--auth=trust", "--no-sync"]
        done = subprocess.run([*made, "--encoding=UTF8", "--locale=C"], cwd=directory, capture_output=True, **user)
        assert done.returncode == 0, done.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=16MB", "fsync=off"]
        process = subprocess.Popen(
            [
                *(str(programs / "postgres"), "-D", str(directory / "data"), "-p", str(port)),
                *(part for setting in settings for part in ("-c", setting)),
            ],
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user,
        )
        url = f"postgresql://tidelog@127.0.0.1:{port}/postgres"
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while not _answers(url):
                assert time.monotonic() < deadline_s, "PostgreSQL does not start"
                time.sleep(0.05)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False
