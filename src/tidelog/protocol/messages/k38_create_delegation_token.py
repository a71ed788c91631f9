"""CreateDelegationToken: makes a token with which others can authenticate as its owner (KIP-48).

What the versions brought:

- v1: answers before it throttles (KIP-219)
- v2: flexible (KIP-482)
- v3: tokens on behalf of other users (KIP-373)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bytes, Int16, Int32, Int64, String

CREATE_DELEGATION_TOKEN = Api(38, versions="1-3", flexible="2+")


@struct
class CreatableRenewers:
    principal_type: String = ""
    principal_name: String = ""


@request(CREATE_DELEGATION_TOKEN)
class CreateDelegationTokenRequest:
    owner_principal_type: String | None = v("3+", default="")
    owner_principal_name: String | None = v("3+", default="")
    renewers: list[CreatableRenewers] = v(factory=list)
    max_lifetime_ms: Int64 = 0


@response(CREATE_DELEGATION_TOKEN)
class CreateDelegationTokenResponse:
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: String = v("3+", default="")
    token_requester_principal_name: String = v("3+", default="")
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0
