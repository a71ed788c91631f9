"""What a broker does with frames, versions and bytes that are not as they should be; others never notice."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tidelog.protocol import ErrorCode, decode
from tidelog.protocol.messages.k00_produce import PRODUCE
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient, frame

Connect = Callable[[Broker], RawClient]
WaitUntil = Callable[[Callable[[], bool], str], None]

API_VERSIONS_V0 = frame(API_VERSIONS, ApiVersionsRequest(), 0)


def _serves(client: RawClient) -> bool:
    response = client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, 1)
    return len(response.brokers) == 1


def test_api_versions_too_new_is_answered_as_version_0(shared_broker: Broker, connect: Connect) -> None:
    client = connect(shared_broker)
    body = struct.pack(">hhih", API_VERSIONS.key, 99, 4711, -1) + b"\x00 fields of the future"
    client.sock.sendall(struct.pack(">i", len(body)) + body)
    data = client.receive_frame()
    assert struct.unpack_from(">i", data)[0] == 4711
    response = decode(ApiVersionsResponse, data, 0, 4)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(row.api_key, row.min_version) for row in response.api_keys] == [(18, 0)]
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    version = response.api_keys[0].max_version
    assert client.ask(API_VERSIONS, request, ApiVersionsResponse, version).error_code == 0


def test_produce_is_advertised_from_version_0_but_taken_from_3(shared_broker: Broker, connect: Connect) -> None:
    client = connect(shared_broker)
    response = client.ask(API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, 0)
    ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    assert ranges[PRODUCE.key][0] == 0
    body = struct.pack(">hhihhii", PRODUCE.key, 2, 1, -1, 1, 1000, 0)
    client.sock.sendall(struct.pack(">i", len(body)) + body)
    assert client.was_closed()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(struct.pack(">hhih", METADATA.key, 99, 1, -1), id="a version that is not served"),
        pytest.param(struct.pack(">hhih", METADATA.key, -1, 1, -1), id="a negative version"),
        pytest.param(struct.pack(">hhih", 999, 0, 1, -1), id="an unknown api"),
        pytest.param(struct.pack(">hhih", -1, 0, 1, -1), id="a negative api"),
        pytest.param(struct.pack(">hhih", METADATA.key, 1, 1, -1), id="a body that is missing"),
        pytest.param(API_VERSIONS_V0[4:] + b"x", id="a stray byte"),
        pytest.param(struct.pack(">hhih", METADATA.key, 1, 1, 500) + b"me", id="a client id that ends too early"),
        pytest.param(struct.pack(">hhihi", METADATA.key, 1, 1, -1, 2**31 - 1), id="an array without end"),
    ],
)
def test_a_bad_request_closes_its_connection_only(shared_broker: Broker, connect: Connect, body: bytes) -> None:
    bad, good = connect(shared_broker), connect(shared_broker)
    bad.sock.sendall(struct.pack(">i", len(body)) + body)
    assert bad.was_closed()
    assert _serves(good)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 100 * 1024 * 1024 + 1, 2**31 - 1])
def test_an_impossible_size_closes_at_once(shared_broker: Broker, connect: Connect, size: int) -> None:
    client = connect(shared_broker)
    client.sock.sendall(struct.pack(">i", size) + b"x")
    assert client.was_closed()


def test_an_announced_size_takes_no_memory(broker: Broker, connect: Connect, wait_until: WaitUntil) -> None:
    clients = [connect(broker) for _ in range(20)]
    for client in clients:
        client.sock.sendall(struct.pack(">i", 100 * 1024 * 1024) + b"x" * 1000)
    connections = broker.server.connections
    wait_until(lambda: connections.received_bytes == 20 * 1004, "all bytes arrived")
    assert connections.memory.held_bytes <= 20 * 8 * 1024
    assert _serves(connect(broker))
    for client in clients:
        client.close()
    wait_until(lambda: connections.memory.held_bytes == 0, "all memory was given back")


def test_one_byte_at_a_time_is_answered_and_starves_nobody(shared_broker: Broker, connect: Connect) -> None:
    slow, fast = connect(shared_broker), connect(shared_broker)
    for index in range(len(API_VERSIONS_V0)):
        slow.sock.sendall(API_VERSIONS_V0[index : index + 1])
        assert _serves(fast)
    assert slow.receive(API_VERSIONS, ApiVersionsResponse, 0)[1].error_code == 0


@pytest.mark.parametrize("size", [1000, 5000, 70_000, 1_000_000, 3_000_000])
def test_requests_of_any_size_arrive_whole_in_pieces_of_any_size(
    shared_broker: Broker, connect: Connect, size: int
) -> None:
    client = connect(shared_broker)
    names = [f"missing-{number:0190d}" for number in range(size // 200)]
    request = frame(METADATA, _metadata_of(names), 4)
    for piece in (size, max(1, size // 3), 65_536):
        for start in range(0, len(request), piece):
            client.sock.sendall(request[start : start + piece])
        _, response = client.receive(METADATA, MetadataResponse, 4)
        assert [topic.name for topic in response.topics] == names


def test_null_client_id_is_fine(shared_broker: Broker, connect: Connect) -> None:
    client = connect(shared_broker)
    client.send(METADATA, MetadataRequest(topics=[]), 9, client_id=None)
    assert client.receive(METADATA, MetadataResponse, 9)[1].brokers


def _metadata_of(names: list[str]) -> MetadataRequest:
    from tidelog.protocol.messages.k03_metadata import MetadataRequestTopic

    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
