"""ListGroups (key 16): the groups that this broker coordinates.

Versions served: 0-5.
- 1: throttle time. 2: throttled after the answer (KIP-219). 3: flexible. 4: states, also as a filter (KIP-518).
- 5: types, also as a filter (KIP-848).
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.protocol import KafkaError
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse


@handles(LIST_GROUPS, "0-5")
def handle_list_groups(request: ListGroupsRequest, context: RequestContext) -> Steps[ListGroupsResponse]:
    try:
        shards = context.services.groups.shards()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    groups = []
    for shard in shards:
        groups += shard.list_groups(request.states_filter, request.types_filter)
        yield 0
    return ListGroupsResponse(groups=groups)
