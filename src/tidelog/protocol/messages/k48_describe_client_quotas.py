"""DescribeClientQuotas: lists the quotas that match a filter (KIP-546).

Changes by version:

- v1: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Float64, Int8, Int16, Int32, String

DESCRIBE_CLIENT_QUOTAS = Api(48, versions="0-1", flexible="1+")


@struct
class ComponentData:
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = ""


@request(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = v(factory=list)
    strict: Bool = False


@struct
class EntityData:
    entity_type: String = ""
    entity_name: String | None = ""


@struct
class ValueData:
    key: String = ""
    value: Float64 = 0.0


@struct
class EntryData:
    entity: list[EntityData] = v(factory=list)
    values: list[ValueData] = v(factory=list)


@response(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = v(factory=list)
