"""Well-known messages, byte for byte as other clients write them.

The bytes were written by kafka-python 3.0.12 (`message.encode(version=...)`); those of Fetch v4, Produce v3, Metadata
v4 and JoinGroup v0 are also what aiokafka 0.14 writes, whose schemas are its own.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.protocol import decode, encode
from tidelog.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.protocol.messages.k01_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


def fetch(*, last_fetched_epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(
        partition=3,
        current_leader_epoch=5,
        fetch_offset=42,
        last_fetched_epoch=last_fetched_epoch,
        partition_max_bytes=1048576,
    )
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=52428800,
        isolation_level=1,
        session_id=7,
        session_epoch=2,
        topics=[FetchTopic(topic="orders", partitions=[partition])],
        rack_id="eu-1",
    )


FETCHED = FetchResponse(
    throttle_time_ms=2,
    session_id=7,
    responses=[
        FetchableTopicResponse(
            topic="orders",
            partitions=[
                PartitionData(
                    partition_index=3,
                    high_watermark=50,
                    last_stable_offset=49,
                    log_start_offset=1,
                    aborted_transactions=[AbortedTransaction(producer_id=1000, first_offset=44)],
                    records=b"batch-bytes",
                )
            ],
        )
    ],
)
PRODUCE = ProduceRequest(
    transactional_id="tx",
    acks=-1,
    timeout_ms=30000,
    topic_data=[
        TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=1, records=b"batch-bytes")])
    ],
)
METADATA = MetadataResponse(
    throttle_time_ms=1,
    brokers=[MetadataResponseBroker(node_id=1, host="h", port=9092)],
    cluster_id="c",
    controller_id=1,
    topics=[
        MetadataResponseTopic(
            name="orders",
            partitions=[
                MetadataResponsePartition(
                    error_code=5,
                    leader_id=1,
                    leader_epoch=2,
                    replica_nodes=[1, 2],
                    isr_nodes=[1],
                    offline_replicas=[2],
                )
            ],
        )
    ],
)
JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10000,
    rebalance_timeout_ms=60000,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\1")],
)
VERSIONS = ApiVersionsResponse(
    api_keys=[ApiVersion(api_key=0, max_version=13), ApiVersion(api_key=18, max_version=4)],
    finalized_features_epoch=9,
)

GOLDEN: list[tuple[object, int, str]] = [
    (
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=52428800,
            isolation_level=1,
            topics=[
                FetchTopic(
                    topic="orders",
                    partitions=[FetchPartition(partition=3, fetch_offset=42, partition_max_bytes=1048576)],
                )
            ],
        ),
        4,
        "ffffffff 000001f4 00000001 03200000 01 00000001 0006 6f7264657273 0000000100000003 000000000000002a 00100000",
    ),
    (
        fetch(),
        11,
        "ffffffff 000001f4 00000001 03200000 01 00000007 00000002 00000001 0006 6f7264657273 00000001"
        "00000003 00000005 000000000000002a ffffffffffffffff 00100000 00000000 0004 65752d31",
    ),
    (
        fetch(last_fetched_epoch=4),
        12,
        "ffffffff 000001f4 00000001 03200000 01 00000007 00000002 02 07 6f7264657273 02"
        "00000003 00000005 000000000000002a 00000004 ffffffffffffffff 00100000 00 00 01 05 65752d31 00",
    ),
    (
        FETCHED,
        11,
        "00000002 0000 00000007 00000001 0006 6f7264657273 00000001"
        "00000003 0000 0000000000000032 0000000000000031 0000000000000001"
        "00000001 00000000000003e8 000000000000002c ffffffff 0000000b 62617463682d6279746573",
    ),
    (
        FETCHED,
        12,
        "00000002 0000 00000007 02 07 6f7264657273 02"
        "00000003 0000 0000000000000032 0000000000000031 0000000000000001"
        "02 00000000000003e8 000000000000002c 00 ffffffff 0c 62617463682d6279746573 00 00 00",
    ),
    (
        PRODUCE,
        3,
        "0002 7478 ffff 00007530 00000001 0006 6f7264657273 00000001 00000001 0000000b 62617463682d6279746573",
    ),
    (
        PRODUCE,
        9,
        "03 7478 ffff 00007530 02 07 6f7264657273 02 00000001 0c 62617463682d6279746573 00 00 00",
    ),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (MetadataRequest(topics=None, allow_auto_topic_creation=False), 4, "ffffffff 00"),
    (
        MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=UUID(int=0x1234), name=None)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        ),
        12,
        "02 00000000000000000000000000001234 00 00 00 01 00",
    ),
    (
        METADATA,
        7,
        "00000001 00000001 00000001 0001 68 00002384 ffff 0001 63 00000001"
        "00000001 0000 0006 6f7264657273 00 00000001 0005 00000000 00000001 00000002"
        "00000002 00000001 00000002 00000001 00000001 00000001 00000002",
    ),
    (
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\1")],
        ),
        0,
        "0001 67 00002710 0000 0008 636f6e73756d6572 00000001 0005 72616e6765 00000002 0001",
    ),
    (
        JOIN,
        5,
        "0001 67 00002710 0000ea60 0000 ffff 0008 636f6e73756d6572 00000001 0005 72616e6765 00000002 0001",
    ),
    (JOIN, 7, "02 67 00002710 0000ea60 01 00 09 636f6e73756d6572 02 06 72616e6765 03 0001 00 00"),
    (ApiVersionsRequest(), 0, ""),
    (
        ApiVersionsRequest(client_software_name="app", client_software_version="1.0"),
        3,
        "04 617070 04 312e30 00",
    ),
    (
        ApiVersionsResponse(api_keys=[ApiVersion(api_key=0, max_version=13), ApiVersion(api_key=18, max_version=4)]),
        0,
        "0000 00000002 0000 0000 000d 0012 0000 0004",
    ),
    (VERSIONS, 3, "0000 03 0000 0000 000d 00 0012 0000 0004 00 00000000 01 01 08 0000000000000009"),
]


@pytest.mark.parametrize(
    ("message", "version", "data"),
    GOLDEN,
    ids=[f"{type(message).__name__}-v{version}" for message, version, _ in GOLDEN],
)
def test_golden_bytes(message: object, version: int, data: str) -> None:
    assert encode(message, version).hex() == data.replace(" ", "")
    assert decode(type(message), bytes.fromhex(data), version) == message
