"""AlterPartitionReassignments: reassigns partitions to other replicas, or cancels a reassignment (KIP-455).

Changes by version:

- v1: can forbid a change of the replication factor (KIP-860)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, String

ALTER_PARTITION_REASSIGNMENTS = Api(45, versions="0-1", flexible="0+")


@struct
class ReassignablePartition:
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


@struct
class ReassignableTopic:
    name: String = ""
    partitions: list[ReassignablePartition] = v(factory=list)


@request(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsRequest:
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Bool = v("1+", default=True)
    topics: list[ReassignableTopic] = v(factory=list)


@struct
class ReassignablePartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


@struct
class ReassignableTopicResponse:
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = v(factory=list)


@response(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Bool = v("1+", default=True, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = v(factory=list)
