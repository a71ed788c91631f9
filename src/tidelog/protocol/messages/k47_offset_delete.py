"""OffsetDelete: deletes a group's committed offsets for topics that it does not read (KIP-496)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

OFFSET_DELETE = Api(47, versions="0")


@struct
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@struct
class OffsetDeleteRequestTopic:
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = v(factory=list)


@request(OFFSET_DELETE)
class OffsetDeleteRequest:
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = v(factory=list)


@struct
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class OffsetDeleteResponseTopic:
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = v(factory=list)


@response(OFFSET_DELETE)
class OffsetDeleteResponse:
    error_code: Int16 = 0
    throttle_time_ms: Int32 = v(default=0, ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = v(factory=list)
