"""OffsetFetch: reads the offsets that groups have committed.

Changes by version:

- v1: offsets that Kafka itself stores
- v2: null asks for all topics (KIP-88)
- v3: throttle time (KIP-124)
- v4: responds before throttling (KIP-219)
- v5: leader epoch of the committed offset (KIP-320)
- v6: flexible (KIP-482)
- v7: can wait for the outcome of open transactions (KIP-447)
- v8: several groups at once (KIP-709)
- v9: members of the new consumer protocol (KIP-848)
- v10: topics by id instead of name (KIP-848)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String, Uuid

OFFSET_FETCH = Api(9, versions="1-10", flexible="6+")


@struct
class OffsetFetchRequestTopic:
    name: String = v("0-7", default="")
    partition_indexes: list[Int32] = v("0-7", factory=list)


@struct
class OffsetFetchRequestTopics:
    name: String = v("8-9", default="", ignorable=True)
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: list[Int32] = v("8+", factory=list)


@struct
class OffsetFetchRequestGroup:
    group_id: String = v("8+", default="")
    member_id: String | None = v("9+", default=None, ignorable=True)
    member_epoch: Int32 = v("9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = v("8+", factory=list)


@request(OFFSET_FETCH)
class OffsetFetchRequest:
    group_id: String = v("0-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = v("0-7", factory=list, nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = v("8+", factory=list)
    require_stable: Bool = v("7+", default=False)


@struct
class OffsetFetchResponsePartition:
    partition_index: Int32 = v("0-7", default=0)
    committed_offset: Int64 = v("0-7", default=0)
    committed_leader_epoch: Int32 = v("5-7", default=-1, ignorable=True)
    metadata: String | None = v("0-7", default="")
    error_code: Int16 = v("0-7", default=0)


@struct
class OffsetFetchResponseTopic:
    name: String = v("0-7", default="")
    partitions: list[OffsetFetchResponsePartition] = v("0-7", factory=list)


@struct
class OffsetFetchResponsePartitions:
    partition_index: Int32 = v("8+", default=0)
    committed_offset: Int64 = v("8+", default=0)
    committed_leader_epoch: Int32 = v("8+", default=-1, ignorable=True)
    metadata: String | None = v("8+", default="")
    error_code: Int16 = v("8+", default=0)


@struct
class OffsetFetchResponseTopics:
    name: String = v("8-9", default="", ignorable=True)
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = v("8+", factory=list)


@struct
class OffsetFetchResponseGroup:
    group_id: String = v("8+", default="")
    topics: list[OffsetFetchResponseTopics] = v("8+", factory=list)
    error_code: Int16 = v("8+", default=0)


@response(OFFSET_FETCH)
class OffsetFetchResponse:
    throttle_time_ms: Int32 = v("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = v("0-7", factory=list)
    error_code: Int16 = v("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = v("8+", factory=list)
