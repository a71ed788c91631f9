"""Heartbeat: keeps a member in a classic group, and tells it when there is a rebalance.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: static members (KIP-345)
- v4: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, v
from tidelog.protocol.types import Int16, Int32, String

HEARTBEAT = Api(12, versions="0-4", flexible="4+")


@request(HEARTBEAT)
class HeartbeatRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = v("3+", default=None)


@response(HEARTBEAT)
class HeartbeatResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = 0
