"""Produce: appends record batches to partitions, one batch each. With acks=0 there is no response.

Changes by version:

- v3: has the transactional id and accepts only batches of magic 2 (KIP-98)
- v4: may return KAFKA_STORAGE_ERROR (KIP-112)
- v5: the response includes the log start offset
- v6: responds before throttling (KIP-219)
- v7: allows zstd (KIP-110)
- v8: the response names the records for which a batch was rejected (KIP-467)
- v9: flexible (KIP-482)
- v10: with NOT_LEADER_OR_FOLLOWER, the response may include the new leader and its address (KIP-951)
- v11: may return TRANSACTION_ABORTABLE (KIP-890)
- v12: adds the partition to the transaction implicitly (KIP-890)
- v13: topics by id instead of name (KIP-516)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, Records, String, Uuid

PRODUCE = Api(0, versions="3-13", flexible="9+")


@struct
class PartitionProduceData:
    index: Int32 = 0
    records: Records | None = None


@struct
class TopicProduceData:
    name: String = v("0-12", default="", ignorable=True)
    topic_id: Uuid = v("13+", default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData] = v(factory=list)


@request(PRODUCE)
class ProduceRequest:
    transactional_id: String | None = v("3+", default=None)
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = v(factory=list)


@struct
class BatchIndexAndErrorMessage:
    batch_index: Int32 = v("8+", default=0)
    batch_index_error_message: String | None = v("8+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: Int32 = v("10+", default=-1)
    leader_epoch: Int32 = v("10+", default=-1)


@struct
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = v("2+", default=-1, ignorable=True)
    log_start_offset: Int64 = v("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = v("8+", factory=list, ignorable=True)
    error_message: String | None = v("8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = v("10+", factory=LeaderIdAndEpoch, tag=0)


@struct
class TopicProduceResponse:
    name: String = v("0-12", default="", ignorable=True)
    topic_id: Uuid = v("13+", default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = v(factory=list)


@struct
class NodeEndpoint:
    node_id: Int32 = v("10+", default=0)
    host: String = v("10+", default="")
    port: Int32 = v("10+", default=0)
    rack: String | None = v("10+", default=None)


@response(PRODUCE)
class ProduceResponse:
    responses: list[TopicProduceResponse] = v(factory=list)
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = v("10+", factory=list, tag=0)
