"""What AlterConfigs and IncrementalAlterConfigs share: which resources can be changed, and a result row for each.

What always holds: every resource of a request gets a row, and one that is named twice gets two; a resource refused here
never reaches the controller, but the others do. The controller checks the names and values of settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidelog.controller.requests import ConfigResult
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType

_RESOURCE_TYPES = frozenset({ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP})


class _WireConfig(Protocol):
    name: str


class WireResource(Protocol):
    """What the resources of both requests have in common."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[_WireConfig]: ...


class AlterRow(NamedTuple):
    resource_type: int
    resource_name: str
    error: ErrorCode
    message: str | None


WireT = TypeVar("WireT", bound=WireResource)
ChangeT = TypeVar("ChangeT")


async def alter(
    resources: Sequence[WireT],
    translate: Callable[[ConfigResource, WireT], ChangeT],
    apply: Callable[[list[ChangeT]], Awaitable[list[ConfigResult]]],
) -> list[AlterRow]:
    """Apply the changes to the resources that can be changed; `translate` raises KafkaError to refuse one."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    rows: dict[tuple[int, str], AlterRow] = {}
    changes: list[ChangeT] = []
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        try:
            changes.append(translate(_config_resource(resource, counts[key]), resource))
        except KafkaError as error:
            rows[key] = AlterRow(*key, error.code, error.message)
    for result in await apply(changes):
        key = (int(result.resource.type), result.resource.name)
        message = None if result.error is ErrorCode.NONE else result.message or result.error.description
        rows[key] = AlterRow(*key, result.error, message)
    return [rows[resource.resource_type, resource.resource_name] for resource in resources]


def _config_resource(resource: WireResource, count: int) -> ConfigResource:
    if count > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names the resource more than once.")
    if resource.resource_type not in _RESOURCE_TYPES:
        message = f"Resource type {resource.resource_type} has no settings that can be changed here."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names a setting more than once.")
    return ConfigResource(ResourceType(resource.resource_type), resource.resource_name)
