"""The controller: the cluster image, the decisions about it, and its only writer."""

from __future__ import annotations

from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.controller import Controller
from tidelog.controller.image import (
    NO_LEADER,
    BrokerInfo,
    ClusterImage,
    LeaderRecoveryState,
    PartitionState,
    TopicImage,
)
from tidelog.controller.requests import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    DeleteResult,
    ElectionResult,
    ElectionType,
    IsrChange,
    IsrMember,
    IsrResult,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    Reassignment,
    ReassignmentResult,
    TopicResult,
)

__all__ = [
    "NO_LEADER",
    "BrokerInfo",
    "ClusterImage",
    "ClusterView",
    "ConfigAlteration",
    "ConfigReplacement",
    "ConfigResult",
    "Controller",
    "DeleteResult",
    "ElectionResult",
    "ElectionType",
    "IsrChange",
    "IsrMember",
    "IsrResult",
    "LeaderRecoveryState",
    "NewPartitions",
    "NewTopic",
    "PartitionState",
    "PartitionsResult",
    "Reassignment",
    "ReassignmentResult",
    "TopicImage",
    "TopicResult",
]
