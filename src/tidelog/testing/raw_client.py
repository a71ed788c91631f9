"""A connection that speaks the protocol by hand, for tests of what a broker does with unusual clients.

What always holds: nothing is sent or read but what the test says; every wait ends after a deadline with an error.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TypeVar

from tidelog.common.closing import Closing
from tidelog.protocol import Api, RequestHeader, decode, decode_response_header, encode, encode_request_header
from tidelog.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.records import encode_batch

ResponseT = TypeVar("ResponseT")

_DEADLINE_S = 20.0


class RawClient(Closing):
    """One connection to a broker."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.sock = socket.create_connection((host, port), timeout=_DEADLINE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def send(self, api: Api, request: object, version: int, client_id: str | None = "raw") -> int:
        """Send one request; returns its correlation id."""
        self._correlation_id += 1
        self.sock.sendall(frame(api, request, version, self._correlation_id, client_id))
        return self._correlation_id

    def receive(self, api: Api, response: type[ResponseT], version: int) -> tuple[int, ResponseT]:
        """The next answer with its correlation id."""
        data = self.receive_frame()
        correlation_id, offset = decode_response_header(api, version, data)
        return correlation_id, decode(response, data, version, offset)

    def ask(self, api: Api, request: object, response: type[ResponseT], version: int) -> ResponseT:
        """Send one request and give its answer."""
        sent_id = self.send(api, request, version)
        received_id, answer = self.receive(api, response, version)
        assert received_id == sent_id, f"answer {received_id} came for request {sent_id}"
        return answer

    def receive_frame(self) -> bytes:
        """The next answer without its size."""
        return self._receive_exactly(struct.unpack(">i", self._receive_exactly(4))[0])

    def was_closed(self) -> bool:
        """Whether the broker closes the connection without sending anything more."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def end_sending(self) -> None:
        """Half-close: no more requests will come, answers are still read."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Break the connection, as a client that is killed with unread data does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def _receive_exactly(self, size_bytes: int) -> bytes:
        parts = []
        while size_bytes:
            part = self.sock.recv(min(size_bytes, 1 << 20))
            if not part:
                raise ConnectionError(f"the broker closed the connection {size_bytes} bytes before the answer's end")
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)


def frame(api: Api, request: object, version: int, correlation_id: int = 1, client_id: str | None = "raw") -> bytes:
    """One request as it stands on the wire."""
    body = encode_request_header(RequestHeader(api.key, version, correlation_id, client_id)) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def produce_request(topic: str, *values: bytes, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """A request with one batch, for versions up to 12."""
    batch = encode_batch([(None, value, (), None) for value in values], now_ms=time.time_ns() // 1_000_000)
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch_request(
    topic: str, offset: int, *, partition: int = 0, max_wait_ms: int = 10_000, max_bytes: int = 64 << 20
) -> FetchRequest:
    """A request for at least one byte of one partition, for versions up to 12."""
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
