"""DescribeCluster: lists the brokers of the cluster and its controller (KIP-700).

Changes by version:

- v1: can ask for controllers instead of brokers (KIP-919)
- v2: fenced brokers, if requested (KIP-1073)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String

DESCRIBE_CLUSTER = Api(60, versions="0-2", flexible="0+")


@request(DESCRIBE_CLUSTER)
class DescribeClusterRequest:
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Int8 = v("1+", default=1)
    include_fenced_brokers: Bool = v("2+", default=False)


@struct
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Bool = v("2+", default=False)


@response(DESCRIBE_CLUSTER)
class DescribeClusterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Int8 = v("1+", default=1)
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = v(factory=list)
    cluster_authorized_operations: Int32 = -0x80000000
