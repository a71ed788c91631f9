"""AlterPartitionReassignments (key 45): move partitions to other brokers, or take that back (KIP-455).

Versions served: 0-1.
- 0: the first. 1: can forbid that a move changes the replication factor (KIP-860).

The answer says that a move has begun, or that it has ended where the new replicas were in sync already. New replicas
first copy the partition; ListPartitionReassignments shows those in progress.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller import Reassignment, ReassignmentResult
from tidelog.controller.requests import NO_TIME
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k45_alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@handles(ALTER_PARTITION_REASSIGNMENTS, "0-1", on_controller=True)
async def handle_alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    asked = [
        Reassignment(topic.name, partition.partition_index, partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    try:
        if request.timeout_ms <= 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, NO_TIME)
        results = await context.services.controller.alter_reassignments(
            asked,
            allow_factor_change=request.allow_replication_factor_change,
            timeout_s=request.timeout_ms / 1000,
        )
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
        results = [ReassignmentResult(each.topic, each.index, error.code, error.message) for each in asked]
    following = iter(results)
    response.responses = [
        ReassignableTopicResponse(name=topic.name, partitions=[_row(next(following)) for _ in topic.partitions])
        for topic in request.topics
    ]
    return response


def _row(result: ReassignmentResult) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=result.index, error_code=result.error, error_message=result.message
    )
