"""OffsetFetch (key 9): the offsets that groups have committed.

Versions served: 1-10.
- 2: null asks for all topics; an error of the group has a place of its own. 3: throttle time. 4: throttled after the
  answer (KIP-219). 5: leader epoch (KIP-320). 6: flexible. 7: may ask for offsets that no open transaction can change
  (KIP-447), else UNSTABLE_OFFSET_COMMIT. 8: several groups (KIP-709). 9: members of the new consumer protocol
  (KIP-848). 10: topics by id.

A partition without a committed offset is answered with -1 and no error, whether its group exists or not. A partition
that is named twice is answered once, and a group that is named twice is refused the second time.

While a coordinator moves or loads, versions 2 to 7 say so for each partition, too, which Kafka does not: aiokafka and
others read nothing else, take an answer without partitions for a group that has committed nothing, and start over.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.ids import ZERO_UUID
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
)

_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10
_GROUP_ERROR_FROM = 2
_NOT_HERE_NOW = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@handles(OFFSET_FETCH, "1-10")
def handle_offset_fetch(request: OffsetFetchRequest, context: RequestContext) -> Steps[OffsetFetchResponse]:
    if context.version >= _GROUPS_FROM:
        groups = []
        seen: set[str] = set()
        for group in request.groups:
            if group.group_id in seen:
                refusal = OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST)
                groups.append(refusal)
            else:
                seen.add(group.group_id)
                groups.append((yield from _fetch(group, request.require_stable, context)))
            yield 0
        return OffsetFetchResponse(groups=groups)
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    return _as_one_group((yield from _fetch(group, request.require_stable, context)), request, context.version)


def _fetch(
    group: OffsetFetchRequestGroup, require_stable: bool, context: RequestContext
) -> Steps[OffsetFetchResponseGroup]:
    try:
        shard = context.services.groups.shard_of(group.group_id)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    answer = yield from shard.offset_fetch(group, require_stable=require_stable)
    if context.version >= _TOPIC_IDS_FROM and group.topics is None:
        # A topic that was deleted a moment ago has no id to name it by.
        answer.topics = [topic for topic in answer.topics if topic.topic_id != ZERO_UUID]
    return answer


def _as_one_group(group: OffsetFetchResponseGroup, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    response = OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name, partitions=[_as_partition(partition) for partition in topic.partitions]
            )
            for topic in group.topics
        ],
    )
    if group.error_code and (version < _GROUP_ERROR_FROM or group.error_code in _NOT_HERE_NOW):
        response.topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, error_code=ErrorCode(group.error_code)
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    return response


def _as_partition(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )
