"""CreateTopics: creates topics, or checks whether they could be created.

Changes by version:

- v2: throttle time (KIP-124)
- v3: responds before throttling (KIP-219)
- v4: number of partitions and replication factor may be left to the broker (KIP-464)
- v5: flexible (KIP-482); the response includes the new topic's settings (KIP-525)
- v6: may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
- v7: the response includes the topic's id (KIP-516)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String, Uuid

CREATE_TOPICS = Api(19, versions="2-7", flexible="5+")


@struct
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = v(factory=list)


@struct
class CreatableTopicConfig:
    name: String = ""
    value: String | None = ""


@struct
class CreatableTopic:
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = v(factory=list)
    configs: list[CreatableTopicConfig] = v(factory=list)


@request(CREATE_TOPICS)
class CreateTopicsRequest:
    topics: list[CreatableTopic] = v(factory=list)
    timeout_ms: Int32 = 60000
    validate_only: Bool = v("1+", default=False)


@struct
class CreatableTopicConfigs:
    name: String = v("5+", default="")
    value: String | None = v("5+", default="")
    read_only: Bool = v("5+", default=False)
    config_source: Int8 = v("5+", default=-1, ignorable=True)
    is_sensitive: Bool = v("5+", default=False)


@struct
class CreatableTopicResult:
    name: String = ""
    topic_id: Uuid = v("7+", default=ZERO_UUID, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = v("1+", default="", ignorable=True)
    topic_config_error_code: Int16 = v("5+", default=0, tag=0, ignorable=True)
    num_partitions: Int32 = v("5+", default=-1, ignorable=True)
    replication_factor: Int16 = v("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = v("5+", factory=list, ignorable=True)


@response(CREATE_TOPICS)
class CreateTopicsResponse:
    throttle_time_ms: Int32 = v("2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult] = v(factory=list)
