"""OffsetCommit (key 8): a group's offsets, written to __consumer_offsets and answered when they are committed.

Versions served: 2-10.
- 2 to 4 may say how long to keep the offsets (KIP-211 ended that with 5). 3: throttle time. 4: throttled after the
  answer (KIP-219). 6: leader epoch of the committed offset (KIP-320). 7: static members (KIP-345). 8: flexible.
- 9: members of the new consumer protocol (KIP-848), which may get STALE_MEMBER_EPOCH. 10: topics by id.

All partitions of a request are one batch in the log. A consumer that assigns partitions to itself commits without a
member id and with generation -1, as long as its group has no members.
"""

from __future__ import annotations

import asyncio

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)


@handles(OFFSET_COMMIT, "2-10")
def handle_offset_commit(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse] | Steps[object]:
    size = len(request.topics)
    for topic in request.topics:
        size += len(topic.partitions)
    answer: OffsetCommitResponse | asyncio.Future[OffsetCommitResponse] | Steps[object]
    answer = context.services.groups.submit_prepared(
        request.group_id,
        context,
        lambda shard, client, now: shard.offset_commit(request, client, now),
        refuse=lambda error: _refuse(request, error),
        size=size,
    )
    return answer


def _refuse(request: OffsetCommitRequest, error: ErrorCode) -> Steps[OffsetCommitResponse]:
    response = OffsetCommitResponse()
    for topic in request.topics:
        answer = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        for partition in topic.partitions:
            row = OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            answer.partitions.append(row)
            yield 0
        response.topics.append(answer)
        yield 0
    return response
