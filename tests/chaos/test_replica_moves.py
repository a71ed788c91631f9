"""Replicas that move between the log directories of a broker under load, and a broker that is killed meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Producer
from tidelog.client.types import TopicPartition
from tidelog.log.inspect import verify

if TYPE_CHECKING:
    from tests.chaos.conftest import ReadCommitted, ServedBroker, StartServed

TOPIC = "moved"
KEY = TopicPartition(TOPIC, 0)
# No move stands still for this long, however busy the machine.
STILL_S_MAX = 120.0


class Transactions:
    """Writes one transaction after another in a thread, some of them aborted, and remembers what was committed."""

    def __init__(self, bootstrap: str) -> None:
        self.committed: list[bytes] = []
        self.count = 0
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Transactions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        source = random.Random(3)
        with Producer(bootstrap_servers=self._bootstrap, transactional_id="mover") as producer:
            producer.init_transactions()
            while not self._ended.is_set():
                values = [b"%d-%d-" % (self.count, index) + source.randbytes(1_000) for index in range(20)]
                producer.begin_transaction()
                for value in values:
                    producer.send(TOPIC, value, partition=0)
                if self.count % 5 == 4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self.committed += values
                self.count += 1


def directory_of(admin: Admin) -> tuple[str, bool]:
    """Where the replica is, and whether it is moving."""
    found = {
        replica.is_future: directory.path
        for directory in admin.describe_log_dirs([1], partitions=[KEY])[1]
        for replica in directory.replicas
    }
    return found[False], True in found


def move(admin: Admin, target: Path) -> None:
    admin.alter_replica_log_dirs(1, {KEY: str(target)}).raise_for_errors()


def wait_for_move(admin: Admin, target: Path) -> None:
    deadline_s = time.monotonic() + STILL_S_MAX
    while directory_of(admin) != (str(target), False):
        assert time.monotonic() < deadline_s, directory_of(admin)
        time.sleep(0.01)


@pytest.fixture
def two(serve: StartServed, tmp_path: Path) -> tuple[ServedBroker, list[Path]]:
    paths = [tmp_path / "first", tmp_path / "second"]
    broker = serve({"log.dirs": ",".join(map(str, paths)), "log.segment.delete.delay.ms": 0})
    broker.create_topic(TOPIC, configs={"segment.bytes": "200000"})
    return broker, paths


def test_transactions_go_on_while_their_partition_moves(
    two: tuple[ServedBroker, list[Path]], read_committed: ReadCommitted
) -> None:
    broker, paths = two
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        with Transactions(broker.bootstrap) as load:
            for _ in range(6):
                here, _ = directory_of(admin)
                target = next(path for path in paths if str(path) != here)
                before = load.count
                move(admin, target)
                wait_for_move(admin, target)
                deadline_s = time.monotonic() + STILL_S_MAX
                while load.count < before + 5:
                    assert time.monotonic() < deadline_s
                    time.sleep(0.01)
        home = Path(directory_of(admin)[0])
    assert [value for _, value in read_committed(broker, TOPIC, 1)] == load.committed
    assert "Traceback" not in broker.output()
    broker.stop()
    assert list(verify(home / f"{TOPIC}-0")) == []
    broker.start()
    assert [value for _, value in read_committed(broker, TOPIC, 1)] == load.committed


def test_a_broker_that_is_killed_while_it_moves_a_replica(
    two: tuple[ServedBroker, list[Path]], read_committed: ReadCommitted
) -> None:
    broker, paths = two
    with Transactions(broker.bootstrap) as load:
        while load.count < 50:
            time.sleep(0.01)
    source = random.Random(11)
    places = set()
    for _ in range(5):
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            here, _ = directory_of(admin)
            move(admin, next(path for path in paths if str(path) != here))
            time.sleep(source.random() * 0.05)  # the moment of the crash, not a wait
        broker.kill()
        broker.start()
        assert [value for _, value in read_committed(broker, TOPIC, 1)] == load.committed
        (home,) = [path for path in paths if (path / f"{TOPIC}-0").exists()]
        places.add(home)
    broker.stop()
    assert list(verify(home / f"{TOPIC}-0")) == []


def test_the_command_moves_a_replica(two: tuple[ServedBroker, list[Path]]) -> None:
    broker, paths = two

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "tidelog", "cluster", "move-replica", *arguments, "--broker", "1"]
        return subprocess.run([*line, "--bootstrap", broker.bootstrap], capture_output=True, text=True)

    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        here, _ = directory_of(admin)
        target = next(str(path) for path in paths if str(path) != here)
        done = command(f"{TOPIC}:0", "--to", target)
        assert (done.returncode, done.stdout) == (0, f"{TOPIC}-0 is in {target} on broker 1\n"), done.stderr
        assert directory_of(admin) == (target, False)
        done = command(f"{TOPIC}:0", "--to", here, "--json")
        assert json.loads(done.stdout) == {"partition": f"{TOPIC}-0", "broker": 1, "to": here, "done": True}
        wrong = command(f"{TOPIC}:0", "--to", "/nowhere")
        assert wrong.returncode == 1
        assert "LOG_DIR_NOT_FOUND" in wrong.stderr
        wrong = command(TOPIC, "--to", here)
        assert wrong.returncode == 2
        assert "TOPIC:PARTITION" in wrong.stderr
