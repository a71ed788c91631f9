"""DescribeGroups (key 15): states and members of classic groups.

Versions served: 0-6.
- 1: throttle time. 2: throttled after the answer (KIP-219). 3: authorized operations (KIP-430). 4: group instance ids
  (KIP-345). 5: flexible. 6: a group that does not exist is answered GROUP_ID_NOT_FOUND (KIP-1043); before, it is a
  group in the state Dead.

A group that is named several times is answered once. A tagged field of ours asks for the history of rebalances, which
another one brings.
"""

from __future__ import annotations

from tidelog.broker.authorized_operations import GROUP_OPERATIONS
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_GROUP_ID_NOT_FOUND_FROM = 6


@handles(DESCRIBE_GROUPS, "0-6")
def handle_describe_groups(request: DescribeGroupsRequest, context: RequestContext) -> Steps[DescribeGroupsResponse]:
    groups = []
    for group_id in dict.fromkeys(request.groups):
        group = _describe(group_id, context, include_history=request.include_history)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        groups.append(group)
        yield 0
    return DescribeGroupsResponse(groups=groups)


def _describe(group_id: str, context: RequestContext, *, include_history: bool) -> DescribedGroup:
    try:
        group = context.services.groups.shard_of(group_id).describe_group(group_id, include_history=include_history)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND and context.version < _GROUP_ID_NOT_FOUND_FROM:
        group.error_code, group.error_message = ErrorCode.NONE, None
    return group
