"""DeleteAcls (key 31): remove the access rules that match filters (KIP-140).

Versions served: 1-3.
- 1: prefixed resource names (KIP-290). 2: flexible. 3: users as resources (KIP-373).

This broker has no access rules yet: each filter is refused with SECURITY_DISABLED, as Kafka does without an authorizer.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k31_delete_acls import (
    DELETE_ACLS,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handles(DELETE_ACLS, "1-3")
def handle_delete_acls(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    refused = DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="This broker has no authorizer that keeps access rules."
    )
    return DeleteAclsResponse(filter_results=[refused] * len(request.filters))
