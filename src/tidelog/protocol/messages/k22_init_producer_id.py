"""InitProducerId: gives a producer its id and epoch, and ends the transaction that an earlier
producer with the same transactional id left open (KIP-98).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: a producer can keep its id and ask for the next epoch (KIP-360)
- v4: may return PRODUCER_FENCED (KIP-588)
- v5: may return TRANSACTION_ABORTABLE (KIP-890)
- v6: two-phase commit with an external coordinator (KIP-939)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String

INIT_PRODUCER_ID = Api(22, versions="0-6", flexible="2+")


@request(INIT_PRODUCER_ID)
class InitProducerIdRequest:
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = v("3+", default=-1)
    producer_epoch: Int16 = v("3+", default=-1)
    enable2_pc: Bool = v("6+", default=False)
    keep_prepared_txn: Bool = v("6+", default=False)


@response(INIT_PRODUCER_ID)
class InitProducerIdResponse:
    throttle_time_ms: Int32 = v(default=0, ignorable=True)
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = v("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = v("6+", default=-1)
