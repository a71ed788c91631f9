"""DescribeDelegationToken: lists delegation tokens (KIP-48).

What the versions brought:

- v1: answers before it throttles (KIP-219)
- v2: flexible (KIP-482)
- v3: who asked for the token (KIP-373)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bytes, Int16, Int32, Int64, String

DESCRIBE_DELEGATION_TOKEN = Api(41, versions="1-3", flexible="2+")


@struct
class DescribeDelegationTokenOwner:
    principal_type: String = ""
    principal_name: String = ""


@request(DESCRIBE_DELEGATION_TOKEN)
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = v(factory=list)


@struct
class DescribedDelegationTokenRenewer:
    principal_type: String = ""
    principal_name: String = ""


@struct
class DescribedDelegationToken:
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = v("3+", default="")
    token_requester_principal_name: String = v("3+", default="")
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = v(factory=list)


@response(DESCRIBE_DELEGATION_TOKEN)
class DescribeDelegationTokenResponse:
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = v(factory=list)
    throttle_time_ms: Int32 = 0
