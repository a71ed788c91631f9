"""ListGroups: lists the groups that this broker coordinates.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: flexible (KIP-482)
- v4: states, also as a filter (KIP-518)
- v5: types, also as a filter (KIP-848)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

LIST_GROUPS = Api(16, versions="0-5", flexible="3+")


@request(LIST_GROUPS)
class ListGroupsRequest:
    states_filter: list[String] = v("4+", factory=list)
    types_filter: list[String] = v("5+", factory=list)


@struct
class ListedGroup:
    group_id: String = ""
    protocol_type: String = ""
    group_state: String = v("4+", default="", ignorable=True)
    group_type: String = v("5+", default="", ignorable=True)


@response(LIST_GROUPS)
class ListGroupsResponse:
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = v(factory=list)
