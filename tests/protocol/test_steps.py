"""Encoding and decoding in steps gives what doing it at once gives, in pieces that are all small."""

from __future__ import annotations

import pytest

from tidelog.common.steps import Steps, run_through
from tidelog.protocol import (
    ProtocolError,
    TooManyElementsError,
    decode,
    decode_in_steps,
    encode,
    encode_in_steps,
)
from tidelog.protocol.encoder import STEP_BYTES, STEP_PIECES
from tidelog.protocol.messages.k01_fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tidelog.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k16_list_groups import ListedGroup, ListGroupsResponse
from tidelog.protocol.wire import ELEMENTS_MAX


def counted(steps: Steps[object]) -> tuple[list[int], object]:
    sizes = []
    while True:
        try:
            sizes.append(next(steps))
        except StopIteration as end:
            return sizes, end.value


@pytest.mark.parametrize("version", [1, 5, 9, 13])
@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (3000, 2), (1, 5000)])
def test_an_answer_in_steps_is_the_same_answer(version: int, topics: int, partitions: int) -> None:
    response = MetadataResponse(
        cluster_id=None if version < 2 else "cluster",
        topics=[
            MetadataResponseTopic(
                name=f"topic-{number}",
                partitions=[
                    MetadataResponsePartition(partition_index=index, replica_nodes=[1, 2], isr_nodes=[1])
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ],
    )
    sizes, parts = counted(encode_in_steps(response, version))
    assert isinstance(parts, list)
    assert b"".join(parts) == encode(response, version)
    assert len(sizes) >= topics * partitions // STEP_PIECES
    assert sum(sizes) <= sum(map(len, parts))


def test_large_elements_end_a_step() -> None:
    response = ListGroupsResponse(groups=[ListedGroup(group_id="g" * 30_000) for _ in range(200)])
    _, parts = counted(encode_in_steps(response, 5))
    assert isinstance(parts, list)
    assert max(map(len, parts)) < STEP_BYTES + 40_000
    assert b"".join(parts) == encode(response, 5)


def test_records_stay_pieces_of_their_own() -> None:
    records = memoryview(b"records")
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records) for _ in range(3)])
    _, parts = counted(encode_in_steps(FetchResponse(responses=[topic], node_endpoints=[]), 11))
    assert isinstance(parts, list)
    assert sum(part is records for part in parts) == 3


def test_a_message_without_arrays_takes_no_step() -> None:
    assert counted(encode_in_steps(HeartbeatResponse(), 4)) == ([], [encode(HeartbeatResponse(), 4)])
    body = memoryview(encode(HeartbeatRequest(group_id="g"), 4))
    sizes, request = counted(decode_in_steps(HeartbeatRequest, body, 4))
    assert not sizes
    assert request == HeartbeatRequest(group_id="g")


@pytest.mark.parametrize("version", [4, 12])
def test_a_request_in_steps_is_the_same_request(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"topic-{number}") for number in range(3000)])
    body = memoryview(encode(request, version))
    sizes, decoded = counted(decode_in_steps(MetadataRequest, body, version))
    assert decoded == decode(MetadataRequest, body, version) == request
    assert len(sizes) > 10
    for length in (3, len(body) // 2, len(body) - 1):
        with pytest.raises(ProtocolError):
            run_through(decode_in_steps(MetadataRequest, body[:length], version))
    with pytest.raises(ProtocolError, match="extra bytes"):
        run_through(decode_in_steps(MetadataRequest, memoryview(bytes(body) + b"x"), version))


def test_many_elements_are_refused_before_any_is_read() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 1000)
    body = memoryview(encode(request, 12))
    with pytest.raises(TooManyElementsError, match="more than 999 elements"):
        decode(MetadataRequest, body, 12, elements_max=999)
    assert len(decode(MetadataRequest, body, 12, elements_max=1000).topics or ()) == 1000
    too_many = MetadataRequest(topics=[MetadataRequestTopic(name="t")] * (ELEMENTS_MAX + 1))
    with pytest.raises(TooManyElementsError):
        run_through(decode_in_steps(MetadataRequest, memoryview(encode(too_many, 12)), 12))


def test_what_cannot_be_encoded_is_told_likewise() -> None:
    response = ListGroupsResponse(groups=[ListedGroup(group_id="g" * 40_000)])
    with pytest.raises(ProtocolError):
        run_through(encode_in_steps(response, 2))
