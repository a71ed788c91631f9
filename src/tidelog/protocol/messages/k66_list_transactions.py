"""ListTransactions: lists the transactions that this broker coordinates (KIP-664).

Changes by version:

- v1: can list only those that have been running longer than a given time (KIP-994)
- v2: can list only those whose id matches a pattern (KIP-1152)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, Int64, String

LIST_TRANSACTIONS = Api(66, versions="0-2", flexible="0+")


@request(LIST_TRANSACTIONS)
class ListTransactionsRequest:
    state_filters: list[String] = v(factory=list)
    producer_id_filters: list[Int64] = v(factory=list)
    duration_filter: Int64 = v("1+", default=-1)
    transactional_id_pattern: String | None = v("2+", default=None)


@struct
class TransactionState:
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


@response(LIST_TRANSACTIONS)
class ListTransactionsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = v(factory=list)
    transaction_states: list[TransactionState] = v(factory=list)
