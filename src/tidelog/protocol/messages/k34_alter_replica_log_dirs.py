"""AlterReplicaLogDirs: moves replicas between the log directories of a broker (KIP-113).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

ALTER_REPLICA_LOG_DIRS = Api(34, versions="1-2", flexible="2+")


@struct
class AlterReplicaLogDirTopic:
    name: String = ""
    partitions: list[Int32] = v(factory=list)


@struct
class AlterReplicaLogDir:
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = v(factory=list)


@request(ALTER_REPLICA_LOG_DIRS)
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = v(factory=list)


@struct
class AlterReplicaLogDirPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = v(factory=list)


@response(ALTER_REPLICA_LOG_DIRS)
class AlterReplicaLogDirsResponse:
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = v(factory=list)
