"""DescribeTransactions: describes the state of transactions (KIP-664)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

DESCRIBE_TRANSACTIONS = Api(65, versions="0", flexible="0+")


@request(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsRequest:
    transactional_ids: list[String] = v(factory=list)


@struct
class TopicData:
    topic: String = ""
    partitions: list[Int32] = v(factory=list)


@struct
class TransactionState:
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = v(factory=list)


@response(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsResponse:
    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = v(factory=list)
