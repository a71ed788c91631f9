"""A plain socket that speaks Kafka's protocol, version by version, to a real broker."""

from __future__ import annotations

import itertools
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import (
    Api,
    ErrorCode,
    RequestHeader,
    decode,
    decode_response_header,
    encode,
    encode_request_header,
)
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.k65_describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from tidelog.records import Compression, Record, decode_records, encode_batch, iter_headers
from tidelog.testing import Broker

ResponseT = TypeVar("ResponseT")

DEADLINE_S = 30.0
DAY_MS = 86_400_000
_correlation_ids = itertools.count(1)


class RawClient:
    """One connection; what goes over it is what the test says, whether it makes sense or not."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.socket = socket.create_connection(("127.0.0.1", broker.port), timeout=DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Break the connection with a RST, as a killed client's kernel does with unread data."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, api: Api, version: int, request: object) -> int:
        correlation_id = next(_correlation_ids)
        header = encode_request_header(RequestHeader(api.key, version, correlation_id, "raw"))
        body = header + encode(request, version)
        self.socket.sendall(struct.pack(">i", len(body)) + body)
        return correlation_id

    def receive(self, api: Api, version: int, correlation_id: int, response: type[ResponseT]) -> ResponseT:
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        frame = self._receive_exactly(size)
        answered_id, offset = decode_response_header(api, version, frame)
        assert answered_id == correlation_id
        return decode(response, frame, version, offset)

    def ask(self, api: Api, version: int, request: object, response: type[ResponseT]) -> ResponseT:
        return self.receive(api, version, self.send(api, version, request), response)

    def is_closed_by_broker(self) -> bool:
        """Wait for the broker to close; False when it answers instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive_exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts += part
        return bytes(parts)

    # The requests that most tests make

    def produce_many(
        self,
        batches: Mapping[tuple[str, int], bytes | bytearray | None],
        *,
        acks: int = -1,
        version: int = 9,
        timeout_ms: int = 10_000,
        topic_ids: Mapping[str, uuid.UUID] | None = None,
    ) -> ProduceResponse:
        request = produce_request(batches, acks=acks, timeout_ms=timeout_ms, topic_ids=topic_ids)
        return self.ask(PRODUCE, version, request, ProduceResponse)

    def produce(
        self, topic: str, batch: bytes | bytearray | None, *, partition: int = 0, acks: int = -1, version: int = 9
    ) -> PartitionProduceResponse:
        response = self.produce_many({(topic, partition): batch}, acks=acks, version=version)
        return response.responses[0].partition_responses[0]

    def fetch_many(self, request: FetchRequest, version: int = 12) -> FetchResponse:
        return self.ask(FETCH, version, request, FetchResponse)

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 12,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 2**31 - 1,
        partition_max_bytes: int = 1 << 20,
        isolation_level: int = 0,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> PartitionData:
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=partition_max_bytes,
                            current_leader_epoch=leader_epoch,
                            last_fetched_epoch=last_fetched_epoch,
                        )
                    ],
                )
            ],
        )
        return self.fetch_many(request, version).responses[0].partitions[0]

    def list_offset(
        self,
        topic: str,
        timestamp: int,
        *,
        partition: int = 0,
        version: int = 11,
        isolation_level: int = 0,
        leader_epoch: int = -1,
    ) -> ListOffsetsPartitionResponse:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=leader_epoch)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
        )
        return self.ask(LIST_OFFSETS, version, request, ListOffsetsResponse).topics[0].partitions[0]


def produce_request(
    batches: Mapping[tuple[str, int], bytes | bytearray | None],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for (name, index), batch in batches.items():
        topic_id = ZERO_UUID if topic_ids is None else topic_ids[name]
        topic = topics.setdefault(name, TopicProduceData(name=name, topic_id=topic_id))
        topic.partition_data.append(PartitionProduceData(index=index, records=batch))
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))


def make_batch(
    *values: bytes | None,
    key: bytes | None = b"k",
    timestamp_ms: int | None = None,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return encode_batch(
        [(key, value, (), now_ms if timestamp_ms is None else timestamp_ms) for value in values],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        now_ms=now_ms,
    )


def records_of(data: PartitionData) -> list[Record]:
    """The records of whole batches in what a fetch gave."""
    assert isinstance(data.records, memoryview)
    return [
        record
        for position, _ in iter_headers(data.records, allow_partial=True)
        for record in decode_records(data.records, position)
    ]


class TransactionalProducer:
    """A transactional producer, request by request."""

    def __init__(self, raw: RawClient, transactional_id: str) -> None:
        self.raw = raw
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = -1, -1
        self.sequence = 0
        # What InitProducerId 6 said to be open.
        self.ongoing = (-1, -1)
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        [found] = raw.ask(FIND_COORDINATOR, 5, find, FindCoordinatorResponse).coordinators
        assert found.error_code == 0

    def init(self, *, timeout_ms: int = 60_000, version: int = 5, names_itself: bool = False, **more: bool) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **more
        )
        if names_itself:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = self.raw.ask(INIT_PRODUCER_ID, version, request, InitProducerIdResponse)
        if not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        self.ongoing = answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
        return answer.error_code

    def init_patiently(self, **how: Any) -> None:
        deadline_s = time.monotonic() + 20
        while (error := self.init(**how)) in (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        ):
            assert time.monotonic() < deadline_s
        assert error == 0

    def add(self, topic: str, version: int = 3, *, partitions: tuple[int, ...] = (0,)) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        answer = self.raw.ask(ADD_PARTITIONS_TO_TXN, version, request, AddPartitionsToTxnResponse)
        [result] = answer.results_by_topic_v3_and_below
        return [partition.partition_error_code for partition in result.results_by_partition]

    def verify(self, topic: str, version: int) -> int:
        asked = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=True,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        request = AddPartitionsToTxnRequest(transactions=[asked])
        answer = self.raw.ask(ADD_PARTITIONS_TO_TXN, version, request, AddPartitionsToTxnResponse)
        return answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code

    def send(self, topic: str, value: bytes, version: int = 11) -> int:
        batch = make_batch(
            value,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=True,
        )
        request = produce_request({(topic, 0): batch})
        request.transactional_id = self.transactional_id
        answer = self.raw.ask(PRODUCE, version, request, ProduceResponse).responses[0].partition_responses[0]
        self.sequence += not answer.error_code
        return answer.error_code

    def end(self, *, commit: bool, version: int = 4) -> int:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.raw.ask(END_TXN, version, request, EndTxnResponse)
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return answer.error_code

    def describe(self) -> TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        [state] = self.raw.ask(DESCRIBE_TRANSACTIONS, 0, request, DescribeTransactionsResponse).transaction_states
        return state

    def wait_for(self, state: str) -> None:
        deadline_s = time.monotonic() + 20
        while self.describe().transaction_state != state:
            assert time.monotonic() < deadline_s, self.describe()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker for the tests of a file: each test makes topics of its own, with records as old as it likes."""
    with Broker(settings={"log.initial.task.delay.ms": DAY_MS, "log.retention.check.interval.ms": DAY_MS}) as running:
        yield running


@pytest.fixture
def connect() -> Iterator[Callable[[Broker], RawClient]]:
    """Opens connections that are closed after the test."""
    clients: list[RawClient] = []

    def open_client(broker: Broker) -> RawClient:
        clients.append(RawClient(broker))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def raw(broker: Broker, connect: Callable[[Broker], RawClient]) -> RawClient:
    return connect(broker)


@pytest.fixture
def new_producer_at() -> Callable[[RawClient, str], TransactionalProducer]:
    return TransactionalProducer


_topic_numbers = itertools.count(1)


@pytest.fixture
def new_topic(broker: Broker) -> Callable[..., str]:
    """Makes a topic of a fresh name."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_topic_numbers)}"
        broker.create_topic(name, partitions, {key.replace("_", "."): value for key, value in configs.items()})
        return name

    return create


@pytest.fixture
def batch() -> Callable[..., bytearray]:
    return make_batch


@pytest.fixture
def records() -> Callable[[PartitionData], list[Record]]:
    return records_of


@pytest.fixture
def produce() -> Callable[..., ProduceRequest]:
    return produce_request
