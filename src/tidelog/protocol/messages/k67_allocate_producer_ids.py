"""AllocateProducerIds: a broker takes a block of producer ids from the controller (KIP-730)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Int16, Int32, Int64

ALLOCATE_PRODUCER_IDS = Api(67, versions="0", flexible="0+")


@request(ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsRequest:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


@response(ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
