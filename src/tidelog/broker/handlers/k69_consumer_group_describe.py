"""ConsumerGroupDescribe (key 69): states, members and assignments of groups of the new consumer protocol (KIP-848).

Versions served: 0-1.
- 1: which protocol a member speaks (KIP-1099).

A group that is named several times is answered once. A tagged field of ours asks for the history of rebalances, which
another one brings.
"""

from __future__ import annotations

from tidelog.broker.authorized_operations import GROUP_OPERATIONS
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k69_consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


@handles(CONSUMER_GROUP_DESCRIBE, "0-1")
def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> Steps[ConsumerGroupDescribeResponse]:
    groups = []
    for group_id in dict.fromkeys(request.group_ids):
        yield 0
        if not group_id:
            groups.append(DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID))
            continue
        try:
            shard = context.services.groups.shard_of(group_id)
        except KafkaError as error:
            groups.append(DescribedGroup(group_id=group_id, error_code=error.code))
            continue
        group = shard.describe_consumer_group(group_id, include_history=request.include_history)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = GROUP_OPERATIONS
        groups.append(group)
    return ConsumerGroupDescribeResponse(groups=groups)
