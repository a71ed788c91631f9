"""Congestion control within one machine.

What always holds: only connections whose two ends have the same address are touched; everything that crosses a network
keeps the system's algorithm. BBR, the default of many cloud images, sends at the pace that it estimates and keeps
timers for it. Over loopback there is no congestion to avoid, and the timers cost more than the sending.

A socket that has begun with BBR goes on pacing under any other algorithm, only faster: Linux never takes that mark off
again. So a socket that can only reach this machine is told before it listens or connects. Fetching 1 MB at a time took
0.33 s of the broker's kernel time per GB with BBR, 0.16 s with Reno from the connection's acceptance on, and 0.12 s
with Reno from the start (Linux 6.18, medians of six to eight alternating runs).
"""

from __future__ import annotations

import contextlib
import socket

_OPTION: int | None = getattr(socket, "TCP_CONGESTION", None)
_NAME_BYTES = 16
_PACING_PREFIX = b"bbr"
# Always built into Linux and open to every user; it never paces.
_WITHOUT_PACING = b"reno"


def prevent_pacing_on_loopback(sock: socket.socket, host: str) -> None:
    """Before a socket listens on this address or connects to it: if it is loopback, the socket will never pace.

    Connections inherit this from the socket that accepts them.
    """
    if host.startswith("127.") or host == "::1":
        with contextlib.suppress(OSError):
            _stop_pacing(sock)


def stop_pacing_on_loopback(sock: socket.socket, peer_host: str) -> None:
    """Send to a peer on this machine as fast as it reads; leaves any other connection as it is."""
    # Where the system refuses, or the peer is gone already, sending is slower and nothing else.
    with contextlib.suppress(OSError):
        if sock.getsockname()[0] == peer_host:
            _stop_pacing(sock)


def _stop_pacing(sock: socket.socket) -> None:
    if _OPTION is None:
        return
    if sock.getsockopt(socket.IPPROTO_TCP, _OPTION, _NAME_BYTES).startswith(_PACING_PREFIX):
        sock.setsockopt(socket.IPPROTO_TCP, _OPTION, _WITHOUT_PACING)
