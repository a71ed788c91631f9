"""Envelope: carries a request that a broker forwards for a client to the controller (KIP-590)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Bytes, Int16

ENVELOPE = Api(58, versions="0", flexible="0+")


@request(ENVELOPE)
class EnvelopeRequest:
    request_data: Bytes = b""
    request_principal: Bytes | None = b""
    client_host_address: Bytes = b""


@response(ENVELOPE)
class EnvelopeResponse:
    response_data: Bytes | None = None
    error_code: Int16 = 0
