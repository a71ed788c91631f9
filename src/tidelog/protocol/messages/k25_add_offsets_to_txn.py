"""AddOffsetsToTxn: adds the offsets of a group to a transaction (KIP-98).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: may return PRODUCER_FENCED (KIP-588)
- v3: flexible (KIP-482)
- v4: may return TRANSACTION_ABORTABLE (KIP-890)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Int16, Int32, Int64, String

ADD_OFFSETS_TO_TXN = Api(25, versions="0-4", flexible="3+")


@request(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnRequest:
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


@response(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
