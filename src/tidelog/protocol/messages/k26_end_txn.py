"""EndTxn: commits or aborts a transaction (KIP-98).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: may return PRODUCER_FENCED (KIP-588)
- v3: flexible (KIP-482)
- v4: may return TRANSACTION_ABORTABLE (KIP-890)
- v5: bumps the producer's epoch and returns it (KIP-890)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String

END_TXN = Api(26, versions="0-5", flexible="3+")


@request(END_TXN)
class EndTxnRequest:
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


@response(END_TXN)
class EndTxnResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = v("5+", default=-1, ignorable=True)
    producer_epoch: Int16 = v("5+", default=-1, ignorable=True)
