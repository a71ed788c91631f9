"""What a person is told when whatever is at the address is no broker that can be talked to."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tidelog import Admin
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import ClientError, ConnectError, InvalidResponseError

Serve = Callable[[socket.socket], None]
DEADLINE_S = 20.0


@pytest.fixture
def listen() -> Iterator[Callable[[Serve], str]]:
    """Serve connections by a function, one after the other, on a thread that ends with the test."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(serve: Serve) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # the test has ended
                with connection:
                    connection.settimeout(DEADLINE_S)
                    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                    connection.recv(size, socket.MSG_WAITALL)
                    serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        listeners.append(listener)
        threads.append(thread)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(DEADLINE_S)


def assert_set(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def answer(correlation_id: int, body: bytes) -> Serve:
    return lambda connection: connection.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


@pytest.mark.parametrize(
    ("serve", "error", "words"),
    [
        (
            lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n"),
            InvalidResponseError,
            r"the server at 127\.0\.0\.1:\d+ does not speak plaintext Kafka; check host and port",
        ),
        (lambda connection: None, ConnectError, "lost the connection to the broker at .*: closed by the broker"),
        (lambda connection: connection.sendall(struct.pack(">i", 100) + b"x"), ConnectError, "lost the connection"),
        (answer(77, b"\0\0"), InvalidResponseError, "answered request 77 where 0 was next"),
        (answer(0, b"\0\0"), InvalidResponseError, "sent an answer to ApiVersions that can't be read"),
    ],
    ids=["http", "closed", "half an answer", "wrong id", "no body"],
)
def test_whatever_answers_is_told_in_words(
    listen: Callable[[Serve], str], serve: Serve, error: type[ClientError], words: str
) -> None:
    with Admin(bootstrap_servers=listen(serve)) as admin, pytest.raises(error, match=words):
        admin.list_topics()


def test_a_silent_broker_times_out(listen: Callable[[Serve], str]) -> None:
    done = threading.Event()
    bootstrap = listen(lambda connection: assert_set(done))
    try:
        with (
            Admin(
                bootstrap_servers=bootstrap, socket_connection_setup_timeout_ms=200, default_api_timeout_ms=300
            ) as admin,
            pytest.raises(ConnectError, match=r"did not answer ApiVersions within 0\.2 s; is it overloaded\?"),
        ):
            admin.list_topics()
    finally:
        done.set()


def test_unknown_hosts_are_named() -> None:
    with (
        Admin(bootstrap_servers="no-such-host.invalid:9092") as admin,
        pytest.raises(
            ConnectError, match=r"cannot reach broker at no-such-host\.invalid:9092: the host name is unknown"
        ),
    ):
        admin.list_topics()


def test_the_first_broker_that_can_be_reached_is_asked(client_cluster: BrokerProcess) -> None:
    with Admin(bootstrap_servers=f"127.0.0.1:1,{client_cluster.bootstrap}") as admin:
        assert admin.describe_cluster().nodes
