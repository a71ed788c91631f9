"""LeaveGroup: removes members from a classic group.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: several members at once, including static ones (KIP-345)
- v4: flexible (KIP-482)
- v5: why they leave (KIP-800)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

LEAVE_GROUP = Api(13, versions="0-5", flexible="4+")


@struct
class MemberIdentity:
    member_id: String = v("3+", default="")
    group_instance_id: String | None = v("3+", default=None)
    reason: String | None = v("5+", default=None, ignorable=True)


@request(LEAVE_GROUP)
class LeaveGroupRequest:
    group_id: String = ""
    member_id: String = v("0-2", default="")
    members: list[MemberIdentity] = v("3+", factory=list)


@struct
class MemberResponse:
    member_id: String = v("3+", default="")
    group_instance_id: String | None = v("3+", default="")
    error_code: Int16 = v("3+", default=0)


@response(LEAVE_GROUP)
class LeaveGroupResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = v("3+", factory=list)
