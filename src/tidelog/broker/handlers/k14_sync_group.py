"""SyncGroup (key 14): the leader of a classic group hands in the assignment, and every member fetches its part.

Versions served: 0-5.
- 1: throttle time. 2: throttled after the answer (KIP-219). 3: static members (KIP-345). 4: flexible. 5: protocol type
  and name, both mandatory and checked against the group's (KIP-559).
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k14_sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse

_PROTOCOL_FROM: Final = 5


@handles(SYNC_GROUP, "0-5")
def handle_sync_group(
    request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
    if context.version >= _PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        answer = context.services.groups.submit(
            request.group_id,
            context,
            lambda shard, client, now, exchange: shard.sync(request, now, exchange),
        )
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)
    return cast("SyncGroupResponse | asyncio.Future[SyncGroupResponse]", answer)
