"""DeleteRecords: moves the start of partitions forward, so that earlier records can be removed (KIP-107).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

DELETE_RECORDS = Api(21, versions="0-2", flexible="2+")


@struct
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    offset: Int64 = 0


@struct
class DeleteRecordsTopic:
    name: String = ""
    partitions: list[DeleteRecordsPartition] = v(factory=list)


@request(DELETE_RECORDS)
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = v(factory=list)
    timeout_ms: Int32 = 0


@struct
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


@struct
class DeleteRecordsTopicResult:
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = v(factory=list)


@response(DELETE_RECORDS)
class DeleteRecordsResponse:
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = v(factory=list)
