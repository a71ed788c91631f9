"""Our clients while brokers of a cluster die, are restarted and move: what was sent is read once, and no call fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tcp_proxy import TcpProxy
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.testing import Broker, Cluster

TOPIC = "orders"
PARTITIONS = 6
# A wait of a thread for another; the test's own time limit comes first.
PATIENCE_S = 200.0


class Workload:
    """A producer, a transactional producer, a consumer in a group and an admin client, each with default settings."""

    def __init__(self, cluster: Cluster, group_protocol: str) -> None:
        self.bootstrap = cluster.bootstrap
        self.group_protocol = group_protocol
        self.errors: list[BaseException] = []
        self.sent = 0
        self.committed = 0
        self.read: list[bytes | None] = []
        self.asked = 0
        self._changed = threading.Condition()
        self._stops = threading.Event()
        self._has_all = threading.Event()
        steps = (self._produce, self._transact, self._consume, self._look_after)
        self._threads = [threading.Thread(target=self._run, args=(step,), daemon=True) for step in steps]

    def __enter__(self) -> Workload:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._has_all.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_for_progress(self) -> None:
        """Wait until each of them has got something done from now on."""
        before = self._done()
        self._wait(lambda: all(now > then for now, then in zip(self._done(), before, strict=True)))

    def finish(self) -> None:
        """Stop sending, and wait until all that was sent has been read."""
        self._stops.set()
        for thread in self._threads:
            if thread is not self._threads[2]:
                thread.join(PATIENCE_S)
        self._wait(lambda: len(self.read) >= self.sent + self.committed)
        self._has_all.set()
        self._threads[2].join(PATIENCE_S)

    def _done(self) -> tuple[int, ...]:
        return self.sent, self.committed, len(self.read), self.asked

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.errors or condition(), PATIENCE_S), self._done()
        assert not self.errors

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)
        with self._changed:
            self._changed.notify_all()

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._stops.wait(0.01)

    def _produce(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            while not self._stops.is_set():
                futures = [producer.send(TOPIC, b"plain %d" % (self.sent + number)) for number in range(10)]
                for future in futures:
                    future.result(PATIENCE_S)
                self.sent += len(futures)
                self._note()

    def _transact(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap, transactional_id="id") as producer:
            producer.init_transactions()
            while not self._stops.is_set():
                producer.begin_transaction()
                for number in range(3):
                    producer.send(TOPIC, b"transactional %d" % (self.committed + number))
                producer.commit_transaction()
                self.committed += 3
                self._note()

    def _consume(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap,
            group_id="group",
            group_protocol=self.group_protocol,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            consumer.subscribe([TOPIC])
            while not self._has_all.is_set():
                records = consumer.poll(0.2)
                if records:
                    self.read += [record.value for record in records]
                    consumer.commit()
                    with self._changed:
                        self._changed.notify_all()

    def _look_after(self) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            while not self._stops.is_set():
                admin.describe_cluster()
                assert len(admin.describe_topics(TOPIC)[TOPIC].partitions) == PARTITIONS
                admin.list_groups()
                self.asked += 1
                self._note()


@pytest.mark.parametrize(
    ("how", "group_protocol"),
    [
        ("restart", "classic"),
        ("kill", "consumer"),
        ("kill", "classic"),
    ],
)
def test_no_call_fails_and_nothing_is_lost_while_brokers_come_and_go(how: str, group_protocol: str) -> None:
    with Cluster() as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        with Workload(cluster, group_protocol) as work:
            for node_id in cluster.brokers:
                work.wait_for_progress()
                if how == "restart":
                    cluster.restart(node_id)
                else:
                    cluster.kill(node_id)
                    work.wait_for_progress()
                    cluster.start(node_id)
                cluster.wait_until_in_sync()
            work.wait_for_progress()
            work.finish()
    assert not work.errors
    expected = {b"plain %d" % number for number in range(work.sent)}
    expected |= {b"transactional %d" % number for number in range(work.committed)}
    assert len(work.read) == len(expected)
    assert set(work.read) == expected


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens; nobody else can take it meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def test_all_bootstrap_servers_are_tried(tidelog_cluster: Cluster, closed_port: int) -> None:
    alive = tidelog_cluster.brokers[2].bootstrap
    servers = f"no-such-host.invalid:9092,127.0.0.1:{closed_port},{alive}"
    with Producer(bootstrap_servers=servers) as producer, Admin(bootstrap_servers=servers) as admin:
        assert len(admin.describe_cluster().nodes) == 3
        assert producer.send("found", b"value").result(PATIENCE_S).offset == 0
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("found", 0)])
        assert [record.value for record in consumer.poll(30)] == [b"value"]


def test_bootstrap_servers_are_asked_again_when_all_known_brokers_are_gone(tmp_path: Path) -> None:
    """KIP-899: the cluster has moved to other addresses, and only the one for starting leads there."""
    with TcpProxy() as door:
        with Broker(data_dir=tmp_path) as broker:
            door.target_port = broker.port
            broker.create_topic("moving")
            producer = Producer(bootstrap_servers=door.address)
            consumer = Consumer(bootstrap_servers=door.address, auto_offset_reset="earliest")
            consumer.assign([("moving", 0)])
            producer.send("moving", b"before").result(PATIENCE_S)
            assert [record.value for record in consumer.poll(30)] == [b"before"]
            first_port = broker.port
        door.cut_all()
        with producer, consumer, Broker(data_dir=tmp_path) as broker:
            assert broker.port != first_port
            door.target_port = broker.port
            sent = producer.send("moving", b"after")
            values: list[bytes | None] = []
            while not values:
                values = [record.value for record in consumer.poll(30)]
            assert values == [b"after"]
            assert sent.result(PATIENCE_S).offset == 1


def test_a_partition_is_found_that_has_moved_to_a_broker_unknown_before() -> None:
    with Cluster() as cluster:
        cluster.create_topic("moving", replicas=[(1,)])
        cluster.stop(3)
        cluster.wait(lambda image: not image.brokers[3].is_active, "broker 3 to be gone")
        with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
        ):
            consumer.assign([("moving", 0)])
            producer.send("moving", b"at 1").result(PATIENCE_S)
            assert [record.value for record in consumer.poll(30)] == [b"at 1"]
            cluster.start(3)
            admin.alter_partition_reassignments({TopicPartition("moving", 0): [3]}).raise_for_errors()
            cluster.wait(lambda image: image.topics["moving"].partitions[0].leader == 3, "broker 3 to lead")
            producer.send("moving", b"at 3").result(PATIENCE_S)
            assert [record.value for record in consumer.poll(30)] == [b"at 3"]
