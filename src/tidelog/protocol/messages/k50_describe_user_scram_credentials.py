"""DescribeUserScramCredentials: lists which SCRAM mechanisms users have credentials for (KIP-554)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, versions="0", flexible="0+")


@struct
class UserName:
    name: String = ""


@request(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = v(factory=list)


@struct
class CredentialInfo:
    mechanism: Int8 = 0
    iterations: Int32 = 0


@struct
class DescribeUserScramCredentialsResult:
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""
    credential_infos: list[CredentialInfo] = v(factory=list)


@response(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = v(factory=list)
