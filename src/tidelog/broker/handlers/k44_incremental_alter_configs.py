"""IncrementalAlterConfigs (key 44): change single settings of topics, brokers or groups (KIP-339).

Versions served: 0-1.
- 1: flexible.

SET and DELETE work on any setting, APPEND and SUBTRACT on lists. Levels of loggers (KIP-412) are changed by the broker
that is asked, on itself; the rest of the request is for the controller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidelog.broker.config_alteration import alter
from tidelog.broker.log_levels import apply_changes, check_changes
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.controller.requests import ConfigAlteration
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_OPERATIONS = frozenset(AlterOperation)


@handles(INCREMENTAL_ALTER_CONFIGS, "0-1", on_controller=True, partly_local=True)
async def handle_incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    loggers = [each for each in request.resources if each.resource_type == ResourceType.BROKER_LOGGER]
    others = [each for each in request.resources if each.resource_type != ResourceType.BROKER_LOGGER]
    rows = _alter_levels(loggers, context, validate_only=request.validate_only)
    if others:
        rest = IncrementalAlterConfigsRequest(resources=others, validate_only=request.validate_only)
        rows += await _alter_on_controller(rest, context)
    found = {(row.resource_type, row.resource_name): row for row in rows}
    responses = [found[each.resource_type, each.resource_name] for each in request.resources]
    return IncrementalAlterConfigsResponse(responses=responses)


async def _alter_on_controller(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> list[AlterConfigsResourceResponse]:
    controller = context.services.controller
    if not controller.is_active:
        forwarder = context.services.forwarder
        try:
            response = await forwarder.forward_request(request, IncrementalAlterConfigsResponse, context)
        except KafkaError as error:
            # The levels of loggers may have been changed already, so this can't be the answer to everything.
            resources = request.resources
            return [_response(each.resource_type, each.resource_name, error.code, error.message) for each in resources]
        if response is not None:
            return response.responses
    rows = await alter(
        request.resources,
        _alteration,
        lambda changes: controller.incremental_alter_configs(changes, validate_only=request.validate_only),
    )
    return [_response(*row) for row in rows]


def _response(resource_type: int, name: str, error: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error, error_message=message, resource_type=resource_type, resource_name=name
    )


def _alter_levels(
    resources: Sequence[AlterConfigsResource], context: RequestContext, *, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    """Change levels of this broker's loggers."""
    rows = []
    counts = Counter(resource.resource_name for resource in resources)
    for resource in resources:
        name, node_id = resource.resource_name, context.services.node_id
        error, message = ErrorCode.NONE, None
        try:
            if counts[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if name != str(node_id):
                message = f"this is broker {node_id}, which can't change the loggers of broker {name!r}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            if len({config.name for config in resource.configs}) < len(resource.configs):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a logger more than once.")
            changes = [_change(config) for config in resource.configs]
            check_changes(changes)
            if not validate_only:
                apply_changes(changes)
        except KafkaError as refusal:
            error, message = refusal.code, refusal.message
        rows.append(_response(ResourceType.BROKER_LOGGER, name, error, message))
    return rows


def _alteration(resource: ConfigResource, wire: AlterConfigsResource) -> ConfigAlteration:
    return ConfigAlteration(resource, [_change(config) for config in wire.configs])


def _change(config: AlterableConfig) -> ConfigChange:
    if config.config_operation not in _OPERATIONS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name}: there is no operation {config.config_operation}")
    operation = AlterOperation(config.config_operation)
    if config.value is None and operation is not AlterOperation.DELETE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name}: {operation.name} needs a value")
    return ConfigChange(config.name, operation, config.value)
