"""The registries that the suite runs against: one in the test's process, and with `make compat` a real one.

The real one is Apicurio with its interface like Confluent's, from Maven Central, which has no other registry: neither
Confluent's nor Karapace is there or on PyPI. Its releases from 3.3 on need Java 21.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

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
    libs = os.environ.get("COMPAT_JAVA_LIBS")
    if not libs:
        pytest.fail("COMPAT_JAVA_LIBS is not set: run these tests with `make compat`, which brings the registry")
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


MONEY_PROTO = """
syntax = "proto3";
package common;
message Money { int64 units = 1; string currency = 2; }
"""

ORDER_PROTO = """
syntax = "proto3";
package shop;
import "common/money.proto";
import "google/protobuf/timestamp.proto";

message Customer {
  string name = 1;
  optional int32 age = 2;
}

message Order {
  enum State { NEW = 0; PAID = 1; SENT = 2; }
  message Line {
    message Discount { double share = 1; }
    string product = 1;
    sint32 count = 2;
    Discount discount = 3;
  }
  int64 id = 1;
  State state = 2;
  repeated Line lines = 3;
  map<string, common.Money> charges = 4;
  google.protobuf.Timestamp at = 5;
  oneof payer { Customer customer = 6; string account = 7; }
  bytes receipt = 8;
  repeated fixed64 codes = 9;
  bool express = 10;
  float weight = 11;
}
"""


@dataclass(frozen=True)
class Proto:
    """The files above, as text and as message classes by full name."""

    money_text: str
    order_text: str
    pool: DescriptorPool

    def message(self, name: str) -> type[Message]:
        return GetMessageClass(self.pool.FindMessageTypeByName(name))


@pytest.fixture(scope="session")
def proto(tmp_path_factory: pytest.TempPathFactory) -> Proto:
    directory = tmp_path_factory.mktemp("proto")
    for name, text in (("common/money.proto", MONEY_PROTO), ("shop/order.proto", ORDER_PROTO)):
        path = directory / name
        path.parent.mkdir()
        path.write_text(text)
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", "--include_imports"]
    subprocess.run([*command, "--descriptor_set_out=files", "shop/order.proto"], cwd=directory, check=True)
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((directory / "files").read_bytes()).file:
        pool.Add(file)
    return Proto(MONEY_PROTO, ORDER_PROTO, pool)
