"""ListPartitionReassignments (key 46): which partitions are moving to other brokers (KIP-455).

Versions served: 0.

Partitions have one replica, which stays where it is, so nothing is ever under way: the list is empty.
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol.messages.k46_list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(LIST_PARTITION_REASSIGNMENTS, "0")
def handle_list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
