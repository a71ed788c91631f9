"""AlterPartition (key 56): a partition's leader asks the controller to change its in-sync replicas (KIP-497).

Versions served: 2-3. For brokers only.
- 2: topics by id (KIP-841). 3: members with their broker epochs, so that one that restarted since is refused (KIP-903).

Each partition is changed or refused on its own. A broker epoch that is not the newest refuses all of them.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.image import LeaderRecoveryState
from tidelog.controller.requests import UNKNOWN_EPOCH, IsrChange, IsrMember, IsrResult
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k56_alter_partition import (
    ALTER_PARTITION,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

_EPOCHS_FROM_VERSION = 3
_RECOVERY_STATES = frozenset(LeaderRecoveryState)


@handles(ALTER_PARTITION, "2-3", internal=True)
async def handle_alter_partition(request: AlterPartitionRequest, context: RequestContext) -> AlterPartitionResponse:
    controller = context.services.controller
    if not controller.is_active:
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    changes = [
        IsrChange(
            topic.topic_id,
            row.partition_index,
            row.leader_epoch,
            row.partition_epoch,
            _members(row, context.version),
            _recovery(row),
        )
        for topic in request.topics
        for row in topic.partitions
    ]
    results = await controller.alter_partition(request.broker_id, request.broker_epoch, changes)
    answers: dict[object, AlterPartitionResponseTopicData] = {}
    for result in results:
        topic = answers.setdefault(result.topic_id, AlterPartitionResponseTopicData(topic_id=result.topic_id))
        topic.partitions.append(_row(result))
    return AlterPartitionResponse(topics=list(answers.values()))


def _members(row: AlterPartitionRequestPartitionData, version: int) -> list[IsrMember]:
    if version < _EPOCHS_FROM_VERSION:
        return [IsrMember(node_id, UNKNOWN_EPOCH) for node_id in row.new_isr]
    return [IsrMember(member.broker_id, member.broker_epoch) for member in row.new_isr_with_epochs]


def _recovery(row: AlterPartitionRequestPartitionData) -> LeaderRecoveryState:
    if row.leader_recovery_state not in _RECOVERY_STATES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no leader recovery state {row.leader_recovery_state}")
    return LeaderRecoveryState(row.leader_recovery_state)


def _row(result: IsrResult) -> AlterPartitionResponsePartitionData:
    state = result.state
    if state is None:
        return AlterPartitionResponsePartitionData(partition_index=result.index, error_code=result.error)
    return AlterPartitionResponsePartitionData(
        partition_index=result.index,
        error_code=result.error,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        leader_recovery_state=state.recovery,
        partition_epoch=state.partition_epoch,
    )
