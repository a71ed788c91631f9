"""A cluster under torture: what it is made of, when it is healthy, and whether its replicas agree.

What always holds: servers listen on loopback, or each in a network of its own; only what is needed for the faults that
were asked for is made. All that was started or made is gone after `close`, however far `start` got. A cluster counts as
healthy when all its servers run, it has a controller, and every replica of every partition is in sync and led by a
broker that answers.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tidelog.client.admin import Admin, ConfigResource, OffsetSpec, ResourceType
from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.types import PartitionMetadata, TopicPartition
from tidelog.common.watchdog import Watchdog
from tidelog.protocol import ErrorCode
from tidelog.torture.clocks import WallClock, reason_against_clocks
from tidelog.torture.disks import DiskImage, reason_against_disks
from tidelog.torture.errors import TortureError
from tidelog.torture.fault_kinds import CLOCK_KINDS, DISK_KINDS, FOREIGN_KINDS, NETWORK_KINDS, STORE_KINDS, at_least
from tidelog.torture.networks import Networks, reason_against_networks
from tidelog.torture.nodes import Gate, Node
from tidelog.torture.replicas import compare_logs

MIN_ISR: Final = 2
REPLICATION_FACTOR: Final = 3
STANDSTILL_S: Final = 180.0
_POLL_S: Final = 0.2
_TELL_EVERY_S: Final = 5.0
_ASK_MS: Final = 5_000
GLANCE_MS: Final = 1_500
"""For those who would rather do something else than wait for an answer."""
# Sparse: a disk takes only the room of what is written to it.
_DISK_MB_MAX: Final = 16_384
_DISK_MB_MIN: Final = 256
_SHOWN_MAX: Final = 5


def settings_for(brokers: int) -> dict[str, str]:
    """The settings of all brokers, of ours and of Apache Kafka's alike.

    Failures are noticed a little sooner than by default, so that there is time for more of them, and internal topics
    have fewer partitions, which one machine can bear three times.
    """
    replication_factor = min(REPLICATION_FACTOR, brokers)
    min_isr = min(MIN_ISR, replication_factor)
    return {
        "default.replication.factor": str(replication_factor),
        "min.insync.replicas": str(min_isr),
        "offsets.topic.replication.factor": str(replication_factor),
        "offsets.topic.num.partitions": "6",
        "transaction.state.log.replication.factor": str(replication_factor),
        "transaction.state.log.min.isr": str(min_isr),
        "transaction.state.log.num.partitions": "6",
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": "6000",
        "replica.lag.time.max.ms": "10000",
        "replica.socket.timeout.ms": "10000",
    }


class TortureCluster(ABC):
    """A cluster and its servers."""

    kind: str

    def __init__(self, directory: Path, brokers: int, faults: Collection[str]) -> None:
        """Nothing is made before `start`. `faults` are the kinds to prepare for."""
        self.directory = directory
        self.broker_count = brokers
        self.faults = frozenset(faults)
        self.nodes: list[Node] = []
        self.store_nodes: list[Node] = []
        self.networks: Networks[str] | None = None
        self.gate = Gate()
        self._held = ExitStack()
        # Who closes a cluster that is being started waits until that has ended, which the gate sees to.
        self._changing = threading.RLock()

    @property
    @abstractmethod
    def version(self) -> str:
        """Of what runs, with its name."""

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """What to put before the commands of clients: nothing, as this machine is in the servers' networks."""
        return ()

    @property
    def replication_factor(self) -> int:
        return min(REPLICATION_FACTOR, self.broker_count)

    @property
    def min_isr(self) -> int:
        return min(MIN_ISR, self.replication_factor)

    @abstractmethod
    def start(self) -> None:
        """Make everything and start all servers, and wait until all of them answer."""

    @abstractmethod
    def controller(self) -> Node | None:
        """The server that is the controller now, if one is known."""

    @abstractmethod
    def can(self, kind: str) -> str | None:
        """Why this kind of fault is not possible here, and what to do about it; None if it is."""

    @abstractmethod
    def compare_replicas(self) -> list[str]:
        """Stop all brokers, and say how replicas differ below the high watermark."""

    def cut_from_store(self, node: Node) -> None:
        """Cut a broker off from the metadata store and from nothing else."""
        raise TortureError(f"{self.kind} has no store that a broker could be cut off from")

    def close(self) -> None:
        """End and remove everything, also while another thread starts it."""
        self.gate.close()
        with self._changing:
            self._held.close()

    def admin(self, patience_ms: int = 2 * _ASK_MS) -> Admin:
        return Admin(
            bootstrap_servers=self.bootstrap,
            request_timeout_ms=min(_ASK_MS, patience_ms),
            default_api_timeout_ms=patience_ms,
        )

    def own_topics(self, admin: Admin) -> list[str]:
        """The topics that may be touched: all of them, internal ones too."""
        return [topic.name for topic in admin.list_topics(include_internal=True)]

    def partitions(self, admin: Admin) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions of all these topics; raises ClientError while the cluster can't say."""
        names = self.own_topics(admin)
        if not names:
            return {}
        found = admin.describe_topics(names)
        for error in found.errors.values():
            # One that was deleted meanwhile is simply not there any more.
            if not (isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise error
        return {
            TopicPartition(name, each.partition): each
            for name, topic in found.succeeded.items()
            for each in topic.partitions
        }

    def is_in_sync(self) -> bool:
        """Whether every replica of every partition is in sync, as far as the cluster says now."""
        try:
            with self.admin(GLANCE_MS) as admin:
                return not _short_of_replicas(self.partitions(admin))
        except ClientError:
            return False

    def wait_until_healthy(self, progress: Callable[[str], None], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait as long as anything moves; raises TortureError that says what is missing.

        `meanwhile` is called again and again, and ends the wait by raising.
        """
        watchdog = Watchdog(STANDSTILL_S)
        told, told_s = "", time.monotonic()
        with self.admin() as admin:
            while missing := self._missing(admin):
                meanwhile()
                if watchdog.is_standstill((missing, self._lags(admin))):
                    raise TortureError(f"the cluster is not healthy, and nothing has changed for long: {missing}")
                if missing != told and time.monotonic() - told_s >= _TELL_EVERY_S:
                    progress(f"waiting: {missing}")
                    told, told_s = missing, time.monotonic()
                time.sleep(_POLL_S)

    def _missing(self, admin: Admin) -> str:
        """What the cluster lacks to be healthy; nothing if it is."""
        down = [node.name for node in (*self.nodes, *self.store_nodes) if not node.is_up]
        if down:
            return f"{', '.join(down)} down"
        try:
            cluster = admin.describe_cluster()
            if len(cluster.nodes) < self.broker_count:
                return f"only {len(cluster.nodes)} of {self.broker_count} brokers in the cluster"
            if cluster.controller_id < 0:
                return "no controller"
            partitions = self.partitions(admin)
            if short := _short_of_replicas(partitions):
                named = ", ".join(short[:_SHOWN_MAX])
                return f"{len(short)} of {len(partitions)} partitions not in sync: {named}"
            # A leader is named before it leads.
            admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)).raise_for_errors()
            if partitions and (moving := admin.list_partition_reassignments(partitions)):
                return f"{len(moving)} partitions being moved"
        except ClientError as error:
            return f"no answer ({error})"
        return ""

    def _lags(self, admin: Admin) -> object:
        """How far replicas are behind: while that changes, waiting is not in vain."""
        try:
            found = admin.describe_log_dirs()
        except ClientError:
            return None
        return [*map(str, found.errors.values())], sorted(
            (node_id, each.topic_partition, each.offset_lag)
            for node_id, directories in found.succeeded.items()
            for directory in directories
            for each in directory.replicas
            if each.offset_lag
        )


class OwnCluster(TortureCluster):
    """A cluster whose servers are processes of this machine, started and ended by it."""

    def start(self) -> None:
        with self._changing:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                self._start()
            except BaseException:
                self.close()
                raise

    def _start(self) -> None:
        if self.faults & NETWORK_KINDS:
            self.networks = Networks([*self.broker_names, *self.store_names])
            self._held.callback(self.networks.stop)
            self.networks.start()
        self.start_store()
        self.nodes = [self._equipped(number) for number in range(1, self.broker_count + 1)]
        # At once: members of a quorum need each other, and each JVM takes seconds to begin.
        with ThreadPoolExecutor(self.broker_count) as pool:
            list(pool.map(lambda node: node.launch(), self.nodes))
        for node in self.nodes:
            node.wait_until_up()

    @property
    def broker_names(self) -> list[str]:
        return [f"broker-{number}" for number in range(1, self.broker_count + 1)]

    @property
    def store_names(self) -> list[str]:
        return []

    def start_store(self) -> None:
        """Start the servers of the metadata store, where brokers need any."""

    @abstractmethod
    def make_node(self, number: int, host: str | None, prefix: Sequence[str]) -> Node:
        """Broker number so-and-so, not started."""

    @abstractmethod
    def log_directory(self, node: Node) -> Path:
        """Where a broker keeps its partitions."""

    def _equipped(self, number: int) -> Node:
        """A broker with the network, the clock and the disk that it needs for the faults."""
        name = self.broker_names[number - 1]
        prefix: list[str] = []
        host = None
        if self.networks is not None:
            host = self.networks.address_of(name)
            prefix += self.networks.prefix(name)
        clock = None
        if self.faults & CLOCK_KINDS:
            clock = WallClock(self.directory / "clocks", name)
            clock.start()
            prefix += clock.prefix
        node = self.make_node(number, host, prefix)
        node.clock = clock
        if self.faults & DISK_KINDS:
            # Before the broker that uses it, so that it is removed after it.
            node.disk = DiskImage(self.directory / "disks" / name, self._disk_mb(), keep_in_memory=False)
            self._held.callback(node.disk.remove)
            (node.disk.path / "logs").mkdir()
            self.log_directory(node).parent.mkdir(parents=True, exist_ok=True)
            self.log_directory(node).symlink_to((node.disk.path / "logs").absolute())
        self._held.callback(self._end, node)
        return node

    def _end(self, node: Node) -> None:
        if node.disk is not None and node.disk.is_mounted:
            # Who waits for a frozen disk can't be killed.
            node.disk.thaw()
        node.kill()

    def _disk_mb(self) -> int:
        free_mb = shutil.disk_usage(self.directory).free >> 20
        return max(_DISK_MB_MIN, min(_DISK_MB_MAX, free_mb // (2 * self.broker_count)))

    def can(self, kind: str) -> str | None:
        if self.broker_count < at_least(kind):
            return f"it takes {at_least(kind)} brokers: give --brokers {at_least(kind)} or more"
        if kind in STORE_KINDS and not self.store_names:
            return "this cluster has no servers that only keep metadata: give --cluster tidelog-zookeeper"
        if kind in NETWORK_KINDS and (reason := reason_against_networks()):
            return reason
        if kind in DISK_KINDS and (reason := reason_against_disks()):
            return reason
        if kind == "failing-disk" and not Path("/sys/fs/ext4").is_dir():
            return "this kernel has no ext4, which can be told to find an error: use a kernel that has it"
        if kind in CLOCK_KINDS and (reason := reason_against_clocks()):
            return reason
        return None

    def compare_replicas(self) -> list[str]:
        try:
            with self.admin() as admin:
                ends, compacted = self._high_watermarks(admin)
        except ClientError as error:
            return [f"replicas could not be compared, as the cluster did not tell its high watermarks: {error}"]
        self.stop()
        return self._differences(ends, compacted)

    def stop(self) -> None:
        """Stop all brokers in order, at once: none of them is left to wait for in the end."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(), self.nodes))

    def _high_watermarks(self, admin: Admin) -> tuple[dict[TopicPartition, tuple[int, Sequence[int]]], set[str]]:
        """The high watermark and the in-sync replicas of each partition, and the topics that are compacted.

        All of those replicas have everything below the high watermark.
        """
        partitions = self.partitions(admin)
        found = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        found.raise_for_errors()
        topics = {partition.topic for partition in partitions}
        configs = admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)], ["cleanup.policy"]
        )
        configs.raise_for_errors()
        compacted = {
            resource.name for resource in configs if "compact" in str(configs[resource]["cleanup.policy"].value)
        }
        return {partition: (found[partition].offset, each.isr) for partition, each in partitions.items()}, compacted

    def _differences(
        self, ends: Mapping[TopicPartition, tuple[int, Sequence[int]]], compacted: Collection[str]
    ) -> list[str]:
        directories = {node.node_id: self.log_directory(node) for node in self.nodes}
        found: list[str] = []
        for partition, (end, isr) in sorted(ends.items()):
            name = f"{partition.topic}-{partition.partition}"
            replicas = {node_id: directories[node_id] / name for node_id in isr}
            absent = [node_id for node_id, directory in replicas.items() if not directory.is_dir()]
            found += [f"{name} is not on broker {node_id}, which is in sync" for node_id in absent]
            if not absent:
                is_compacted = partition.topic in compacted
                found += compare_logs(name, replicas, end, compacted=is_compacted).differences
        return found


class ForeignCluster(TortureCluster):
    """A cluster that runs already and belongs to somebody: it gets requests, and nothing else is done to it."""

    kind = "foreign"

    def __init__(self, bootstrap: str, topic_prefix: str) -> None:
        """Only topics whose names begin with the prefix, and that are new since `start`, are touched."""
        super().__init__(Path(os.devnull), 1, FOREIGN_KINDS)
        self._bootstrap = bootstrap
        self._topic_prefix = topic_prefix
        self._before: frozenset[str] = frozenset()

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    @property
    def version(self) -> str:
        return f"the cluster at {self._bootstrap}"

    def start(self) -> None:
        """Look at it: how many brokers it has, and which topics are somebody else's."""
        try:
            with self.admin() as admin:
                self.broker_count = len(admin.describe_cluster().nodes)
                self._before = frozenset(self._all_topics(admin))
        except ClientError as error:
            raise TortureError(
                f"no cluster answers at {self._bootstrap} ({error}); give --bootstrap HOST:PORT of a running one"
            ) from error

    def _all_topics(self, admin: Admin) -> list[str]:
        return [topic.name for topic in admin.list_topics(include_internal=True)]

    def own_topics(self, admin: Admin) -> list[str]:
        return [
            name for name in self._all_topics(admin) if name.startswith(self._topic_prefix) and name not in self._before
        ]

    def controller(self) -> Node | None:
        return None

    def can(self, kind: str) -> str | None:
        if kind not in FOREIGN_KINDS:
            return "the brokers at --bootstrap are not this command's: leave it out, and it starts a cluster of its own"
        return None

    def compare_replicas(self) -> list[str]:
        return []  # their files are not here


def _short_of_replicas(partitions: Mapping[TopicPartition, PartitionMetadata]) -> list[str]:
    return [
        f"{partition.topic}-{partition.partition} (leader {each.leader_id}, in sync {[*each.isr]})"
        for partition, each in sorted(partitions.items())
        if each.leader_id < 0 or sorted(each.isr) != sorted(each.replicas)
    ]
