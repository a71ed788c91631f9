"""CreatePartitions (key 37): give topics more partitions.

Versions served: 0-3.
- 1: throttled after the answer (KIP-219). 2: flexible. 3: THROTTLING_QUOTA_EXCEEDED may be answered (KIP-599).

Every topic asked for gets its row in the answer; a topic that stands twice gets one row, an error. A row without an
error is answered when the new partitions are open; those that take longer than timeout_ms get REQUEST_TIMED_OUT and
are created all the same. With a timeout_ms of 0 or less nothing is created.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import NO_TIME, NewPartitions
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


@handles(CREATE_PARTITIONS, "0-3", on_controller=True)
async def handle_create_partitions(
    request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    timeout_s = request.timeout_ms / 1000
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    if timeout_s <= 0:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=NO_TIME
                )
                for topic in request.topics
            ]
        )
    controller = context.services.controller
    counts = Counter(topic.name for topic in request.topics)
    results = await controller.create_partitions(
        [_new_partitions(topic) for topic in request.topics if counts[topic.name] == 1],
        validate_only=request.validate_only,
        timeout_s=timeout_s,
    )
    rows = [
        CreatePartitionsTopicResult(
            name=result.name,
            error_code=result.error,
            error_message=None if result.error is ErrorCode.NONE else result.message or result.error.description,
        )
        for result in results
    ]
    topics = context.services.cluster.image.topics
    grown = {topics[row.name].topic_id: row for row in rows if row.error_code == ErrorCode.NONE and row.name in topics}
    for topic_id in await context.services.replicas.wait_until_opened(grown, deadline_s):
        grown[topic_id].error_code = ErrorCode.REQUEST_TIMED_OUT
        grown[topic_id].error_message = "The partitions were created, but not all of them are open yet."
    rows += [
        CreatePartitionsTopicResult(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="The request names the topic more than once.",
        )
        for name, count in counts.items()
        if count > 1
    ]
    return CreatePartitionsResponse(results=rows)


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = None if topic.assignments is None else [assignment.broker_ids for assignment in topic.assignments]
    return NewPartitions(topic.name, topic.count, assignments)
