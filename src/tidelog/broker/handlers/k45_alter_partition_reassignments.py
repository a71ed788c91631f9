"""AlterPartitionReassignments (key 45): move partitions to other brokers, or cancel such a move (KIP-455).

Versions served: 0-1.
- 1: the client can forbid a change of the replication factor (KIP-860).

There is one broker, so the only assignment a partition can have is the one that it has, and giving it that again
changes nothing. Nothing ever moves, so nothing can be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.image import ClusterImage
from tidelog.controller.requests import NO_TIME
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k45_alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(ALTER_PARTITION_REASSIGNMENTS, "0-1")
def handle_alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    image = context.services.controller.image
    refusal = ErrorCode.NONE if request.timeout_ms > 0 else ErrorCode.REQUEST_TIMED_OUT
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=refusal,
        error_message=None if refusal is ErrorCode.NONE else NO_TIME,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _result(topic.name, partition.partition_index, partition.replicas, image)
                    if refusal is ErrorCode.NONE
                    else ReassignablePartitionResponse(
                        partition_index=partition.partition_index, error_code=refusal, error_message=NO_TIME
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _result(
    topic: str, partition: int, replicas: Sequence[int] | None, image: ClusterImage
) -> ReassignablePartitionResponse:
    state = image.partition(topic, partition)
    error, message = ErrorCode.NONE, None  # type: ErrorCode, str | None
    if state is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {partition} of topic {topic}."
    elif replicas is None:
        error, message = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    elif tuple(replicas) != state.replicas:
        error = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        message = f"The partition can only be on {list(state.replicas)}: this cluster has one broker."
    return ReassignablePartitionResponse(partition_index=partition, error_code=error, error_message=message)
