"""AllocateProducerIds (key 67): a broker takes a block of producer ids from the controller (KIP-730).

Versions served: 0. For brokers only.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.changes import checked_broker
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k67_allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


@handles(ALLOCATE_PRODUCER_IDS, "0", internal=True)
async def handle_allocate_producer_ids(
    request: AllocateProducerIdsRequest, context: RequestContext
) -> AllocateProducerIdsResponse:
    controller = context.services.controller
    if not controller.is_active:
        return AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
    checked_broker(request.broker_id, request.broker_epoch, controller.image)
    block = await controller.allocate_producer_ids()
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
