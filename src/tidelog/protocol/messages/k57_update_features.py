"""UpdateFeatures: raises or lowers the versions of the cluster's features (KIP-584).

Changes by version:

- v1: can check without a change, and distinguishes safe and unsafe downgrades (KIP-778)
- v2: one error for the whole response instead of one per feature (KIP-1022)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, String

UPDATE_FEATURES = Api(57, versions="0-2", flexible="0+")


@struct
class FeatureUpdateKey:
    feature: String = ""
    max_version_level: Int16 = 0
    allow_downgrade: Bool = v("0", default=False)
    upgrade_type: Int8 = v("1+", default=1)


@request(UPDATE_FEATURES)
class UpdateFeaturesRequest:
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = v(factory=list)
    validate_only: Bool = v("1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


@response(UPDATE_FEATURES)
class UpdateFeaturesResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[UpdatableFeatureResult] = v("0-1", factory=list, ignorable=True)
