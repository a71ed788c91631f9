"""CreatePartitions: adds partitions to topics (KIP-195).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, String

CREATE_PARTITIONS = Api(37, versions="0-3", flexible="2+")


@struct
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = v(factory=list)


@struct
class CreatePartitionsTopic:
    name: String = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = v(factory=list)


@request(CREATE_PARTITIONS)
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = v(factory=list)
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@struct
class CreatePartitionsTopicResult:
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


@response(CREATE_PARTITIONS)
class CreatePartitionsResponse:
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = v(factory=list)
