"""ApiVersions: what this broker serves, and the features of its cluster. Versions 0-4.

v1 adds the throttle time; v3 the client's name (KIP-511) and features (KIP-584); v4 lets a feature start at level 0.
A version that is too new is answered in version 0 with UNSUPPORTED_VERSION and the range of this API; the response's
header is that of version 0 always, so that a client can read either.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidelog.broker.registry import find_handler, handles, registered_handlers
from tidelog.broker.request_context import BROKER_SOFTWARE_NAME, RequestContext
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k18_api_versions import (
    API_VERSIONS,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from tidelog.common.settings import Settings

_PRODUCE_KEY = 0
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(API_VERSIONS, "0-4")
def handle_api_versions(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE_NAME.fullmatch(name) or not _SOFTWARE_NAME.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.session.client_software_name = name
        context.session.client_software_version = version
    is_broker = context.session.client_software_name == BROKER_SOFTWARE_NAME
    response = ApiVersionsResponse(api_keys=_served(context.services.settings, is_broker=is_broker))
    if context.version >= 3:
        _add_features(response, context)
    return response


def refuse_version() -> ApiVersionsResponse:
    """The answer to a version that is too new, to be encoded in version 0."""
    handler = find_handler(API_VERSIONS.key)
    assert handler is not None  # this module registered it
    own_range = ApiVersion(api_key=API_VERSIONS.key, min_version=handler.version_min, max_version=handler.version_max)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own_range])


def _served(settings: Settings, *, is_broker: bool) -> list[ApiVersion]:
    return [
        ApiVersion(
            api_key=handler.api.key,
            # librdkafka compresses only for brokers that list Produce 0, though nobody sends it any more (KAFKA-18659).
            min_version=0 if handler.api.key == _PRODUCE_KEY else handler.version_min,
            max_version=handler.last_version(settings),
        )
        for handler in registered_handlers()
        if is_broker or not handler.is_internal
    ]


def _add_features(response: ApiVersionsResponse, context: RequestContext) -> None:
    services = context.services
    response.finalized_features_epoch = services.cluster.image.revision
    for name, feature in services.features.items():
        # Clients before version 4 reject a whole response in which a feature starts at level 0.
        if feature.version_min > 0 or context.version >= 4:
            response.supported_features.append(
                SupportedFeatureKey(name=name, min_version=feature.version_min, max_version=feature.version_max)
            )
        if feature.finalized > 0:
            response.finalized_features.append(
                FinalizedFeatureKey(name=name, min_version_level=feature.finalized, max_version_level=feature.finalized)
            )
