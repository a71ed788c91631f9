"""DescribeUserScramCredentials (key 50): which users have SCRAM credentials (KIP-554).

Versions served: 0.

This broker keeps no credentials: all users are none, and each user asked for by name is not found.
"""

from __future__ import annotations

from collections import Counter

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k50_describe_user_scram_credentials import (
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handles(DESCRIBE_USER_SCRAM_CREDENTIALS, "0")
def handle_describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    asked = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message="", results=[_result(name, count) for name, count in asked.items()]
    )


def _result(name: str, count: int) -> DescribeUserScramCredentialsResult:
    error, message = ErrorCode.RESOURCE_NOT_FOUND, f"There are no SCRAM credentials of user {name}."
    if count > 1:
        error, message = ErrorCode.DUPLICATE_RESOURCE, f"The request names user {name} more than once."
    return DescribeUserScramCredentialsResult(user=name, error_code=error, error_message=message)
