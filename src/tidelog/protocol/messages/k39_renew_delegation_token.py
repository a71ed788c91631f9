"""RenewDelegationToken: prolongs the life of a delegation token (KIP-48).

What the versions brought:

- v1: answers before it throttles (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Bytes, Int16, Int32, Int64

RENEW_DELEGATION_TOKEN = Api(39, versions="1-2", flexible="2+")


@request(RENEW_DELEGATION_TOKEN)
class RenewDelegationTokenRequest:
    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


@response(RENEW_DELEGATION_TOKEN)
class RenewDelegationTokenResponse:
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
