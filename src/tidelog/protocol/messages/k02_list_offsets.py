"""ListOffsets: looks up the offset for a timestamp, or for a named position such as the start or end of the log.

Changes by version:

- v1: one offset with its timestamp for each partition (KIP-79)
- v2: isolation level (KIP-98)
- v3: responds before throttling (KIP-219)
- v4: leader epoch, for fencing (KIP-320)
- v5: may return OFFSET_NOT_AVAILABLE (KIP-207)
- v6: flexible (KIP-482)
- v7: timestamp -3: the record with the largest timestamp (KIP-734)
- v8: timestamp -4: the start of the local log (KIP-405)
- v9: timestamp -5: the last tiered offset (KIP-1005)
- v10: a timeout for lookups in tiered storage (KIP-1075)
- v11: timestamp -6: the first offset not yet tiered (KIP-1023)
"""

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
