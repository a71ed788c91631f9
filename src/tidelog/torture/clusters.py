"""The clusters that `tidelog torture` can run: ours with either metadata store, Apache Kafka's, and somebody else's.

Each kind only says how its servers are made and who its controller is; the rest is in `cluster`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog import __version__
from tidelog.bench import maven
from tidelog.bench.brokers import KAFKA_JVM_OPTIONS, KAFKA_VERSION, LOOPBACK, KafkaBroker, KafkaQuorum, TidelogBroker
from tidelog.bench.errors import PeerUnavailableError
from tidelog.client.errors import ClientError
from tidelog.torture.cluster import GLANCE_MS, ForeignCluster, OwnCluster, TortureCluster, settings_for
from tidelog.torture.errors import TortureError
from tidelog.torture.fault_kinds import FAULT_KINDS
from tidelog.torture.nodes import BrokerNode, Node, StoreNode
from tidelog.torture.zookeeper_ensemble import Ensemble

STORE_SERVERS: Final = 3
TOPIC_PREFIX: Final = "torture"
# The binding that Kafka's distribution has.
_LOGGING_NAME: Final = "log4j-slf4j-impl-2.25.4"
_LOGGING: Final = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_LOG4J: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
_QUORUM_STATE: Final = Path("__cluster_metadata-0") / "quorum-state"


class TidelogCluster(OwnCluster):
    """Our brokers, whose metadata is in a SQLite file that they share."""

    kind = "tidelog-sqlite"

    @property
    def version(self) -> str:
        return f"Tidelog {__version__}, metadata in SQLite"

    @property
    def bootstrap(self) -> str:
        return ",".join(node.process.bootstrap for node in self.nodes if isinstance(node, BrokerNode))

    @property
    def metadata(self) -> str:
        return "sqlite"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def make_node(self, number: int, host: str | None, prefix: Sequence[str]) -> Node:
        name = self.broker_names[number - 1]
        process = TidelogBroker(
            self.directory / name,
            settings=settings_for(self.broker_count),
            host=host or LOOPBACK,
            prefix=prefix,
            data=self._data,
            node_id=number,
            metadata=self.metadata,
        )
        return BrokerNode(name, number, process, self.gate)

    def log_directory(self, node: Node) -> Path:
        return self._data / f"broker-{node.node_id}"

    def controller(self) -> Node | None:
        try:
            with self.admin(GLANCE_MS) as admin:
                controller_id = admin.describe_cluster().controller_id
        except ClientError:
            return None
        return next((node for node in self.nodes if node.node_id == controller_id), None)

    def can(self, kind: str) -> str | None:
        if kind == "cut-from-store" and not self.store_names:
            return "the brokers share a SQLite file, and no network is between: give --cluster tidelog-zookeeper"
        return super().can(kind)


class ZooKeeperCluster(TidelogCluster):
    """Our brokers, whose metadata is in an ensemble of three ZooKeeper servers."""

    kind = "tidelog-zookeeper"

    def __init__(self, directory: Path, brokers: int, faults: Collection[str]) -> None:
        super().__init__(directory, brokers, faults)
        self._ensemble: Ensemble | None = None

    @property
    def version(self) -> str:
        return f"Tidelog {__version__}, metadata in ZooKeeper"

    @property
    def store_names(self) -> list[str]:
        return [f"zookeeper-{number}" for number in range(1, STORE_SERVERS + 1)]

    @property
    def metadata(self) -> str:
        if self._ensemble is None:
            raise RuntimeError("the ensemble was not started")
        return f"{self._ensemble.address}/tidelog"

    def start_store(self) -> None:
        networks, names = self.networks, self.store_names
        ensemble = self._ensemble = Ensemble(
            self.directory / "zookeeper",
            STORE_SERVERS,
            hosts=[networks.address_of(name) for name in names] if networks else (),
            prefixes=[networks.prefix(name) for name in names] if networks else (),
            logs=True,
        )
        self._held.enter_context(ensemble)
        self.store_nodes = [StoreNode(name, number, ensemble, self.gate) for number, name in enumerate(names, start=1)]

    def cut_from_store(self, node: Node) -> None:
        if self.networks is not None:
            self.networks.cut_between([node.name], self.store_names)


class KafkaCluster(OwnCluster):
    """Apache Kafka's brokers in KRaft mode, each also a controller."""

    kind = "kafka"

    def __init__(self, directory: Path, brokers: int, faults: Collection[str]) -> None:
        super().__init__(directory, brokers, faults)
        self._quorum: KafkaQuorum | None = None
        self._logging_jars: Path | None = None
        self._logging = directory / "log4j2.properties"

    @property
    def version(self) -> str:
        return f"Apache Kafka {KAFKA_VERSION}"

    @property
    def bootstrap(self) -> str:
        return ",".join(node.process.bootstrap for node in self.nodes if isinstance(node, BrokerNode))

    def _start(self) -> None:
        try:
            # Without these, a broker says nothing: its own jars only say what is to be logged.
            self._logging_jars = maven.jars(_LOGGING_NAME, [_LOGGING], with_dependencies=False)
            self._logging.write_text(_LOG4J, encoding="utf-8")
            super()._start()
        except PeerUnavailableError as error:
            raise TortureError(str(error)) from error

    def start_store(self) -> None:
        # Controllers have addresses of their own, so that only they can be cut off.
        networks = self.networks
        hosts = [networks.second_address_of(name) for name in self.broker_names] if networks else ()
        self._quorum = KafkaQuorum(self.broker_count, hosts)

    def make_node(self, number: int, host: str | None, prefix: Sequence[str]) -> Node:
        name = self.broker_names[number - 1]
        process = KafkaBroker(
            self.directory / name,
            settings=settings_for(self.broker_count),
            host=host or LOOPBACK,
            prefix=prefix,
            quorum=self._quorum,
            node_id=number,
            jvm_options=[*KAFKA_JVM_OPTIONS, f"-Dlog4j2.configurationFile={self._logging.absolute()}"],
            more_jars=[self._logging_jars] if self._logging_jars else (),
        )
        return BrokerNode(name, number, process, self.gate)

    def log_directory(self, node: Node) -> Path:
        return self.directory / node.name / "data"

    def controller(self) -> Node | None:
        """The leader of the quorum, as the youngest vote says: clients are told of some broker or other."""
        votes = [vote for node in self.nodes if (vote := self._vote(node)) is not None]
        _, leader_id = max(votes, default=(0, -1))
        return next((node for node in self.nodes if node.node_id == leader_id), None)

    def _vote(self, node: Node) -> tuple[int, int] | None:
        """An epoch and who leads in it, as far as this node knows."""
        try:
            state: Mapping[str, int] = json.loads((self.log_directory(node) / _QUORUM_STATE).read_text())
        except (OSError, ValueError):
            return None  # being written, or on a disk that fails
        return (state["leaderEpoch"], state["leaderId"]) if state.get("leaderId", -1) >= 0 else None

    def cut_from_store(self, node: Node) -> None:
        """Cut a node's controller off from the others, and it from their controllers; brokers see each other."""
        if self.networks is not None:
            others = [other.name for other in self.nodes if other is not node]
            self.networks.cut_second(node.name, *others)
            for other in others:
                self.networks.cut_second(other, node.name)

    def can(self, kind: str) -> str | None:
        for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
            if shutil.which(program) is None:
                return f"Apache Kafka takes {program}, which was not found: install {package}"
        return super().can(kind)


_OWN: Final[Mapping[str, Callable[[Path, int, Collection[str]], OwnCluster]]] = {
    each.kind: each for each in (TidelogCluster, ZooKeeperCluster, KafkaCluster)
}


def make_cluster(
    kind: str, directory: Path, *, brokers: int = 3, faults: Collection[str] = (), bootstrap: str = ""
) -> TortureCluster:
    """A cluster of a kind, not started: `tidelog-sqlite`, `tidelog-zookeeper`, `kafka`, or `foreign` at `bootstrap`.

    It prepares for the kinds of faults that are given, or else for all that are possible here.
    """
    if kind == ForeignCluster.kind:
        return ForeignCluster(bootstrap, TOPIC_PREFIX)
    make = _OWN.get(kind)
    if make is None:
        raise TortureError(f"--cluster {kind}: there are {', '.join(_OWN)}")
    cluster = make(directory, brokers, ())
    wanted = faults or FAULT_KINDS
    return make(directory, brokers, [fault for fault in wanted if fault in FAULT_KINDS and cluster.can(fault) is None])
