"""The controller: the cluster image, the decisions about it, and the one writer of it."""

from __future__ import annotations

from tidelog.controller.controller import Controller
from tidelog.controller.image import (
    NO_LEADER,
    BrokerInfo,
    ClusterImage,
    ConfigResource,
    LeaderRecoveryState,
    PartitionState,
    ResourceType,
    TopicImage,
)
from tidelog.controller.requests import (
    AlterOperation,
    ConfigAlteration,
    ConfigChange,
    ConfigReplacement,
    ConfigResult,
    DeleteResult,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
)

__all__ = [
    "NO_LEADER",
    "AlterOperation",
    "BrokerInfo",
    "ClusterImage",
    "ConfigAlteration",
    "ConfigChange",
    "ConfigReplacement",
    "ConfigResource",
    "ConfigResult",
    "Controller",
    "DeleteResult",
    "LeaderRecoveryState",
    "NewPartitions",
    "NewTopic",
    "PartitionState",
    "PartitionsResult",
    "ResourceType",
    "TopicImage",
    "TopicResult",
]
