"""AddPartitionsToTxn: adds partitions to a transaction (KIP-98). Clients use versions up to 3, brokers
version 4 and later.

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: may return PRODUCER_FENCED (KIP-588)
- v3: flexible (KIP-482)
- v4: several transactions at once, and a mode that only verifies (KIP-890)
- v5: may return TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String

ADD_PARTITIONS_TO_TXN = Api(24, versions="0-5", flexible="3+")


@struct
class AddPartitionsToTxnTopic:
    name: String = ""
    partitions: list[Int32] = v(factory=list)


@struct
class AddPartitionsToTxnTransaction:
    transactional_id: String = v("4+", default="")
    producer_id: Int64 = v("4+", default=0)
    producer_epoch: Int16 = v("4+", default=0)
    verify_only: Bool = v("4+", default=False)
    topics: list[AddPartitionsToTxnTopic] = v("4+", factory=list)


@request(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnRequest:
    transactions: list[AddPartitionsToTxnTransaction] = v("4+", factory=list)
    v3_and_below_transactional_id: String = v("0-3", default="")
    v3_and_below_producer_id: Int64 = v("0-3", default=0)
    v3_and_below_producer_epoch: Int16 = v("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = v("0-3", factory=list)


@struct
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


@struct
class AddPartitionsToTxnTopicResult:
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = v(factory=list)


@struct
class AddPartitionsToTxnResult:
    transactional_id: String = v("4+", default="")
    topic_results: list[AddPartitionsToTxnTopicResult] = v("4+", factory=list)


@response(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = v("4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = v("4+", factory=list)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = v("0-3", factory=list)
