"""`tidelog zookeeper` as a user runs it: one server, its ready line, its end, and what it says about mistakes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.bench.brokers import free_port
from tidelog.common.endpoint import Endpoint
from tidelog.server.zookeeper_process import ZooKeeperError, ZooKeeperPlan, check_servers, find_jars, four_letter_word

COMMAND = (sys.executable, "-m", "tidelog", "zookeeper")


def test_it_says_when_it_is_ready_and_ends_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [*COMMAND, "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "zk")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"zookeeper 1 ready on 127.0.0.1:{port}\n"
            assert four_letter_word(Endpoint("", "127.0.0.1", port), "ruok") == b"imok"
        finally:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0
    assert four_letter_word(Endpoint("", "127.0.0.1", port), "ruok") == b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "here"], "'here' is not an address"),
        (["--servers", "a:1:2,b:1,c:1:2"], "'b:1' is not HOST:PEER-PORT:ELECTION-PORT"),
        (["--servers", "a:1:2,b:1:2"], "use an odd number"),
        (["--servers", "a:1:2", "--id", "2"], "--id 2 is none of the 1 servers"),
        (["--jars", "/nowhere"], "/nowhere has no zookeeper-*.jar"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    ended = subprocess.run(
        [*COMMAND, "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path), *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*COMMAND, "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path)], capture_output=True, text=True
        )
    assert ended.returncode == 2
    assert f"something already listens on 127.0.0.1:{port}" in ended.stderr


def test_the_configuration_of_an_ensemble() -> None:
    plan = ZooKeeperPlan(Endpoint("PLAINTEXT", "10.0.0.2", 2181), Path("/data"), 2, ("a:1:2", "b:1:2", "c:1:2"))
    lines = plan.configuration().splitlines()
    assert "clientPortAddress=10.0.0.2" in lines
    assert lines[-3:] == ["server.1=a:1:2", "server.2=b:1:2", "server.3=c:1:2"]
    check_servers(plan.servers, 2)


def test_jars_come_from_pyspark_or_from_a_directory(tmp_path: Path) -> None:
    assert any(jar.name.startswith("zookeeper-3") for jar in find_jars(None))
    with pytest.raises(ZooKeeperError, match=r"has no zookeeper-\*\.jar"):
        find_jars(tmp_path)
    (tmp_path / "zookeeper-3.9.9.jar").touch()
    assert find_jars(tmp_path) == [tmp_path / "zookeeper-3.9.9.jar"]
