"""JoinGroup: joins a classic consumer group; answered once all members of the rebalance are known.

Changes by version:

- v1: a separate timeout for the rebalance (KIP-62)
- v2: throttle time (KIP-124)
- v3: responds before throttling (KIP-219)
- v4: the first join returns a member id, to join again with (KIP-394)
- v5: static members (KIP-345)
- v6: flexible (KIP-482)
- v7: the response includes the protocol type (KIP-559)
- v8: why the member joins (KIP-800)
- v9: the leader can be told to skip the assignment (KIP-814)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Bytes, Int16, Int32, String

JOIN_GROUP = Api(11, versions="0-9", flexible="6+")


@struct
class JoinGroupRequestProtocol:
    name: String = ""
    metadata: Bytes = b""


@request(JOIN_GROUP)
class JoinGroupRequest:
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = v("1+", default=-1, ignorable=True)
    member_id: String = ""
    group_instance_id: String | None = v("5+", default=None)
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = v(factory=list)
    reason: String | None = v("8+", default=None, ignorable=True)


@struct
class JoinGroupResponseMember:
    member_id: String = ""
    group_instance_id: String | None = v("5+", default=None, ignorable=True)
    metadata: Bytes = b""


@response(JOIN_GROUP)
class JoinGroupResponse:
    throttle_time_ms: Int32 = v("2+", default=0, ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: String | None = v("7+", default=None, ignorable=True)
    protocol_name: String | None = v(default="", nullable="7+")
    leader: String = ""
    skip_assignment: Bool = v("9+", default=False)
    member_id: String = ""
    members: list[JoinGroupResponseMember] = v(factory=list)
