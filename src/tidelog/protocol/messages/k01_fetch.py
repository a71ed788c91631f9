"""Fetch: reads record batches, waiting for new ones if asked to. Consumers and followers both use it.

Changes by version:

- v4: isolation level, last stable offset and aborted transactions (KIP-98)
- v5: log start offset (KIP-107)
- v6: may return KAFKA_STORAGE_ERROR (KIP-112)
- v7: incremental fetch sessions (KIP-227)
- v8: responds before throttling (KIP-219)
- v9: the reader's leader epoch, for fencing (KIP-320)
- v10: allows zstd (KIP-110)
- v11: the reader's rack, and a preferred read replica (KIP-392)
- v12: flexible (KIP-482); last fetched epoch, and where the reader's log diverged (KIP-595)
- v13: topics by id instead of name (KIP-516)
- v14: may return OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
- v15: a follower sends its broker epoch (KIP-903)
- v16: addresses of the leaders in the response (KIP-951)
- v17: a follower's directory id (KIP-853)
- v18: the high watermark that a follower knows (KIP-1166)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, Int64, Records, String, Uuid

FETCH = Api(1, versions="4-18", flexible="12+")


@struct
class ReplicaState:
    replica_id: Int32 = v("15+", default=-1)
    replica_epoch: Int64 = v("15+", default=-1)


@struct
class FetchPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = v("9+", default=-1, ignorable=True)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = v("12+", default=-1)
    log_start_offset: Int64 = v("5+", default=-1, ignorable=True)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = v("17+", default=ZERO_UUID, tag=0, ignorable=True)
    high_watermark: Int64 = v("18+", default=0x7FFFFFFFFFFFFFFF, tag=1, ignorable=True)


@struct
class FetchTopic:
    topic: String = v("0-12", default="", ignorable=True)
    topic_id: Uuid = v("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition] = v(factory=list)


@struct
class ForgottenTopic:
    topic: String = v("7-12", default="", ignorable=True)
    topic_id: Uuid = v("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[Int32] = v("7+", factory=list)


@request(FETCH)
class FetchRequest:
    cluster_id: String | None = v("12+", default=None, tag=0, ignorable=True)
    replica_id: Int32 = v("0-14", default=-1)
    replica_state: ReplicaState = v("15+", factory=ReplicaState, tag=1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = v("3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: Int8 = v("4+", default=0, ignorable=True)
    session_id: Int32 = v("7+", default=0, ignorable=True)
    session_epoch: Int32 = v("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = v(factory=list)
    forgotten_topics_data: list[ForgottenTopic] = v("7+", factory=list)
    rack_id: String = v("11+", default="", ignorable=True)


@struct
class EpochEndOffset:
    epoch: Int32 = v("12+", default=-1)
    end_offset: Int64 = v("12+", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: Int32 = v("12+", default=-1)
    leader_epoch: Int32 = v("12+", default=-1)


@struct
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


@struct
class AbortedTransaction:
    producer_id: Int64 = v("4+", default=0)
    first_offset: Int64 = v("4+", default=0)


@struct
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = v("4+", default=-1, ignorable=True)
    log_start_offset: Int64 = v("5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = v("12+", factory=EpochEndOffset, tag=0)
    current_leader: LeaderIdAndEpoch = v("12+", factory=LeaderIdAndEpoch, tag=1)
    snapshot_id: SnapshotId = v("12+", factory=SnapshotId, tag=2)
    aborted_transactions: list[AbortedTransaction] | None = v("4+", factory=list, ignorable=True)
    preferred_read_replica: Int32 = v("11+", default=-1)
    records: Records | None = None


@struct
class FetchableTopicResponse:
    topic: String = v("0-12", default="", ignorable=True)
    topic_id: Uuid = v("13+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("16+", default=0)
    host: String = v("16+", default="")
    port: Int32 = v("16+", default=0)
    rack: String | None = v("16+", default=None)


@response(FETCH)
class FetchResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = v("7+", default=0, ignorable=True)
    session_id: Int32 = v("7+", default=0)
    responses: list[FetchableTopicResponse] = v(factory=list)
    node_endpoints: list[NodeEndpoint] = v("16+", factory=list, tag=0)
