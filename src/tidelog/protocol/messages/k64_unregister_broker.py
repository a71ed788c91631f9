"""UnregisterBroker: removes a broker permanently (KIP-631)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Int16, Int32, String

UNREGISTER_BROKER = Api(64, versions="0", flexible="0+")


@request(UNREGISTER_BROKER)
class UnregisterBrokerRequest:
    broker_id: Int32 = 0


@response(UNREGISTER_BROKER)
class UnregisterBrokerResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
