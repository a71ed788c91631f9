"""SyncGroup: distributes the leader's assignment to the members of a classic group.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: static members (KIP-345)
- v4: flexible (KIP-482)
- v5: protocol type and name, which the broker checks (KIP-559)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bytes, Int16, Int32, String

SYNC_GROUP = Api(14, versions="0-5", flexible="4+")


@struct
class SyncGroupRequestAssignment:
    member_id: String = ""
    assignment: Bytes = b""


@request(SYNC_GROUP)
class SyncGroupRequest:
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: String | None = v("3+", default=None)
    protocol_type: String | None = v("5+", default=None, ignorable=True)
    protocol_name: String | None = v("5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = v(factory=list)


@response(SYNC_GROUP)
class SyncGroupResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    protocol_type: String | None = v("5+", default=None, ignorable=True)
    protocol_name: String | None = v("5+", default=None, ignorable=True)
    assignment: Bytes = b""
