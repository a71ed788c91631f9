"""DescribeCluster (key 60): the cluster's id, controller and brokers (KIP-700).

Versions served: 0-2.
- 1: the client says whether it means brokers or controllers (KIP-919). 2: fenced brokers too, if asked for (KIP-1073).
"""

from __future__ import annotations

from tidelog.broker.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k60_describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


@handles(DESCRIBE_CLUSTER, "0-2")
def handle_describe_cluster(request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        error = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(
            error_code=error,
            error_message="This is a broker's address.",
            # An unknown type is answered with that of brokers, as in Kafka.
            endpoint_type=_CONTROLLERS if request.endpoint_type == _CONTROLLERS else _BROKERS,
        )
    image = context.services.cluster.image
    brokers = [(broker, broker.endpoint(context.listener_name)) for broker in image.brokers.values()]
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.node_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker, endpoint in brokers
            if request.include_fenced_brokers or not broker.fenced
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED_FOR
        ),
    )
