"""ListPartitionReassignments (key 46): which partitions are moving to other brokers (KIP-455).

Versions served: 0.

Null asks for all partitions. Those that are not moving, or do not exist, are left out, and so are topics without any.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.controller.image import TopicImage
from tidelog.protocol.messages.k46_list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


@handles(LIST_PARTITION_REASSIGNMENTS, "0")
def handle_list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> Steps[ListPartitionReassignmentsResponse]:
    topics = context.services.cluster.image.topics
    asked: Iterable[tuple[TopicImage, Iterable[int]]]
    if request.topics is None:
        asked = ((topic, range(len(topic.partitions))) for topic in topics.values())
    else:
        asked = ((topics[each.name], each.partition_indexes) for each in request.topics if each.name in topics)
    response = ListPartitionReassignmentsResponse(error_message=None)
    for topic, indexes in asked:
        yield 0
        if rows := _rows(topic, indexes):
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=rows))
    return response


def _rows(topic: TopicImage, indexes: Iterable[int]) -> list[OngoingPartitionReassignment]:
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=list(state.replicas),
            adding_replicas=list(state.adding),
            removing_replicas=list(state.removing),
        )
        for index in indexes
        if 0 <= index < len(topic.partitions) and (state := topic.partitions[index]).is_reassigned
    ]
