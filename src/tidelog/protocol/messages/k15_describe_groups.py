"""DescribeGroups: describes the state and members of classic groups.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: authorized operations, if requested (KIP-430)
- v4: group instance ids (KIP-345)
- v5: flexible (KIP-482)
- v6: may return GROUP_ID_NOT_FOUND, with a message (KIP-1043)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.messages.rebalance_history import HISTORY_TAG, RebalanceEntry
from tidelog.protocol.types import Bool, Bytes, Int16, Int32, String

DESCRIBE_GROUPS = Api(15, versions="0-6", flexible="5+")


@request(DESCRIBE_GROUPS)
class DescribeGroupsRequest:
    groups: list[String] = v(factory=list)
    include_authorized_operations: Bool = v("3+", default=False)
    include_history: Bool = v("5+", default=False, tag=HISTORY_TAG, ignorable=True)


@struct
class DescribedGroupMember:
    member_id: String = ""
    group_instance_id: String | None = v("4+", default=None, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@struct
class DescribedGroup:
    error_code: Int16 = 0
    error_message: String | None = v("6+", default=None)
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = v(factory=list)
    authorized_operations: Int32 = v("3+", default=-0x80000000)
    history: list[RebalanceEntry] = v("5+", factory=list, tag=HISTORY_TAG, ignorable=True)


@response(DESCRIBE_GROUPS)
class DescribeGroupsResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    groups: list[DescribedGroup] = v(factory=list)
