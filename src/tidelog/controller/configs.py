"""How the controller checks changed settings: pure functions from names and values to the new set of overrides.

What always holds: overrides are kept as the text the client gave (a group's in their shortest form), and every one of
them parses by its row of the settings table; a refusal is a KafkaError with the code and reason for the client. What an
override does is up to the code that reads the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.common.checks import topic_name_problem
from tidelog.common.settings import Setting, SettingError, Settings, SettingScope, SettingsTable, SettingType
from tidelog.controller.group_configs import check_group, check_group_values
from tidelog.controller.image import ClusterImage
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType

_SCOPES = {
    ResourceType.TOPIC: SettingScope.TOPIC,
    ResourceType.BROKER: SettingScope.BROKER,
    ResourceType.GROUP: SettingScope.GROUP,
}

_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")


def check_topic_configs(configs: Mapping[str, str | None], image: ClusterImage, settings: Settings) -> dict[str, str]:
    """The settings of a new topic; raises KafkaError."""
    overrides = {
        name: _checked_value(_row(name, SettingScope.TOPIC, settings.table), value, ErrorCode.INVALID_CONFIG)
        for name, value in configs.items()
    }
    _check_lags(overrides, image, settings)
    return overrides


def check_resource(resource: ConfigResource, image: ClusterImage) -> None:
    if resource.type is ResourceType.TOPIC:
        if not resource.name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic's name is missing.")
        problem = topic_name_problem(resource.name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if resource.name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
    elif resource.type is ResourceType.GROUP:
        check_group(resource.name)
    elif resource.name:
        if not resource.name.isdecimal():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{resource.name!r} is not the id of a broker.")
        if int(resource.name) not in image.brokers:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"No broker with id {resource.name} is registered.")


def replace_configs(
    resource: ConfigResource, configs: Mapping[str, str | None], image: ClusterImage, settings: Settings
) -> dict[str, str]:
    """The overrides after AlterConfigs: exactly the given ones; raises KafkaError."""
    check_resource(resource, image)
    overrides = {
        name: _checked_value(_changeable_row(name, resource, settings.table), v) for name, v in configs.items()
    }
    _check_together(resource, overrides, image, settings)
    return overrides


def alter_configs(
    resource: ConfigResource, changes: Sequence[ConfigChange], image: ClusterImage, settings: Settings
) -> dict[str, str]:
    """The overrides after IncrementalAlterConfigs; raises KafkaError."""
    check_resource(resource, image)
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A setting may be changed only once in a request.")
    overrides = dict(image.configs.get(resource, {}))
    for change in changes:
        row = _changeable_row(change.name, resource, settings.table)
        if change.operation is AlterOperation.DELETE:
            overrides.pop(change.name, None)
        elif change.operation is AlterOperation.SET:
            overrides[change.name] = _checked_value(row, change.value)
        else:
            overrides[change.name] = _altered_list(row, change, overrides, image, settings)
    _check_together(resource, overrides, image, settings)
    return overrides


def _check_together(
    resource: ConfigResource, overrides: Mapping[str, str], image: ClusterImage, settings: Settings
) -> None:
    if resource.type is ResourceType.GROUP:
        check_group_values(overrides, settings)
    else:
        _check_lags(overrides, image, settings)


def _check_lags(overrides: Mapping[str, str], image: ClusterImage, settings: Settings) -> None:
    """The minimum lag before compaction can't exceed the maximum."""
    if not any(name in overrides for name in _LAGS):
        return
    low, high = (topic_value(name, overrides, image, settings) for name in _LAGS)
    if low > high:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{_LAGS[0]} is {low} and may not be above {_LAGS[1]}, which is {high}."
        )


def topic_value(name: str, overrides: Mapping[str, str], image: ClusterImage, settings: Settings) -> Any:
    """The value for a topic with these overrides, as far as it is the same on all brokers."""
    row = settings.table.get(name, SettingScope.TOPIC)
    if name in overrides:
        return row.parse(overrides[name])
    if row.broker_name is None:
        return row.default
    everywhere = image.broker_configs(None).get(row.broker_name)
    return row.parse(everywhere) if everywhere is not None else settings.effective(row.broker_name)


def _altered_list(
    row: Setting, change: ConfigChange, overrides: Mapping[str, str], image: ClusterImage, settings: Settings
) -> str:
    if row.type is not SettingType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {change.operation.name} to {row.name}: its type is {row.type.name}, not LIST.",
        )
    given = _split(_not_null(row.name, change.value, ErrorCode.INVALID_REQUEST))
    current = _split(overrides[row.name]) if row.name in overrides else _inherited_list(row, image, settings)
    if change.operation is AlterOperation.APPEND:
        items = current + [item for item in given if item not in current]
    else:
        items = [item for item in current if item not in given]
    return _checked_value(row, ",".join(items))


def _inherited_list(row: Setting, image: ClusterImage, settings: Settings) -> list[str]:
    """The value of a list that is not set: appending to a default must not lose the default."""
    broker_name = row.broker_name if row.scope is SettingScope.TOPIC else row.name
    if broker_name is not None and settings.table.find(broker_name, SettingScope.BROKER) is not None:
        dynamic = image.broker_configs(None).get(broker_name)
        return _split(dynamic) if dynamic is not None else _split(row.format(settings[broker_name]) or "")
    return _split(row.format(row.default) or "")


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _row(name: str, scope: SettingScope, table: SettingsTable) -> Setting:
    try:
        return table.get(name, scope)
    except SettingError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _changeable_row(name: str, resource: ConfigResource, table: SettingsTable) -> Setting:
    row = _row(name, _SCOPES[resource.type], table)
    if resource.type is ResourceType.BROKER and not row.dynamic:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{name} can't be changed while the broker runs; set it where the broker is started.",
        )
    return row


def _not_null(name: str, value: str | None, code: ErrorCode) -> str:
    if value is None:
        raise KafkaError(code, f"Null value not supported for: {name}.")
    return value


def _checked_value(row: Setting, value: str | None, null_code: ErrorCode = ErrorCode.INVALID_REQUEST) -> str:
    text = _not_null(row.name, value, null_code)
    try:
        value = row.parse(text)
    except SettingError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    # Anybody may name a group, so what is kept of one is bounded: no leading zeros or blanks.
    return row.format(value) or "" if row.scope is SettingScope.GROUP else text
