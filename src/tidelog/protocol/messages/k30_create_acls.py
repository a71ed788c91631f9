"""CreateAcls: adds access rules (KIP-140).

Changes by version:

- v1: prefixed resource names (KIP-290); responds before throttling (KIP-219)
- v2: flexible (KIP-482)
- v3: users as resources (KIP-373)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

CREATE_ACLS = Api(30, versions="1-3", flexible="2+")


@struct
class AclCreation:
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Int8 = v("1+", default=3)
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@request(CREATE_ACLS)
class CreateAclsRequest:
    creations: list[AclCreation] = v(factory=list)


@struct
class AclCreationResult:
    error_code: Int16 = 0
    error_message: String | None = ""


@response(CREATE_ACLS)
class CreateAclsResponse:
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = v(factory=list)
