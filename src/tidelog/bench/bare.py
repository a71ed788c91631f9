"""The broker alone: ready-made requests over a plain socket, so that no client's work stands between it and the clock.

What always holds: requests and answers are whole and checked; the produce side keeps five requests in flight as
producers do, the fetch side one as consumers do; both ask in megabytes, the size that throughput-minded clients use.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import struct
import time
from dataclasses import dataclass
from typing import TypeVar

from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_of, held_to_one_core
from tidelog.bench.workload import Throughput
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
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.records import encode_batch, iter_headers

IN_FLIGHT = 5
BATCH_BYTES = 1_000_000
RECORD_OVERHEAD_BYTES = 12  # lengths, deltas and flags of a small record
WARM_UP_SENDS = 500
FETCH_BYTES = 1 << 20
# Versions that both brokers serve and that name topics by name.
PRODUCE_VERSION = 9
FETCH_VERSION = 12
_TIMEOUT_S = 60.0
_ECHO_ANSWER_BYTES = 60  # about what the answer to a one-record produce has

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Latency:
    """Round trips of one-record produce requests, in microseconds."""

    p50_us: float
    p99_us: float


class BareConnection:
    """Frames out, frames in; one buffer for all answers."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(4 * FETCH_BYTES)

    def close(self) -> None:
        self.sock.close()

    def receive(self, api: Api, response: type[ResponseT], version: int) -> ResponseT:
        """The next answer; its records are good until the next call."""
        view = memoryview(self._buffer)
        self._fill(view[:4])
        (size_bytes,) = struct.unpack_from(">i", view)
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
            view = memoryview(self._buffer)
        self._fill(view[:size_bytes])
        _, position = decode_response_header(api, version, view[:size_bytes])
        return decode(response, view[:size_bytes], version, position)

    def receive_bytes(self, size_bytes: int) -> None:
        self._fill(memoryview(self._buffer)[:size_bytes])

    def _fill(self, view: memoryview) -> None:
        while view:
            received = self.sock.recv_into(view)
            if not received:
                raise MeasurementError("the broker closed the connection in the middle of an answer")
            view = view[received:]


def frame(api: Api, request: object, version: int) -> bytes:
    header = RequestHeader(api_key=api.key, api_version=version, correlation_id=1, client_id="bench")
    body = encode_request_header(header) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def round_trips(broker: BrokerProcess, topic: str, count: int) -> Latency:
    """One record of 100 bytes, acks=all, the next when the answer is in."""
    request = _produce_frame(topic, bytes(100), 1, acks=-1)
    samples_us: list[float] = []
    connection = BareConnection(broker.port)
    try:
        for _ in range(WARM_UP_SENDS + count):
            began = time.perf_counter_ns()
            connection.sock.sendall(request)
            answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
            samples_us.append((time.perf_counter_ns() - began) / 1000)
            _check(broker, answer.responses[0].partition_responses[0].error_code)
    finally:
        connection.close()
    return _latency(samples_us)


def echo_round_trips(count: int) -> Latency:
    """As many bytes forth and back as a one-record produce has, answered on another core by nothing but a loop.

    Brokers run on another core than their client too; on one core the kernel would not have to wake the other.
    """
    request = _produce_frame("latency-0", bytes(100), 1, acks=-1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = multiprocessing.get_context("spawn").Process(target=_echo, args=(server, len(request)), daemon=True)
        with held_to_one_core():
            echo.start()
        connection = BareConnection(server.getsockname()[1])
        samples_us: list[float] = []
        try:
            with held_to_one_core(other=True):
                for _ in range(WARM_UP_SENDS + count):
                    began = time.perf_counter_ns()
                    connection.sock.sendall(request)
                    connection.receive_bytes(_ECHO_ANSWER_BYTES)
                    samples_us.append((time.perf_counter_ns() - began) / 1000)
        finally:
            connection.close()
            echo.join()
    return _latency(samples_us)


def _echo(server: socket.socket, request_bytes: int) -> None:
    sock, _ = server.accept()
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(request_bytes)
        while sock.recv_into(buffer, request_bytes, socket.MSG_WAITALL) == request_bytes:
            sock.sendall(buffer[:_ECHO_ANSWER_BYTES])


def _latency(samples_us: list[float]) -> Latency:
    measured = samples_us[WARM_UP_SENDS:]
    return Latency(p50_us=statistics.median(measured), p99_us=statistics.quantiles(measured, n=100)[98])


def produce_batches(broker: BrokerProcess, topic: str, record_bytes: int, megabytes: int, acks: int) -> Throughput:
    """The same batch again and again, until that many megabytes are acknowledged."""
    records = BATCH_BYTES // (record_bytes + RECORD_OVERHEAD_BYTES)
    request = _produce_frame(topic, bytes(record_bytes), records, acks)
    count = megabytes * 1_000_000 // BATCH_BYTES
    connection = BareConnection(broker.port)
    try:
        before = cpu_of(broker.pid)
        began = time.perf_counter()
        for sent in range(count + IN_FLIGHT):
            if sent >= IN_FLIGHT:
                answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
                _check(broker, answer.responses[0].partition_responses[0].error_code)
            if sent < count:
                connection.sock.sendall(request)
        seconds = time.perf_counter() - began
        return Throughput(seconds, count * records, count * records * record_bytes, cpu_of(broker.pid) - before)
    finally:
        connection.close()


def fetch_batches(broker: BrokerProcess, topic: str, record_bytes: int, records: int) -> Throughput:
    """From the first offset to the last, opening nothing but the batches' headers."""
    connection = BareConnection(broker.port)
    try:
        before = cpu_of(broker.pid)
        began = time.perf_counter()
        offset = 0
        while offset < records:
            connection.sock.sendall(frame(FETCH, _fetch_from(topic, offset), FETCH_VERSION))
            answer = connection.receive(FETCH, FetchResponse, FETCH_VERSION).responses[0].partitions[0]
            _check(broker, answer.error_code)
            if not isinstance(answer.records, memoryview):
                raise MeasurementError(f"{broker.name} had no records at offset {offset} of {records}")
            for _, header in iter_headers(answer.records, allow_partial=True):
                offset = header.next_offset
        seconds = time.perf_counter() - began
        return Throughput(seconds, records, records * record_bytes, cpu_of(broker.pid) - before)
    finally:
        connection.close()


def _produce_frame(topic: str, value: bytes, records: int, acks: int) -> bytes:
    batch = encode_batch([(None, value, (), None)] * records, now_ms=time.time_ns() // 1_000_000)
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return frame(PRODUCE, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data]), PRODUCE_VERSION)


def _fetch_from(topic: str, offset: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, session_epoch=-1, topics=topics)


def _check(broker: BrokerProcess, code: int) -> None:
    if code != ErrorCode.NONE:
        raise MeasurementError(f"{broker.name} refused a request: {ErrorCode(code).name}")
