"""AddOffsetsToTxn, API key 25."""

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
