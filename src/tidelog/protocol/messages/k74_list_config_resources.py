"""ListConfigResources: lists the resources that have settings of their own.

Changes by version:

- v0: client metrics only (KIP-714)
- v1: any resource type, and the type of each resource (KIP-1142)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Int8, Int16, Int32, String

LIST_CONFIG_RESOURCES = Api(74, versions="0-1", flexible="0+")


@request(LIST_CONFIG_RESOURCES)
class ListConfigResourcesRequest:
    resource_types: list[Int8] = v("1+", factory=list)


@struct
class ConfigResource:
    resource_name: String = ""
    resource_type: Int8 = v("1+", default=16, ignorable=True)


@response(LIST_CONFIG_RESOURCES)
class ListConfigResourcesResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = v(factory=list)
