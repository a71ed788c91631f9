"""The broker alone: ready-made requests over a plain socket, so that no client's work stands between it and the clock.

What always holds: requests and answers are whole and checked; the produce side keeps five requests in flight as
producers do, the fetch side one as consumers do; both ask in megabytes, the size that throughput-minded clients use.
This side does as little as it can, the same for whichever broker it talks to.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import struct
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_s_of, held_to_one_core
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
_SIZE_BYTES = 4
_OFFSET = struct.Struct(">q")
_SOME_OFFSET = 0x0123_4567_89AB_CDEF  # unlike anything else in a request, so that its place is found
_ECHO_ANSWER_BYTES = 60  # about what the answer to a one-record produce has

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Latency:
    """Round trips of one-record produce requests, in microseconds."""

    p50_us: float
    p99_us: float


class BareConnection:
    """Frames out, frames in, with as few system calls as can be: this side's work is no part of what is measured."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel watches the time: with Python's own time-out every call would be two.
        self.sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(_TIMEOUT_S), 0))
        # What was received and is not yet looked at lies between _start and _end.
        self._buffer = bytearray(4 * FETCH_BYTES)
        self._start = self._end = 0

    def close(self) -> None:
        self.sock.close()

    def receive(self, api: Api, response: type[ResponseT], version: int) -> ResponseT:
        """The next answer; its records are good until the next call."""
        answer = self._receive_frame()
        _, position = decode_response_header(api, version, answer)
        return decode(response, answer, version, position)

    def receive_bytes(self, size_bytes: int) -> None:
        self._receive_up_to(size_bytes)
        self._start = self._end = 0

    def _receive_frame(self) -> memoryview:
        waiting_bytes = self._end - self._start
        if self._start:
            self._buffer[:waiting_bytes] = self._buffer[self._start : self._end]
            self._start, self._end = 0, waiting_bytes
        while self._end < _SIZE_BYTES:
            self._receive_into(memoryview(self._buffer)[self._end :], 0)
        frame_bytes = _SIZE_BYTES + struct.unpack_from(">i", self._buffer)[0]
        if frame_bytes > len(self._buffer):
            self._buffer = self._buffer[: self._end] + bytes(frame_bytes - self._end)
        self._receive_up_to(frame_bytes)
        self._start = frame_bytes
        return memoryview(self._buffer)[_SIZE_BYTES:frame_bytes]

    def _receive_up_to(self, end: int) -> None:
        while self._end < end:
            self._receive_into(memoryview(self._buffer)[self._end : end], socket.MSG_WAITALL)

    def _receive_into(self, room: memoryview, flags: int) -> None:
        try:
            received_bytes = self.sock.recv_into(room, 0, flags)
        except BlockingIOError:
            raise MeasurementError(f"the broker did not answer within {_TIMEOUT_S:g} s") from None
        if not received_bytes:
            raise MeasurementError("the broker closed the connection in the middle of an answer")
        self._end += received_bytes


def frame(api: Api, request: object, version: int) -> bytes:
    header = RequestHeader(api_key=api.key, api_version=version, correlation_id=1, client_id="bench")
    body = encode_request_header(header) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def round_trips(broker: BrokerProcess, topic: str, count: int) -> Latency:
    """One record of 100 bytes, acks=all, the next when the answer is in."""
    request = produce_frame(topic, bytes(100), 1, acks=-1)
    samples_us: list[float] = []
    connection = BareConnection(broker.port)
    try:
        for _ in range(WARM_UP_SENDS + count):
            began = time.perf_counter_ns()
            connection.sock.sendall(request)
            answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
            samples_us.append((time.perf_counter_ns() - began) / 1000)
            check_accepted(broker, answer.responses[0].partition_responses[0].error_code)
    finally:
        connection.close()
    return _latency(samples_us)


def echo_round_trips(count: int) -> Latency:
    """As many bytes in each direction as a one-record produce has, answered by a bare loop on another core.

    Brokers run on another core than their client too; on one core the kernel would not have to wake the other.
    """
    request = produce_frame("latency-0", bytes(100), 1, acks=-1)
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


def produce_batches(
    broker: BrokerProcess, topic: str, record_bytes: int, count: int, *, acks: int, batch_bytes: int = BATCH_BYTES
) -> Throughput:
    """The same batch again and again, until this many are acknowledged."""
    records = batch_bytes // (record_bytes + RECORD_OVERHEAD_BYTES)
    request = produce_frame(topic, bytes(record_bytes), records, acks)
    with closing(BareConnection(broker.port)) as connection:
        cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
        for sent in range(count + IN_FLIGHT):
            if sent >= IN_FLIGHT:
                answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
                check_accepted(broker, answer.responses[0].partition_responses[0].error_code)
            if sent < count:
                connection.sock.sendall(request)
        seconds = time.perf_counter() - began_s
        cpu_s = cpu_s_of(broker.pid) - cpu_before_s
    return Throughput(seconds, count * records, count * records * record_bytes, cpu_s)


def fetch_batches(broker: BrokerProcess, topic: str, record_bytes: int, end_offset: int, count: int) -> Throughput:
    """This many fetches, from the first offset to the last and over again, opening nothing but the batches' headers."""
    request = bytearray(frame(FETCH, _fetch_from(topic, _SOME_OFFSET), FETCH_VERSION))
    offset_at = request.index(_OFFSET.pack(_SOME_OFFSET))
    records = 0
    with closing(BareConnection(broker.port)) as connection:
        cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
        offset = 0
        for _ in range(count):
            _OFFSET.pack_into(request, offset_at, offset)
            connection.sock.sendall(request)
            answer = connection.receive(FETCH, FetchResponse, FETCH_VERSION).responses[0].partitions[0]
            check_accepted(broker, answer.error_code)
            if not isinstance(answer.records, memoryview):
                raise MeasurementError(f"{broker.name} had no records at offset {offset} of {end_offset}")
            first_offset = offset
            for _, header in iter_headers(answer.records, allow_partial=True):
                offset = header.next_offset
            records += offset - first_offset
            if offset == end_offset:
                offset = 0
        seconds = time.perf_counter() - began_s
        cpu_s = cpu_s_of(broker.pid) - cpu_before_s
    return Throughput(seconds, records, records * record_bytes, cpu_s)


def produce_frame(topic: str, value: bytes, records: int, acks: int, partition: int = 0) -> bytes:
    """A request with one batch of this many records of the same value."""
    batch = encode_batch([(None, value, (), None)] * records, now_ms=time.time_ns() // 1_000_000)
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    return frame(PRODUCE, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data]), PRODUCE_VERSION)


def _fetch_from(topic: str, offset: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, session_epoch=-1, topics=topics)


def check_accepted(broker: BrokerProcess, code: int) -> None:
    """Raise unless the broker did what it was asked for: the speed of refusals is no figure."""
    if code != ErrorCode.NONE:
        raise MeasurementError(f"{broker.name} refused a request: {ErrorCode(code).name}")
