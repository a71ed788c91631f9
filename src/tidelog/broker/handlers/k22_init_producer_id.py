"""InitProducerId, versions 0 to 6.

1 changes nothing in the fields, 2 is flexible. 3 lets a producer name the id and epoch it had (KIP-360), 4 may answer
PRODUCER_FENCED (KIP-588), 5 TRANSACTION_ABORTABLE (KIP-890), 6 is for two-phase commit (KIP-939).

Without a transactional id the answer is always a fresh producer id at epoch 0. With one the request belongs to a
transaction coordinator, of which this broker runs none; COORDINATOR_NOT_AVAILABLE makes producers look for one until
their own time is over, and then tell the application so.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)


@handles(INIT_PRODUCER_ID, "0-6")
async def handle_init_producer_id(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        # An empty id can't name a transaction, and no coordinator will ever say otherwise.
        empty = request.transactional_id == ""
        return _failure(ErrorCode.INVALID_REQUEST if empty else ErrorCode.COORDINATOR_NOT_AVAILABLE)
    try:
        producer_id = await context.services.producer_ids.allocate()
    except KafkaError as error:
        return _failure(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failure(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
