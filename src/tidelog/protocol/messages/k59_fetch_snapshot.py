"""FetchSnapshot: reads a snapshot of the metadata log (KIP-630).

What the versions brought:

- v1: directory id of the reader, and the leader's address (KIP-853)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, Records, String, Uint16, Uuid

FETCH_SNAPSHOT = Api(59, versions="0-1", flexible="0+")


@struct
class FetchSnapshotRequestSnapshotId:
    end_offset: Int64 = 0
    epoch: Int32 = 0


@struct
class FetchSnapshotRequestPartitionSnapshot:
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0
    snapshot_id: FetchSnapshotRequestSnapshotId = v(factory=FetchSnapshotRequestSnapshotId)
    position: Int64 = 0
    replica_directory_id: Uuid = v("1+", default=ZERO_UUID, tag=0, ignorable=True)


@struct
class FetchSnapshotRequestTopicSnapshot:
    name: String = ""
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = v(factory=list)


@request(FETCH_SNAPSHOT)
class FetchSnapshotRequest:
    cluster_id: String | None = v(default=None, tag=0)
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFFFFFF
    topics: list[FetchSnapshotRequestTopicSnapshot] = v(factory=list)


@struct
class FetchSnapshotResponseSnapshotId:
    end_offset: Int64 = 0
    epoch: Int32 = 0


@struct
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class FetchSnapshotResponsePartitionSnapshot:
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: FetchSnapshotResponseSnapshotId = v(factory=FetchSnapshotResponseSnapshotId)
    current_leader: LeaderIdAndEpoch = v(factory=LeaderIdAndEpoch, tag=0)
    size: Int64 = 0
    position: Int64 = 0
    unaligned_records: Records = b""


@struct
class FetchSnapshotResponseTopicSnapshot:
    name: String = ""
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("1+", default=0)
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@response(FETCH_SNAPSHOT)
class FetchSnapshotResponse:
    throttle_time_ms: Int32 = v(default=0, ignorable=True)
    error_code: Int16 = 0
    topics: list[FetchSnapshotResponseTopicSnapshot] = v(factory=list)
    node_endpoints: list[NodeEndpoint] = v("1+", factory=list, tag=0)
