"""UnregisterBroker (key 64): forget a broker that won't come back (KIP-631).

Versions served: 0.

It stays a replica of its partitions; move these to other brokers first. A broker that is running is refused with
INVALID_REQUEST, where Kafka would unregister it.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol.messages.k64_unregister_broker import (
    UNREGISTER_BROKER,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


@handles(UNREGISTER_BROKER, "0", on_controller=True)
async def handle_unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext
) -> UnregisterBrokerResponse:
    await context.services.controller.unregister_broker(request.broker_id)
    return UnregisterBrokerResponse()
