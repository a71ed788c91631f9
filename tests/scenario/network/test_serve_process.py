"""The broker as a process: what it prints, how it ends, how it refuses to start."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

_PROGRAM = """
import sys
from pathlib import Path
from tidelog.server.serve import run
from tidelog.server.settings_load import load
sys.exit(run(load(overrides=sys.argv[2:]), data_dir=Path(sys.argv[1])))
"""

Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts brokers as processes of their own; whoever still runs after the test is killed."""
    with ExitStack() as processes:

        def start(*settings: str, data: Path = tmp_path / "data") -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(data), *settings],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield start


def _ready_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"ready on 127\.0\.0\.1:(\d+)$", line)
    if match is None:
        assert process.stderr is not None
        raise AssertionError(f"no ready line but {line!r}: {process.stderr.read()}")
    return int(match[1])


def _stop(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def _create_topic(client: RawClient, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    assert client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 5).topics[0].error_code == 0


def test_it_says_when_it_is_ready_and_ends_with_0(serve: Serve) -> None:
    process = serve("listeners=127.0.0.1:0")
    with RawClient(_ready_port(process)) as client:
        assert client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
    code, out, err = _stop(process)
    assert (code, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_end_it(serve: Serve, number: signal.Signals) -> None:
    process = serve("listeners=127.0.0.1:0")
    _ready_port(process)
    process.send_signal(number)
    assert process.wait(30) == 0


def test_it_may_open_as_many_files_as_its_user_may(serve: Serve) -> None:
    """Systems start processes with a limit of 1024, which is less than a broker's partitions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        process = serve("listeners=127.0.0.1:0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    _ready_port(process)
    assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    process = serve("listeners=127.0.0.1:0")
    with RawClient(_ready_port(process)) as client:
        _create_topic(client, "orders")
        for _ in range(20):
            client.ask(PRODUCE, produce_request("orders", bytes(900_000)), ProduceResponse, 7)
        # The shutdown waits for this answer to be read, which nobody does.
        client.send(FETCH, fetch_request("orders", 0), 11)
        client.sock.recv(1)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert any("shutting down" in line for line in iter(process.stderr.readline, ""))
        started_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert time.monotonic() - started_s < 4


def test_a_busy_port_is_one_clear_line_and_code_2(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = serve(f"listeners=127.0.0.1:{port}")
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert str(port) in err


def test_a_locked_data_directory_is_one_clear_line_and_code_2(serve: Serve) -> None:
    first = serve("listeners=127.0.0.1:0")
    _ready_port(first)
    second = serve("listeners=127.0.0.1:0")
    out, err = second.communicate(timeout=30)
    assert (second.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "in use by process" in err
    assert _stop(first)[0] == 0


def test_records_survive_kill_9(serve: Serve) -> None:
    first = serve("listeners=127.0.0.1:0")
    with RawClient(_ready_port(first)) as client:
        _create_topic(client, "orders")
        for number in range(20):
            response = client.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
            assert response.responses[0].partition_responses[0].base_offset == number
    first.kill()
    first.wait(30)
    second = serve("listeners=127.0.0.1:0")
    with RawClient(_ready_port(second)) as client:
        response = client.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
        assert response.responses[0].partition_responses[0].base_offset == 20
    assert _stop(second)[0] == 0


def test_start_time_and_idle_memory_are_reported(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures to look at, not limits: how fast this machine is decides them too."""
    started_s = time.perf_counter()
    process = serve("listeners=127.0.0.1:0")
    with RawClient(_ready_port(process)) as client:
        hello = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        client.ask(API_VERSIONS, hello, ApiVersionsResponse, 3)
        client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 9)
        first_answer_s = time.perf_counter() - started_s
        resident_mb = psutil.Process(process.pid).memory_info().rss / 1e6
    with capsys.disabled():
        print(f"\nfirst ApiVersions and Metadata after {first_answer_s:.3f} s; idle memory {resident_mb:.1f} MB")
    assert _stop(process)[0] == 0


def test_a_data_directory_of_kafka_is_refused_and_left_untouched(serve: Serve, tmp_path: Path) -> None:
    data = tmp_path / "kraft-combined-logs"
    log = data / "orders-0" / "00000000000000000000.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"records")
    (data / "meta.properties").write_text("cluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\nversion=1\n")
    before = {path: path.lstat().st_mtime_ns for path in [data, *data.rglob("*")]}
    process = serve("listeners=127.0.0.1:0", data=data)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    lines = errors.splitlines()
    assert len(lines) == 1, lines
    assert "perhaps of Apache Kafka" in lines[0]
    assert {path: path.lstat().st_mtime_ns for path in [data, *data.rglob("*")]} == before


_PROGRAM_WITH_A_BUG = """
import sys
from tidelog.controller.broker_watch import BrokerWatch

async def fail(self):
    raise KeyError("a bug")

BrokerWatch._run = fail
"""


def test_it_ends_when_a_background_task_fails(tmp_path: Path) -> None:
    """Not with 0 or 2, so that a supervisor restarts it; and at once, though nobody asked it to stop."""
    program = _PROGRAM_WITH_A_BUG + _PROGRAM
    command = [sys.executable, "-c", program, str(tmp_path / "data"), "listeners=127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "broker watch has failed: 'a bug'" in ended.stderr
    assert "the broker stops because its task 'broker watch' has failed" in ended.stderr
