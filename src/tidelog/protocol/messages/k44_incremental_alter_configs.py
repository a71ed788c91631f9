"""IncrementalAlterConfigs: sets, deletes, appends to or subtracts from individual settings (KIP-339).

Changes by version:

- v1: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String

INCREMENTAL_ALTER_CONFIGS = Api(44, versions="0-1", flexible="1+")


@struct
class AlterableConfig:
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


@struct
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = v(factory=list)


@request(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = v(factory=list)
    validate_only: Bool = False


@struct
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


@response(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = v(factory=list)
