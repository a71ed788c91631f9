"""SaslHandshake: chooses the authentication mechanism of a connection. Never flexible: old clients misread newer
versions.

Changes by version:

- v0: raw SASL tokens follow, without headers
- v1: tokens follow inside SaslAuthenticate (KIP-152)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Int16, String

SASL_HANDSHAKE = Api(17, versions="0-1")


@request(SASL_HANDSHAKE)
class SaslHandshakeRequest:
    mechanism: String = ""


@response(SASL_HANDSHAKE)
class SaslHandshakeResponse:
    error_code: Int16 = 0
    mechanisms: list[String] = v(factory=list)
