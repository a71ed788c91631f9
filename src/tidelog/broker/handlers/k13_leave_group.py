"""LeaveGroup (key 13): members leave a classic group at once, without waiting for their sessions to end.

Versions served: 0-5.
- 1: throttle time. 2: throttled after the answer (KIP-219). 3: several members in one request, each with its own
  answer; static members by their instance id alone, for administrators (KIP-345). 4: flexible. 5: why (KIP-800).
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k13_leave_group import LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse


@handles(LEAVE_GROUP, "0-5")
def handle_leave_group(
    request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        answer = context.services.groups.submit(
            request.group_id,
            context,
            lambda shard, client, now, exchange: shard.leave(request, client, now, exchange),
        )
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    return cast("LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]", answer)
