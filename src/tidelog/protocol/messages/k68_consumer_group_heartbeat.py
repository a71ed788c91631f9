"""ConsumerGroupHeartbeat: the one request of members of the new consumer protocol: they use it to join, stay, report
and leave (KIP-848).

Changes by version:

- v1: subscription by regular expression (KIP-848); the member generates its own id (KIP-1082)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String, Uuid

CONSUMER_GROUP_HEARTBEAT = Api(68, versions="0-1", flexible="0+")


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = v(factory=list)


@request(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatRequest:
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: String | None = v("1+", default=None)
    server_assignor: String | None = None
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = None


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = v(factory=list)


@struct
class Assignment:
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = v(factory=list)


@response(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
