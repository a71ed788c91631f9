"""Several brokers' replicas in one process, over real sockets and real files, with a controller in memory.

The controller decides by the same pure functions as the real one, and hands its images to the nodes at once, or to
each when a test says so. A node can be killed: what the kernel has of its files stays.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from tidelog.broker import handlers
from tidelog.broker.connection_set import ConnectionSet, NetworkLimits
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.listener import Listener, bind
from tidelog.broker.peers import Peers
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.services import BrokerServices
from tidelog.client.address import Address
from tidelog.client.network.connection import Connection
from tidelog.common.clock import SystemClock
from tidelog.common.endpoint import Endpoint
from tidelog.controller import changes
from tidelog.controller.changes import Change
from tidelog.controller.image import EMPTY_IMAGE, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.controller.requests import IsrChange, IsrMember
from tidelog.log import LogManager
from tidelog.protocol import Api, ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k56_alter_partition import (
    ALTER_PARTITION,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from tidelog.records import encode_batch
from tidelog.server.settings_load import load

CONDITION_TIMEOUT_S = 60.0

T = TypeVar("T")
Batch = bytes | bytearray


class MemoryController:
    """Decides about partitions, and publishes images to the nodes that follow."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = load(options=dict(settings))
        self.image: ClusterImage = replace(EMPTY_IMAGE, cluster_id="cluster")
        self.nodes: dict[int, ReplicaNode] = {}
        # Nodes that get no images for now, and whose requests stay without an answer.
        self.cut_off: set[int] = set()
        self.isr_requests = 0
        self.isr_error = ErrorCode.NONE

    def publish(self, image: ClusterImage) -> None:
        self.image = replace(image, revision=self.image.revision + 1)
        for node_id in tuple(self.nodes):
            self.update(node_id)

    def update(self, node_id: int) -> None:
        node = self.nodes.get(node_id)
        if node is not None and node_id not in self.cut_off:
            node.follow(self.image)

    def _commit(self, change: Change[T]) -> T:
        if change.writes:
            self.publish(change.image)
        return change.results

    def register(self, node: ReplicaNode, *, clean: bool) -> int:
        info = BrokerInfo(node.node_id, -1, (Endpoint("PLAINTEXT", "127.0.0.1", node.port),))
        self.nodes[node.node_id] = node
        return self._commit(changes.register_broker(info, self.image, self._settings, clean_shutdown=clean))

    def fence(self, node_id: int) -> None:
        self._commit(changes.fence_brokers([node_id], self.image, self._settings))

    def create(self, name: str, *assignments: Sequence[int], configs: Mapping[str, str] | None = None) -> TopicImage:
        states = tuple(PartitionState(tuple(replicas), tuple(replicas), replicas[0]) for replicas in assignments)
        topic = TopicImage(name, uuid.uuid4(), states)
        image = self.image.with_topics([topic])
        if configs:
            image = image.with_configs({ConfigResource(ResourceType.TOPIC, name): dict(configs)})
        self.publish(image)
        return topic

    def state(self, name: str, index: int = 0) -> PartitionState:
        return self.image.topics[name].partitions[index]

    def change(self, name: str, index: int = 0, **fields: Any) -> PartitionState:
        """Change a partition as no rule would, only with the epochs that follow."""
        topic = self.image.topics[name]
        before = topic.partitions[index]
        state = replace(before, partition_epoch=before.partition_epoch + 1, **fields)
        if state.leader != before.leader or not set(before.replicas) <= set(state.replicas):
            state = replace(state, leader_epoch=before.leader_epoch + 1)
        partitions = (*topic.partitions[:index], state, *topic.partitions[index + 1 :])
        self.publish(self.image.with_topics([replace(topic, partitions=partitions)]))
        return state

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.isr_requests += 1
        if request.broker_id in self.cut_off:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        if self.isr_error:
            return AlterPartitionResponse(error_code=self.isr_error)
        asked = [
            IsrChange(
                topic.topic_id,
                row.partition_index,
                row.leader_epoch,
                row.partition_epoch,
                [IsrMember(member.broker_id, member.broker_epoch) for member in row.new_isr_with_epochs],
            )
            for topic in request.topics
            for row in topic.partitions
        ]
        try:
            change = changes.alter_partition(request.broker_id, request.broker_epoch, asked, self.image, self._settings)
        except KafkaError as error:
            return AlterPartitionResponse(error_code=error.code)
        response = AlterPartitionResponse()
        for result in self._commit(change):
            row = AlterPartitionResponsePartitionData(partition_index=result.index, error_code=result.error)
            if result.state is not None:
                row.leader_id, row.leader_epoch = result.state.leader, result.state.leader_epoch
                row.isr, row.partition_epoch = list(result.state.isr), result.state.partition_epoch
            response.topics.append(AlterPartitionResponseTopicData(topic_id=result.topic_id, partitions=[row]))
        return response


class _Channel:
    def __init__(self, controller: MemoryController) -> None:
        self._controller = controller

    async def call(self, api: Api, request: object, response_class: type[T], *, timeout_s: float) -> T:
        assert api is ALTER_PARTITION
        assert isinstance(request, AlterPartitionRequest)
        response = await self._controller.alter_partition(request)
        assert isinstance(response, response_class)
        return response


class ReplicaNode:
    """One broker's logs, replicas and listener."""

    def __init__(self, node_id: int, path: Path, controller: MemoryController, settings: Mapping[str, object]) -> None:
        self.node_id = node_id
        self.path = path
        self.controller = controller
        self.port = 0
        self._settings = load(options={"node.id": node_id, **settings})
        self._connection: Connection | None = None

    async def start(self, *, clean: bool | None = None) -> None:
        handlers.load_all()
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        self.logs = LogManager([self.path], self._settings, clock)
        self.logs.open("cluster", self.node_id)
        await asyncio.to_thread(self.logs.load)
        self.peers = Peers(self.node_id)
        self.replicas = ReplicaManager(
            node_id=self.node_id, logs=self.logs, settings=self._settings, table=self._settings.table, clock=clock
        )
        self.replicas.start_replication(self.peers, _Channel(self.controller))
        services = cast(
            BrokerServices,
            SimpleNamespace(
                replicas=self.replicas,
                cluster=self.replicas,  # it has the image
                logs=self.logs,
                settings=self._settings,
                features={},
                clock=clock,
            ),
        )
        limits = NetworkLimits.from_settings(self._settings)
        sock = bind(
            Endpoint("PLAINTEXT", "127.0.0.1", self.port),
            backlog=limits.listen_backlog,
            receive_buffer_bytes=limits.receive_buffer_bytes,
        )
        self.port = sock.getsockname()[1]
        self._connections = ConnectionSet(limits, Dispatcher(services, loop), loop)
        self._listener = Listener(sock, "PLAINTEXT", self._connections, loop)
        was_clean = self.logs.was_clean_shutdown if clean is None else clean
        self.follow(self.controller.image)
        self.replicas.on_registered(self.controller.register(self, clean=was_clean))
        self.controller.update(self.node_id)
        await self.replicas.settled()
        self._listener.start()

    def follow(self, image: ClusterImage) -> None:
        self.peers.follow(image)
        self.replicas.apply(self.replicas.image, image)

    async def stop(self, *, clean: bool) -> None:
        """Stop; if unclean, as a killed process would, without a last word."""
        self.controller.nodes.pop(self.node_id, None)
        self._listener.close()
        self._connections.close()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        await self.replicas.close()
        await self.peers.close()
        await asyncio.to_thread(self.logs.close, clean=clean)

    async def connection(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await Connection.open(Address("127.0.0.1", self.port))
        return self._connection

    async def produce(
        self, topic: str, values: Iterable[bytes], index: int = 0, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> PartitionProduceResponse:
        now_ms = SystemClock().now_ms()
        batch = encode_batch([(None, value, (), now_ms) for value in values])
        return await self.send(topic, batch, index, acks=acks, timeout_ms=timeout_ms)

    async def send(
        self, topic: str, batch: Batch, index: int = 0, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> PartitionProduceResponse:
        data = PartitionProduceData(index=index, records=memoryview(bytearray(batch)))
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        connection = await self.connection()
        response = await connection.request(PRODUCE, request, ProduceResponse, version=12)
        return response.responses[0].partition_responses[0]

    def log_bytes(self, topic: str, index: int = 0) -> bytes:
        """What the files of the log hold, from its start on."""
        log = self.replicas.find(topic, index).log
        return b"".join(segment.path.read_bytes()[: segment.size_bytes] for segment in log.segments)


class ReplicaCluster:
    """Nodes 1 to N and their controller."""

    def __init__(self, path: Path, count: int = 3, settings: Mapping[str, object] | None = None) -> None:
        self.settings = dict(settings or {})
        self.controller = MemoryController(self.settings)
        self.nodes = {
            node_id: ReplicaNode(node_id, path / f"broker-{node_id}", self.controller, self.settings)
            for node_id in range(1, count + 1)
        }

    def __getitem__(self, node_id: int) -> ReplicaNode:
        return self.nodes[node_id]

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start(clean=True)

    async def create(
        self, name: str, *assignments: Sequence[int], configs: Mapping[str, str] | None = None
    ) -> TopicImage:
        """A topic with these replicas of each partition, once its files exist."""
        topic = self.controller.create(name, *assignments, configs=configs)
        for node in self.controller.nodes.values():
            await node.replicas.settled()
        return topic

    async def close(self) -> None:
        for node in tuple(self.controller.nodes.values()):
            await node.stop(clean=False)

    async def kill(self, node_id: int) -> None:
        await self.nodes[node_id].stop(clean=False)
        self.controller.fence(node_id)

    def leader(self, topic: str, index: int = 0) -> ReplicaNode:
        return self.nodes[self.controller.state(topic, index).leader]

    def live(self, topic: str, index: int = 0) -> list[ReplicaNode]:
        replicas = self.controller.state(topic, index).replicas
        return [node for node_id, node in self.controller.nodes.items() if node_id in replicas]

    async def until_equal(self, topic: str, index: int = 0) -> int:
        """Wait until all live replicas hold the same, with everything committed; returns the end of their logs."""

        def is_equal() -> bool:
            logs = [node.replicas.find(topic, index).log for node in self.live(topic, index)]
            return len({(log.log_end_offset, log.high_watermark, log.log_end_offset) for log in logs}) == 1 and (
                logs[0].high_watermark == logs[0].log_end_offset
            )

        await until(is_equal)
        contents = {node.log_bytes(topic, index) for node in self.live(topic, index)}
        assert len(contents) == 1, "the replicas differ"
        return self.leader(topic, index).replicas.find(topic, index).log.log_end_offset

    async def until_isr(self, topic: str, *members: int, index: int = 0) -> None:
        await until(lambda: sorted(self.controller.state(topic, index).isr) == sorted(members))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(CONDITION_TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.002)


def run_cluster(
    path: Path,
    scenario: Callable[[ReplicaCluster], Coroutine[Any, Any, None]],
    *,
    count: int = 3,
    settings: Mapping[str, object] | None = None,
) -> None:
    async def main() -> None:
        cluster = ReplicaCluster(path, count, settings)
        await cluster.start()
        try:
            await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(main())
