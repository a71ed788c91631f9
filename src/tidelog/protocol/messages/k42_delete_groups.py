"""DeleteGroups: deletes groups without members, and their offsets (KIP-229).

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int16, Int32, String

DELETE_GROUPS = Api(42, versions="0-2", flexible="2+")


@request(DELETE_GROUPS)
class DeleteGroupsRequest:
    groups_names: list[String] = v(factory=list)


@struct
class DeletableGroupResult:
    group_id: String = ""
    error_code: Int16 = 0


@response(DELETE_GROUPS)
class DeleteGroupsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = v(factory=list)
