"""DescribeTopicPartitions: describes the partitions of topics page by page, with eligible leader replicas (KIP-966)."""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, String, Uuid

DESCRIBE_TOPIC_PARTITIONS = Api(75, versions="0", flexible="0+")


@struct
class TopicRequest:
    name: String = ""


@struct
class DescribeTopicPartitionsRequestCursor:
    topic_name: String = ""
    partition_index: Int32 = 0


@request(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = v(factory=list)
    response_partition_limit: Int32 = 2000
    cursor: DescribeTopicPartitionsRequestCursor | None = None


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = v(default=-1, ignorable=True)
    replica_nodes: list[Int32] = v(factory=list)
    isr_nodes: list[Int32] = v(factory=list)
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = v(factory=list, ignorable=True)


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = v(default=ZERO_UUID, ignorable=True)
    is_internal: Bool = v(default=False, ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = v(factory=list)
    topic_authorized_operations: Int32 = -0x80000000


@struct
class DescribeTopicPartitionsResponseCursor:
    topic_name: String = ""
    partition_index: Int32 = 0


@response(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsResponse:
    throttle_time_ms: Int32 = v(default=0, ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = v(factory=list)
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None
