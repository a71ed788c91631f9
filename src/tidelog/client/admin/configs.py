"""Calls about the settings of topics, brokers, groups and other resources.

What always holds: questions about a broker's own settings and loggers go to that broker, all others to any broker. An
error for one resource does not affect the results of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.client.admin.asking import Answer, at_groups, no_such_broker, refusal
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import ConfigEntry, ConfigSynonym
from tidelog.client.errors import BrokerError, ConfigError, InvalidResponseError, UnsupportedVersionError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ConfigSource, ResourceType
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.k74_list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_DOCUMENTATION_FROM = 3
_RESOURCE_TYPES_FROM = 1  # before that, only client metrics subscriptions were listed

ResultT = TypeVar("ResultT")

Configs = Mapping[str, ConfigEntry]
Changes = Mapping[str, str | int | float | bool | None] | Iterable[ConfigChange]
"""What to set; None as a value takes a setting back to its default."""


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    names: Sequence[str] | None,
    *,
    include_documentation: bool,
    include_synonyms: bool,
) -> Results[ConfigResource, Configs]:
    async def ask(connection: Connection, asked: Sequence[ConfigResource]) -> list[Answer[ConfigResource, Configs]]:
        version = connection.version_for(DESCRIBE_CONFIGS)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list(names),
                )
                for resource in asked
            ],
            include_synonyms=include_synonyms,
        )
        if version >= _DOCUMENTATION_FROM:
            request.include_documentation = include_documentation
        response = await connection.request(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, version=version)
        answers: list[Answer[ConfigResource, Configs]] = []
        for row in response.results:
            resource = ConfigResource(_resource_type(row.resource_type), row.resource_name)
            error = refusal(row.error_code, row.error_message, str(resource))
            rows = sorted(row.configs, key=lambda config: config.name)
            answers.append((resource, error, {config.name: _entry(config) for config in rows}))
        return answers

    async def ask_at(node_id: int | None, asked: Sequence[ConfigResource]) -> list[Answer[ConfigResource, Configs]]:
        async def attempt() -> list[Answer[ConfigResource, Configs]]:
            return _unless_all_may_pass(await ask(await _connection(cluster, node_id), asked))

        return await cluster.retry(attempt)

    return await at_groups(_by_node(resources), ask_at)


async def incremental_alter_configs(
    cluster: Cluster, changes: Mapping[ConfigResource, Changes], *, validate_only: bool
) -> Results[ConfigResource, None]:
    async def ask_at(node_id: int | None, asked: Sequence[ConfigResource]) -> list[Answer[ConfigResource, None]]:
        request = IncrementalAlterConfigsRequest(
            resources=[_altered(resource, changes[resource]) for resource in asked], validate_only=validate_only
        )

        async def attempt() -> list[Answer[ConfigResource, None]]:
            connection = await _connection(cluster, node_id)
            response = await connection.request(INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse)
            answers: list[Answer[ConfigResource, None]] = []
            for row in response.responses:
                resource = ConfigResource(_resource_type(row.resource_type), row.resource_name)
                answers.append((resource, refusal(row.error_code, row.error_message, str(resource)), None))
            return _unless_all_may_pass(answers)

        return await cluster.retry(attempt, repeatable=False)

    return await at_groups(_by_node(changes), ask_at)


async def list_config_resources(cluster: Cluster, types: Sequence[ResourceType]) -> list[ConfigResource]:
    async def ask() -> list[ConfigResource]:
        connection = await cluster.any_connection()
        version = connection.version_for(LIST_CONFIG_RESOURCES)
        request = ListConfigResourcesRequest()
        if version >= _RESOURCE_TYPES_FROM:
            request.resource_types = [int(kind) for kind in types]
        elif set(types) != {ResourceType.CLIENT_METRICS}:
            raise UnsupportedVersionError(f"broker at {connection.address} lists resources of client metrics only")
        response = await connection.request(
            LIST_CONFIG_RESOURCES, request, ListConfigResourcesResponse, version=version
        )
        raise_for(response.error_code)
        rows = response.config_resources
        return sorted(ConfigResource(_resource_type(row.resource_type), row.resource_name) for row in rows)

    return await cluster.retry(ask)


def _altered(resource: ConfigResource, changes: Changes) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[
            AlterableConfig(name=change.name, config_operation=change.operation, value=change.value)
            for change in _listed(changes)
        ],
    )


def _listed(changes: Changes) -> Iterable[ConfigChange]:
    if not isinstance(changes, Mapping):
        return changes
    return [
        ConfigChange(name, AlterOperation.DELETE if value is None else AlterOperation.SET, _text(value))
        for name, value in changes.items()
    ]


def _text(value: str | float | bool | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _entry(row: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=row.name,
        value=row.value,
        source=_source(row.config_source),
        read_only=row.read_only,
        sensitive=row.is_sensitive,
        documentation=row.documentation,
        synonyms=tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in row.synonyms),
    )


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise InvalidResponseError(f"the broker's response names an unknown resource type, {number}") from None


def resource_list(resources: ConfigResource | Iterable[ConfigResource]) -> list[ConfigResource]:
    # A single resource is a tuple, so it could be mistaken for a list of two.
    return [resources] if isinstance(resources, ConfigResource) else list(resources)


# Choosing brokers


def _by_node(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    """The resources by the broker that must be asked about them; None: any broker."""
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in dict.fromkeys(resources):
        node_id: int | None = None
        if resource.type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name:
            if not resource.name.isdigit():
                raise ConfigError(f"a broker is named by its id, a number, not {resource.name!r}")
            node_id = int(resource.name)
        groups.setdefault(node_id, []).append(resource)
    return groups


async def _connection(cluster: Cluster, node_id: int | None) -> Connection:
    if node_id is None:
        return await cluster.any_connection()
    if node_id not in cluster.nodes:
        known = (await cluster.refresh([])).nodes
        if node_id not in known:
            raise no_such_broker(node_id, known)
    return await cluster.connection_to(node_id)


def _unless_all_may_pass(answers: list[Answer[ConfigResource, ResultT]]) -> list[Answer[ConfigResource, ResultT]]:
    """The answers; raises if everything failed for a temporary reason."""
    errors = [error for _, error, _ in answers]
    for first in errors[:1]:
        if first is not None and all(error is not None and _may_pass(error) for error in errors):
            raise first
    return answers


def _may_pass(error: BrokerError) -> bool:
    # "Unknown topic" is final here: nobody asks for the settings of a topic that is still being created.
    return error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
