"""AssignReplicasToDirs: a broker tells the controller in which directories its replicas lie (KIP-858)."""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, Uuid

ASSIGN_REPLICAS_TO_DIRS = Api(73, versions="0", flexible="0+")


@struct
class AssignReplicasToDirsRequestPartitionData:
    partition_index: Int32 = 0


@struct
class AssignReplicasToDirsRequestTopicData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[AssignReplicasToDirsRequestPartitionData] = v(factory=list)


@struct
class AssignReplicasToDirsRequestDirectoryData:
    id: Uuid = ZERO_UUID
    topics: list[AssignReplicasToDirsRequestTopicData] = v(factory=list)


@request(ASSIGN_REPLICAS_TO_DIRS)
class AssignReplicasToDirsRequest:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[AssignReplicasToDirsRequestDirectoryData] = v(factory=list)


@struct
class AssignReplicasToDirsResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class AssignReplicasToDirsResponseTopicData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[AssignReplicasToDirsResponsePartitionData] = v(factory=list)


@struct
class AssignReplicasToDirsResponseDirectoryData:
    id: Uuid = ZERO_UUID
    topics: list[AssignReplicasToDirsResponseTopicData] = v(factory=list)


@response(ASSIGN_REPLICAS_TO_DIRS)
class AssignReplicasToDirsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[AssignReplicasToDirsResponseDirectoryData] = v(factory=list)
