"""ListOffsets, versions 1 to 11.

1 answers one offset with its timestamp. 2 brings the isolation level, 4 the leader epoch on both sides (KIP-320), 5 the
error OFFSET_NOT_AVAILABLE (KIP-207). 6 is flexible. 7 can ask for the record of the largest timestamp (KIP-734), 8 for
the first offset on local disk (KIP-405), 9 for the last tiered one (KIP-1005), 10 brings a time-out for remote look-ups
(KIP-1075) and 11 asks for the first offset not yet tiered (KIP-1023). Nothing is tiered here: local is all there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine

from tidelog.broker.partition import ListedOffset
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

# Timestamps below zero ask for special offsets, each from one version on.
_SPECIAL_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_OFFSET_NOT_AVAILABLE_FROM = 5
_LEADER_EPOCH_FROM = 4


@handles(LIST_OFFSETS, "1-11")
def handle_list_offsets(
    request: ListOffsetsRequest, context: RequestContext
) -> Steps[ListOffsetsResponse | Coroutine[None, None, Steps[ListOffsetsResponse]]]:
    replicas = context.services.replicas
    # A log must be open where something is looked up by its time.
    by_time = (
        (topic.name, wanted.partition_index)
        for topic in request.topics
        for wanted in topic.partitions
        if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP
    )
    return replicas.log_opening.once_open(replicas.find_some(by_time), _list(request, context))


def _list(request: ListOffsetsRequest, context: RequestContext) -> Steps[ListOffsetsResponse]:
    replicas = context.services.replicas
    response = ListOffsetsResponse()
    # A look-up by time may open a batch, so asking for the same partition thousands of times is refused, as in Kafka.
    asked: Counter[tuple[str, int]] = Counter()
    for topic in request.topics:
        for wanted in topic.partitions:
            asked[topic.name, wanted.partition_index] += 1
            yield 0
    for topic in request.topics:
        answer = ListOffsetsTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            if asked[topic.name, wanted.partition_index] == 1:
                answer.partitions.append(_answer(replicas, topic.name, wanted, request, context.version))
            else:
                refusal = ListOffsetsPartitionResponse(
                    partition_index=wanted.partition_index, error_code=ErrorCode.INVALID_REQUEST
                )
                answer.partitions.append(refusal)
            yield 0
        response.topics.append(answer)
    return response


def _answer(
    replicas: ReplicaManager, topic: str, wanted: ListOffsetsPartition, request: ListOffsetsRequest, version: int
) -> ListOffsetsPartitionResponse:
    try:
        listed = _list_offset(replicas, topic, wanted, request, version)
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < _OFFSET_NOT_AVAILABLE_FROM:
            # The nearest thing that older clients retry on.
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        timestamp=listed.timestamp,
        offset=listed.offset,
        leader_epoch=listed.leader_epoch if version >= _LEADER_EPOCH_FROM else -1,
    )


def _list_offset(
    replicas: ReplicaManager, topic: str, wanted: ListOffsetsPartition, request: ListOffsetsRequest, version: int
) -> ListedOffset:
    timestamp = wanted.timestamp
    if timestamp < 0 and version < _SPECIAL_FROM.get(timestamp, version + 1):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    partition = replicas.find_leader(topic, wanted.partition_index, wanted.current_leader_epoch)
    replica_id, read_committed = request.replica_id, request.isolation_level != 0
    if timestamp == LATEST:
        return partition.latest_offset(replica_id, read_committed)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.earliest_offset()
    if timestamp == MAX_TIMESTAMP:
        return partition.offset_of_max_timestamp(replica_id, read_committed)
    if timestamp < 0:
        return ListedOffset()
    return partition.offset_by_timestamp(timestamp, replica_id, read_committed)
