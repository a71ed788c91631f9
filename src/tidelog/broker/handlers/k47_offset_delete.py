"""OffsetDelete (key 47): deletes offsets that a group committed for topics it does not read (KIP-496).

Versions served: 0.

Topics that a member subscribes to are answered GROUP_SUBSCRIBED_TO_TOPIC, the others are done all the same.
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k47_offset_delete import OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse


@handles(OFFSET_DELETE, "0")
def handle_offset_delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse] | Steps[object]:
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    answer = context.services.groups.submit_prepared(
        request.group_id,
        context,
        lambda shard, client, now: shard.offset_delete(request),
        refuse=_refuse,
        size=len(request.topics) + sum(len(topic.partitions) for topic in request.topics),
    )
    return cast("OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse] | Steps[object]", answer)


def _refuse(error: ErrorCode) -> Steps[OffsetDeleteResponse]:
    yield 0
    return OffsetDeleteResponse(error_code=error)
