"""AlterConfigs (key 33): replace all that is set on topics, brokers or groups; what is left out goes to its default.

Versions served: 0-2.
- 1: throttled after the answer (KIP-219). 2: flexible.

Clients that can use IncrementalAlterConfigs, which does not undo others' changes (KIP-339).
"""

from __future__ import annotations

from tidelog.broker.config_alteration import alter
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import ConfigReplacement
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource
from tidelog.protocol.messages.k33_alter_configs import (
    ALTER_CONFIGS,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handles(ALTER_CONFIGS, "0-2", on_controller=True)
async def handle_alter_configs(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    controller = context.services.controller
    rows = await alter(
        request.resources,
        _replacement,
        lambda changes: controller.alter_configs(changes, validate_only=request.validate_only),
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=row.error,
                error_message=row.message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            for row in rows
        ]
    )


def _replacement(resource: ConfigResource, wire: AlterConfigsResource) -> ConfigReplacement:
    for config in wire.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name} has no value; leave it out for its default")
    return ConfigReplacement(resource, {config.name: config.value for config in wire.configs})
