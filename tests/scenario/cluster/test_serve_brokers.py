"""`tidelog serve --brokers 3` as a user runs it: one line, a cluster that survives a kill, an end in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, Producer
from tidelog.bench.brokers import free_port
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition

COMMAND = (sys.executable, "-m", "tidelog")


def _child_pids(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_broker(pid: int, node_id: int) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"--node-id" in arguments and arguments[arguments.index(b"--node-id") + 1] == b"%d" % node_id


def test_three_brokers_from_one_command(tmp_path: Path) -> None:
    port = free_port()
    first = f"127.0.0.1:{port}"
    with subprocess.Popen(
        [*COMMAND, "serve", "--brokers", "3", "--listen", first, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as supervisor:
        try:
            assert supervisor.stdout is not None
            assert supervisor.stdout.readline() == f"tidelog cluster of 3 brokers ready on {first}\n"
            bootstrap = f"{first},127.0.0.1:{port + 1},127.0.0.1:{port + 2}"
            with Admin(bootstrap_servers=bootstrap) as admin:
                new = NewTopic("orders", assignments={0: [2, 1, 3]}, configs={"min.insync.replicas": "2"})
                admin.create_topics([new]).raise_for_errors()
                admin.wait_for_topics("orders")
            with Producer(bootstrap_servers=bootstrap) as producer:
                producer.send("orders", b"before").result()
                (leader,) = (pid for pid in _child_pids(supervisor.pid) if _is_broker(pid, 2))
                os.kill(leader, signal.SIGKILL)
                producer.send("orders", b"after").result()
            with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition("orders", 0)])
                values: list[bytes | None] = []
                while len(values) < 2:
                    values += [record.value for record in consumer.poll(1.0)]
            assert values == [b"before", b"after"]
            status = subprocess.run(
                [*COMMAND, "cluster", "status", "--json", "-b", first], capture_output=True, check=True, timeout=60
            )
            assert json.loads(status.stdout)["partitions"] == 1
        finally:
            os.kill(supervisor.pid, signal.SIGTERM)
        _, errors = supervisor.communicate(timeout=120)
        assert supervisor.returncode == 0
    assert "broker 2 was ended by signal SIGKILL; starting it again in 0.1 s" in errors
    for node_id in (1, 2, 3):
        assert (tmp_path / "data" / f"broker-{node_id}").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--brokers", "0"], "--brokers takes a number from 1 to 100"),
        (["--brokers", "many"], "--brokers takes a number from 1 to 100"),
        (["--brokers", "2", "--node-id", "3"], "leave out --node-id"),
        (["--metadata", "postgres://x"], "names no metadata store"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, options: list[str], message: str) -> None:
    ended = subprocess.run(
        [*COMMAND, "serve", "--listen", f"127.0.0.1:{free_port()}", "--data", str(tmp_path), *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
