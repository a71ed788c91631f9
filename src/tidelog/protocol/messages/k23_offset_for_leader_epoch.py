"""OffsetForLeaderEpoch: finds where a leader epoch ended in the log, so that a reader can tell where its copy diverged
(KIP-101).

Changes by version:

- v2: the reader's leader epoch, for fencing; throttle time (KIP-320)
- v3: the reader's replica id
- v4: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

OFFSET_FOR_LEADER_EPOCH = Api(23, versions="2-4", flexible="4+")


@struct
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = v("2+", default=-1, ignorable=True)
    leader_epoch: Int32 = 0


@struct
class OffsetForLeaderTopic:
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = v(factory=list)


@request(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochRequest:
    replica_id: Int32 = v("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = v(factory=list)


@struct
class EpochEndOffset:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = v("1+", default=-1, ignorable=True)
    end_offset: Int64 = -1


@struct
class OffsetForLeaderTopicResult:
    topic: String = ""
    partitions: list[EpochEndOffset] = v(factory=list)


@response(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochResponse:
    throttle_time_ms: Int32 = v("2+", default=0, ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = v(factory=list)
