"""Heartbeat (key 12): a member of a classic group is alive, and learns whether it has to join again.

Versions served: 0-4.
- 1: throttle time. 2: throttled after the answer (KIP-219). 3: static members (KIP-345). 4: flexible.
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse


@handles(HEARTBEAT, "0-4")
def handle_heartbeat(
    request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        answer = context.services.groups.submit(
            request.group_id,
            context,
            lambda shard, client, now, exchange: shard.heartbeat(request, now, exchange),
        )
    except KafkaError as error:
        # While the group is being loaded nobody's session can end, and an error would make members stop their work.
        loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error.code)
    return cast("HeartbeatResponse | asyncio.Future[HeartbeatResponse]", answer)
