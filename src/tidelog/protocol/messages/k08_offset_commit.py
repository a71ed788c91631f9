"""OffsetCommit: stores the offsets that a group has read up to.

Changes by version:

- v2: retention time of the commit
- v3: throttle time (KIP-124)
- v4: responds before throttling (KIP-219)
- v5: no retention time (KIP-211)
- v6: leader epoch of the committed offset (KIP-320)
- v7: static members (KIP-345)
- v8: flexible (KIP-482)
- v9: members of the new consumer protocol (KIP-848)
- v10: topics by id instead of name (KIP-848)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String, Uuid

OFFSET_COMMIT = Api(8, versions="2-10", flexible="8+")


@struct
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = v("6+", default=-1, ignorable=True)
    committed_metadata: String | None = ""


@struct
class OffsetCommitRequestTopic:
    name: String = v("0-9", default="", ignorable=True)
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = v(factory=list)


@request(OFFSET_COMMIT)
class OffsetCommitRequest:
    group_id: String = ""
    generation_id_or_member_epoch: Int32 = v("1+", default=-1, ignorable=True)
    member_id: String = v("1+", default="", ignorable=True)
    group_instance_id: String | None = v("7+", default=None)
    retention_time_ms: Int64 = v("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = v(factory=list)


@struct
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class OffsetCommitResponseTopic:
    name: String = v("0-9", default="", ignorable=True)
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = v(factory=list)


@response(OFFSET_COMMIT)
class OffsetCommitResponse:
    throttle_time_ms: Int32 = v("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = v(factory=list)
