"""DescribeAcls (key 29): the access rules that match a filter (KIP-140).

Versions served: 1-3.
- 1: prefixed resource names (KIP-290). 2: flexible. 3: users as resources (KIP-373).

This broker has no access rules yet and says so, as Kafka does without an authorizer: SECURITY_DISABLED.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k29_describe_acls import DESCRIBE_ACLS, DescribeAclsRequest, DescribeAclsResponse


@handles(DESCRIBE_ACLS, "1-3")
def handle_describe_acls(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED,
        error_message="This broker has no authorizer: everybody may do everything.",
    )
