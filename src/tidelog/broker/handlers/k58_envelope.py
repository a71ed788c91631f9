"""Envelope (key 58): a client's request that another broker passes on to the controller (KIP-590).

Versions served: 0. For brokers only.
"""

from __future__ import annotations

from tidelog.broker.forwarding import answer_envelope
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError, ProtocolError
from tidelog.protocol.messages.k58_envelope import ENVELOPE, EnvelopeRequest, EnvelopeResponse


@handles(ENVELOPE, "0", internal=True)
async def handle_envelope(request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
    services = context.services
    if not services.controller.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        response = await answer_envelope(request, services)
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return EnvelopeResponse(response_data=response, metadata_revision=services.cluster.image.revision)
