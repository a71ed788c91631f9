"""Metadata: describes brokers, topics, and partitions with their leaders; may create a topic that is asked for.

Changes by version:

- v0: an empty list of topics asks for all
- v1: null asks for all topics, an empty list for none; racks, controller, internal topics
- v2: cluster id (KIP-78)
- v3: throttle time (KIP-124)
- v4: the client can disallow topic creation
- v5: offline replicas (KIP-112)
- v6: responds before throttling (KIP-219)
- v7: leader epoch (KIP-320)
- v8: authorized operations, if requested (KIP-430)
- v9: flexible (KIP-482)
- v10: topic ids in the response (KIP-516)
- v11: the cluster's authorized operations moved to DescribeCluster (KIP-700)
- v12: topics can be requested by id (KIP-516)
- v13: an error code for the whole response (KIP-1102)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, String, Uuid

METADATA = Api(3, versions="0-13", flexible="9+")


@struct
class MetadataRequestTopic:
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    name: String | None = v(default="", nullable="10+")


@request(METADATA)
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = v(factory=list, nullable="1+")
    allow_auto_topic_creation: Bool = v("4+", default=True)
    include_cluster_authorized_operations: Bool = v("8-10", default=False)
    include_topic_authorized_operations: Bool = v("8+", default=False)


@struct
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = v("1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = v("7+", default=-1, ignorable=True)
    replica_nodes: list[Int32] = v(factory=list)
    isr_nodes: list[Int32] = v(factory=list)
    offline_replicas: list[Int32] = v("5+", factory=list, ignorable=True)


@struct
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: String | None = v(default="", nullable="12+")
    topic_id: Uuid = v("10+", default=ZERO_UUID, ignorable=True)
    is_internal: Bool = v("1+", default=False, ignorable=True)
    partitions: list[MetadataResponsePartition] = v(factory=list)
    topic_authorized_operations: Int32 = v("8+", default=-0x80000000)


@response(METADATA)
class MetadataResponse:
    throttle_time_ms: Int32 = v("3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker] = v(factory=list)
    cluster_id: String | None = v("2+", default=None, ignorable=True)
    controller_id: Int32 = v("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = v(factory=list)
    cluster_authorized_operations: Int32 = v("8-10", default=-0x80000000)
    error_code: Int16 = v("13+", default=0, ignorable=True)
