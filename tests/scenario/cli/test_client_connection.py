"""The client against brokers that are old, silent, or none at all."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog.client.address import Address
from tidelog.client.cluster import Cluster, TopicPartition
from tidelog.client.connection import Connection
from tidelog.client.consume import BEGINNING, Consumer
from tidelog.client.errors import (
    ConnectError,
    ConnectionLostError,
    InvalidResponseError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from tidelog.client.partitioner import partition_for_key
from tidelog.client.produce import Producer
from tidelog.protocol.messages.k03_metadata import METADATA
from tidelog.protocol.messages.k19_create_topics import CREATE_TOPICS

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker

Serve = Callable[[socket.socket], None]
DEADLINE_S = 20.0


@pytest.fixture
def listen() -> Iterator[Callable[[Serve], Address]]:
    """Serve one connection by a function, on a thread that ends with the test."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(serve: Serve) -> Address:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(DEADLINE_S)

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(DEADLINE_S)
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        listeners.append(listener)
        threads.append(thread)
        return Address("127.0.0.1", listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(DEADLINE_S)
    for listener in listeners:
        listener.close()


def read_request(connection: socket.socket) -> tuple[int, int, int]:
    """Key, version and correlation id of the next request."""
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return struct.unpack_from(">hhi", connection.recv(size, socket.MSG_WAITALL))


def answer(connection: socket.socket, correlation_id: int, body: bytes) -> None:
    connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


def versions_v0(error_code: int, *ranges: tuple[int, int, int]) -> bytes:
    return struct.pack(">hi", error_code, len(ranges)) + b"".join(struct.pack(">hhh", *row) for row in ranges)


def test_falls_back_to_the_versions_of_an_older_broker(listen: Callable[[Serve], Address]) -> None:
    asked: list[int] = []

    def old_broker(connection: socket.socket) -> None:
        _, version, correlation_id = read_request(connection)
        asked.append(version)
        answer(connection, correlation_id, versions_v0(35, (18, 0, 0)))
        _, version, correlation_id = read_request(connection)
        asked.append(version)
        answer(connection, correlation_id, versions_v0(0, (18, 0, 0), (3, 0, 5), (19, 0, 1)))

    connection = Connection(listen(old_broker))
    try:
        assert asked[0] >= 3
        assert asked[1:] == [0]
        assert connection.version_for(METADATA) == 5
        assert connection.version_for(METADATA, at_most=2) == 2
        assert not connection.supports(CREATE_TOPICS)
        with pytest.raises(
            UnsupportedVersionError, match=r"offers versions 0-1 of CreateTopics, this client speaks 2-7"
        ):
            connection.version_for(CREATE_TOPICS)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("serve", "error", "message"),
    [
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n"), InvalidResponseError, "plain text"),
        (lambda connection: None, ConnectionLostError, "lost the connection"),
        (lambda connection: connection.sendall(struct.pack(">i", 100) + b"x"), ConnectionLostError, "lost"),
        (lambda connection: answer(connection, 77, b"\0\0"), InvalidResponseError, "answered request 77 where 0"),
        (lambda connection: answer(connection, 0, b"\0\0"), InvalidResponseError, "can't be read"),
    ],
)
def test_whatever_answers_is_told_in_words(
    listen: Callable[[Serve], Address], serve: Serve, error: type[Exception], message: str
) -> None:
    def after_the_request(connection: socket.socket) -> None:
        read_request(connection)
        serve(connection)

    address = listen(after_the_request)
    with pytest.raises(error, match=message):
        Connection(address)


def test_a_silent_broker_times_out(listen: Callable[[Serve], Address]) -> None:
    done = threading.Event()

    def keep_silent(connection: socket.socket) -> None:
        done.wait(DEADLINE_S)

    address = listen(keep_silent)
    try:
        with pytest.raises(RequestTimeoutError, match=r"did not answer ApiVersions within 0\.2 s"):
            Connection(address, connect_timeout_s=0.2)
    finally:
        done.set()


def test_unknown_hosts_are_named() -> None:
    with pytest.raises(
        ConnectError, match=r"cannot reach broker at no-such-host\.invalid:9092: the host name is unknown"
    ):
        Connection(Address("no-such-host.invalid", 9092))


def test_answers_may_be_asked_for_in_any_order(broker: Broker) -> None:
    from tidelog.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse

    with_host = Address("127.0.0.1", broker.port)
    connection = Connection(with_host)
    try:
        sent = [connection.send(METADATA, MetadataRequest(topics=[]), MetadataResponse) for _ in range(5)]
        assert connection.in_flight == 5
        answers = [connection.receive(one) for one in (sent[3], sent[0], sent[4], sent[1], sent[2])]
        assert {answer.brokers[0].port for answer in answers} == {broker.port}
        assert connection.in_flight == 0
    finally:
        connection.close()


def test_producer_and_consumer_outlive_a_restart_of_the_broker(broker: Broker) -> None:
    broker.create_topic("t", 2)
    with Cluster(broker.bootstrap) as cluster:
        producer = Producer(cluster, idempotent=True)
        consumer = Consumer(cluster)
        consumer.assign({TopicPartition("t", 0): BEGINNING, TopicPartition("t", 1): BEGINNING})
        for number in range(10):
            producer.send("t", b"%d" % number, partition=number % 2)
        producer.flush()
        first = consumer.poll()
        assert first is not None
        seen = len(first.records)
        broker.stop()
        for number in range(10, 20):
            producer.send("t", b"%d" % number, partition=number % 2)
        restart = threading.Thread(target=broker.start)
        restart.start()
        producer.flush()
        restart.join(DEADLINE_S)
        assert producer.delivery.delivered_records == 20
        assert producer.delivery.failed_records == 0
        while seen < 20:
            fetched = consumer.poll()
            seen += len(fetched.records) if fetched is not None else 0
        assert seen == 20


def test_keys_go_where_librdkafka_sends_them(broker: Broker) -> None:
    import random

    import confluent_kafka

    broker.create_topic("keyed", 7)
    source = random.Random(11)
    keys = list({source.randbytes(source.randrange(1, 40)) for _ in range(10_000)})
    chosen: dict[bytes, int] = {}

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert key is not None
        assert partition is not None
        chosen[key] = partition

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce("keyed", key=key, value=b"", on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert chosen == {key: partition_for_key(key, 7) for key in keys}
