"""BeginQuorumEpoch: a new leader of the metadata quorum announces itself (KIP-595).

What the versions brought:

- v1: flexible (KIP-482); voter key and the leader's addresses (KIP-853)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String, Uint16, Uuid

BEGIN_QUORUM_EPOCH = Api(53, versions="0-1", flexible="1+")


@struct
class BeginQuorumEpochRequestPartitionData:
    partition_index: Int32 = 0
    voter_directory_id: Uuid = v("1+", default=ZERO_UUID, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class BeginQuorumEpochRequestTopicData:
    topic_name: String = ""
    partitions: list[BeginQuorumEpochRequestPartitionData] = v(factory=list)


@struct
class LeaderEndpoint:
    name: String = v("1+", default="")
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@request(BEGIN_QUORUM_EPOCH)
class BeginQuorumEpochRequest:
    cluster_id: String | None = None
    voter_id: Int32 = v("1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = v(factory=list)
    leader_endpoints: list[LeaderEndpoint] = v("1+", factory=list, ignorable=True)


@struct
class BeginQuorumEpochResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class BeginQuorumEpochResponseTopicData:
    topic_name: String = ""
    partitions: list[BeginQuorumEpochResponsePartitionData] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("1+", default=0)
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@response(BEGIN_QUORUM_EPOCH)
class BeginQuorumEpochResponse:
    error_code: Int16 = 0
    topics: list[BeginQuorumEpochResponseTopicData] = v(factory=list)
    node_endpoints: list[NodeEndpoint] = v("1+", factory=list, tag=0)
