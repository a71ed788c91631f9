"""DescribeProducers: lists the producers that a partition's leader has state for (KIP-664)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

DESCRIBE_PRODUCERS = Api(61, versions="0", flexible="0+")


@struct
class TopicRequest:
    name: String = ""
    partition_indexes: list[Int32] = v(factory=list)


@request(DESCRIBE_PRODUCERS)
class DescribeProducersRequest:
    topics: list[TopicRequest] = v(factory=list)


@struct
class ProducerState:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@struct
class PartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = v(factory=list)


@struct
class TopicResponse:
    name: String = ""
    partitions: list[PartitionResponse] = v(factory=list)


@response(DESCRIBE_PRODUCERS)
class DescribeProducersResponse:
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = v(factory=list)
