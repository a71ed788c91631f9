"""Hundreds of clients that send half a request, or ask and never read, beside one that must not feel it."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tidelog.bench.processes import reset_resident_peak, resident_bytes_of, resident_peak_bytes_of
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse
from tidelog.records import Compression, encode_batch
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import GoodClient, ServedBroker, StartServed

# Tests that measure run one after another, also where others run beside them.
pytestmark = pytest.mark.xdist_group("measured")

CLIENTS = 200
ROUND_TRIPS = 50
QUEUED_BYTES_MAX = 8 << 20
SENDERS = 12
SENT_WITHIN_S = 120.0
TOPIC = "large"
# Each takes a tenth of a second if the broker takes nothing; it disconnects slow clients every few seconds.
TRICKLES_MAX = 600


@pytest.fixture
def connect() -> Iterator[Callable[[ServedBroker], RawClient]]:
    with ExitStack() as clients:
        yield lambda broker: clients.enter_context(RawClient(broker.port))


def check_good_client(client: GoodClient) -> None:
    """It goes on as usual; the first report covers the time in which the others came."""
    round_trips = 0
    while round_trips < ROUND_TRIPS:
        seen = client.report()
        seen.check()
        round_trips += seen.round_trips


def test_half_sent_requests_hold_up_nobody_else(
    serve: StartServed,
    good_client: Callable[[ServedBroker], GoodClient],
    connect: Callable[[ServedBroker], RawClient],
) -> None:
    """Together they have sent more than the broker keeps of unfinished requests."""
    broker = serve({"queued.max.request.bytes": QUEUED_BYTES_MAX, "socket.request.max.bytes": 4 << 20})
    broker.create_topic(TOPIC)
    client = good_client(broker)
    resident_bytes = resident_bytes_of(broker.pid)
    request = frame(PRODUCE, produce_request(TOPIC, bytes(500_000)), 9)
    halves = [connect(broker) for _ in range(CLIENTS)]
    for half in halves:
        # What the broker does not read stays in the sockets; no more is sent than they take.
        half.sock.setblocking(False)
        half.sock.send(request[: len(request) // 2])
    check_good_client(client)
    assert resident_bytes_of(broker.pid) < resident_bytes + 4 * QUEUED_BYTES_MAX
    for half in halves:
        half.close()
    # What they held is free again. None of them could go on: the broker may have cut off any that was silent.
    with RawClient(broker.port) as whole:
        answer = whole.ask(PRODUCE, produce_request(TOPIC, bytes(500_000)), ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    client.finish().check()


def test_batches_that_wait_for_their_check_hold_up_nobody_else(
    serve: StartServed, good_client: Callable[[ServedBroker], GoodClient]
) -> None:
    """Threads have to decompress them, and they come faster than that: the senders wait, and their bytes with them."""
    request_bytes_max = 6 << 20
    broker = serve(
        {
            "queued.max.request.bytes": QUEUED_BYTES_MAX,
            "socket.request.max.bytes": request_bytes_max,
            "message.max.bytes": request_bytes_max,
        }
    )
    broker.create_topic(TOPIC)
    client = good_client(broker)
    digits = random.Random(1).randbytes(4 << 20).hex().encode()
    requests = [frame(PRODUCE, packed_request(digits[:size]), 9) for size in (8 << 20, 2 << 20, 5 << 20, 2 << 20)] * 2
    sent_bytes = SENDERS * sum(map(len, requests))
    check_good_client(client)
    reset_resident_peak(broker.pid)
    resident_bytes = resident_bytes_of(broker.pid)

    def send_and_count(_: int) -> int:
        with RawClient(broker.port) as sender:
            sender.sock.settimeout(SENT_WITHIN_S)
            sender.sock.sendall(b"".join(requests))
            answers = [sender.receive(PRODUCE, ProduceResponse, 9)[1] for _ in requests]
        return sum(answer.responses[0].partition_responses[0].error_code == 0 for answer in answers)

    with ThreadPoolExecutor(SENDERS) as senders:
        stored = [senders.submit(send_and_count, number) for number in range(SENDERS)]
        check_good_client(client)
        assert [count.result() for count in stored] == [len(requests)] * SENDERS
    # What is held, one request past the bound, and what two threads open; with room for what malloc keeps.
    allowed_bytes = QUEUED_BYTES_MAX + request_bytes_max + 2 * len(digits) + (48 << 20)
    assert allowed_bytes < sent_bytes / 2
    assert resident_peak_bytes_of(broker.pid) < resident_bytes + allowed_bytes
    client.finish().check()


def packed_request(value: bytes) -> ProduceRequest:
    """A request with one record, compressed to about half its size."""
    now_ms = time.time_ns() // 1_000_000
    batch = encode_batch([(None, value, (), now_ms)], compression=Compression.GZIP)
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])


def test_those_that_trickle_large_requests_starve_no_sound_ones(
    serve: StartServed, connect: Callable[[ServedBroker], RawClient]
) -> None:
    """Each sends all but the end of a request, and of that a byte now and then; together they hold all the memory."""
    broker = serve({"queued.max.request.bytes": QUEUED_BYTES_MAX, "socket.request.max.bytes": QUEUED_BYTES_MAX})
    broker.create_topic(TOPIC)
    small = frame(PRODUCE, produce_request(TOPIC, bytes(900_000)), 9)
    large = frame(PRODUCE, produce_request(TOPIC, bytes(7 << 20)), 9)
    slow = [(connect(broker), large) for _ in range(3)] + [(connect(broker), small) for _ in range(30)]
    left = {}
    for client, request in slow:
        # What the broker does not read stays in the sockets; no more is sent than they take.
        client.sock.setblocking(False)
        left[client] = memoryview(request)[:-1000]
        send_what_is_taken(left, client)
    with RawClient(broker.port) as sound:
        sound.sock.settimeout(0.1)
        unsent = memoryview(small)
        for _ in range(TRICKLES_MAX):
            for client in left:
                send_what_is_taken(left, client, bytes_max=1)
            try:
                unsent = unsent[sound.sock.send(unsent) :] if unsent else unsent
            except TimeoutError:
                continue
            if not unsent:
                break
        assert not unsent, "the request of a sound client was not read"
        sound.sock.settimeout(TRICKLES_MAX / 10)
        _, answer = sound.receive(PRODUCE, ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def send_what_is_taken(left: dict[RawClient, memoryview], client: RawClient, bytes_max: int | None = None) -> None:
    """Send on until the socket is full; a connection that the broker has closed has nothing left to send."""
    try:
        while left[client]:
            sent = client.sock.send(left[client] if bytes_max is None else left[client][:bytes_max])
            left[client] = left[client][sent:]
            if bytes_max is not None:
                return
    except BlockingIOError:
        return
    except ConnectionError:
        left[client] = memoryview(b"")


def test_answers_that_nobody_reads_do_not_fill_the_memory(
    serve: StartServed,
    good_client: Callable[[ServedBroker], GoodClient],
    connect: Callable[[ServedBroker], RawClient],
) -> None:
    """A request of some twenty bytes has an answer of megabytes here, and many ask without reading."""
    clients, bound_bytes = 60, 16 << 20
    broker = serve({"tidelog.queued.max.response.bytes": bound_bytes})
    broker.create_topic(TOPIC)
    with RawClient(broker.port) as writer:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        writer.ask(FIND_COORDINATOR, asked, FindCoordinatorResponse, 4)
        for number in range(500):
            partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
            topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
            commit = OffsetCommitRequest(group_id=f"{number:04}" + "x" * 8000, topics=topics)
            answer = writer.ask(OFFSET_COMMIT, commit, OffsetCommitResponse, 8)
            assert answer.topics[0].partitions[0].error_code == 0
        whole = writer.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, 4)
        assert len(whole.groups) == 500
    client = good_client(broker)
    resident_bytes = resident_bytes_of(broker.pid)
    deaf = [connect(broker) for _ in range(clients)]
    for each in deaf:
        each.send(LIST_GROUPS, ListGroupsRequest(), 4)
    check_good_client(client)
    # Without a bound they would have 240 MB; each may have begun an answer and hold a little of it.
    assert resident_bytes_of(broker.pid) < resident_bytes + 2 * bound_bytes + clients * (512 << 10)
    with RawClient(broker.port) as reader:
        reader.sock.settimeout(60.0)
        assert len(reader.ask(LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse, 4).groups) == 500
    client.finish().check()


def test_clients_that_do_not_read_hold_up_nobody_else(
    serve: StartServed,
    good_client: Callable[[ServedBroker], GoodClient],
    connect: Callable[[ServedBroker], RawClient],
) -> None:
    broker = serve()
    broker.create_topic(TOPIC)
    with RawClient(broker.port) as writer:
        for _ in range(10):
            produced = writer.ask(PRODUCE, produce_request(TOPIC, bytes(900_000)), ProduceResponse, 9)
            assert produced.responses[0].partition_responses[0].error_code == 0
    client = good_client(broker)
    resident_bytes = resident_bytes_of(broker.pid)
    deaf = [connect(broker) for _ in range(CLIENTS)]
    for each in deaf:
        each.send(FETCH, fetch_request(TOPIC, 0), 11)
    check_good_client(client)
    # Their answers wait in the log's file, not in memory.
    assert resident_bytes_of(broker.pid) < resident_bytes + (32 << 20)
    for each in deaf[:10]:
        size = struct.unpack(">i", each.sock.recv(4))[0]
        assert size > 9_000_000
    for each in deaf:
        each.reset()
    client.finish().check()
