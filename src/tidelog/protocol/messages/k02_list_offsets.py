"""ListOffsets, API key 2."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, Int64, String

LIST_OFFSETS = Api(2, versions="1-11", flexible="6+")


@struct
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = v("4+", default=-1, ignorable=True)
    timestamp: Int64 = 0


@struct
class ListOffsetsTopic:
    name: String = ""
    partitions: list[ListOffsetsPartition] = v(factory=list)


@request(LIST_OFFSETS)
class ListOffsetsRequest:
    replica_id: Int32 = 0
    isolation_level: Int8 = v("2+", default=0)
    topics: list[ListOffsetsTopic] = v(factory=list)
    timeout_ms: Int32 = v("10+", default=0, ignorable=True)


@struct
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = v("1+", default=-1)
    offset: Int64 = v("1+", default=-1)
    leader_epoch: Int32 = v("4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = v(factory=list)


@response(LIST_OFFSETS)
class ListOffsetsResponse:
    throttle_time_ms: Int32 = v("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = v(factory=list)
