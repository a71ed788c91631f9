"""The rules for settings that a group has of its own: what may be set, and what counts of what is set.

What always holds: a value is accepted only between the broker's minimum and maximum for it; one that was accepted under
other bounds counts as the nearest that is allowed now. The settings are about groups of the new consumer protocol, but
may be set before the group exists, and stay when it is deleted, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.common.settings import Settings, SettingScope
from tidelog.controller.image import ClusterImage
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType

GROUPS_MAX: Final = 10_000
"""How many groups can have settings of their own: every broker keeps them all in memory."""

_GROUP_ID_CHARACTERS_MAX: Final = 1_000
_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"

_BOUNDS: Final = {
    _SESSION: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    _HEARTBEAT: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    "consumer.assignment.interval.ms": (
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
    ),
}
"""The broker settings that hold the least and the greatest value of each setting of a group."""


class GroupRoom:
    """How many more groups may get settings of their own in one change."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._room: int | None = None

    def take(self, resource: ConfigResource) -> None:
        """The resource gets settings; raises KafkaError if it is one group too many."""
        if resource.type is not ResourceType.GROUP or resource in self._image.configs:
            return
        if self._room is None:
            self._room = GROUPS_MAX - sum(known.type is ResourceType.GROUP for known in self._image.configs)
        if self._room <= 0:
            message = f"{GROUPS_MAX} groups have settings of their own; delete those of another group first."
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        self._room -= 1


def check_group(group_id: str) -> None:
    """Whether the group can have settings; raises KafkaError."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed: a group's id is missing.")
    if len(group_id) > _GROUP_ID_CHARACTERS_MAX:
        message = f"Only groups with an id of at most {_GROUP_ID_CHARACTERS_MAX} characters can have settings."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_group_values(overrides: Mapping[str, str], settings: Settings) -> None:
    """Whether these values are within the broker's bounds and fit together; raises KafkaError."""
    for name, text in overrides.items():
        low_name, high_name = _BOUNDS[name]
        value = int(text)
        if value < settings[low_name]:
            message = f"{name} must be greater than or equal to {low_name}, which is {settings[low_name]}."
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        if value > settings[high_name]:
            message = f"{name} must be less than or equal to {high_name}, which is {settings[high_name]}."
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    values = {name: int(text) for name, text in overrides.items()}
    if not _fit(values, settings):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{_SESSION} must be greater than {_HEARTBEAT}.")


def group_values(overrides: Mapping[str, str], settings: Settings) -> dict[str, int]:
    """The values that count for a group, by the broker setting that each takes the place of."""
    values = {}
    for name, text in overrides.items():
        low_name, high_name = _BOUNDS[name]
        values[name] = max(settings[low_name], min(int(text), settings[high_name]))
    if not _fit(values, settings):
        # The brokers' settings have changed since. Members that are removed between heartbeats would help nobody.
        values.pop(_SESSION, None)
        values.pop(_HEARTBEAT, None)
    return {str(settings.table.get(name, SettingScope.GROUP).broker_name): value for name, value in values.items()}


def _fit(values: Mapping[str, int], settings: Settings) -> bool:
    """Whether members have time to send their heartbeats; not asked of what the broker's configuration says alone."""
    if _SESSION not in values and _HEARTBEAT not in values:
        return True
    session_ms = values.get(_SESSION, settings[f"group.{_SESSION}"])
    return bool(session_ms > values.get(_HEARTBEAT, settings[f"group.{_HEARTBEAT}"]))
