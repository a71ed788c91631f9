"""JoinGroup (key 11): becoming a member of a classic group; answered when the group's next generation is formed.

Versions served: 0-9.
- 1: a time of its own to join again in a rebalance (KIP-62); before, it is the session's. 2: throttle time.
  3: throttled after the answer (KIP-219). 4: a member without an id gets one to join with (KIP-394). 5: static members
  (KIP-345).
- 6: flexible. 7: has the protocol type, and names may be null (KIP-559). 8: why the member joins (KIP-800). 9: a
  leader that comes back learns that it should keep the assignment (KIP-814).
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k11_join_group import JOIN_GROUP, JoinGroupRequest, JoinGroupResponse


@handles(JOIN_GROUP, "0-9")
def handle_join_group(
    request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
    # No coordinator has a group without a name, so none is looked for.
    if not request.group_id:
        return JoinGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, member_id=request.member_id)
    try:
        answer = context.services.groups.submit(
            request.group_id,
            context,
            lambda shard, client, now, exchange: shard.join(request, client, now, exchange),
        )
    except KafkaError as error:
        return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    return cast("JoinGroupResponse | asyncio.Future[JoinGroupResponse]", answer)
