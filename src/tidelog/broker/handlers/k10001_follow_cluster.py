"""FollowCluster (key 10001): a broker keeps up with the cluster's metadata. Kafka has no such API.

Versions served: 0. For brokers only.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10001_follow_cluster import (
    FOLLOW_CLUSTER,
    ClusterChange,
    FollowClusterRequest,
    FollowClusterResponse,
)


@handles(FOLLOW_CLUSTER, "0", internal=True)
async def handle_follow_cluster(request: FollowClusterRequest, context: RequestContext) -> FollowClusterResponse:
    controller = context.services.controller
    epoch = controller.epoch
    if not controller.is_active or request.controller_epoch > epoch:
        return FollowClusterResponse(error_code=ErrorCode.NOT_CONTROLLER)
    with controller.contact.asking(request.node_id):
        page = await controller.feed.read(
            request.node_id,
            request.revision,
            request.snapshot_position,
            is_same_epoch=request.controller_epoch == epoch,
            max_bytes=request.max_bytes,
            max_wait_s=request.max_wait_ms / 1000,
        )
    if page is None:
        return FollowClusterResponse(error_code=ErrorCode.NOT_CONTROLLER)
    return FollowClusterResponse(
        controller_id=context.services.node_id,
        controller_epoch=epoch,
        revision=page.revision,
        is_snapshot=page.is_snapshot,
        is_complete=page.is_complete,
        changes=[ClusterChange(key=key, value=value) for key, value in page.changes],
    )
