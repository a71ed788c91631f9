"""AlterPartition: a partition's leader asks the controller to change its in-sync replicas (KIP-497).

Changes by version:

- v2: topics by id instead of name (KIP-841)
- v3: in-sync replicas with their epochs (KIP-903)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, Int64, Uuid

ALTER_PARTITION = Api(56, versions="2-3", flexible="0+")


@struct
class BrokerState:
    broker_id: Int32 = v("3+", default=0)
    broker_epoch: Int64 = v("3+", default=-1)


@struct
class AlterPartitionRequestPartitionData:
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: list[Int32] = v("0-2", factory=list)
    new_isr_with_epochs: list[BrokerState] = v("3+", factory=list)
    leader_recovery_state: Int8 = v("1+", default=0)
    partition_epoch: Int32 = 0


@struct
class AlterPartitionRequestTopicData:
    topic_id: Uuid = v("2+", default=ZERO_UUID, ignorable=True)
    partitions: list[AlterPartitionRequestPartitionData] = v(factory=list)


@request(ALTER_PARTITION)
class AlterPartitionRequest:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopicData] = v(factory=list)


@struct
class AlterPartitionResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = v(factory=list)
    leader_recovery_state: Int8 = v("1+", default=0, ignorable=True)
    partition_epoch: Int32 = 0


@struct
class AlterPartitionResponseTopicData:
    topic_id: Uuid = v("2+", default=ZERO_UUID, ignorable=True)
    partitions: list[AlterPartitionResponsePartitionData] = v(factory=list)


@response(ALTER_PARTITION)
class AlterPartitionResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionResponseTopicData] = v(factory=list)
