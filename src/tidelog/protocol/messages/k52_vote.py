"""Vote: a candidate asks for the vote of another member of the metadata quorum (KIP-595).

What the versions brought:

- v1: voter key and directory id (KIP-853)
- v2: a vote on trial that raises no epoch (KIP-996)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String, Uint16, Uuid

VOTE = Api(52, versions="0-2", flexible="0+")


@struct
class VoteRequestPartitionData:
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0
    replica_id: Int32 = 0
    replica_directory_id: Uuid = v("1+", default=ZERO_UUID, ignorable=True)
    voter_directory_id: Uuid = v("1+", default=ZERO_UUID, ignorable=True)
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0
    pre_vote: Bool = v("2+", default=False)


@struct
class VoteRequestTopicData:
    topic_name: String = ""
    partitions: list[VoteRequestPartitionData] = v(factory=list)


@request(VOTE)
class VoteRequest:
    cluster_id: String | None = None
    voter_id: Int32 = v("1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = v(factory=list)


@struct
class VoteResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    vote_granted: Bool = False


@struct
class VoteResponseTopicData:
    topic_name: String = ""
    partitions: list[VoteResponsePartitionData] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("1+", default=0)
    host: String = v("1+", default="")
    port: Uint16 = v("1+", default=0)


@response(VOTE)
class VoteResponse:
    error_code: Int16 = 0
    topics: list[VoteResponseTopicData] = v(factory=list)
    node_endpoints: list[NodeEndpoint] = v("1+", factory=list, tag=0)
