"""AlterUserScramCredentials: sets and removes SCRAM credentials (KIP-554)."""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bytes, Int8, Int16, Int32, String

ALTER_USER_SCRAM_CREDENTIALS = Api(51, versions="0", flexible="0+")


@struct
class ScramCredentialDeletion:
    name: String = ""
    mechanism: Int8 = 0


@struct
class ScramCredentialUpsertion:
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


@request(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = v(factory=list)
    upsertions: list[ScramCredentialUpsertion] = v(factory=list)


@struct
class AlterUserScramCredentialsResult:
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


@response(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsResponse:
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = v(factory=list)
