"""ConsumerGroupDescribe: describes the state and members of groups that use the new consumer protocol (KIP-848).

Changes by version:

- v1: the protocol that each member uses (KIP-1099)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.messages.rebalance_history import HISTORY_TAG, RebalanceEntry
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String, Uuid

CONSUMER_GROUP_DESCRIBE = Api(69, versions="0-1", flexible="0+")


@request(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeRequest:
    group_ids: list[String] = v(factory=list)
    include_authorized_operations: Bool = False
    include_history: Bool = v(default=False, tag=HISTORY_TAG)


@struct
class TopicPartitions:
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    partitions: list[Int32] = v(factory=list)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = v(factory=list)


@struct
class Member:
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = v(factory=list)
    subscribed_topic_regex: String | None = None
    assignment: Assignment = v(factory=Assignment)
    target_assignment: Assignment = v(factory=Assignment)
    member_type: Int8 = v("1+", default=-1, ignorable=True)


@struct
class DescribedGroup:
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = v(factory=list)
    authorized_operations: Int32 = -0x80000000
    history: list[RebalanceEntry] = v(factory=list, tag=HISTORY_TAG)


@response(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeResponse:
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = v(factory=list)
