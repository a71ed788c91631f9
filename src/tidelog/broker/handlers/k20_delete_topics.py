"""DeleteTopics (key 20).

Versions served: 1-6.
- 1: the baseline. 2: throttled after the answer (KIP-219). 3: TOPIC_DELETION_DISABLED may be answered. 4: flexible.
- 5: error message (KIP-599). 6: topics by id (KIP-516).

With a timeout_ms of 0 or less nothing is deleted.
"""

from __future__ import annotations

import uuid
from collections import Counter

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.ids import ZERO_UUID
from tidelog.controller.requests import NO_TIME, DeleteResult
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_DELETION_DISABLED_FROM_VERSION = 3
_IDS_FROM_VERSION = 6


@handles(DELETE_TOPICS, "1-6", on_controller=True)
async def handle_delete_topics(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    wanted = (
        request.topics
        if context.version >= _IDS_FROM_VERSION
        else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    if not context.services.settings.get_bool("delete.topic.enable"):
        error = (
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.version >= _DELETION_DISABLED_FROM_VERSION
            else ErrorCode.INVALID_REQUEST
        )
        message = "the broker's setting delete.topic.enable is false"
        return DeleteTopicsResponse(responses=[_refusal(topic, error, message) for topic in wanted])
    if request.timeout_ms <= 0:
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(name=topic.name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=NO_TIME)
                for topic in wanted
            ]
        )
    responses: list[DeletableTopicResult] = []
    to_delete: list[str | uuid.UUID] = []
    counts = Counter((topic.name, topic.topic_id) for topic in wanted)
    for name, topic_id in counts:
        topic = DeleteTopicState(name=name, topic_id=topic_id)
        if counts[name, topic_id] > 1:
            message = "The request names the topic more than once."
            responses.append(_refusal(topic, ErrorCode.INVALID_REQUEST, message))
        elif (name is None) == (topic_id == ZERO_UUID):
            message = "Expected either a topic's name or its id."
            responses.append(_refusal(topic, ErrorCode.INVALID_REQUEST, message))
        else:
            to_delete.append(name if name is not None else topic_id)
    results = await context.services.controller.delete_topics(to_delete, timeout_s=request.timeout_ms / 1000)
    responses.extend(_answer(result) for result in results)
    return DeleteTopicsResponse(responses=responses)


def _refusal(topic: DeleteTopicState, error: ErrorCode, message: str) -> DeletableTopicResult:
    return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error, error_message=message)


def _answer(result: DeleteResult) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=None if result.error is ErrorCode.NONE else result.message or result.error.description,
    )
