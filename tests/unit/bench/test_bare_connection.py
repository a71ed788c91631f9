"""The plain connection of the benchmarks gives whole answers, however they arrive, and says what went wrong."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tidelog.bench import bare
from tidelog.bench.bare import BareConnection
from tidelog.bench.errors import MeasurementError
from tidelog.protocol import ErrorCode, encode
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatResponse

VERSION = 3


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BareConnection, socket.socket]]:
    """A connection and the broker's end of it."""
    monkeypatch.setattr(bare, "_TIMEOUT_S", 20.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        closing(BareConnection(server.getsockname()[1])) as connection,
        server.accept()[0] as accepted,
    ):
        yield connection, accepted


def answer(code: int) -> bytes:
    body = struct.pack(">i", 1) + encode(HeartbeatResponse(error_code=code), VERSION)
    return struct.pack(">i", len(body)) + body


def received(connection: BareConnection) -> int:
    return connection.receive(HEARTBEAT, HeartbeatResponse, VERSION).error_code


def test_answers_that_arrive_together_are_given_one_by_one(peers: tuple[BareConnection, socket.socket]) -> None:
    connection, broker = peers
    broker.sendall(b"".join(answer(code) for code in range(30)))
    assert [received(connection) for _ in range(30)] == list(range(30))


def test_an_answer_that_arrives_in_pieces_is_given_whole(peers: tuple[BareConnection, socket.socket]) -> None:
    connection, broker = peers
    broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    both = answer(ErrorCode.UNKNOWN_MEMBER_ID) + answer(ErrorCode.NONE)

    def send() -> None:
        for byte in both:
            broker.sendall(bytes([byte]))

    sender = threading.Thread(target=send)
    sender.start()
    assert received(connection) == ErrorCode.UNKNOWN_MEMBER_ID
    assert received(connection) == ErrorCode.NONE
    sender.join()


def test_an_answer_larger_than_the_buffer_is_taken(peers: tuple[BareConnection, socket.socket]) -> None:
    connection, broker = peers
    connection._buffer = bytearray(6)
    broker.sendall(answer(3) + answer(4))
    assert [received(connection), received(connection)] == [3, 4]


def test_a_broker_that_goes_away_is_told(peers: tuple[BareConnection, socket.socket]) -> None:
    connection, broker = peers
    broker.sendall(answer(0)[:-1])
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(MeasurementError, match="closed the connection in the middle"):
        received(connection)


def test_a_broker_that_does_not_answer_is_told(peers: tuple[BareConnection, socket.socket]) -> None:
    connection, _ = peers
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 1000))
    with pytest.raises(MeasurementError, match="did not answer within 20 s"):
        received(connection)
