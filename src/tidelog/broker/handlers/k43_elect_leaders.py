"""ElectLeaders (key 43): make the preferred replica of partitions their leader, or any replica that is left (KIP-183).

Versions served: 0-2.
- 0: preferred elections only. 1: unclean elections, too, and an error of the whole answer (KIP-460). 2: flexible.

A partition has one replica, so it either is its leader or can't be: there is never anything to elect. Null asks for
all partitions that need an election, which are none; every topic is named in the answer all the same, as in Kafka.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.image import ClusterImage
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k43_elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

_PREFERRED, _UNCLEAN = 0, 1
_UNAVAILABLE = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


@handles(ELECT_LEADERS, "0-2")
def handle_elect_leaders(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    image = context.services.controller.image
    refusal = ErrorCode.NONE
    if request.election_type not in _UNAVAILABLE:
        refusal = ErrorCode.INVALID_REQUEST
    elif request.timeout_ms <= 0:
        refusal = ErrorCode.REQUEST_TIMED_OUT
    wanted = request.topic_partitions
    if wanted is None:
        wanted = [TopicPartitions(topic=name) for name in image.topics]
    return ElectLeadersResponse(
        # Version 0 has errors of partitions only.
        error_code=refusal if context.version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=asked.topic,
                partition_result=[
                    _result(asked.topic, partition, request.election_type, image, refusal)
                    for partition in asked.partitions
                ],
            )
            for asked in wanted
        ],
    )


def _result(topic: str, partition: int, election_type: int, image: ClusterImage, refusal: ErrorCode) -> PartitionResult:
    error: ErrorCode
    state = image.partition(topic, partition)
    if refusal is not ErrorCode.NONE:
        error, message = refusal, refusal.description
    elif state is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {partition} of topic {topic}."
    elif state.leader in image.brokers and not image.brokers[state.leader].fenced:
        error, message = ErrorCode.ELECTION_NOT_NEEDED, "The partition's only replica is its leader."
    else:
        error, message = _UNAVAILABLE[election_type], "The partition's only replica is not available."
    return PartitionResult(partition_id=partition, error_code=error, error_message=message)
