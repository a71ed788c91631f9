"""DescribeAcls: lists the access rules that match a filter (KIP-140).

Changes by version:

- v1: prefixed resource names (KIP-290); responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: users as resources (KIP-373)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

DESCRIBE_ACLS = Api(29, versions="1-3", flexible="2+")


@request(DESCRIBE_ACLS)
class DescribeAclsRequest:
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = v("1+", default=3)
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@struct
class AclDescription:
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@struct
class DescribeAclsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = v("1+", default=3)
    acls: list[AclDescription] = v(factory=list)


@response(DESCRIBE_ACLS)
class DescribeAclsResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = v(factory=list)
