"""EndQuorumEpoch: a leader of the metadata quorum resigns and names successors (KIP-595).

What the versions brought:

- v1: flexible (KIP-482); candidates with directory ids, and the leader's addresses (KIP-853)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String, Uint16, Uuid

END_QUORUM_EPOCH = Api(54, versions="0-1", flexible="1+")


@struct
class ReplicaInfo:
    candidate_id: Int32 = v("1+", default=0)
    candidate_directory_id: Uuid = v("1+", default=ZERO_UUID)


@struct
class EndQuorumEpochRequestPartitionData:
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_successors: list[Int32] = v("0", factory=list, ignorable=True)
    preferred_candidates: list[ReplicaInfo] = v("1+", factory=list, ignorable=True)


@struct
class EndQuorumEpochRequestTopicData:
    topic_name: String = ""
    partitions: list[EndQuorumEpochRequestPartitionData] = v(factory=list)


@struct
class LeaderEndpoint:
    name: String = v("1+", default="")
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@request(END_QUORUM_EPOCH)
class EndQuorumEpochRequest:
    cluster_id: String | None = None
    topics: list[EndQuorumEpochRequestTopicData] = v(factory=list)
    leader_endpoints: list[LeaderEndpoint] = v("1+", factory=list, ignorable=True)


@struct
class EndQuorumEpochResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class EndQuorumEpochResponseTopicData:
    topic_name: String = ""
    partitions: list[EndQuorumEpochResponsePartitionData] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("1+", default=0)
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@response(END_QUORUM_EPOCH)
class EndQuorumEpochResponse:
    error_code: Int16 = 0
    topics: list[EndQuorumEpochResponseTopicData] = v(factory=list)
    node_endpoints: list[NodeEndpoint] = v("1+", factory=list, tag=0)
