"""Admin calls: everything that brokers do for those who look after a cluster.

`AdminClient` of other Kafka clients is `Admin` here, and `AsyncAdmin` on an event loop. What they take and give is
imported from here too; each is loaded when it is first asked for, so that a command pays only for what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.admin.admin import Admin
    from tidelog.client.admin.async_admin import AsyncAdmin
    from tidelog.client.admin.cluster_types import (
        ClusterDescription,
        FeatureMetadata,
        FeatureVersions,
        LogDir,
        LogDirReplica,
    )
    from tidelog.client.admin.config_types import (
        AlterOperation,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ConfigSynonym,
        ResourceType,
    )
    from tidelog.client.admin.group_types import GroupDescription, GroupListing, GroupMember, Rebalance
    from tidelog.client.admin.offset_types import DeletedRecords, ListedOffset, OffsetSpec
    from tidelog.client.admin.results import Results
    from tidelog.client.admin.topic_types import CreatedTopic, DeletedTopic, NewPartitions, NewTopic
    from tidelog.client.admin.transaction_types import (
        OpenTransaction,
        PartitionProducer,
        ProducerIdAndEpoch,
        TransactionDescription,
        TransactionListing,
    )

__all__ = [
    "Admin",
    "AlterOperation",
    "AsyncAdmin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConfigSynonym",
    "CreatedTopic",
    "DeletedRecords",
    "DeletedTopic",
    "FeatureMetadata",
    "FeatureVersions",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "ListedOffset",
    "LogDir",
    "LogDirReplica",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "OpenTransaction",
    "PartitionProducer",
    "ProducerIdAndEpoch",
    "Rebalance",
    "ResourceType",
    "Results",
    "TransactionDescription",
    "TransactionListing",
]

# In which module of this package each of them is.
_HOMES = {
    "Admin": "admin",
    "AlterOperation": "config_types",
    "AsyncAdmin": "async_admin",
    "ClusterDescription": "cluster_types",
    "ConfigChange": "config_types",
    "ConfigEntry": "config_types",
    "ConfigResource": "config_types",
    "ConfigSource": "config_types",
    "ConfigSynonym": "config_types",
    "CreatedTopic": "topic_types",
    "DeletedRecords": "offset_types",
    "DeletedTopic": "topic_types",
    "FeatureMetadata": "cluster_types",
    "FeatureVersions": "cluster_types",
    "GroupDescription": "group_types",
    "GroupListing": "group_types",
    "GroupMember": "group_types",
    "ListedOffset": "offset_types",
    "LogDir": "cluster_types",
    "LogDirReplica": "cluster_types",
    "NewPartitions": "topic_types",
    "NewTopic": "topic_types",
    "OffsetSpec": "offset_types",
    "OpenTransaction": "transaction_types",
    "PartitionProducer": "transaction_types",
    "ProducerIdAndEpoch": "transaction_types",
    "Rebalance": "group_types",
    "ResourceType": "config_types",
    "Results": "results",
    "TransactionDescription": "transaction_types",
    "TransactionListing": "transaction_types",
}


# Type checkers would take every name for granted.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
