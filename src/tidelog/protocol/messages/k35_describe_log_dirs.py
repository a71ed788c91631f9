"""DescribeLogDirs: lists the contents of a broker's log directories and their sizes (KIP-113).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: an error code for the whole response (KIP-784)
- v4: total and free space of the volume (KIP-827)
- v5: whether a directory is cordoned, that is, takes no new replicas (KIP-1066)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String

DESCRIBE_LOG_DIRS = Api(35, versions="1-5", flexible="2+")


@struct
class DescribableLogDirTopic:
    topic: String = ""
    partitions: list[Int32] = v(factory=list)


@request(DESCRIBE_LOG_DIRS)
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = v(factory=list)


@struct
class DescribeLogDirsPartition:
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@struct
class DescribeLogDirsTopic:
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = v(factory=list)


@struct
class DescribeLogDirsResult:
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = v(factory=list)
    total_bytes: Int64 = v("4+", default=-1, ignorable=True)
    usable_bytes: Int64 = v("4+", default=-1, ignorable=True)
    is_cordoned: Bool = v("5+", default=False, ignorable=True)


@response(DESCRIBE_LOG_DIRS)
class DescribeLogDirsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = v("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = v(factory=list)
