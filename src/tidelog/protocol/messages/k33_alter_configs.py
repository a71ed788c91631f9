"""AlterConfigs: replaces all settings of a topic or broker (KIP-133). IncrementalAlterConfigs is the safer successor.

Changes by version:

- v1: responds before throttling (KIP-219)
- v2: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String

ALTER_CONFIGS = Api(33, versions="0-2", flexible="2+")


@struct
class AlterableConfig:
    name: String = ""
    value: String | None = ""


@struct
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = v(factory=list)


@request(ALTER_CONFIGS)
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = v(factory=list)
    validate_only: Bool = False


@struct
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


@response(ALTER_CONFIGS)
class AlterConfigsResponse:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = v(factory=list)
