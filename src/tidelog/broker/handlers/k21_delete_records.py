"""DeleteRecords, versions 0 to 2.

1 changes nothing in the fields, 2 is flexible. An offset of -1 means the high watermark. The answer's low watermark is
the log start offset that holds from now on, in all replicas of the ISR; it is waited for within the request's time.
Topics that brokers keep for themselves are refused.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence

from tidelog.broker.delayed_delete import PendingDelete
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.controller.image import INTERNAL_TOPICS
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_NO_LOW_WATERMARK = -1

Deleted = tuple[PendingDelete, DeleteRecordsPartitionResult]
Answer = DeleteRecordsResponse | Coroutine[None, None, DeleteRecordsResponse]


@handles(DELETE_RECORDS, "0-2")
def handle_delete_records(
    request: DeleteRecordsRequest, context: RequestContext
) -> Steps[Answer | Coroutine[None, None, Steps[Answer]]]:
    replicas = context.services.replicas
    names = ((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    return replicas.log_opening.once_open(replicas.find_some(names), _delete_all(request, replicas))


def _delete_all(request: DeleteRecordsRequest, replicas: ReplicaManager) -> Steps[Answer]:
    response = DeleteRecordsResponse()
    deleted: list[Deleted] = []
    for wanted in request.topics:
        answer = DeleteRecordsTopicResult(name=wanted.name)
        for partition in wanted.partitions:
            answer.partitions.append(_delete(replicas, wanted.name, partition, deleted))
            yield 0
        response.topics.append(answer)
    if deleted:
        return _answer_saved(replicas, response, deleted, request.timeout_ms)
    return response


async def _answer_saved(
    replicas: ReplicaManager, response: DeleteRecordsResponse, deleted: Sequence[Deleted], timeout_ms: int
) -> DeleteRecordsResponse:
    await replicas.save_log_start_offsets()
    await replicas.wait_for_deletion([pending for pending, _ in deleted], timeout_ms)
    for pending, result in deleted:
        if pending.error:
            result.error_code = pending.error
            result.low_watermark = _NO_LOW_WATERMARK
    return response


def _delete(
    replicas: ReplicaManager, topic: str, wanted: DeleteRecordsPartition, deleted: list[Deleted]
) -> DeleteRecordsPartitionResult:
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        partition = replicas.find_leader(topic, wanted.partition_index)
        log_start_offset = replicas.delete_records_before(partition, wanted.offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=_NO_LOW_WATERMARK, error_code=error.code
        )
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=log_start_offset)
    deleted.append((PendingDelete(partition, partition.leader_epoch, log_start_offset), result))
    return result
