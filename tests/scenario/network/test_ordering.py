"""Answers leave in the order of their requests; a request that waits holds back its own connection and no other."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

Connect = Callable[[Broker], RawClient]
StartBroker = Callable[..., Broker]


def _answer_is_there(client: RawClient) -> bool:
    return bool(select.select([client.sock], [], [], 0)[0])


def test_pipelined_produces_are_answered_in_order(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    client = connect(broker)
    count = 300
    client.sock.sendall(
        b"".join(
            frame(PRODUCE, produce_request("orders", b"%d" % number, acks=(1, -1)[number % 2]), 7, number)
            for number in range(count)
        )
    )
    for number in range(count):
        correlation_id, response = client.receive(PRODUCE, ProduceResponse, 7)
        assert correlation_id == number
        assert response.responses[0].partition_responses[0].base_offset == number


def test_acks_0_has_no_answer_and_later_ones_are_not_confused(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    client = connect(broker)
    for _ in range(3):
        client.send(PRODUCE, produce_request("orders", b"x", acks=0), 7)
    response = client.ask(PRODUCE, produce_request("orders", b"x", acks=1), ProduceResponse, 7)
    assert response.responses[0].partition_responses[0].base_offset == 3


def test_acks_0_that_fails_closes_the_connection(broker: Broker, connect: Connect) -> None:
    client = connect(broker)
    client.send(PRODUCE, produce_request("nowhere", b"x", acks=0), 7)
    assert client.was_closed()


def test_a_parked_fetch_holds_back_its_own_connection_only(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    waiting, other = connect(broker), connect(broker)
    fetch_id = waiting.send(FETCH, fetch_request("orders", 0), 11)
    metadata_id = waiting.send(METADATA, MetadataRequest(topics=[]), 1)
    for _ in range(5):
        other.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1)
    assert not _answer_is_there(waiting)
    other.ask(PRODUCE, produce_request("orders", b"at last"), ProduceResponse, 7)
    answered_id, fetched = waiting.receive(FETCH, FetchResponse, 11)
    assert answered_id == fetch_id
    records = fetched.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert b"at last" in bytes(records)
    assert waiting.receive(METADATA, MetadataResponse, 1)[0] == metadata_id


def test_many_requests_behind_a_parked_one_wait_in_the_socket(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    waiting, other = connect(broker), connect(broker)
    waiting.send(FETCH, fetch_request("orders", 0), 11)
    request = frame(METADATA, MetadataRequest(topics=[]), 1)
    waiting.sock.sendall(request * 10_000)  # 230 kB, more than the broker reads ahead
    other.ask(PRODUCE, produce_request("orders", b"at last"), ProduceResponse, 7)
    waiting.receive(FETCH, FetchResponse, 11)
    for _ in range(10_000):
        assert waiting.receive(METADATA, MetadataResponse, 1)[1].brokers


def test_a_client_that_does_not_read_is_not_read_from(start_broker: StartBroker, connect: Connect) -> None:
    # Small buffers in the kernel, so that it takes few requests to fill them.
    broker = start_broker(settings={"socket.send.buffer.bytes": 32768, "socket.receive.buffer.bytes": 32768})
    client = connect(broker)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    request = frame(METADATA, MetadataRequest(topics=[]), 1)
    client.sock.setblocking(False)
    sent_bytes = 0
    block = request * 5000
    position = 0
    while True:
        _, writable, _ = select.select([], [client.sock], [], 1.0)
        if not writable:
            break
        sent = client.sock.send(block[position:])
        sent_bytes += sent
        position = (position + sent) % len(block)
        assert sent_bytes < 200 << 20, "the broker takes requests without end"
    assert broker.server.connections.memory.held_bytes < 4 << 20
    other = connect(broker)
    assert other.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers
    client.sock.settimeout(20)
    for _ in range(sent_bytes // len(request)):
        client.receive(METADATA, MetadataResponse, 1)


def test_large_fetches_arrive_whole_over_a_slow_reader(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    client = connect(broker)
    value = bytes(range(256)) * 3600
    for _ in range(8):
        client.ask(PRODUCE, produce_request("orders", value), ProduceResponse, 7)
    client.send(FETCH, fetch_request("orders", 0), 11)
    client.send(METADATA, MetadataRequest(topics=[]), 1)
    _, fetched = client.receive(FETCH, FetchResponse, 11)
    records = fetched.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    assert bytes(records).count(value) == 8
    assert client.receive(METADATA, MetadataResponse, 1)[1].brokers
