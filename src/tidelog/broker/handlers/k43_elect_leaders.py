"""ElectLeaders (key 43): make the preferred replica of partitions their leader, or any replica that is left (KIP-183).

Versions served: 0-2.
- 0: preferred elections only. 1: unclean elections, too, and an error of the whole answer (KIP-460). 2: flexible.

Null asks for all partitions that need an election; every topic is named in the answer all the same, as in Kafka. An
unclean election is for partitions without a leader, and may lose acknowledged records: the request itself allows it,
whatever unclean.leader.election.enable says.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller import ClusterImage, ElectionResult, ElectionType
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k43_elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

_ELECTION_TYPES = frozenset(ElectionType)


@handles(ELECT_LEADERS, "0-2", on_controller=True)
async def handle_elect_leaders(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    controller = context.services.controller
    asked = request.topic_partitions
    partitions = None if asked is None else [(topic.topic, index) for topic in asked for index in topic.partitions]
    refusal = ErrorCode.NONE
    if request.election_type not in _ELECTION_TYPES:
        refusal = ErrorCode.INVALID_REQUEST
    elif request.timeout_ms <= 0:
        refusal = ErrorCode.REQUEST_TIMED_OUT
    results: Sequence[ElectionResult]
    if refusal is ErrorCode.NONE:
        try:
            results = await controller.elect_leaders(
                ElectionType(request.election_type), partitions, timeout_s=request.timeout_ms / 1000
            )
        except KafkaError as error:
            refusal = error.code
    if refusal is not ErrorCode.NONE:
        results = [ElectionResult(*partition, refusal, refusal.description) for partition in partitions or ()]
    return ElectLeadersResponse(
        # Version 0 has errors of partitions only.
        error_code=refusal if context.version >= 1 else ErrorCode.NONE,
        replica_election_results=_rows(asked, results, controller.image),
    )


def _rows(
    asked: Sequence[TopicPartitions] | None, results: Sequence[ElectionResult], image: ClusterImage
) -> list[ReplicaElectionResult]:
    """A row for each topic asked for, which the results follow in order; for all topics a row each."""
    if asked is not None:
        following = iter(results)
        return [
            ReplicaElectionResult(
                topic=topic.topic, partition_result=[_partition(next(following)) for _ in topic.partitions]
            )
            for topic in asked
        ]
    rows = {name: ReplicaElectionResult(topic=name) for name in image.topics}
    for result in results:
        # A topic that was deleted meanwhile has no row.
        if result.topic in rows:
            rows[result.topic].partition_result.append(_partition(result))
    return list(rows.values())


def _partition(result: ElectionResult) -> PartitionResult:
    return PartitionResult(partition_id=result.index, error_code=result.error, error_message=result.message)
