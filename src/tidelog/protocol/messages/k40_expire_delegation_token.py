"""ExpireDelegationToken: ends a delegation token, or sets when it ends (KIP-48).

What the versions brought:

- v1: answers before it throttles (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response
from tidelog.protocol.types import Bytes, Int16, Int32, Int64

EXPIRE_DELEGATION_TOKEN = Api(40, versions="1-2", flexible="2+")


@request(EXPIRE_DELEGATION_TOKEN)
class ExpireDelegationTokenRequest:
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


@response(EXPIRE_DELEGATION_TOKEN)
class ExpireDelegationTokenResponse:
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
