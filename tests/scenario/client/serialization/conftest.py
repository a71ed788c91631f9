"""The registries that the suite runs against: one in the test's process, and with `make compat` a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_registry import LocalRegistry
from tidelog.bench.brokers import free_port
from tidelog.serialization import SchemaRegistry, SchemaRegistryUnavailableError

_START_S = 120  # a JVM that shares two cores with other tests
_MEMORY = "-Xmx512m"


@pytest.fixture(scope="session", params=["local", pytest.param("apicurio", marks=pytest.mark.compat)])
def registry_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running registry, shared by the suite, so tests use names of their own."""
    if request.param == "local":
        with LocalRegistry() as local:
            yield local.url
    else:
        with _apicurio(tmp_path_factory.mktemp("registry")) as url:
            yield url


@pytest.fixture
def registry(registry_url: str) -> SchemaRegistry:
    return SchemaRegistry(registry_url)


@pytest.fixture
def local_registry() -> Iterator[LocalRegistry]:
    """A registry of the test's own, which it can tell to fail."""
    with LocalRegistry() as local:
        yield local


@contextmanager
def _apicurio(directory: Path) -> Iterator[str]:
    libs = os.environ.get("TIDELOG_JAVA_LIBS")
    if not libs:
        pytest.fail("TIDELOG_JAVA_LIBS is not set: run these tests with `make compat`, which brings the registry")
    (jar,) = Path(libs, "registry").glob("*-runner.jar")
    port = free_port()
    options = [_MEMORY, "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with Path(directory, "log").open("w+") as log:
        process = subprocess.Popen(["java", *options, "-jar", str(jar)], stdout=log, stderr=log, cwd=directory)
        try:
            _wait_for(process, url, Path(directory, "log"))
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Ask until it answers."""
    deadline_s = time.monotonic() + _START_S
    pause = threading.Event()
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            pytest.fail(f"the registry ended at its start: {log.read_text()[-2000:]}")
        try:
            SchemaRegistry(url, timeout_s=5).subjects()
        except SchemaRegistryUnavailableError:
            pause.wait(0.1)
        else:
            return
    pytest.fail(f"the registry did not start within {_START_S} s: {log.read_text()[-2000:]}")
