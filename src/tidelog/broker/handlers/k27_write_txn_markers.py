"""WriteTxnMarkers (key 27): ends transactions in partitions that this broker leads. Between brokers.

Versions served: 1-2. 1 is flexible. 2 says which version of the transaction protocol the transaction has (KIP-1228).

Each partition succeeds or fails on its own; the coordinator sends again what failed. A marker is answered when it is
committed, as by acks=all.
"""

from __future__ import annotations

from collections.abc import Coroutine

from tidelog.broker.delayed_produce import PendingAppend
from tidelog.broker.partition import ACKS_ALL
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k27_write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_EPOCH_IS_BUMPED_FROM = 2
_TIMEOUT_MS = 30_000
"""How long replicas may take. The coordinator sends a marker again that is not confirmed."""

Pending = PendingAppend[WritableTxnMarkerPartitionResult]


Written = WriteTxnMarkersResponse | Coroutine[None, None, WriteTxnMarkersResponse]


@handles(WRITE_TXN_MARKERS, "1-2")
def handle_write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext
) -> Steps[Written | Coroutine[None, None, Steps[Written]]]:
    replicas = context.services.replicas
    names = (
        (topic.name, index)
        for marker in request.markers
        for topic in marker.topics
        for index in topic.partition_indexes
    )
    return replicas.log_opening.once_open(replicas.find_some(names), _write_all(request, replicas))


def _write_all(request: WriteTxnMarkersRequest, replicas: ReplicaManager) -> Steps[Written]:
    pending: list[Pending] = []
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        for topic in marker.topics:
            result.topics.append((yield from _write_topic(replicas, marker, topic, pending)))
            yield 0
        response.markers.append(result)
    return _answer_later(replicas, response, pending) if pending else response


def _write_topic(
    replicas: ReplicaManager, marker: WritableTxnMarker, topic: WritableTxnMarkerTopic, pending: list[Pending]
) -> Steps[WritableTxnMarkerTopicResult]:
    result = WritableTxnMarkerTopicResult(name=topic.name)
    for index in dict.fromkeys(topic.partition_indexes):
        result.partitions.append(_write(replicas, marker, topic.name, index, pending))
        yield 0
    return result


def _write(
    replicas: ReplicaManager, marker: WritableTxnMarker, topic: str, index: int, pending: list[Pending]
) -> WritableTxnMarkerPartitionResult:
    answer = WritableTxnMarkerPartitionResult(partition_index=index)
    try:
        partition = replicas.find_leader(topic, index)
        result = replicas.write_txn_marker(
            partition,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_result,
            epoch_is_bumped=marker.transaction_version >= _EPOCH_IS_BUMPED_FROM,
        )
    except KafkaError as error:
        answer.error_code = error.code
        return answer
    end_offset, leader_epoch = result.last_offset + 1, partition.leader_epoch
    error_code = partition.acknowledgement(end_offset, leader_epoch, ACKS_ALL)
    if error_code is None:
        pending.append(Pending(partition, end_offset, leader_epoch, ACKS_ALL, answer))
    else:
        answer.error_code = error_code
    return answer


async def _answer_later(
    replicas: ReplicaManager, response: WriteTxnMarkersResponse, pending: list[Pending]
) -> WriteTxnMarkersResponse:
    await replicas.wait_for_acknowledgement(pending, _TIMEOUT_MS)
    for append in pending:
        append.response.error_code = append.error or ErrorCode.NONE
    return response
