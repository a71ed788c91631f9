"""ListConfigResources (key 74): what has settings.

Versions served: 0-1.
- 0: client metrics subscriptions only (KIP-714), of which this broker has none. 1: any type; none named asks for all
  (KIP-1142).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import Steps
from tidelog.controller.image import ClusterImage
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ResourceType
from tidelog.protocol.messages.k74_list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TYPES_FROM_VERSION = 1
# Client metrics are asked for too, and never listed: they are not collected here.
_KNOWN_TYPES: Final = tuple(ResourceType)


@handles(LIST_CONFIG_RESOURCES, "0-1")
def handle_list_config_resources(
    request: ListConfigResourcesRequest, context: RequestContext
) -> Steps[ListConfigResourcesResponse]:
    if context.version < _TYPES_FROM_VERSION:
        return ListConfigResourcesResponse()
    types = dict.fromkeys(request.resource_types or _KNOWN_TYPES)
    if not types.keys() <= set(_KNOWN_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.services.cluster.image
    response = ListConfigResourcesResponse()
    for kind in types:
        for name in _names(kind, image):
            response.config_resources.append(ConfigResource(resource_name=name, resource_type=kind))
            yield 0
    return response


def _names(resource_type: int, image: ClusterImage) -> Iterable[str]:
    if resource_type == ResourceType.TOPIC:
        return image.topics
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return map(str, image.brokers)
    if resource_type == ResourceType.GROUP:
        return (resource.name for resource in image.configs if resource.type is ResourceType.GROUP)
    return ()
