"""Admin calls: everything that brokers offer to the people who run a cluster.

`AdminClient` of other Kafka clients is called `Admin` here, and `AsyncAdmin` on an event loop. The types they take and
return are imported from here too. Each is loaded on first use, so a command pays only for what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.client.admin.admin import Admin
    from tidelog.client.admin.async_admin import AsyncAdmin
    from tidelog.client.admin.results import Results
    from tidelog.client.admin.types import (
        AlterOperation,
        ClusterDescription,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        ConfigSynonym,
        CreatedTopic,
        DeletedRecords,
        DeletedTopic,
        ElectionType,
        FeatureMetadata,
        FeatureVersions,
        GroupDescription,
        GroupListing,
        GroupMember,
        ListedOffset,
        LogDir,
        LogDirReplica,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        OpenTransaction,
        PartitionProducer,
        PartitionReassignment,
        ProducerIdAndEpoch,
        Rebalance,
        ResourceType,
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
    "ElectionType",
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
    "PartitionReassignment",
    "ProducerIdAndEpoch",
    "Rebalance",
    "ResourceType",
    "Results",
    "TransactionDescription",
    "TransactionListing",
]

# The module of this package that holds each name.
_HOMES = {
    "Admin": "admin",
    "AlterOperation": "types",
    "AsyncAdmin": "async_admin",
    "ClusterDescription": "types",
    "ConfigChange": "types",
    "ConfigEntry": "types",
    "ConfigResource": "types",
    "ConfigSource": "types",
    "ConfigSynonym": "types",
    "CreatedTopic": "types",
    "DeletedRecords": "types",
    "DeletedTopic": "types",
    "ElectionType": "types",
    "FeatureMetadata": "types",
    "FeatureVersions": "types",
    "GroupDescription": "types",
    "GroupListing": "types",
    "GroupMember": "types",
    "ListedOffset": "types",
    "LogDir": "types",
    "LogDirReplica": "types",
    "NewPartitions": "types",
    "NewTopic": "types",
    "OffsetSpec": "types",
    "OpenTransaction": "types",
    "PartitionProducer": "types",
    "PartitionReassignment": "types",
    "ProducerIdAndEpoch": "types",
    "Rebalance": "types",
    "ResourceType": "types",
    "Results": "results",
    "TransactionDescription": "types",
    "TransactionListing": "types",
}


# A type checker that sees __getattr__ would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
