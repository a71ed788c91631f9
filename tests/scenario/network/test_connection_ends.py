"""However a connection ends, its client gets what it is owed and the broker keeps nothing of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidelog.broker import half_closed
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.server.server import BrokerServer
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

Connect = Callable[[Broker], RawClient]
WaitUntil = Callable[[Callable[[], bool], str], None]


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _is_parked(broker: Broker, count: int) -> bool:
    async def busy() -> int:
        return sum(connection.is_busy for connection in broker.server.connections.all())

    return broker.call(lambda server: busy()) == count


def test_a_half_closed_client_still_gets_its_answers(broker: Broker, connect: Connect, wait_until: WaitUntil) -> None:
    broker.create_topic("orders")
    client = connect(broker)
    for number in range(5):
        client.sock.sendall(frame(PRODUCE, produce_request("orders", b"x"), 7, number))
    client.end_sending()
    for number in range(5):
        assert client.receive(PRODUCE, ProduceResponse, 7)[0] == number
    assert client.was_closed()
    wait_until(lambda: len(broker.server.connections) == 0, "the connection is forgotten")


def test_a_half_closed_client_gets_the_end_of_its_long_poll(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    client, other = connect(broker), connect(broker)
    client.send(FETCH, fetch_request("orders", 0), 11)
    client.end_sending()
    other.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
    assert client.receive(FETCH, FetchResponse, 11)[1].responses
    assert client.was_closed()


def test_half_a_request_and_then_the_end(broker: Broker, connect: Connect, wait_until: WaitUntil) -> None:
    client = connect(broker)
    client.sock.sendall(frame(METADATA, MetadataRequest(topics=[]), 1)[:-3])
    client.end_sending()
    assert client.was_closed()
    wait_until(lambda: broker.server.connections.memory.held_bytes == 0, "its bytes are given back")


def test_a_reset_in_a_long_poll_cancels_it(broker: Broker, wait_until: WaitUntil) -> None:
    broker.create_topic("orders")
    files_before = _open_files()
    clients = [RawClient(broker.port) for _ in range(50)]
    for client in clients:
        client.send(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
    wait_until(lambda: _is_parked(broker, 50), "all fetches are parked")
    for client in clients:
        client.reset()
    connections = broker.server.connections
    wait_until(lambda: len(connections) == 0, "all connections are forgotten")
    wait_until(lambda: connections.memory.held_bytes == 0, "all memory is given back")
    wait_until(lambda: _open_files() <= files_before, "all sockets are closed")
    with RawClient(broker.port) as client:
        client.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
        assert client.ask(FETCH, fetch_request("orders", 0), FetchResponse, 11).responses


def test_a_reset_of_a_half_closed_client_cancels_its_long_poll(broker: Broker, wait_until: WaitUntil) -> None:
    broker.create_topic("orders")
    files_before = _open_files()
    clients = [RawClient(broker.port) for _ in range(50)]
    connections = broker.server.connections
    for client in clients:
        client.send(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
        client.end_sending()
    wait_until(lambda: len(connections.half_closed) == 50, "all have closed their side")
    assert _is_parked(broker, 50)
    for client in clients:
        client.reset()
    wait_until(lambda: len(connections) == 0, "all connections are forgotten")
    wait_until(lambda: _open_files() <= files_before, "all sockets are closed")


def test_a_client_that_closed_its_socket_is_found_to_be_gone(
    broker: Broker, connect: Connect, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its system answers the probes of the connection until it has forgotten it; those of a client that reads go on."""
    monkeypatch.setattr(half_closed, "PROBE_INTERVAL_S", 1)
    broker.create_topic("orders")
    reading, gone = connect(broker), connect(broker)
    gone.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)  # a second instead of a minute
    for client in (reading, gone):
        client.send(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
    wait_until(lambda: _is_parked(broker, 2), "both fetches are parked")
    gone.close()
    reading.end_sending()
    wait_until(lambda: len(broker.server.connections) == 1, "the client that is gone is forgotten")
    with RawClient(broker.port) as other:
        other.ask(PRODUCE, produce_request("orders", b"x"), ProduceResponse, 7)
    assert reading.receive(FETCH, FetchResponse, 11)[1].responses


def test_a_reset_in_the_middle_of_a_large_answer_lets_go_of_the_file(broker: Broker, wait_until: WaitUntil) -> None:
    broker.create_topic("orders")
    with RawClient(broker.port) as producer:
        for _ in range(16):
            producer.ask(PRODUCE, produce_request("orders", bytes(900_000)), ProduceResponse, 7)
    connections = broker.server.connections
    wait_until(lambda: len(connections) == 0, "the producer is gone")
    files_before = _open_files()
    for _ in range(5):
        client = RawClient(broker.port)
        client.send(FETCH, fetch_request("orders", 0), 11)
        client.sock.recv(1000)
        client.reset()
    wait_until(lambda: len(connections) == 0, "all connections are forgotten")
    wait_until(lambda: _open_files() <= files_before, "nothing stays open")


def test_a_stop_answers_what_was_asked_and_does_not_wait_for_long_polls(broker: Broker, connect: Connect) -> None:
    broker.create_topic("orders")
    waiting = connect(broker)
    waiting.send(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
    client = connect(broker)
    client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1)
    broker.stop()
    assert waiting.was_closed()
    assert client.was_closed()


def test_a_reset_right_behind_a_request_is_noticed(broker: Broker, wait_until: WaitUntil) -> None:
    """The request and the reset are there before the broker reads: the event loop tells of both at once."""
    broker.create_topic("orders")
    parked = frame(FETCH, fetch_request("orders", 0, max_wait_ms=600_000), 11)
    unanswered = frame(PRODUCE, produce_request("orders", b"x", acks=0), 7)
    for request in (parked, parked * 3, parked[:-1], unanswered, b""):
        with _busy(broker):
            for _ in range(5):
                client = RawClient(broker.port)
                client.sock.sendall(request)
                client.reset()
        wait_until(lambda: len(broker.server.connections) == 0, "all connections are forgotten")
    assert broker.server.connections.memory.held_bytes == 0


@contextmanager
def _busy(broker: Broker) -> Iterator[None]:
    """Keep the broker's event loop from looking at its sockets."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    async def block(_: BrokerServer) -> None:
        is_busy.set()
        assert may_go_on.wait(20)

    blocker = threading.Thread(target=broker.call, args=(block,))
    blocker.start()
    assert is_busy.wait(20)
    try:
        yield
    finally:
        may_go_on.set()
        blocker.join()
