"""What declared messages are as Python classes, and what the codec says to misuse of them."""

from __future__ import annotations

import linecache
import subprocess
import sys
import traceback
from uuid import UUID

import pytest

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode, KafkaError, ProtocolError, all_apis, api_by_key, decode, encode, encode_parts
from tidelog.protocol.declare import Api, request, struct, v
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.types import Int32, String


class Slice:
    """Records in a file, as far as the codec knows."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


def test_messages_are_plain_values() -> None:
    topic = FetchableTopicResponse(topic="a", partitions=[PartitionData(partition_index=1)])
    assert topic == FetchableTopicResponse(topic="a", partitions=[PartitionData(partition_index=1)])
    assert topic != FetchableTopicResponse(topic="b", partitions=[PartitionData(partition_index=1)])
    assert topic != PartitionData()  # type: ignore[comparison-overlap]  # the point of the test
    assert repr(MetadataRequestTopic(name="x")) == f"MetadataRequestTopic(topic_id={ZERO_UUID!r}, name='x')"
    topic.topic = "changed"
    with pytest.raises(AttributeError):
        topic.typo = 1  # type: ignore[attr-defined]  # the point of the test
    with pytest.raises(TypeError):
        MetadataRequestTopic(typo=1)  # type: ignore[call-arg]  # the point of the test
    with pytest.raises(TypeError):
        MetadataRequestTopic("x")  # type: ignore[call-arg, arg-type]  # the point of the test


def test_lists_and_structs_are_not_shared_between_instances() -> None:
    first, second = FetchResponse(), FetchResponse()
    first.responses.append(FetchableTopicResponse())
    assert second.responses == []
    one, other = PartitionData(), PartitionData()
    one.current_leader.leader_id = 4
    assert other.current_leader.leader_id == -1
    data = encode(FetchResponse(responses=[FetchableTopicResponse(partitions=[one, other])]), 12)
    decoded = decode(FetchResponse, data, 12).responses[0].partitions
    assert [partition.current_leader.leader_id for partition in decoded] == [4, -1]


def test_fields_need_a_default() -> None:
    with pytest.raises(TypeError, match=r"Bare\.name has no default"):

        @struct
        class Bare:
            name: String


def test_apis() -> None:
    assert (PRODUCE.key, PRODUCE.name, PRODUCE.versions, PRODUCE.flexible_from) == (0, "Produce", (3, 13), 9)
    assert api_by_key(1) is FETCH
    assert [api_by_key(key) for key in (4, 7, 38, 52, 71, 76, -1)] == [None] * 7
    of_kafka = [*range(4), *range(8, 38), *range(42, 52), 56, 57, 58, *range(60, 70), 74, 75]
    assert [api.key for api in all_apis()] == [*of_kafka, 10001]


def test_version_that_does_not_exist() -> None:
    for version in (3, 19, -1):
        with pytest.raises(ProtocolError, match="has versions 4-18"):
            encode(FetchRequest(), version)
        with pytest.raises(ProtocolError, match="has versions 4-18"):
            decode(FetchRequest, b"", version)
    with pytest.raises(ProtocolError, match="not a declared message"):
        encode("text", 0)


def test_field_that_the_version_lacks() -> None:
    forgotten = FetchRequest(replica_id=3)
    with pytest.raises(ProtocolError, match=r"FetchRequest\.replica_id is set, but version 15"):
        encode(forgotten, 15)
    forgotten.replica_id = -1
    forgotten.replica_state.replica_id = 3
    encode(forgotten, 15)
    with pytest.raises(ProtocolError, match=r"FetchRequest\.replica_state is set"):
        encode(forgotten, 14)
    ignorable = FetchRequest(rack_id="eu-1", session_id=9)
    assert decode(FetchRequest, encode(ignorable, 4), 4) == FetchRequest()


def test_values_that_do_not_fit_their_type() -> None:
    wrong = [
        FetchRequest(max_wait_ms=1 << 31),
        FetchRequest(topics=None),  # type: ignore[arg-type]  # the point of the test
        FetchRequest(rack_id=None),  # type: ignore[arg-type]
        FetchRequest(rack_id="\udc80"),
        FetchRequest(max_wait_ms=1.5),  # type: ignore[arg-type]
    ]
    for message in wrong:
        with pytest.raises(ProtocolError, match="cannot be encoded as version 11"):
            encode(message, 11)


def test_records_are_never_copied() -> None:
    records = bytearray(b"batch")
    produce = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[PartitionProduceData(records=records), PartitionProduceData(index=1, records=None)],
            )
        ]
    )
    for version in (3, 9):
        parts = encode_parts(produce, version)
        assert [part is records for part in parts] == [False, True, False]
        incoming = bytearray(encode(produce, version))
        seen = decode(ProduceRequest, incoming, version).topic_data[0].partition_data[0].records
        assert isinstance(seen, memoryview)
        assert not seen.readonly
        seen[:5] = b"BATCH"
        assert b"BATCH" in incoming


def test_records_in_a_file() -> None:
    records = Slice(1000)
    for version in (11, 12):
        partitions = [PartitionData(records=records), PartitionData(records=Slice(0))]
        message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
        first, middle, last = encode_parts(message, version)
        assert middle is records
        assert isinstance(first, bytes)
        assert isinstance(last, bytes)
        decoded = decode(FetchResponse, first + bytes(1000) + last, version)
        assert decoded.responses[0].partitions[0].records == bytes(1000)
        assert decoded.responses[0].partitions[1].records == b""


def test_size_of_records_counts_bytes_whatever_the_view() -> None:
    records = memoryview(bytearray(16)).cast("q")
    produce = ProduceRequest(topic_data=[TopicProduceData(partition_data=[PartitionProduceData(records=records)])])
    assert decode(ProduceRequest, encode(produce, 3), 3).topic_data[0].partition_data[0].records == bytes(16)


def test_long_arrays_and_their_compact_lengths() -> None:
    for count in (126, 127, 128, 20_000):
        topics = [MetadataRequestTopic(topic_id=UUID(int=number), name=None) for number in range(1, count + 1)]
        message = MetadataRequest(topics=topics)
        assert decode(MetadataRequest, encode(message, 12), 12) == message


def test_traceback_shows_the_lines_of_the_codec() -> None:
    try:
        encode(FetchRequest(max_wait_ms=1 << 31), 4)
    except ProtocolError as error:
        text = "".join(traceback.format_exception(error))
    assert "<tidelog encode FetchRequest v4>" in text
    assert "m.max_wait_ms" in text
    linecache.checkcache()
    assert linecache.getline("<tidelog encode FetchRequest v4>", 1) == "def encode(m):\n"


def test_tagged_fields_in_some_versions_only() -> None:
    api = Api(99, versions="0-2", flexible="1+")

    @request(api)
    class MovedRequest:
        plain: Int32 = 0
        moved: Int32 = v("0+", default=5, tag=3, tagged="2+")

    assert encode(MovedRequest(moved=6), 1) == bytes.fromhex("00000000 00000006 00")
    assert encode(MovedRequest(moved=6), 2) == bytes.fromhex("00000000 01 03 04 00000006")
    assert encode(MovedRequest(), 2) == bytes.fromhex("00000000 00")
    for version in range(3):
        assert decode(MovedRequest, encode(MovedRequest(moved=6), version), version).moved == 6


def test_importing_compiles_nothing_and_brings_only_what_is_asked_for() -> None:
    script = (
        "import sys, linecache; from tidelog.protocol import api_by_key; api_by_key(3);"
        "named = [name for name in sys.modules if name.startswith('tidelog.protocol.messages.')];"
        "assert named == ['tidelog.protocol.messages.k03_metadata'], named;"
        "assert not [name for name in linecache.cache if 'tidelog encode' in name or 'tidelog decode' in name];"
        "assert 'dataclasses' not in sys.modules and 'inspect' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_error_codes() -> None:
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.retriable
    assert not ErrorCode.TOPIC_ALREADY_EXISTS.retriable
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))
    assert all(code.description for code in ErrorCode)
    error = KafkaError(ErrorCode.INVALID_RECORD, record_errors=[(2, "no key")])
    assert (error.code, error.message, error.record_errors) == (ErrorCode.INVALID_RECORD, None, [(2, "no key")])
    assert str(KafkaError(ErrorCode.INVALID_TIMESTAMP, "too new")) == "INVALID_TIMESTAMP: too new"
