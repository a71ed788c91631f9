"""ListPartitionReassignments: lists the reassignments in progress (KIP-455)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

LIST_PARTITION_REASSIGNMENTS = Api(46, versions="0", flexible="0+")


@struct
class ListPartitionReassignmentsTopics:
    name: String = ""
    partition_indexes: list[Int32] = v(factory=list)


@request(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsRequest:
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@struct
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    replicas: list[Int32] = v(factory=list)
    adding_replicas: list[Int32] = v(factory=list)
    removing_replicas: list[Int32] = v(factory=list)


@struct
class OngoingTopicReassignment:
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = v(factory=list)


@response(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = v(factory=list)
