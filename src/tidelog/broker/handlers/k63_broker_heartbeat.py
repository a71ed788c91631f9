"""BrokerHeartbeat (key 63): a broker asks the controller to be fenced, or to be allowed to shut down (KIP-631).

Versions served: 0-2. For brokers only.

A broker's key in the metadata store shows that it is alive, so it need not send this again and again. Of its
directories only the registration tells.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.changes import checked_broker
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k63_broker_heartbeat import (
    BROKER_HEARTBEAT,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)


@handles(BROKER_HEARTBEAT, "0-2", internal=True)
async def handle_broker_heartbeat(request: BrokerHeartbeatRequest, context: RequestContext) -> BrokerHeartbeatResponse:
    controller = context.services.controller
    if not controller.is_active:
        return BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
    node_id, epoch = request.broker_id, request.broker_epoch
    may_stop = False
    checked_broker(node_id, epoch, controller.image)
    if request.want_shut_down:
        may_stop = await controller.shut_down_broker(node_id, epoch)
    elif request.want_fence:
        await controller.fence_brokers([node_id])
    broker = checked_broker(node_id, epoch, controller.image)
    return BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= controller.image.revision,
        is_fenced=broker.fenced,
        should_shut_down=may_stop,
    )
