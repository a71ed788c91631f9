"""DescribeQuorum: tells the state of the metadata quorum (KIP-595).

What the versions brought:

- v1: when each replica last fetched and last was caught up (KIP-836)
- v2: error messages, directory ids and the nodes' listeners (KIP-853)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String, Uint16, Uuid

DESCRIBE_QUORUM = Api(55, versions="0-2", flexible="0+")


@struct
class DescribeQuorumRequestPartitionData:
    partition_index: Int32 = 0


@struct
class DescribeQuorumRequestTopicData:
    topic_name: String = ""
    partitions: list[DescribeQuorumRequestPartitionData] = v(factory=list)


@request(DESCRIBE_QUORUM)
class DescribeQuorumRequest:
    topics: list[DescribeQuorumRequestTopicData] = v(factory=list)


@struct
class ReplicaState:
    replica_id: Int32 = 0
    replica_directory_id: Uuid = v("2+", default=ZERO_UUID)
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Int64 = v("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: Int64 = v("1+", default=-1, ignorable=True)


@struct
class DescribeQuorumResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = v("2+", default="", ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = v(factory=list)
    observers: list[ReplicaState] = v(factory=list)


@struct
class DescribeQuorumResponseTopicData:
    topic_name: String = ""
    partitions: list[DescribeQuorumResponsePartitionData] = v(factory=list)


@struct
class Listener:
    name: String = v("2+", default="")
    host: String = v("2+", default="")
    port: Uint16 = v("2+", default=0)


@struct
class Node:
    node_id: Int32 = v("2+", default=0)
    listeners: list[Listener] = v("2+", factory=list)


@response(DESCRIBE_QUORUM)
class DescribeQuorumResponse:
    error_code: Int16 = 0
    error_message: String | None = v("2+", default="", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = v(factory=list)
    nodes: list[Node] = v("2+", factory=list)
