"""DescribeConfigs: lists the settings of topics and brokers, and where each value comes from (KIP-133).

Changes by version:

- v1: source of each value and its synonyms (KIP-226)
- v2: responds before throttling (KIP-219)
- v3: type and documentation of settings, if requested (KIP-569)
- v4: flexible (KIP-482)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String

DESCRIBE_CONFIGS = Api(32, versions="1-4", flexible="4+")


@struct
class DescribeConfigsResource:
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = v(factory=list)


@request(DESCRIBE_CONFIGS)
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = v(factory=list)
    include_synonyms: Bool = v("1+", default=False)
    include_documentation: Bool = v("3+", default=False)


@struct
class DescribeConfigsSynonym:
    name: String = v("1+", default="")
    value: String | None = v("1+", default="")
    source: Int8 = v("1+", default=0)


@struct
class DescribeConfigsResourceResult:
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = v("1+", default=-1, ignorable=True)
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = v("1+", factory=list, ignorable=True)
    config_type: Int8 = v("3+", default=0, ignorable=True)
    documentation: String | None = v("3+", default="", ignorable=True)


@struct
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = v(factory=list)


@response(DESCRIBE_CONFIGS)
class DescribeConfigsResponse:
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = v(factory=list)
