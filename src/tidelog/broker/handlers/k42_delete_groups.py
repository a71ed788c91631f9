"""DeleteGroups (key 42): deletes groups that have no members, with their offsets (KIP-229).

Versions served: 0-2.
- 1: throttled after the answer (KIP-219). 2: flexible.

Each group is answered on its own: NON_EMPTY_GROUP while it has members, GROUP_ID_NOT_FOUND where there is none.
"""

from __future__ import annotations

import asyncio
import functools

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import with_pauses
from tidelog.coordinator.actions import Action, Client, Now
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k42_delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


@handles(DELETE_GROUPS, "0-2")
async def handle_delete_groups(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    group_ids = tuple(dict.fromkeys(request.groups_names))
    answers = [_delete(group_id, context) async for group_id in with_pauses(group_ids)]
    results = []
    for group_id, answer in zip(group_ids, answers, strict=True):
        error = await answer if isinstance(answer, asyncio.Future) else answer
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    return DeleteGroupsResponse(results=results)


def _delete(group_id: str, context: RequestContext) -> ErrorCode | asyncio.Future[ErrorCode]:
    try:
        answer: ErrorCode | asyncio.Future[ErrorCode] = context.services.groups.submit(
            group_id, context, functools.partial(_ask, group_id)
        )
    except KafkaError as error:
        return error.code
    return answer


def _ask(group_id: str, shard: GroupShard, client: Client, now: Now, exchange: int) -> list[Action]:
    return shard.delete_group(group_id, exchange)
