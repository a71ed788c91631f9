"""Limits on connections, idle time and memory hold, and hold nobody back who keeps to them."""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.broker.connection import OTHER_REQUEST_BYTES_MAX
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.wire import ELEMENTS_MAX
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

Connect = Callable[[Broker], RawClient]
StartBroker = Callable[..., Broker]
WaitUntil = Callable[[Callable[[], bool], str], None]


def _serves(client: RawClient) -> bool:
    return len(client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1).brokers) == 1


def test_more_connections_than_one_address_may_have_are_closed(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(settings={"max.connections.per.ip": 2})
    first, second, third = connect(broker), connect(broker), connect(broker)
    assert third.was_closed()
    assert _serves(first)
    assert _serves(second)


def test_more_connections_than_allowed_wait_until_there_is_room(
    start_broker: StartBroker, connect: Connect, wait_until: WaitUntil
) -> None:
    broker = start_broker(settings={"max.connections": 2})
    first, second = connect(broker), connect(broker)
    assert _serves(first)
    assert _serves(second)
    third = connect(broker)
    third.send(METADATA, MetadataRequest(topics=[]), 1)
    assert _serves(first)
    assert not select.select([third.sock], [], [], 0)[0]
    second.close()
    assert third.receive(METADATA, MetadataResponse, 1)[1].brokers


def test_idle_connections_are_closed_and_slow_ones_are_not(
    start_broker: StartBroker, connect: Connect, wait_until: WaitUntil
) -> None:
    broker = start_broker(settings={"connections.max.idle.ms": 400})
    idle, slow = connect(broker), connect(broker)
    assert _serves(idle)
    started_s = time.monotonic()
    request = frame(METADATA, MetadataRequest(topics=[]), 1)
    sent = 0
    while not select.select([idle.sock], [], [], 0.05)[0]:
        if sent < len(request) - 1:
            slow.sock.sendall(request[sent : sent + 1])
            sent += 1
    assert idle.was_closed()
    assert time.monotonic() - started_s >= 0.39
    slow.sock.sendall(request[sent:])
    assert slow.receive(METADATA, MetadataResponse, 1)[1].brokers


def test_a_client_that_said_goodbye_in_a_long_poll_is_not_kept_for_ever(
    start_broker: StartBroker, connect: Connect, wait_until: WaitUntil
) -> None:
    broker = start_broker(settings={"connections.max.idle.ms": 400})
    broker.create_topic("orders")
    waiting, gone = connect(broker), connect(broker)
    for client in (waiting, gone):
        client.send(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
    gone.end_sending()
    assert gone.was_closed()
    wait_until(lambda: len(broker.server.connections) == 1, "only the client that still waits is kept")
    with RawClient(broker.port) as producer:
        producer.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
    assert waiting.receive(FETCH, FetchResponse, 11)[1].responses


def test_a_client_that_does_not_read_its_answer_is_closed_in_time(
    start_broker: StartBroker, connect: Connect, wait_until: WaitUntil
) -> None:
    broker = start_broker(settings={"connections.max.idle.ms": 400})
    broker.create_topic("orders")
    with RawClient(broker.port) as producer:
        for _ in range(16):
            producer.ask(PRODUCE, produce_request("orders", bytes(1_000_000)), ProduceResponse, 7)
    client = connect(broker)
    client.send(FETCH, fetch_request("orders", 0), 11)
    wait_until(lambda: len(broker.server.connections) == 0, "the client that takes nothing is given up")


def test_the_memory_of_all_requests_together_is_bounded(
    start_broker: StartBroker, connect: Connect, wait_until: WaitUntil
) -> None:
    bound = 4 << 20
    broker = start_broker(settings={"queued.max.request.bytes": bound, "socket.request.max.bytes": bound})
    topics = [MetadataRequestTopic(name=f"missing-{number:0200d}") for number in range(12_000)]
    request = frame(METADATA, MetadataRequest(topics=topics, allow_auto_topic_creation=False), 4)
    assert 2 << 20 < len(request) < bound
    connections = broker.server.connections
    memory = connections.memory
    may_finish = threading.Event()

    def send_and_count_topics(_: int) -> int:
        with RawClient(broker.port) as client:
            client.sock.sendall(request[:-1])
            assert may_finish.wait(20)
            client.sock.sendall(request[-1:])
            return len(client.receive(METADATA, MetadataResponse, 4)[1].topics)

    with ThreadPoolExecutor(8) as threads:
        counts = threads.map(send_and_count_topics, range(8))
        wait_until(lambda: memory.waiting_count > 0, "some connections stopped reading")
        # One may go past the bound with a request of the largest size; all others wait.
        assert memory.held_bytes <= 2 * bound
        assert connections.received_bytes < 8 * (len(request) - 1)
        may_finish.set()
        assert list(counts) == [len(topics)] * 8
    wait_until(lambda: memory.held_bytes == 0, "all memory is given back")


def test_a_request_of_exactly_the_largest_size_is_taken(start_broker: StartBroker, connect: Connect) -> None:
    request = frame(METADATA, MetadataRequest(topics=[]), 1, client_id="x" * 2000)
    limit = len(request) - 4
    broker = start_broker(settings={"socket.request.max.bytes": limit})
    client = connect(broker)
    client.sock.sendall(request)
    assert client.receive(METADATA, MetadataResponse, 1)[1].brokers
    client.sock.sendall(struct.pack(">i", limit + 1))
    assert client.was_closed()


def test_only_a_produce_may_be_very_large(
    broker: Broker, connect: Connect, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    size_bytes = OTHER_REQUEST_BYTES_MAX + 1
    producer, other = connect(broker), connect(broker)
    producer.sock.sendall(struct.pack(">ihhi", size_bytes, PRODUCE.key, 9, 1))
    # The size alone tells nothing; the API key that follows does.
    other.sock.sendall(struct.pack(">i", size_bytes))
    other.sock.sendall(struct.pack(">h", METADATA.key))
    assert other.was_closed()
    complaint = f"announced a request of {size_bytes} bytes for API key {METADATA.key}"
    wait_until(lambda: complaint in caplog.text, "the reason is logged")
    assert len(broker.server.connections) == 1
    producer.end_sending()
    assert producer.was_closed()


def test_a_request_of_too_many_elements_closes_its_connection(broker: Broker, connect: Connect) -> None:
    """They are tiny on the wire; reading and answering them would hold up everybody."""
    client = connect(broker)
    client.send(METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="x")] * ELEMENTS_MAX), 4)
    assert len(client.receive(METADATA, MetadataResponse, 4)[1].topics) == 1
    client.send(METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="x")] * (ELEMENTS_MAX + 1)), 4)
    assert client.was_closed()
