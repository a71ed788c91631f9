"""Each kind of fault on real servers, once and briefly: it takes effect, and undoing it undoes it.

A fault's own steps are called here without the nemesis, so that a test looks at the cluster while something is broken
and need not wait for a time. Needs root, as the networks and disks of the servers do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidelog import Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin import Admin, NewTopic
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.torture.cluster import OwnCluster
from tidelog.torture.clusters import KafkaCluster, TidelogCluster, ZooKeeperCluster, make_cluster
from tidelog.torture.disks import DiskImage
from tidelog.torture.errors import TortureError
from tidelog.torture.fault_kinds import FAULT_KINDS, STORE_KINDS
from tidelog.torture.faults import Fault, Scene, draw
from tidelog.torture.networks import Networks
from tidelog.torture.nodes import BrokerNode, ClosedError, Node
from tidelog.torture.replicas import compare_logs

TOPIC = "torture-topic"
PARTITIONS = 3
CONNECT_S = 0.5
# Far less than what a slow link takes for it at its fastest.
SLOW_BYTES = 128 << 10
# So that a wrong clock is not mistaken for a busy machine.
JUMP_S_MIN = 60


def begun(cluster: OwnCluster, kind: str, wanted: Callable[[Fault], bool] = lambda fault: True) -> Fault:
    """A fault of this kind that the test can make use of."""
    for seed in range(200):
        fault = draw(kind, Scene(cluster, [], random.Random(seed)))
        if fault is not None and wanted(fault):
            return fault
    raise AssertionError(f"no {kind} is possible now")


def targets(cluster: OwnCluster, fault: Fault) -> list[Node]:
    named = [node for node in (*cluster.nodes, *cluster.store_nodes) if node.name in fault.target]
    assert named, fault.target
    return named


def nothing(_text: str) -> None:
    """Nobody looks at the progress."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """A cluster that can't say yet is asked again."""
    deadline_s = time.monotonic() + 60
    while True:
        with contextlib.suppress(ClientError):
            if condition():
                return
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def unreachable(networks: Networks[str], pairs: Iterable[tuple[str, str]], ports: Mapping[str, int]) -> set[str]:
    """Those of the pairs, as `from>to`, where a connection does not come about."""
    program = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"
    running = {}
    for source, target in pairs:
        arguments = [networks.address_of(target), str(ports[target]), str(CONNECT_S)]
        command = [*networks.prefix(source), sys.executable, "-S", "-c", program, *arguments]
        running[f"{source}>{target}"] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    return {name for name, process in running.items() if process.wait()}


def all_unreachable(cluster: OwnCluster) -> set[str]:
    assert cluster.networks is not None
    ports = {
        node.name: node.process.port for node in cluster.nodes if isinstance(node, BrokerNode) and node.is_up
    } | store_ports(cluster)
    return unreachable(cluster.networks, [(a, b) for a in ports for b in ports if a != b], ports)


def store_ports(cluster: OwnCluster) -> dict[str, int]:
    if not isinstance(cluster, ZooKeeperCluster):
        return {}
    addresses = cluster.metadata.removeprefix("zookeeper://").partition("/")[0].split(",")
    return {name: int(address.rpartition(":")[2]) for name, address in zip(cluster.store_names, addresses, strict=True)}


def pairs_between(some: Iterable[str], others: Iterable[str]) -> set[str]:
    there = list(others)
    return {f"{a}>{b}" for a in some for b in there} | {f"{b}>{a}" for a in some for b in there}


def writes(disk: DiskImage) -> int:
    """The error of a small write to a disk; 0 if there is none."""
    path = disk.path / "probe"
    try:
        with path.open("wb") as file:
            file.write(bytes(8192))
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        return error.errno or -1
    return 0


@contextmanager
def running(cluster: OwnCluster) -> Iterator[OwnCluster]:
    try:
        cluster.start()
        with cluster.admin() as admin:
            topic = NewTopic(TOPIC, PARTITIONS, cluster.replication_factor, {"message.timestamp.type": "LogAppendTime"})
            admin.create_topics([topic]).raise_for_errors()
        cluster.wait_until_healthy(nothing)
        yield cluster
    finally:
        cluster.close()


def leftovers(cluster: OwnCluster, pids: Iterable[int]) -> list[str]:
    """What there still is of a closed cluster."""
    left = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(cluster.directory) in line]
    left += [str(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
    if cluster.networks is not None:
        name = cluster.networks.name_of(cluster.networks.members[0]).removesuffix("n1")
        links = subprocess.check_output(["ip", "-o", "link"], text=True)
        left += [line for line in links.splitlines() if f" {name}" in line]
        left += [each.name for each in Path("/run/netns").glob(f"{name}n*")]
    return left


@pytest.mark.timeout(600)
def test_every_kind_on_brokers(tmp_path: Path) -> None:
    cluster = make_cluster("tidelog-sqlite", tmp_path / "brokers")
    assert isinstance(cluster, TidelogCluster)
    possible = {kind for kind in FAULT_KINDS if cluster.can(kind) is None}
    assert possible == set(FAULT_KINDS) - STORE_KINDS - {"cut-from-store"}
    break_brokers(cluster)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_every_kind_on_apache_kafka(tmp_path: Path) -> None:
    cluster = make_cluster("kafka", tmp_path / "brokers")
    assert isinstance(cluster, KafkaCluster)
    assert {kind for kind in FAULT_KINDS if cluster.can(kind) is None} == set(FAULT_KINDS) - STORE_KINDS
    break_brokers(cluster)


def break_brokers(cluster: OwnCluster) -> None:
    with running(cluster):
        with Producer(bootstrap_servers=cluster.bootstrap, batch_size=SLOW_BYTES) as producer:
            for kind in ("kill", "kill-two", "kill-controller", "stop-start"):
                down(cluster, kind)
            hung(cluster, "pause")
            restarted(cluster)
            cut(cluster)
            if isinstance(cluster, KafkaCluster):
                cut_from_controllers(cluster)
            slow_link(cluster, producer)
            disks(cluster)
            wrong_clock(cluster, producer)
            reassigned(cluster)
            elected(cluster)
            producer.flush()
        cluster.wait_until_healthy(nothing)
        pids = [node.pid for node in cluster.nodes if node.pid is not None]
        assert cluster.compare_replicas() == []
        one_replica_differs(cluster)
    assert leftovers(cluster, pids) == []


def cut_from_controllers(cluster: KafkaCluster) -> None:
    """A node is out of touch with the other controllers, while brokers see each other."""
    fault = begun(cluster, "cut-from-store")
    (node,) = targets(cluster, fault)
    networks = cluster.networks
    assert networks is not None
    others = [other.name for other in cluster.nodes if other is not node]
    fault.begin()
    assert all_unreachable(cluster) == set()
    assert {*networks.cuts_of(node.name)} == {networks.second_address_of(other) for other in others}
    assert all(networks.cuts_of(other) == [networks.second_address_of(node.name)] for other in others)
    fault.end()
    assert networks.state() == {}
    cluster.wait_until_healthy(nothing)


def down(cluster: OwnCluster, kind: str) -> None:
    fault = begun(cluster, kind)
    nodes = targets(cluster, fault)
    before = [node.pid for node in nodes]
    if kind == "kill-controller":
        assert nodes == [cluster.controller()]
    fault.begin()
    for node, pid in zip(nodes, before, strict=True):
        assert node.pid is None
        assert not Path(f"/proc/{pid}").exists()
    fault.end()
    assert all(node.is_up and node.pid not in before for node in nodes)
    cluster.wait_until_healthy(nothing)


def hung(cluster: OwnCluster, kind: str) -> None:
    fault = begun(cluster, kind)
    (node,) = targets(cluster, fault)
    pid = node.pid
    assert pid is not None
    fault.begin()
    wait_until(lambda: state_of(pid) == "T", "it goes on")
    fault.end()
    assert state_of(pid) != "T"
    assert node.pid == pid
    cluster.wait_until_healthy(nothing)


def restarted(cluster: OwnCluster) -> None:
    before = {node.pid for node in cluster.nodes}
    fault = begun(cluster, "rolling-restart")
    fault.begin()
    assert fault.during is not None
    fault.during(lambda _seconds: True)
    fault.end()
    assert not before & {node.pid for node in cluster.nodes}
    cluster.wait_until_healthy(nothing)


def cut(cluster: OwnCluster) -> None:
    names = {node.name for node in cluster.nodes}
    assert all_unreachable(cluster) == set()
    for kind in ("cut-halves", "cut-bridge"):
        fault = begun(cluster, kind)
        fault.begin()
        some, others = (part.split(", ") for part in fault.target.partition(";")[0].split(" | "))
        assert len(some) + len(others) == (3 if kind == "cut-halves" else 2)
        assert all_unreachable(cluster) == pairs_between(some, others)
        fault.end()
        assert all_unreachable(cluster) == set()
    flapping(cluster)
    # A connection takes both ways. The other way, packets get through: nobody else is cut off from anybody.
    fault = begun(cluster, "cut-one-way", lambda fault: "," not in fault.target)
    source, target = fault.target.split(" to ")
    fault.begin()
    assert all_unreachable(cluster) == pairs_between([source], [target])
    assert cluster.networks is not None
    assert cluster.networks.state().keys() == {source}
    fault.end()
    assert all_unreachable(cluster) == set()
    assert names == {node.name for node in cluster.nodes if node.is_up}


def flapping(cluster: OwnCluster) -> None:
    fault = begun(cluster, "cut-flapping")
    seen: list[bool] = []

    def hold(_seconds: float) -> bool:
        seen.append(bool(all_unreachable(cluster)))
        return len(seen) < 4

    fault.begin()
    assert fault.during is not None
    fault.during(hold)
    fault.end()
    assert seen == [True, False, True, False]
    assert all_unreachable(cluster) == set()


def slow_link(cluster: OwnCluster, producer: Producer) -> None:
    fault = begun(cluster, "slow-link")
    (node,) = targets(cluster, fault)
    partition = led_by(cluster, node)
    fault.begin()
    began_s = time.monotonic()
    producer.send(TOPIC, random.Random(1).randbytes(SLOW_BYTES), partition=partition).result()
    # At 4,000 kbit/s, with what goes through at once.
    assert time.monotonic() - began_s > 0.15
    assert cluster.networks is not None
    assert "tbf" in queueing(cluster.networks, node) or "netem" in queueing(cluster.networks, node)
    fault.end()
    assert "tbf" not in queueing(cluster.networks, node)
    assert "netem" not in queueing(cluster.networks, node)
    cluster.wait_until_healthy(nothing)


def queueing(networks: Networks[str], node: Node) -> str:
    return subprocess.check_output(["tc", "-n", networks.name_of(node.name), "qdisc", "show"], text=True)


def led_by(cluster: OwnCluster, node: Node) -> int:
    """A partition that a broker leads, after it was made to lead one."""
    with cluster.admin() as admin:
        led = [
            each.partition
            for partition, each in cluster.partitions(admin).items()
            if partition.topic == TOPIC and each.leader_id == node.node_id
        ]
        if led:
            return led[0]
        partition = TopicPartition(TOPIC, 0)
        others = [other.node_id for other in cluster.nodes if other is not node]
        admin.alter_partition_reassignments({partition: [node.node_id, *others]}).raise_for_errors()
        admin.elect_leaders(None, [partition]).raise_for_errors()
    wait_until(lambda: leader_of(cluster, partition) == node.node_id, f"{node.name} does not lead {partition}")
    return partition.partition


def leader_of(cluster: OwnCluster, partition: TopicPartition) -> int:
    with cluster.admin() as admin:
        return cluster.partitions(admin)[partition].leader_id


def disks(cluster: OwnCluster) -> None:
    for kind, wanted in (("full-disk", {errno.ENOSPC}), ("failing-disk", {errno.EROFS, errno.EIO})):
        fault = begun(cluster, kind)
        (node,) = targets(cluster, fault)
        disk = node.disk
        assert disk is not None
        assert writes(disk) == 0
        fault.begin()
        assert writes(disk) in wanted
        fault.end()
        assert writes(disk) == 0
        cluster.wait_until_healthy(nothing)
    stalling(cluster)


def stalling(cluster: OwnCluster) -> None:
    fault = begun(cluster, "slow-disk", lambda fault: fault.hold_s > 5)
    (node,) = targets(cluster, fault)
    disk = node.disk
    assert disk is not None
    waiting = threading.Thread(target=writes, args=(disk,))
    stalled: list[bool] = []

    def hold(_seconds: float) -> bool:
        if not stalled:
            waiting.start()
            waiting.join(0.3)
            stalled.append(waiting.is_alive())
            return True
        waiting.join(10)
        stalled.append(waiting.is_alive())
        return False

    fault.begin()
    assert fault.during is not None
    fault.during(hold)
    fault.end()
    assert stalled == [True, False]
    assert writes(disk) == 0
    cluster.wait_until_healthy(nothing)


def wrong_clock(cluster: OwnCluster, producer: Producer) -> None:
    """Seen by the time that a broker notes in a record that it appends."""

    def wrong_by_s() -> float:
        return producer.send(TOPIC, b"when", partition=partition).result().timestamp / 1000 - time.time()

    fault = begun(cluster, "clock-jump", lambda fault: abs(told_jump_s(fault)) > JUMP_S_MIN)
    (node,) = targets(cluster, fault)
    partition = led_by(cluster, node)
    assert abs(wrong_by_s()) < JUMP_S_MIN / 2
    fault.begin()
    assert abs(wrong_by_s() - told_jump_s(fault)) < JUMP_S_MIN / 2
    fault.end()
    assert abs(wrong_by_s()) < JUMP_S_MIN / 2


def told_jump_s(fault: Fault) -> float:
    return float(fault.detail.split()[2])


def reassigned(cluster: OwnCluster) -> None:
    fault = begun(cluster, "reassign", lambda fault: fault.target.startswith(TOPIC))
    partition = TopicPartition(TOPIC, int(fault.target.rpartition("-")[2]))

    def replicas() -> int:
        with cluster.admin() as admin:
            return len(cluster.partitions(admin)[partition].replicas)

    fault.begin()
    wait_until(lambda: replicas() == 2, "no replica is gone")
    assert fault.during is not None
    fault.during(lambda _seconds: True)
    fault.end()
    wait_until(lambda: replicas() == 3, "no replica is back")
    cluster.wait_until_healthy(nothing)


def elected(cluster: OwnCluster) -> None:
    def led_by_others(admin: Admin) -> list[TopicPartition]:
        partitions = cluster.partitions(admin)
        return [partition for partition, each in partitions.items() if each.leader_id != each.replicas[0]]

    partition = TopicPartition(TOPIC, 0)
    with cluster.admin() as admin:
        preferred = cluster.nodes[cluster.partitions(admin)[partition].replicas[0] - 1]
        preferred.kill()
        wait_until(lambda: leader_of(cluster, partition) not in (-1, preferred.node_id), "nobody else leads")
        preferred.start()
        cluster.wait_until_healthy(nothing)
        assert partition in led_by_others(admin)
        begun(cluster, "elect").begin()
        wait_until(lambda: not led_by_others(admin), "preferred leaders do not lead")


def one_replica_differs(cluster: OwnCluster) -> None:
    """A comparison that could not find anything would prove nothing."""
    node = cluster.nodes[1]
    directory = next(path for path in cluster.log_directory(node).glob(f"{TOPIC}-*") if any_bytes(path))
    log = next(iter(sorted(directory.glob("*.log"))))
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    replicas = {each.node_id: cluster.log_directory(each) / directory.name for each in cluster.nodes}
    (difference,) = compare_logs(directory.name, replicas).differences
    assert difference.startswith(f"{directory.name} differs at offset ")


def any_bytes(directory: Path) -> bool:
    return any(path.stat().st_size for path in directory.glob("*.log"))


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("zookeeper")
def test_every_kind_on_a_store(tmp_path: Path) -> None:
    kinds = [*STORE_KINDS, "cut-from-store"]
    cluster = make_cluster("tidelog-zookeeper", tmp_path / "servers", faults=kinds)
    assert isinstance(cluster, ZooKeeperCluster)
    with running(cluster):
        down(cluster, "kill-store")
        hung(cluster, "pause-store")
        brokers, servers = [node.name for node in cluster.nodes], cluster.store_names
        fault = begun(cluster, "cut-from-store")
        fault.begin()
        assert all_unreachable(cluster) == pairs_between([fault.target], servers)
        fault.end()
        fault = begun(cluster, "cut-store")
        fault.begin()
        name, others = fault.target.split(" | ")
        assert {*servers} <= {name, *others.split(", ")} <= {*servers, *brokers}
        assert all_unreachable(cluster) == pairs_between([name], others.split(", "))
        fault.end()
        assert all_unreachable(cluster) == set()
        cluster.wait_until_healthy(nothing)
        pids = [node.pid for node in (*cluster.nodes, *cluster.store_nodes) if node.pid is not None]
        assert len(pids) == 6
    assert leftovers(cluster, pids) == []


class BrokenStart(TidelogCluster):
    """Its last broker can't be made."""

    def make_node(self, number: int, host: str | None, prefix: Sequence[str]) -> Node:
        if number == self.broker_count:
            raise TortureError("no more brokers")
        return super().make_node(number, host, prefix)


def test_nothing_is_left_of_a_cluster_whose_start_fails(tmp_path: Path) -> None:
    cluster = BrokenStart(tmp_path / "brokers", 3, FAULT_KINDS)
    with pytest.raises(TortureError, match="no more brokers"):
        cluster.start()
    assert leftovers(cluster, []) == []


class Sleeper(BrokerProcess):
    """A broker that never answers."""

    name = "Sleeper"

    def command(self) -> list[str]:
        return ["sleep", "600"]


class NeverUp(TidelogCluster):
    """Its brokers run and never answer."""

    def make_node(self, number: int, host: str | None, prefix: Sequence[str]) -> Node:
        name = self.broker_names[number - 1]
        return BrokerNode(name, number, Sleeper(self.directory / name, prefix=prefix), self.gate)


def test_a_cluster_is_closed_while_another_thread_starts_it(tmp_path: Path) -> None:
    cluster = NeverUp(tmp_path / "brokers", 3, FAULT_KINDS)
    errors: list[Exception] = []

    def start() -> None:
        try:
            cluster.start()
        except ClosedError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    try:
        wait_until(lambda: len(cluster.nodes) == 3 and all(node.pid for node in cluster.nodes), "they don't run")
        pids = [node.pid for node in cluster.nodes if node.pid is not None]
    finally:
        cluster.close()
        starting.join()
    assert len(errors) == 1
    assert leftovers(cluster, pids) == []


def test_a_cluster_that_was_closed_does_not_start_again(tmp_path: Path) -> None:
    cluster = make_cluster("tidelog-sqlite", tmp_path / "brokers", brokers=1, faults=["kill"])
    try:
        cluster.start()
        (node,) = cluster.nodes
        pid = node.pid
        assert pid is not None
        with socket.create_connection(split(cluster.bootstrap)):
            pass
    finally:
        cluster.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(TortureError, match="closed"):
        node.start()


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
