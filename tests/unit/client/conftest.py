"""A cluster without sockets: one broker of a few lines that keeps logs in memory and can be told to fail."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidelog.client.address import Address
from tidelog.client.cluster import Cluster
from tidelog.client.connection import Connection
from tidelog.client.errors import ConnectionLostError
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages import k00_produce, k01_fetch, k02_list_offsets, k03_metadata, k22_init_producer_id
from tidelog.records import Record, assign_offsets, decode_records, parse_header

TOPIC_ID = uuid.UUID(int=77)


@dataclass
class FakeBroker:
    """Topic `t`; answers like a broker, except for the faults that wait in `faults`.

    A fault is an error code for the next produced batch, "lose" (stored, then the connection breaks), or "drop" (the
    connection breaks before anything is stored). None lets one pass.
    """

    partitions: int = 2
    faults: deque[ErrorCode | str | None] = field(default_factory=deque)
    logs: dict[int, list[Record]] = field(default_factory=dict)
    batches: dict[int, bytearray] = field(default_factory=dict)
    sequences: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    next_producer_id: int = 1000
    batch_bytes_max: int = 1_000_000
    produce_requests: int = 0
    fetch_errors: deque[ErrorCode] = field(default_factory=deque)

    def answer(self, api: Api, message: object) -> object:
        handlers: dict[int, Callable[[Any], object]] = {
            0: self.produce,
            1: self.fetch,
            2: self.list_offsets,
            3: self.metadata,
            22: self.init_producer_id,
        }
        return handlers[api.key](message)

    def metadata(self, request: k03_metadata.MetadataRequest) -> object:
        topics = []
        for wanted in request.topics or []:
            if wanted.name != "t":
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(k03_metadata.MetadataResponseTopic(error_code=code, name=wanted.name))
                continue
            rows = [
                k03_metadata.MetadataResponsePartition(
                    partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                )
                for index in range(self.partitions)
            ]
            topics.append(k03_metadata.MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=rows))
        brokers = [k03_metadata.MetadataResponseBroker(node_id=1, host="fake", port=1)]
        return k03_metadata.MetadataResponse(brokers=brokers, controller_id=1, topics=topics)

    def init_producer_id(self, request: object) -> object:
        self.next_producer_id += 1
        return k22_init_producer_id.InitProducerIdResponse(producer_id=self.next_producer_id, producer_epoch=0)

    def produce(self, request: k00_produce.ProduceRequest) -> object:
        self.produce_requests += 1
        rows, breaks = [], False
        for data in request.topic_data[0].partition_data:
            fault = self.faults.popleft() if self.faults else None
            if fault == "drop":
                raise ConnectionLostError("dropped")
            breaks = breaks or fault == "lose"
            records = data.records
            assert isinstance(records, bytearray)
            code = fault if isinstance(fault, ErrorCode) else self.append(data.index, records)
            rows.append(k00_produce.PartitionProduceResponse(index=data.index, error_code=code))
        if breaks:
            raise ConnectionLostError("lost")
        topic = k00_produce.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=rows)
        return k00_produce.ProduceResponse(responses=[topic])

    def append(self, partition: int, batch: bytearray) -> ErrorCode:
        header = parse_header(batch)
        if header.size_bytes > self.batch_bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE
        if header.has_producer:
            known = self.sequences.setdefault((partition, header.producer_id), [])
            extent = (header.base_sequence, header.last_sequence)
            if extent in known[-5:]:
                return ErrorCode.NONE
            # As Kafka: a producer that is not known yet may begin with any number.
            if known and header.base_sequence != known[-1][1] + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            known.append(extent)
        log = self.logs.setdefault(partition, [])
        assign_offsets(batch, len(log), 0)
        log += decode_records(batch)
        self.batches.setdefault(partition, bytearray()).extend(batch)
        return ErrorCode.NONE

    def fetch(self, request: k01_fetch.FetchRequest) -> object:
        rows = []
        for wanted in request.topics[0].partitions:
            code = self.fetch_errors.popleft() if self.fetch_errors else ErrorCode.NONE
            end = len(self.logs.get(wanted.partition, []))
            if code is ErrorCode.NONE and wanted.fetch_offset > end:
                code = ErrorCode.OFFSET_OUT_OF_RANGE
            # Whole batches from the one that holds the offset, and a cut one behind them, as a real broker answers.
            content = self.batches.get(wanted.partition, bytearray()) if wanted.fetch_offset < end else bytearray()
            records = memoryview(bytes(content) + bytes(content[:30])) if code is ErrorCode.NONE else None
            rows.append(
                k01_fetch.PartitionData(
                    partition_index=wanted.partition, error_code=code, high_watermark=end, records=records
                )
            )
        topic = k01_fetch.FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=rows)
        return k01_fetch.FetchResponse(responses=[topic])

    def list_offsets(self, request: k02_list_offsets.ListOffsetsRequest) -> object:
        rows = []
        for wanted in request.topics[0].partitions:
            log = self.logs.get(wanted.partition_index, [])
            offset = {-2: 0, -1: len(log)}.get(wanted.timestamp)
            if offset is None:
                offset = next((record.offset for record in log if record.timestamp >= wanted.timestamp), -1)
            rows.append(
                k02_list_offsets.ListOffsetsPartitionResponse(partition_index=wanted.partition_index, offset=offset)
            )
        return k02_list_offsets.ListOffsetsResponse(
            topics=[k02_list_offsets.ListOffsetsTopicResponse(name="t", partitions=rows)]
        )


class FakeConnection:
    """What the cluster needs of a Connection; a fault closes it for good."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._answers: list[object] = []
        self.is_open = True

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    def close(self) -> None:
        self.is_open = False

    def supports(self, api: Api) -> bool:
        return True

    def version_for(self, api: Api, *, at_most: int | None = None) -> int:
        return api.versions.last if at_most is None else min(api.versions.last, at_most)

    def send(self, api: Api, message: object, response_class: type, *, version: int | None = None) -> object:
        if not self.is_open:
            raise ConnectionLostError("closed")
        try:
            answer = self._broker.answer(api, message)
        except ConnectionLostError as error:
            self.is_open = False
            answer = error
        self._answers.append(answer)
        return answer

    def send_unanswered(self, api: Api, message: object, *, version: int | None = None) -> None:
        self._broker.answer(api, message)

    def receive(self, sent: object, *, timeout_s: float | None = None) -> object:
        self._answers = [answer for answer in self._answers if answer is not sent]
        if isinstance(sent, ConnectionLostError):
            raise sent
        return sent

    def request(self, api: Api, message: object, response_class: type, **_: object) -> object:
        return self.receive(self.send(api, message, response_class))


class FakeCluster(Cluster):
    """The real cluster logic over FakeConnections, with time that passes only in pauses."""

    def __init__(self, broker: FakeBroker) -> None:
        self.now_s = 0.0
        super().__init__([Address("fake", 1)], sleep=self._pass, monotonic=lambda: self.now_s)
        self._broker = broker

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds

    def _connect(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = self._connections[address] = cast(Connection, FakeConnection(self._broker))
        return connection


@dataclass
class Fake:
    broker: FakeBroker
    cluster: Cluster


@pytest.fixture
def make_fake() -> Callable[..., Fake]:
    """A fresh broker and a cluster over it; takes the fields of FakeBroker."""

    def make(**fields: Any) -> Fake:
        broker = FakeBroker(**fields)
        return Fake(broker, FakeCluster(broker))

    return make
