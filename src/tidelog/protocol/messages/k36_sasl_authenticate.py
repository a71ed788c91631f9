"""SaslAuthenticate: carries SASL tokens after a SaslHandshake of version 1 (KIP-152).

Changes by version:

- v1: how long the session lasts (KIP-368)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Bytes, Int16, Int64, String

SASL_AUTHENTICATE = Api(36, versions="0-2", flexible="2+")


@request(SASL_AUTHENTICATE)
class SaslAuthenticateRequest:
    auth_bytes: Bytes = b""


@response(SASL_AUTHENTICATE)
class SaslAuthenticateResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Int64 = v("1+", default=0, ignorable=True)
