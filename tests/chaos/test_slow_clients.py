"""Hundreds of clients that send half a request, or ask and never read, beside one that must not feel it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tidelog.bench.processes import resident_bytes_of
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH
from tidelog.testing.raw_client import RawClient, fetch_request, frame, produce_request

if TYPE_CHECKING:
    from tests.chaos.conftest import GoodClient, ServedBroker, StartServed

# Tests that measure run one after another, also where others run beside them.
pytestmark = pytest.mark.xdist_group("measured")

CLIENTS = 200
# What is feared here lasts until the slow ones time out, minutes; a shared machine may pause for a tenth of a second.
STALL_MS_MAX = 500.0
ROUND_TRIPS = 50
QUEUED_BYTES_MAX = 8 << 20
TOPIC = "large"


@pytest.fixture
def connect() -> Iterator[Callable[[ServedBroker], RawClient]]:
    with ExitStack() as clients:
        yield lambda broker: clients.enter_context(RawClient(broker.port))


def check_good_client(client: GoodClient) -> None:
    """It goes on as usual; the first report covers the time in which the others came."""
    round_trips = 0
    while round_trips < ROUND_TRIPS:
        seen = client.report()
        assert not seen.problem
        assert seen.slowest_ms < STALL_MS_MAX
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
    sent_bytes = []
    for half in halves:
        # What the broker does not read stays in the sockets; no more is sent than they take.
        half.sock.setblocking(False)
        sent_bytes.append(half.sock.send(request[: len(request) // 2]))
    check_good_client(client)
    assert resident_bytes_of(broker.pid) < resident_bytes + 4 * QUEUED_BYTES_MAX
    for half in halves[1:]:
        half.close()
    halves[0].sock.setblocking(True)
    halves[0].sock.sendall(request[sent_bytes[0] :])
    _, answer = halves[0].receive(PRODUCE, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    seen = client.finish()
    assert not seen.problem


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
    assert not client.finish().problem
