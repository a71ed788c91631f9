"""The cluster as the client sees it: which brokers there are, who leads which partition, whom to ask.

What always holds: there is at most one connection a broker, made when first needed; a request for a partition goes to
its leader as last heard of; a retriable error makes the client look again and retry, with growing pauses, until the
time is up, and then the last error is raised as it was.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from tidelog.client.address import Address, parse_addresses
from tidelog.client.connection import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Connection
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    NoSuchPartitionError,
    RequestTimeoutError,
    error_code,
)
from tidelog.client.types import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tidelog.client.types import group_by_topic as group_by_topic
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

RETRY_BACKOFF_S = 0.05
RETRY_BACKOFF_S_MAX = 1.0

ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT")


class Cluster:
    """Connections to a cluster's brokers, and the routing of requests to them."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address] = "127.0.0.1:9092",
        *,
        client_id: str = "tidelog",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = parse_addresses(bootstrap) if isinstance(bootstrap, str) else list(bootstrap)
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self.request_timeout_s = request_timeout_s
        self._sleep = sleep
        self.monotonic = monotonic
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Node] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._names_by_id: dict[uuid.UUID, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Connections

    def any_connection(self) -> Connection:
        """An open connection, or one to the first broker that can be reached: known ones, then the bootstrap list."""
        for connection in self._connections.values():
            if connection.is_open:
                return connection
        first_error: ConnectError | None = None
        for address in dict.fromkeys([*self._bootstrap, *(node.address for node in self._nodes.values())]):
            try:
                return self._connect(address)
            except ConnectError as error:
                first_error = first_error or error
        raise first_error or ConnectError("no broker address is known")

    def connection_to(self, node_id: int) -> Connection:
        node = self._nodes.get(node_id)
        if node is None:
            self.refresh([])
            node = self._nodes.get(node_id)
            if node is None:
                known = ", ".join(str(known_id) for known_id in sorted(self._nodes)) or "none"
                raise BrokerError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster (brokers: {known})"
                )
        return self._connect(node.address)

    def _connect(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connections[address] = Connection(
                address,
                client_id=self._client_id,
                connect_timeout_s=self._connect_timeout_s,
                request_timeout_s=self.request_timeout_s,
            )
        return connection

    # Metadata

    def refresh(self, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False) -> ClusterMetadata:
        """Ask for these topics (None: all) and remember the answer; topics with errors are in `.errors`."""
        names = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        connection = self.any_connection()
        version = connection.version_for(METADATA)
        request = MetadataRequest(topics=names)
        if version >= 4:  # before, asking was creating
            request.allow_auto_topic_creation = allow_auto_topic_creation
        response = connection.request(METADATA, request, MetadataResponse, version=version)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(error_code(response.error_code))
        metadata = _read_metadata(response)
        self._remember(metadata, everything=topics is None)
        return metadata

    def _remember(self, metadata: ClusterMetadata, *, everything: bool) -> None:
        self._nodes = dict(metadata.nodes)
        if everything:
            self._topics.clear()
        for name in metadata.errors:
            self._topics.pop(name, None)
        self._topics.update(metadata.topics)
        self._names_by_id = {topic.topic_id: topic.name for topic in self._topics.values()}

    @property
    def nodes(self) -> Mapping[int, Node]:
        return self._nodes

    def topic(self, name: str) -> TopicMetadata:
        """The topic as last heard of; the cluster is asked when it is unknown. Raises NoSuchPartitionError."""
        known = self._topics.get(name)
        return known if known is not None else self.retry(lambda: self._ask_topic(name))

    def _ask_topic(self, name: str) -> TopicMetadata:
        metadata = self.refresh([name])
        code = metadata.errors.get(name)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchPartitionError(f"there is no topic {name!r}; create it with 'tidelog topics create {name}'")
        if code is not None:
            raise BrokerError(code, subject=f"topic {name}")
        return metadata.topics[name]

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return self._names_by_id.get(topic_id)

    def forget(self, name: str) -> None:
        """The next use asks the cluster again."""
        self._topics.pop(name, None)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads the partition; raises NoSuchPartitionError, or LEADER_NOT_AVAILABLE as BrokerError."""
        found = self._partition(topic, partition)
        if found is None:
            self.forget(topic)  # it may have grown since
            found = self._partition(topic, partition)
        if found is None:
            last = len(self.topic(topic).partitions) - 1
            raise NoSuchPartitionError(f"topic {topic!r} has no partition {partition}; it has 0 to {last}")
        if found.leader_id < 0:
            self.forget(topic)
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic}-{partition} has no leader now")
        return found.leader_id

    def _partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        return next((row for row in self.topic(topic).partitions if row.partition == partition), None)

    # Requests

    def call(self, api: Api, message: object, response_class: type[ResponseT]) -> ResponseT:
        """Send to any broker; admin requests may go to any, which hands them on to the controller."""
        return self.any_connection().request(api, message, response_class)

    def retry(
        self,
        action: Callable[[], ResultT],
        *,
        timeout_s: float | None = None,
        giving_up_on: frozenset[ErrorCode] = frozenset(),
        repeatable: bool = True,
    ) -> ResultT:
        """Do it again while it fails for a reason that may pass, until the time is up.

        When no broker at all can be reached it ends at once: whoever waits at a terminal wants to know. `repeatable`
        says that doing twice what was meant once does no harm, so that a lost connection may be tried again.
        """
        deadline = self.monotonic() + (self.request_timeout_s if timeout_s is None else timeout_s)
        pause_s = RETRY_BACKOFF_S
        while True:
            try:
                return action()
            except ClientError as error:
                if not is_passing(error) or self.monotonic() + pause_s >= deadline:
                    raise
                if isinstance(error, BrokerError) and error.code in giving_up_on:
                    raise
                if isinstance(error, (ConnectionLostError, RequestTimeoutError)) and not repeatable:
                    raise
                if isinstance(error, ConnectError):
                    self.any_connection()
            self.pause(pause_s)
            pause_s = min(pause_s * 2, RETRY_BACKOFF_S_MAX)

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions grouped by the node that leads them."""
        grouped: dict[int, list[TopicPartition]] = {}
        for topic_partition in partitions:
            leader_id = self.leader(topic_partition.topic, topic_partition.partition)
            grouped.setdefault(leader_id, []).append(topic_partition)
        return grouped

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)


def is_passing(error: ClientError) -> bool:
    """Whether trying again after a look at fresh metadata may help."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, (ConnectError, ConnectionLostError, RequestTimeoutError))


def _read_metadata(response: MetadataResponse) -> ClusterMetadata:
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    for row in response.topics:
        name = row.name or ""
        if row.error_code != ErrorCode.NONE:
            errors[name] = error_code(row.error_code)
        else:
            topics[name] = _read_topic(row)
    nodes = {row.node_id: Node(row.node_id, Address(row.host, row.port), row.rack) for row in response.brokers}
    return ClusterMetadata(response.cluster_id, response.controller_id, nodes, topics, errors)


def _read_topic(row: MetadataResponseTopic) -> TopicMetadata:
    partitions = tuple(
        PartitionMetadata(
            partition=partition.partition_index,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            replicas=tuple(partition.replica_nodes),
            isr=tuple(partition.isr_nodes),
            offline_replicas=tuple(partition.offline_replicas),
        )
        for partition in sorted(row.partitions, key=lambda partition: partition.partition_index)
    )
    return TopicMetadata(row.name or "", row.topic_id or ZERO_UUID, row.is_internal, partitions)
