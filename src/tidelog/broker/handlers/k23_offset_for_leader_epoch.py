"""OffsetForLeaderEpoch, versions 2 to 4.

2 brings the epoch that the client believes current (KIP-320), 3 the replica id, 4 is flexible. The answer is the
largest epoch not above the one asked for and the offset at which it ended, or -1 for both where that is not known.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator

from tidelog.broker.partition import Partition
from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import KafkaError
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handles(OFFSET_FOR_LEADER_EPOCH, "2-4")
def handle_offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> Steps[OffsetForLeaderEpochResponse | Coroutine[None, None, Steps[OffsetForLeaderEpochResponse]]]:
    replicas = context.services.replicas
    return replicas.log_opening.once_open(_with_earlier_epochs(request, replicas), _look_up(request, replicas))


def _with_earlier_epochs(request: OffsetForLeaderEpochRequest, replicas: ReplicaManager) -> Iterator[Partition]:
    """The partitions asked about another epoch than the latest, which alone is known of a log at rest."""
    for topic in request.topics:
        for wanted in topic.partitions:
            for partition in replicas.find_some([(topic.topic, wanted.partition)]):
                if partition.log.latest_epoch != wanted.leader_epoch:
                    yield partition


def _look_up(request: OffsetForLeaderEpochRequest, replicas: ReplicaManager) -> Steps[OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answer = OffsetForLeaderTopicResult(topic=topic.topic)
        for wanted in topic.partitions:
            answer.partitions.append(_answer(replicas, topic.topic, wanted))
            yield 0
        response.topics.append(answer)
    return response


def _answer(replicas: ReplicaManager, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = replicas.find_leader(topic, wanted.partition, wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
