"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Versions served: 0-6.
- 0: groups only. 1: key type, throttle time, error message. 2: throttled after the answer (KIP-219). 3: flexible.
- 4: many keys at once (KIP-699). 5: TRANSACTION_ABORTABLE may be answered (KIP-890). 6: share groups (KIP-932).

This broker has no coordinators, so it says COORDINATOR_NOT_AVAILABLE, which clients treat as "ask again later": a
client that only produces and reads assigned partitions is not disturbed.
"""

from __future__ import annotations

from typing import Final

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_BATCHED_FROM_VERSION = 4
_KEY_TYPES: Final = {0: "consumer groups", 1: "transactions", 2: "share groups"}
_SHARE, _SHARE_FROM_VERSION = 2, 6


@handles(FIND_COORDINATOR, "0-6")
def handle_find_coordinator(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    error, message = _refusal(request.key_type, context.version)
    if context.version < _BATCHED_FROM_VERSION:
        return FindCoordinatorResponse(error_code=error, error_message=message, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)
            for key in request.coordinator_keys
        ]
    )


def _refusal(key_type: int, version: int) -> tuple[ErrorCode, str]:
    if key_type not in _KEY_TYPES or (key_type == _SHARE and version < _SHARE_FROM_VERSION):
        return ErrorCode.INVALID_REQUEST, f"version {version} has no coordinator key type {key_type}"
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker has no coordinator for {_KEY_TYPES[key_type]}"
