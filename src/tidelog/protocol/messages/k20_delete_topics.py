"""DeleteTopics: deletes topics.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: may return TOPIC_DELETION_DISABLED (KIP-322)
- v4: flexible (KIP-482)
- v5: error message; may return THROTTLING_QUOTA_EXCEEDED (KIP-599)
- v6: topics by name or by id (KIP-516)
"""

from __future__ import annotations

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String, Uuid

DELETE_TOPICS = Api(20, versions="1-6", flexible="4+")


@struct
class DeleteTopicState:
    name: String | None = v("6+", default=None)
    topic_id: Uuid = v("6+", default=ZERO_UUID)


@request(DELETE_TOPICS)
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = v("6+", factory=list)
    topic_names: list[String] = v("0-5", factory=list, ignorable=True)
    timeout_ms: Int32 = 0


@struct
class DeletableTopicResult:
    name: String | None = v(default="", nullable="6+")
    topic_id: Uuid = v("6+", default=ZERO_UUID, ignorable=True)
    error_code: Int16 = 0
    error_message: String | None = v("5+", default=None, ignorable=True)


@response(DELETE_TOPICS)
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    responses: list[DeletableTopicResult] = v(factory=list)
