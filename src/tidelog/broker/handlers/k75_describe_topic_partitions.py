"""DescribeTopicPartitions (key 75): topics and partitions in pages, with the eligible leader replicas (KIP-966).

Versions served: 0.

Topics come in the order of their names. An answer holds at most the asked number of partitions, and not more than
max.request.partition.size.limit; the cursor of what comes next is null at the end. A topic that vanished between two
pages is skipped, and a topic asked for that does not exist gets an error row.
"""

from __future__ import annotations

from tidelog.broker.authorized_operations import TOPIC_OPERATIONS
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.checks import topic_name_problem
from tidelog.common.steps import Steps
from tidelog.controller.image import NO_LEADER, PartitionState
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k75_describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


@handles(DESCRIBE_TOPIC_PARTITIONS, "0")
def handle_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> Steps[DescribeTopicPartitionsResponse]:
    image = context.services.cluster.image
    names = sorted({topic.name for topic in request.topics} or image.topics)
    first_name, first_index = "", 0
    if request.cursor is not None:
        first_name, first_index = request.cursor.topic_name, request.cursor.partition_index
        if first_index < 0:
            return _refusal(names)
    limit = context.services.settings.get_int("max.request.partition.size.limit")
    left = max(1, min(limit, request.response_partition_limit))
    view = context.services.metadata_view
    view.follow(image, fenced=context.services.replicas.fenced_node_ids)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        yield 0
        if name < first_name:
            continue
        start = first_index if name == first_name else 0
        topic = image.topics.get(name)
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=start)
            break
        if topic is None:
            response.topics.append(_unknown_topic(name))
            continue
        end = min(len(topic.partitions), start + left)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[
                    _partition(index, topic.partitions[index], view.live_brokers) for index in range(start, end)
                ],
                topic_authorized_operations=TOPIC_OPERATIONS,
            )
        )
        left -= max(0, end - start)
        if end < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name, partition_index=end)
            break
    return response


def _refusal(names: list[str]) -> DescribeTopicPartitionsResponse:
    """The answer has no error of its own, so every topic carries it."""
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name) for name in names]
    )


def _unknown_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    error = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic_name_problem(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    # Whoever asks may do anything with topics, with those that do not exist, too.
    return DescribeTopicPartitionsResponseTopic(
        error_code=error, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _partition(index: int, state: PartitionState, live: frozenset[int]) -> DescribeTopicPartitionsResponsePartition:
    has_leader = state.leader in live
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.elr),
        last_known_elr=[] if state.last_leader == NO_LEADER else [state.last_leader],
        offline_replicas=[replica for replica in state.replicas if replica not in live],
    )
