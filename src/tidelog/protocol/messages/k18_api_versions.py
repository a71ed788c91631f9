"""ApiVersions: lists the APIs and versions that the broker serves; the first request of most clients.

Changes by version:

- v1: throttle time (KIP-124)
- v2: responds before throttling (KIP-219)
- v3: flexible (KIP-482); name and version of the client (KIP-511); the cluster's features (KIP-584); the response
  header still has no tags
- v4: a feature's lowest version may be zero
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int16, Int32, Int64, String

API_VERSIONS = Api(18, versions="0-4", flexible="3+")


@request(API_VERSIONS)
class ApiVersionsRequest:
    client_software_name: String = v("3+", default="", ignorable=True)
    client_software_version: String = v("3+", default="", ignorable=True)


@struct
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@struct
class SupportedFeatureKey:
    name: String = v("3+", default="")
    min_version: Int16 = v("3+", default=0)
    max_version: Int16 = v("3+", default=0)


@struct
class FinalizedFeatureKey:
    name: String = v("3+", default="")
    max_version_level: Int16 = v("3+", default=0)
    min_version_level: Int16 = v("3+", default=0)


@response(API_VERSIONS)
class ApiVersionsResponse:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = v(factory=list)
    throttle_time_ms: Int32 = v("1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = v("3+", factory=list, tag=0, ignorable=True)
    finalized_features_epoch: Int64 = v("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = v("3+", factory=list, tag=2, ignorable=True)
    zk_migration_ready: Bool = v("3+", default=False, tag=3, ignorable=True)
