"""Brokers of a cluster are killed -9 under load: nothing acknowledged is lost or doubled, and replicas end up equal.

CLUSTER_SEED=<seed> runs the long test with another seed.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_processes import BrokerProcesses, broker_processes
from tidelog import Admin, Consumer, Producer
from tidelog.client.admin import NewTopic
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.torture.zookeeper_ensemble import Ensemble

PARTITIONS = 3
TOPIC = "kills"
# What is waited for is progress; a cluster that makes none for this long is stuck.
STUCK_S = 60.0
SOAK_SEED = int(os.environ.get("CLUSTER_SEED", "2"))


class Writer:
    """Sends numbered records and remembers what was acknowledged."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # Defaults: idempotent, acks=all, two minutes for a delivery.
        with Producer(bootstrap_servers=self._bootstrap, linger_ms=2) as producer:
            number = 0
            while not self._stop.is_set():
                futures = []
                for _ in range(50):
                    key = b"%d" % (number % 97)
                    futures.append((number, producer.send(TOPIC, b"%s-%d" % (self.name.encode(), number), key=key)))
                    number += 1
                for sent, future in futures:
                    try:
                        future.result()
                        self.acknowledged.add(sent)
                    except ClientError as error:
                        self.failed.append(f"{sent}: {error}")


def wait_for_progress(writers: list[Writer], more: int) -> None:
    """Wait until this many more records are acknowledged."""
    wanted = sum(len(writer.acknowledged) for writer in writers) + more
    seen, moved_s = -1, time.monotonic()
    while (count := sum(len(writer.acknowledged) for writer in writers)) < wanted:
        if count != seen:
            seen, moved_s = count, time.monotonic()
        assert time.monotonic() - moved_s < STUCK_S, f"nothing was acknowledged for {STUCK_S:g} s"
        time.sleep(0.02)


def wait_until_in_sync(cluster: BrokerProcesses) -> None:
    """Wait until all replicas are in the ISR again."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        deadline_s = time.monotonic() + STUCK_S
        while True:
            partitions = admin.describe_topics(TOPIC)[TOPIC].partitions
            if all(sorted(each.isr) == sorted(each.replicas) and each.leader_id >= 0 for each in partitions):
                return
            assert time.monotonic() < deadline_s, partitions
            time.sleep(0.05)


def read_all(bootstrap: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(1.0):
                assert record.value is not None
                found[record.partition].append(record.value)
    return found


def check(found: dict[int, list[bytes]], writers: list[Writer]) -> None:
    for writer in writers:
        prefix = writer.name.encode() + b"-"
        numbers: list[int] = []
        for records in found.values():
            own = [int(value.removeprefix(prefix)) for value in records if value.startswith(prefix)]
            # One writer's records of a partition are in the order they were sent, and each is there once.
            assert own == sorted(own)
            numbers += own
        assert len(numbers) == len(set(numbers)), "a record was stored twice"
        lost = writer.acknowledged - set(numbers)
        assert not lost, f"acknowledged and lost: {sorted(lost)[:10]} and {len(lost)} in all"
        assert not writer.failed, writer.failed[:3]


@contextmanager
def written_to(cluster: BrokerProcesses) -> Iterator[list[Writer]]:
    """Two producers that write all the time; in the end, all that they wrote is there once, in all replicas."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).raise_for_errors()
    writers = [Writer(cluster.bootstrap, f"writer{number}") for number in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.finish()
    check(read_all(cluster.bootstrap), writers)
    wait_until_in_sync(cluster)
    cluster.stop()
    ends = cluster.compare_replicas(TOPIC, PARTITIONS)
    assert sum(ends.values()) >= sum(len(writer.acknowledged) for writer in writers)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 6), pytest.param(SOAK_SEED, 100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_nothing_is_lost_when_brokers_are_killed(tmp_path: Path, seed: int, kills: int) -> None:
    rng = random.Random(seed)
    with broker_processes(tmp_path) as cluster, written_to(cluster) as writers:
        for _ in range(kills):
            wait_for_progress(writers, rng.randrange(50, 500))
            broker = cluster.brokers[rng.choice(sorted(cluster.brokers))]
            broker.kill()
            # Two of three are enough for min.insync.replicas.
            wait_for_progress(writers, rng.randrange(50, 300))
            broker.start()
            wait_until_in_sync(cluster)


def test_brokers_restart_one_after_another_and_producers_see_no_error(tmp_path: Path) -> None:
    with broker_processes(tmp_path) as cluster, written_to(cluster) as writers:
        for broker in cluster.brokers.values():
            wait_for_progress(writers, 100)
            broker.stop()
            wait_for_progress(writers, 100)
            broker.start()
            wait_until_in_sync(cluster)


def test_a_broker_comes_back_with_an_empty_disk(tmp_path: Path) -> None:
    with broker_processes(tmp_path) as cluster, written_to(cluster) as writers:
        wait_for_progress(writers, 500)
        broker = cluster.brokers[2]
        broker.kill()
        shutil.rmtree(broker.log_dir)
        wait_for_progress(writers, 100)
        broker.start()
        wait_until_in_sync(cluster)


@pytest.mark.xdist_group("zookeeper")
def test_brokers_whose_metadata_is_in_zookeeper(tmp_path: Path) -> None:
    with (
        Ensemble(tmp_path / "zookeeper", servers=1) as ensemble,
        broker_processes(tmp_path, metadata=f"{ensemble.address}/kills") as cluster,
        written_to(cluster) as writers,
    ):
        for node_id in cluster.brokers:
            wait_for_progress(writers, 100)
            cluster.brokers[node_id].kill()
            wait_for_progress(writers, 100)
            cluster.brokers[node_id].start()
            wait_until_in_sync(cluster)
