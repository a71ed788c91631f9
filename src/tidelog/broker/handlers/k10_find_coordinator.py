"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Versions served: 0-6.
- 0: groups only. 1: key type, throttle time, error message. 2: throttled after the answer (KIP-219). 3: flexible.
- 4: many keys at once (KIP-699). 5: TRANSACTION_ABORTABLE may be answered (KIP-890). 6: share groups (KIP-932).

The first one who looks for a coordinator waits until the topic is made in which it keeps its state. There are no
coordinators of share groups: these are answered COORDINATOR_NOT_AVAILABLE, which clients treat as "ask again later".
"""

from __future__ import annotations

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import with_pauses
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_BATCHED_FROM_VERSION = 4
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_SHARE_FROM_VERSION = 6


@handles(FIND_COORDINATOR, "0-6")
async def handle_find_coordinator(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_FROM_VERSION:
        keys = dict.fromkeys(request.coordinator_keys)
        found = [await _find(key, request.key_type, context) async for key in with_pauses(keys)]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(request.key, request.key_type, context)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(key: str, key_type: int, context: RequestContext) -> Coordinator:
    version = context.version
    if key_type == _GROUP:
        broker = await context.services.groups.find_coordinator(key)
    elif key_type == _TRANSACTION:
        broker = await context.services.transactions.find_coordinator(key)
    elif key_type == _SHARE and version >= _SHARE_FROM_VERSION:
        return _refuse(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no coordinator for share groups")
    else:
        return _refuse(key, ErrorCode.INVALID_REQUEST, f"version {version} has no coordinator key type {key_type}")
    if broker is None or broker.node_id in context.services.replicas.fenced_node_ids:
        return _refuse(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the id's partition has no leader at the moment")
    _, host, port = broker.endpoint(context.listener_name)
    return Coordinator(key=key, node_id=broker.node_id, host=host, port=port)


def _refuse(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)
