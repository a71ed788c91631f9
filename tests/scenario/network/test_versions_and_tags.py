"""What ApiVersions says, what is not offered, and fields that only later clients know."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tidelog.protocol import ErrorCode, all_apis
from tidelog.protocol.messages.k00_produce import PRODUCE
from tidelog.protocol.messages.k01_fetch import FETCH
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient

Connect = Callable[[Broker], RawClient]

NULL_CLIENT_ID = struct.pack(">h", -1)
NO_TAGS = b"\x00"
# Two tags in ascending order, as clients write them: 9 with two bytes, 300 (a varint of two bytes) with none.
UNKNOWN_TAGS = b"\x02" + b"\x09\x02\xca\xfe" + b"\xac\x02\x00"
NAMED = b"\x04raw" + b"\x021"  # compact strings: the name and version of the client software

SASL_KEYS = {17, 36}
TRANSACTION_KEYS = {24, 25, 26, 27, 28, 65, 66}
# Quotas can be asked for, and are none; they can't be changed.
QUOTA_CHANGE_KEYS = {49}


def send(client: RawClient, key: int, version: int, rest: bytes, correlation_id: int = 1) -> None:
    """One request, the header's first fields as they are in every version, the rest as the test says."""
    body = struct.pack(">hhi", key, version, correlation_id) + rest
    client.sock.sendall(struct.pack(">i", len(body)) + body)


def served(client: RawClient) -> dict[int, tuple[int, int]]:
    response = client.ask(API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, 0)
    return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_the_header_of_the_answer_never_has_tags(shared_broker: Broker, connect: Connect, version: int) -> None:
    """Behaviour 1: the error code follows the correlation id at once, in flexible versions too."""
    client = connect(shared_broker)
    flexible = version >= 3
    send(client, API_VERSIONS.key, version, NULL_CLIENT_ID + (NO_TAGS + NAMED + NO_TAGS if flexible else b""), 4711)
    data = client.receive_frame()
    assert data[:6] == struct.pack(">ih", 4711, 0)
    count = struct.unpack_from(">i", data, 6)[0] if not flexible else data[6] - 1
    assert count == len(served(client))


def test_a_version_above_the_advertised_ones_closes(shared_broker: Broker, connect: Connect) -> None:
    """Behaviour 2: for every API but ApiVersions."""
    for key, (_, version_max) in served(connect(shared_broker)).items():
        if key != API_VERSIONS.key:
            client = connect(shared_broker)
            send(client, key, version_max + 1, NULL_CLIENT_ID + NO_TAGS)
            assert client.was_closed(), key


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produces_are_advertised_and_closed(shared_broker: Broker, connect: Connect, version: int) -> None:
    """Behaviour 3."""
    client = connect(shared_broker)
    version_min, version_max = served(client)[PRODUCE.key]
    assert version_min <= version <= version_max
    send(client, PRODUCE.key, version, NULL_CLIENT_ID + struct.pack(">hii", 1, 1000, 0))
    assert client.was_closed()


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "number", "error"),
    [
        ("librdkafka", "2.6.1-RC1", 0),
        ("a", "1", 0),
        ("apache-kafka.java", "4.1.0", 0),
        ("", "1", ErrorCode.INVALID_REQUEST),
        ("a", "", ErrorCode.INVALID_REQUEST),
        ("-a", "1", ErrorCode.INVALID_REQUEST),
        ("a.", "1", ErrorCode.INVALID_REQUEST),
        ("two words", "1", ErrorCode.INVALID_REQUEST),
        ("a", "1_0", ErrorCode.INVALID_REQUEST),
        ("a\n", "1", ErrorCode.INVALID_REQUEST),
        ("größe", "1", ErrorCode.INVALID_REQUEST),
    ],
)
def test_names_of_client_software(
    shared_broker: Broker, connect: Connect, name: str, number: str, version: int, error: int
) -> None:
    """Behaviour 4: a bad one is told, and the connection stays of use."""
    client = connect(shared_broker)
    request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
    assert client.ask(API_VERSIONS, request, ApiVersionsResponse, version).error_code == error
    assert served(client)


def test_fields_of_the_future_are_read_over(shared_broker: Broker, connect: Connect) -> None:
    """Behaviour 6: in the header, in the body, in a struct within the body."""
    client = connect(shared_broker)
    send(client, API_VERSIONS.key, 4, NULL_CLIENT_ID + UNKNOWN_TAGS + NAMED + UNKNOWN_TAGS)
    assert client.receive(API_VERSIONS, ApiVersionsResponse, 4)[1].error_code == 0
    no_topic_id = bytes(16)
    missing = b"\x02" + no_topic_id + b"\x08missing" + UNKNOWN_TAGS
    send(client, METADATA.key, 12, NULL_CLIENT_ID + UNKNOWN_TAGS + missing + b"\x00\x00" + UNKNOWN_TAGS)
    response = client.receive(METADATA, MetadataResponse, 12)[1]
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("missing", 3)]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(NO_TAGS + NAMED + NO_TAGS + b"x", id="a byte behind the tags"),
        pytest.param(NO_TAGS + NAMED + b"\x01\x09\x05ab", id="a tag that ends too late"),
        pytest.param(b"\x01\x09\x7fab" + NAMED + NO_TAGS, id="a tag of the header that ends too late"),
        pytest.param(NO_TAGS + NAMED, id="no tags at all"),
    ],
)
def test_what_does_not_add_up_closes(shared_broker: Broker, connect: Connect, rest: bytes) -> None:
    """Behaviour 6: trailing bytes and lying sizes in flexible versions."""
    client = connect(shared_broker)
    send(client, API_VERSIONS.key, 4, NULL_CLIENT_ID + rest)
    assert client.was_closed()


def test_slow_clients_have_ten_minutes(shared_broker: Broker, connect: Connect) -> None:
    """Behaviours 5 and 7: the limits that hold unless a broker is set up otherwise."""
    names = ["connections.max.idle.ms", "socket.request.max.bytes"]
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=names)
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = connect(shared_broker).ask(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
    assert {config.name: config.value for config in result.configs} == dict(
        zip(names, ["600000", "104857600"], strict=True)
    )


def test_only_what_is_served_is_advertised(shared_broker: Broker, connect: Connect) -> None:
    """Behaviours 11 and 43: neither SASL nor changes of quotas; asking for them anyway closes."""
    offered = served(connect(shared_broker))
    assert {PRODUCE.key, FETCH.key, METADATA.key, API_VERSIONS.key} | TRANSACTION_KEYS <= set(offered)
    assert not (SASL_KEYS | QUOTA_CHANGE_KEYS) & set(offered)
    for api in all_apis():
        if api.key not in offered:
            client = connect(shared_broker)
            send(client, api.key, api.versions[0], NULL_CLIENT_ID + NO_TAGS)
            assert client.was_closed(), api.name


def test_the_features_of_groups_and_transactions_are_announced(shared_broker: Broker, connect: Connect) -> None:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    answer = connect(shared_broker).ask(API_VERSIONS, request, ApiVersionsResponse, 4)
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    assert supported == {"group.version": (0, 1), "transaction.version": (0, 2)}
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    assert levels == {"group.version": 1, "transaction.version": 2}
