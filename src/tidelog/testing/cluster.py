"""A real cluster for tests: several brokers in the test's process that copy each other's partitions.

What always holds: each broker is a `testing.Broker` with a thread and an event loop of its own; they share one metadata
store, a SQLite file. Addresses and data survive `stop`, `kill` and `start`. When the `with` block ends, threads, ports
and the temporary directory are gone. All waits have a deadline and say what they waited for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tidelog.client.admin import Admin
from tidelog.client.admin.types import NewTopic
from tidelog.client.errors import BrokerError
from tidelog.client.types import TopicPartition
from tidelog.common.clock import Clock
from tidelog.common.closing import Closing
from tidelog.controller.image import ClusterImage, PartitionState
from tidelog.protocol import ErrorCode
from tidelog.server.server import BrokerServer
from tidelog.testing.broker import Broker

_DEADLINE_S = 60.0

# With three replicas any one broker may die. min.insync.replicas stays 1, so that topics which a program creates with
# one replica can be written to.
_REPLICATION_FACTOR = 3

# A test has few groups and transactions; Kafka's 50 partitions each would be 300 directories in three brokers.
_INTERNAL_PARTITIONS = 6


class Cluster(Closing):
    """Brokers with the node ids 1, 2, 3 and so on, which a test starts, stops, kills and inspects.

    >>> with Cluster(brokers=3) as cluster:
    ...     cluster.create_topic("orders", partitions=6)
    ...     sorted(cluster.brokers)
    [1, 2, 3]
    """

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, object] | None = None,
        racks: Sequence[str] | None = None,
        data_dir: Path | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`racks` gives each broker's `broker.rack`, the first one's first; `settings` are those of all brokers."""
        if brokers < 1:
            raise ValueError("a cluster has at least one broker")
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{brokers} brokers need as many racks, not {len(racks)}")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-", ignore_cleanup_errors=True)
            data_dir = self._temporary.name
        self.data_dir: Path = Path(data_dir)
        self._metadata = self.data_dir / "metadata.sqlite"
        shared: dict[str, object] = {
            "tidelog.metadata": f"sqlite:{self._metadata}",
            "default.replication.factor": min(_REPLICATION_FACTOR, brokers),
            "offsets.topic.num.partitions": _INTERNAL_PARTITIONS,
            "transaction.state.log.num.partitions": _INTERNAL_PARTITIONS,
            **(settings or {}),
        }
        self.brokers: Mapping[int, Broker] = {
            node_id: Broker(
                clock=clock,
                settings={
                    **shared,
                    "node.id": node_id,
                    **({} if racks is None else {"broker.rack": racks[node_id - 1]}),
                },
                data_dir=self.data_dir / f"broker-{node_id}",
            )
            for node_id in range(1, brokers + 1)
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def bootstrap(self) -> str:
        """What clients take as bootstrap.servers: all brokers, those that don't run at the moment too."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> tuple[int, ...]:
        """The node ids of the brokers that run."""
        return tuple(node_id for node_id, broker in self.brokers.items() if broker.is_running)

    # Starting and stopping

    def start(self, *node_ids: int) -> None:
        """Start these brokers, or all that don't run, and wait until the cluster knows that they are there."""
        starting = node_ids or tuple(node_id for node_id in self.brokers if node_id not in self.running)
        if not starting:
            return
        alone, together = starting[:1], starting[1:]
        if self._metadata.exists():
            alone, together = (), starting
        for node_id in alone:
            self.brokers[node_id].start()  # it makes the metadata store, which the others find
        if together:
            self._start_together(together)
        self.wait(
            lambda image: all(node_id in image.brokers and image.brokers[node_id].is_active for node_id in starting),
            f"brokers {starting} to become members",
        )

    def _start_together(self, node_ids: Sequence[int]) -> None:
        with ThreadPoolExecutor(len(node_ids), thread_name_prefix="tidelog-cluster-start") as pool:
            started = [pool.submit(self.brokers[node_id].start) for node_id in node_ids]
        for each in started:
            each.result()

    def stop(self, node_id: int) -> None:
        """Shut it down as SIGTERM would: others lead its partitions before it goes."""
        self.brokers[node_id].stop()

    def kill(self, node_id: int) -> None:
        """End it as kill -9 would; the others notice by themselves."""
        self.brokers[node_id].crash()

    def restart(self, node_id: int) -> None:
        """Stop it and start it again, as an upgrade does."""
        self.stop(node_id)
        self.start(node_id)

    def close(self) -> None:
        """End all brokers; a temporary directory is removed, and one that was given is left fit for another start."""
        for node_id in self.running:
            if self._temporary is None:
                self.stop(node_id)
            else:
                self.kill(node_id)
        if self._temporary is not None:
            self._temporary.cleanup()

    # Topics and leaders

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str | None] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create a topic and wait until all brokers know it and all its replicas are in sync.

        With `replicas`, each partition's node ids, the preferred leader first, in place of the two numbers.
        """
        topic = NewTopic(
            name,
            partitions=partitions if replicas is None else -1,
            replication_factor=-1 if replicas is not None or replication_factor is None else replication_factor,
            configs=dict(configs or {}),
            assignments=None if replicas is None else dict(enumerate(replicas)),
        )
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics(topic).raise_for_errors()
        self.wait(lambda image: name in image.topics, f"all brokers to know the topic {name}")
        self.wait_until_in_sync(name)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node id of its leader, once all running brokers agree on one that runs."""
        return self._state(topic, partition, lambda state: state.leader in self.running, "to have a leader").leader

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Have another replica lead, once it is in sync; from then on it is the preferred one."""
        state = self._state(topic, partition, lambda state: not state.is_reassigned, "to have been moved")
        if node_id not in state.replicas:
            raise ValueError(f"broker {node_id} has no replica of {topic}-{partition}; {state.replicas} have")
        self._state(topic, partition, lambda state: node_id in state.isr, f"to be in sync on broker {node_id}")
        moved = TopicPartition(topic, partition)
        others = [other for other in state.replicas if other != node_id]
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.alter_partition_reassignments({moved: [node_id, *others]}).raise_for_errors()
            error = admin.elect_leaders(partitions=[moved]).errors.get(moved)
        if error is not None and not (isinstance(error, BrokerError) and error.code is ErrorCode.ELECTION_NOT_NEEDED):
            raise error
        self._state(topic, partition, lambda state: state.leader == node_id, f"to be led by broker {node_id}")

    def wait_until_in_sync(self, *topics: str) -> None:
        """Wait until all replicas on running brokers are in sync and all partitions have leaders; of all topics, or
        of these."""

        def all_in_sync(image: ClusterImage) -> bool:
            running = set(self.running)
            return all(
                state.leader in running and set(state.isr) & running == set(state.replicas) & running
                for topic in image.topics.values()
                if not topics or topic.name in topics
                for state in topic.partitions
                if running & set(state.replicas)
            )

        self.wait(all_in_sync, "all replicas to be in sync")

    def wait(self, is_wanted: Callable[[ClusterImage], bool], what: str = "the cluster") -> ClusterImage:
        """Wait until this holds of what every running broker knows of the cluster; returns what one of them knows."""

        async def wait_on(server: BrokerServer) -> ClusterImage:
            view = server.services.cluster
            if not await view.wait_for(is_wanted, _DEADLINE_S):
                raise TimeoutError(f"gave up after waiting {_DEADLINE_S:g} s for {what}: {view.image}")
            return view.image

        running = self.running
        if not running:
            raise RuntimeError("no broker of the cluster is running")
        return [self.brokers[node_id].call(wait_on) for node_id in running][-1]

    def _state(
        self, topic: str, partition: int, is_wanted: Callable[[PartitionState], bool], what: str
    ) -> PartitionState:
        """The partition's state, once it is as wanted on all running brokers."""

        def has_come(image: ClusterImage) -> bool:
            state = image.partition(topic, partition)
            return state is not None and is_wanted(state)

        image = self.wait(has_come, f"{topic}-{partition} {what}")
        state = image.partition(topic, partition)
        assert state is not None  # as it was waited for
        return state
