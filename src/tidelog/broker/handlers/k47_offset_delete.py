"""OffsetDelete (key 47): deletes offsets that a group committed for topics it does not read (KIP-496).

Versions served: 0.

Topics that a member subscribes to are answered GROUP_SUBSCRIBED_TO_TOPIC, the others are done all the same.
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k47_offset_delete import OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse


@handles(OFFSET_DELETE, "0")
def handle_offset_delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        answer = context.services.groups.submit(
            request.group_id, context, lambda shard, client, now, exchange: shard.offset_delete(request, exchange)
        )
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return cast("OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]", answer)
