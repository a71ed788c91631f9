"""DeleteAcls: removes the access rules that match filters (KIP-140).

Changes by version:

- v1: prefixed resource names (KIP-290); responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: users as resources (KIP-373)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

DELETE_ACLS = Api(31, versions="1-3", flexible="2+")


@struct
class DeleteAclsFilter:
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = v("1+", default=3)
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@request(DELETE_ACLS)
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = v(factory=list)


@struct
class DeleteAclsMatchingAcl:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = v("1+", default=3)
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@struct
class DeleteAclsFilterResult:
    error_code: Int16 = 0
    error_message: String | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = v(factory=list)


@response(DELETE_ACLS)
class DeleteAclsResponse:
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = v(factory=list)
