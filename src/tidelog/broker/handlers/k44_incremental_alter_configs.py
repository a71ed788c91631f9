"""IncrementalAlterConfigs (key 44): change single settings of topics or brokers (KIP-339).

Versions served: 0-1.
- 1: flexible.

SET and DELETE work on any setting, APPEND and SUBTRACT on lists.
"""

from __future__ import annotations

from tidelog.broker.config_alteration import alter
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import ConfigAlteration
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_OPERATIONS = frozenset(AlterOperation)


@handles(INCREMENTAL_ALTER_CONFIGS, "0-1", on_controller=True)
async def handle_incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    controller = context.services.controller
    rows = await alter(
        request.resources,
        _alteration,
        lambda changes: controller.incremental_alter_configs(changes, validate_only=request.validate_only),
    )
    return IncrementalAlterConfigsResponse(
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


def _alteration(resource: ConfigResource, wire: AlterConfigsResource) -> ConfigAlteration:
    return ConfigAlteration(resource, [_change(config) for config in wire.configs])


def _change(config: AlterableConfig) -> ConfigChange:
    if config.config_operation not in _OPERATIONS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name}: there is no operation {config.config_operation}")
    operation = AlterOperation(config.config_operation)
    if config.value is None and operation is not AlterOperation.DELETE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name}: {operation.name} needs a value")
    return ConfigChange(config.name, operation, config.value)
