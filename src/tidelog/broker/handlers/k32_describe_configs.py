"""DescribeConfigs (key 32): the settings of topics, brokers and groups, with where each value comes from.

Versions served: 1-4.
- 1: the baseline, with source and synonyms (KIP-226). 2: throttled after the answer (KIP-219).
- 3: type and documentation (KIP-569). 4: flexible.

A broker answers for itself and its loggers (KIP-412) and, under the empty name, for what is set for all brokers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.config_description import (
    ConfigDescription,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)
from tidelog.broker.log_levels import logger_levels
from tidelog.broker.registry import handles
from tidelog.broker.request_context import RequestContext
from tidelog.common.checks import topic_name_problem
from tidelog.common.steps import Steps
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigSource, ResourceType
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@handles(DESCRIBE_CONFIGS, "1-4")
def handle_describe_configs(request: DescribeConfigsRequest, context: RequestContext) -> Steps[DescribeConfigsResponse]:
    # Each is answered once, however often it is asked for: an answer has some forty rows.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    response = DescribeConfigsResponse()
    for resource in resources.values():
        response.results.append((yield from _result(resource, request, context)))
        yield 0
    return response


def _result(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
) -> Steps[DescribeConfigsResult]:
    result = DescribeConfigsResult(
        # Without an error it is empty, not null, as in Kafka.
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    # Clients ask for all settings with null or, some of them, with an empty list.
    wanted = set(resource.configuration_keys or ())
    try:
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            rows = _loggers(resource.resource_name, context)
        else:
            rows = (_config(described, request) for described in _describe(resource, context))
        for row in rows:
            if not wanted or row.name in wanted:
                result.configs.append(row)
            yield 0
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result


def _describe(resource: DescribeConfigsResource, context: RequestContext) -> Iterator[ConfigDescription]:
    services, name = context.services, resource.resource_name
    image = services.cluster.image
    if resource.resource_type == ResourceType.TOPIC:
        if (problem := topic_name_problem(name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return describe_topic(services.settings, services.table, image, image.topic_configs(name))
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return describe_broker_defaults(services.settings, services.table, image)
        if name == str(services.node_id):
            return describe_broker(services.settings, services.table, image)
        raise _not_this_broker(name, context)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the group's id is missing")
        return describe_group(services.settings, services.table, image, image.group_configs(name))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here")


def _not_this_broker(name: str, context: RequestContext) -> KafkaError:
    message = f"this is broker {context.services.node_id}, which can't answer for broker {name!r}"
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _loggers(name: str, context: RequestContext) -> Iterator[DescribeConfigsResourceResult]:
    if name != str(context.services.node_id):
        raise _not_this_broker(name, context)
    for logger_name, level in logger_levels():
        yield DescribeConfigsResourceResult(
            name=logger_name, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
        )


def _config(described: ConfigDescription, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = described.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=described.row.name,
        value=described.value,
        read_only=described.read_only,
        config_source=described.source,
        is_sensitive=described.row.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=described.row.type,
        documentation=described.row.help if request.include_documentation else None,
    )
