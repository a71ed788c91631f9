"""TxnOffsetCommit: stores a group's offsets as part of a transaction (KIP-98).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: leader epoch of the committed offset (KIP-320)
- v3: flexible (KIP-482); member and generation, for fencing (KIP-447)
- v4: may return TRANSACTION_ABORTABLE (KIP-890)
- v5: adds the offsets to the transaction implicitly (KIP-890)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

TXN_OFFSET_COMMIT = Api(28, versions="0-5", flexible="3+")


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = v("2+", default=-1, ignorable=True)
    committed_metadata: String | None = ""


@struct
class TxnOffsetCommitRequestTopic:
    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = v(factory=list)


@request(TXN_OFFSET_COMMIT)
class TxnOffsetCommitRequest:
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Int32 = v("3+", default=-1)
    member_id: String = v("3+", default="")
    group_instance_id: String | None = v("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = v(factory=list)


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class TxnOffsetCommitResponseTopic:
    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = v(factory=list)


@response(TXN_OFFSET_COMMIT)
class TxnOffsetCommitResponse:
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = v(factory=list)
