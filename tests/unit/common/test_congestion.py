"""Connections within one machine do not pace; others keep what the system gave them."""

from __future__ import annotations

import socket

import pytest

from tidelog.broker.listener import bind
from tidelog.common.congestion import prevent_pacing_on_loopback, stop_pacing_on_loopback
from tidelog.common.endpoint import Endpoint


class RecordedSocket:
    """A socket of some address and congestion control that notes what is set on it."""

    def __init__(self, local_host: str, congestion_control: bytes) -> None:
        self.local_host = local_host
        self.congestion_control = congestion_control

    def getsockname(self) -> tuple[str, int]:
        return self.local_host, 9092

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        return self.congestion_control.ljust(size, b"\0")

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_CONGESTION)
        self.congestion_control = value


@pytest.mark.parametrize(
    ("local_host", "peer_host", "before", "after"),
    [
        ("127.0.0.1", "127.0.0.1", b"bbr", b"reno"),
        ("::1", "::1", b"bbr", b"reno"),
        ("192.0.2.7", "192.0.2.7", b"bbr", b"reno"),
        ("127.0.0.1", "127.0.0.1", b"cubic", b"cubic"),
        ("192.0.2.7", "192.0.2.8", b"bbr", b"bbr"),
    ],
)
def test_only_pacing_within_the_machine_is_stopped(
    local_host: str, peer_host: str, before: bytes, after: bytes
) -> None:
    sock = RecordedSocket(local_host, before)
    stop_pacing_on_loopback(sock, peer_host)  # type: ignore[arg-type]
    assert sock.congestion_control == after


@pytest.mark.parametrize(
    ("host", "before", "after"),
    [
        ("127.0.0.1", b"bbr", b"reno"),
        ("127.8.0.3", b"bbr", b"reno"),
        ("::1", b"bbr", b"reno"),
        ("127.0.0.1", b"cubic", b"cubic"),
        ("0.0.0.0", b"bbr", b"bbr"),
        ("::", b"bbr", b"bbr"),
        ("192.0.2.7", b"bbr", b"bbr"),
    ],
)
def test_a_socket_that_can_reach_other_machines_may_pace(host: str, before: bytes, after: bytes) -> None:
    sock = RecordedSocket(host, before)
    prevent_pacing_on_loopback(sock, host)  # type: ignore[arg-type]
    assert sock.congestion_control == after


def test_a_connection_accepted_over_loopback_has_never_paced() -> None:
    with (
        bind(Endpoint("PLAINTEXT", "127.0.0.1", 0), backlog=1) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        server.setblocking(True)
        accepted, _ = server.accept()
        with accepted:
            used = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert not used.startswith(b"bbr")
            accepted.sendall(b"answer")
            assert client.recv(6) == b"answer"


def test_a_real_connection_works_on_and_a_broken_one_raises_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, peer = server.accept()
        with client, accepted:
            stop_pacing_on_loopback(accepted, peer[0])
            used = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
            assert not used.startswith(b"bbr")
            accepted.sendall(b"answer")
            assert client.recv(6) == b"answer"
        stop_pacing_on_loopback(accepted, peer[0])
