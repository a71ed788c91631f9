"""CreateAcls (key 30): add access rules (KIP-140).

Versions served: 1-3.
- 1: prefixed resource names (KIP-290). 2: flexible. 3: users as resources (KIP-373).

This broker has no access rules yet: each one is refused with SECURITY_DISABLED, as Kafka does without an authorizer.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k30_create_acls import (
    CREATE_ACLS,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


@handles(CREATE_ACLS, "1-3")
def handle_create_acls(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    refused = AclCreationResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="This broker has no authorizer to keep access rules."
    )
    return CreateAclsResponse(results=[refused] * len(request.creations))
