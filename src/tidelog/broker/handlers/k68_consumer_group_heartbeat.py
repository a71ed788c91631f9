"""ConsumerGroupHeartbeat (key 68): members of the new consumer protocol join, stay, report and leave (KIP-848).

Versions served: 0-1.
- 1: subscriptions by regular expression; members make their own ids (KIP-1082).
"""

from __future__ import annotations

import asyncio
from typing import cast

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@handles(CONSUMER_GROUP_HEARTBEAT, "0-1")
def handle_consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
    if not request.group_id:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="GroupId can't be empty."
        )
    try:
        answer = context.services.groups.submit(
            request.group_id,
            context,
            lambda shard, client, now, exchange: shard.consumer_heartbeat(request, client, now, exchange),
        )
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    return cast("ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]", answer)
