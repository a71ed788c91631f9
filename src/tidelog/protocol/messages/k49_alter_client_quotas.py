"""AlterClientQuotas: sets and removes quotas of users, clients and addresses (KIP-546).

Changes by version:

- v1: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Float64, Int16, Int32, String

ALTER_CLIENT_QUOTAS = Api(49, versions="0-1", flexible="1+")


@struct
class AlterClientQuotasRequestEntityData:
    entity_type: String = ""
    entity_name: String | None = ""


@struct
class OpData:
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


@struct
class AlterClientQuotasRequestEntryData:
    entity: list[AlterClientQuotasRequestEntityData] = v(factory=list)
    ops: list[OpData] = v(factory=list)


@request(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasRequest:
    entries: list[AlterClientQuotasRequestEntryData] = v(factory=list)
    validate_only: Bool = False


@struct
class AlterClientQuotasResponseEntityData:
    entity_type: String = ""
    entity_name: String | None = ""


@struct
class AlterClientQuotasResponseEntryData:
    error_code: Int16 = 0
    error_message: String | None = ""
    entity: list[AlterClientQuotasResponseEntityData] = v(factory=list)


@response(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasResponse:
    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResponseEntryData] = v(factory=list)
