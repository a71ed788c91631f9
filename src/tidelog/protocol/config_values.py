"""The enums of the requests about settings, with their values on the wire, for broker and client."""

from __future__ import annotations

import enum
from typing import NamedTuple

from tidelog.common.light_dataclass import dataclass


class ResourceType(enum.IntEnum):
    """The kinds of resource that have settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32

    @property
    def label(self) -> str:
        """The name to show to people, such as "broker logger"."""
        return self.name.lower().replace("_", " ")


class ConfigResource(NamedTuple):
    """A resource that has settings. A broker's name is its id; an empty name means all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.type.label} {self.name}"

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        """The settings of a topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, node_id: int | None = None) -> ConfigResource:
        """The settings of a broker by its id, or the defaults of all brokers if None."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    @classmethod
    def group(cls, group_id: str) -> ConfigResource:
        """The settings of a consumer group."""
        return cls(ResourceType.GROUP, group_id)


class ConfigSource(enum.IntEnum):
    """Where a value comes from, as DescribeConfigs reports it."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8

    @property
    def label(self) -> str:
        """The name to show to people, such as "static broker"."""
        return self.name.removesuffix("_CONFIG").lower().replace("_", " ")


class AlterOperation(enum.IntEnum):
    """What IncrementalAlterConfigs does to a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change to one setting."""

    name: str
    operation: AlterOperation
    value: str | None = None
