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
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import LEAVE_GROUP, LeaveGroupRequest, LeaveGroupResponse


@handles(LEAVE_GROUP, "0-5")
def handle_leave_group(
    request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse] | Steps[object]:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    answer = context.services.groups.submit_prepared(
        request.group_id,
        context,
        lambda shard, client, now: shard.leave(request, client),
        refuse=_refuse,
        size=len(request.members),
    )
    return cast("LeaveGroupResponse | asyncio.Future[LeaveGroupResponse] | Steps[object]", answer)


def _refuse(error: ErrorCode) -> Steps[LeaveGroupResponse]:
    yield 0
    return LeaveGroupResponse(error_code=error)
