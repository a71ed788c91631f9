"""ElectLeaders: triggers leader elections for partitions (KIP-183).

Changes by version:

- v1: unclean elections, too; an error code for the whole response (KIP-460)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

ELECT_LEADERS = Api(43, versions="0-2", flexible="2+")


@struct
class TopicPartitions:
    topic: String = ""
    partitions: list[Int32] = v(factory=list)


@request(ELECT_LEADERS)
class ElectLeadersRequest:
    election_type: Int8 = v("1+", default=0)
    topic_partitions: list[TopicPartitions] | None = v(factory=list)
    timeout_ms: Int32 = 60000


@struct
class PartitionResult:
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


@struct
class ReplicaElectionResult:
    topic: String = ""
    partition_result: list[PartitionResult] = v(factory=list)


@response(ELECT_LEADERS)
class ElectLeadersResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = v("1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = v(factory=list)
