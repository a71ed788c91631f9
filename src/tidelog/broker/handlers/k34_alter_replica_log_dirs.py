"""AlterReplicaLogDirs, versions 1 and 2 (KIP-113).

1 changes nothing in the fields, 2 is flexible. The answer says which moves have begun, not that they have ended:
DescribeLogDirs shows how far they are. To name the directory that a replica is in ends its move.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k34_alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


@handles(ALTER_REPLICA_LOG_DIRS, "1-2")
def handle_alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, context: RequestContext
) -> Steps[AlterReplicaLogDirsResponse]:
    replicas = context.services.replicas
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for wanted in directory.topics:
            topic = topics.setdefault(wanted.name, AlterReplicaLogDirTopicResult(topic_name=wanted.name))
            for index in wanted.partitions:
                yield 0
                error = _move(replicas, wanted.name, index, directory.path)
                topic.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _move(replicas: ReplicaManager, topic: str, index: int, path: str) -> ErrorCode:
    try:
        target = replicas.moves.find_directory(path)
        partition = replicas.find(topic, index)
        partition.check_available()
    except KafkaError as error:
        # As Kafka tells that the broker has no replica of it.
        is_elsewhere = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code
    replicas.moves.start(partition, target)
    return ErrorCode.NONE
