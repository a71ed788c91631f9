"""The admin client on an event loop.

What always holds: a call about several items returns `Results`, in which each has its value or its error. A call about
one item, or one that lists everything, raises. Calls retry temporary failures for at most `default.api.timeout.ms`;
calls that change something are not repeated after a lost connection, because the broker may have carried them out. The
logic is in the modules beside this one, each loaded when one of its calls is first made.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

from tidelog.client.admin.settings import ADMIN_SETTINGS, AdminOptions
from tidelog.client.errors import ClosedError
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.common.closing import AsyncClosing

if TYPE_CHECKING:
    from tidelog.client.admin.configs import Changes
    from tidelog.client.admin.results import Results
    from tidelog.client.admin.types import (
        ClusterDescription,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        DeletedRecords,
        DeletedTopic,
        ElectionType,
        FeatureMetadata,
        GroupDescription,
        GroupListing,
        IsolationLevel,
        ListedOffset,
        LogDir,
        NewPartitions,
        NewTopic,
        OpenTransaction,
        PartitionProducer,
        PartitionReassignment,
        ProducerIdAndEpoch,
        ResourceType,
        TimeOrSpec,
        TransactionDescription,
        TransactionListing,
    )
    from tidelog.client.settings import ClientSettings
    from tidelog.client.types import OffsetAndMetadata, TopicMetadata, TopicPartition

TopicT = TypeVar("TopicT", str, uuid.UUID)


class AsyncAdmin(AsyncClosing):
    """Everything that brokers offer to the people who run a cluster, as coroutines.

    It may be created inside or outside an event loop; it connects on the first call and belongs to that call's loop.
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[AdminOptions]) -> None:
        self._is_closed = True  # set at the end: if this fails earlier, there is nothing to close
        self.settings: ClientSettings = ADMIN_SETTINGS.read(settings, options)
        self._cluster = Cluster(ClusterSettings.read(self.settings))
        self._fork_guard = ForkGuard("AsyncAdmin")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._started()
        return self

    async def close(self) -> None:
        """Close all connections; may be called again."""
        if not self._is_closed:
            self._is_closed = True
            if not self._fork_guard.forked:
                await self._cluster.close()

    def __del__(self) -> None:
        if not self._is_closed and self._loop is not None and not self._fork_guard.forked:
            warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _started(self) -> Cluster:
        """The cluster connection for a call that is about to start."""
        self._fork_guard.check()
        if self._is_closed:
            raise ClosedError("this admin client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this AsyncAdmin belongs to another event loop; create one for this loop")
        return self._cluster

    # Topics

    async def create_topics(
        self, topics: NewTopic | str | Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        """Create topics; for a plain name, the broker's defaults decide partitions and replicas."""
        from tidelog.client.admin.topics import create_topics

        return await create_topics(self._started(), topics, validate_only=validate_only)

    async def delete_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, DeletedTopic]:
        """Delete topics by name or id."""
        from tidelog.client.admin.topics import delete_topics, topic_keys

        results = await delete_topics(self._started(), topic_keys(topics))
        return cast("Results[TopicT, DeletedTopic]", results)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicMetadata]:
        """All topics with their partitions, sorted by name."""
        from tidelog.client.admin.topics import list_topics

        return await list_topics(self._started(), include_internal=include_internal)

    async def describe_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, TopicMetadata]:
        """Topics by name or id, with the leaders and replicas of their partitions."""
        from tidelog.client.admin.topics import describe_topics, topic_keys

        results = await describe_topics(self._started(), topic_keys(topics))
        return cast("Results[TopicT, TopicMetadata]", results)

    async def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Add partitions to topics, up to these totals."""
        from tidelog.client.admin.topics import create_partitions

        return await create_partitions(self._started(), counts, validate_only=validate_only)

    async def wait_for_topics(self, topics: str | Iterable[str]) -> None:
        """Wait until all brokers know the new topics and their partitions have leaders."""
        from tidelog.client.admin.topics import wait_for_topics

        await wait_for_topics(self._started(), _named(topics))

    # Settings

    async def describe_configs(
        self,
        resources: ConfigResource | Iterable[ConfigResource],
        names: Sequence[str] | None = None,
        *,
        include_documentation: bool = False,
        include_synonyms: bool = False,
    ) -> Results[ConfigResource, Mapping[str, ConfigEntry]]:
        """The settings of topics, brokers, groups and so on, by name; all, or only those in `names`."""
        from tidelog.client.admin.configs import describe_configs, resource_list

        return await describe_configs(
            self._started(),
            resource_list(resources),
            names,
            include_documentation=include_documentation,
            include_synonyms=include_synonyms,
        )

    async def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Changes], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Change only the given settings: a mapping of new values (None resets to the default), or `ConfigChange` rows,
        which can also append to lists and remove from them."""
        from tidelog.client.admin.configs import incremental_alter_configs

        return await incremental_alter_configs(self._started(), changes, validate_only=validate_only)

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """All resources that have settings, of these types or of any type."""
        from tidelog.client.admin.configs import list_config_resources

        return await list_config_resources(self._started(), list(types))

    # Groups

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), protocol_types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """All groups, or those in these states and of these types, sorted by id; every broker is asked."""
        from tidelog.client.admin.groups import list_groups

        return await list_groups(
            self._started(), states=_named(states), types=_named(types), protocol_types=_named(protocol_types)
        )

    async def describe_consumer_groups(
        self, group_ids: str | Iterable[str], *, include_history: bool = False
    ) -> Results[str, GroupDescription]:
        """State, members and assignments of groups of either protocol; Tidelog also reports why they rebalanced."""
        from tidelog.client.admin.groups import describe_consumer_groups

        return await describe_consumer_groups(self._started(), _named(group_ids), include_history=include_history)

    async def delete_consumer_groups(self, group_ids: str | Iterable[str]) -> Results[str, None]:
        """Delete groups without members, along with their offsets."""
        from tidelog.client.admin.groups import delete_consumer_groups

        return await delete_consumer_groups(self._started(), _named(group_ids))

    async def remove_members_from_consumer_group(
        self, group_id: str, group_instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> Results[str, None]:
        """Remove static members by their `group.instance.id`, or all members if none are named.

        In the results, members without such an id appear under their member id. A member still running rejoins.
        """
        from tidelog.client.admin.groups import remove_members_from_consumer_group

        instances = None if group_instance_ids is None else _named(group_instance_ids)
        return await remove_members_from_consumer_group(self._started(), group_id, instances, reason)

    async def list_consumer_group_offsets(
        self,
        groups: str | Iterable[str] | Mapping[str, Iterable[TopicPartition] | None],
        *,
        require_stable: bool = False,
    ) -> Results[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of groups, for all partitions or those given; others are left out.

        With `require_stable` it waits for open transactions that are committing offsets.
        """
        from tidelog.client.admin.group_offsets import list_consumer_group_offsets

        wanted = groups if isinstance(groups, Mapping) else dict.fromkeys(_named(groups))
        return await list_consumer_group_offsets(self._started(), wanted, require_stable=require_stable)

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> Results[TopicPartition, None]:
        """Commit these offsets for a group that currently has no members."""
        from tidelog.client.admin.group_offsets import alter_consumer_group_offsets

        return await alter_consumer_group_offsets(self._started(), group_id, offsets)

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Delete committed offsets of topics that no member subscribes to."""
        from tidelog.client.admin.group_offsets import delete_consumer_group_offsets

        return await delete_consumer_group_offsets(self._started(), group_id, partitions)

    # Offsets and records

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, TimeOrSpec],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Results[TopicPartition, ListedOffset]:
        """The first offset at or after each time, or the offset that an `OffsetSpec` names."""
        from tidelog.client.admin.offsets import list_offsets

        return await list_offsets(self._started(), partitions, isolation_level=isolation_level)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, DeletedRecords]:
        """Delete all records before these offsets (-1: all records)."""
        from tidelog.client.admin.offsets import delete_records

        return await delete_records(self._started(), before)

    # Producers and transactions

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, Sequence[PartitionProducer]]:
        """The producers that the leaders of these partitions know."""
        from tidelog.client.admin.transactions import describe_producers

        return await describe_producers(self._started(), partitions)

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, or those that match, sorted; every broker is asked.

        `older_than_ms` selects transactions open for longer than this, so only open ones unless you pass states.
        The pattern is a regular expression in RE2 syntax.
        """
        from tidelog.client.admin.transactions import list_transactions

        return await list_transactions(
            self._started(),
            states=_named(states),
            producer_ids=list(producer_ids),
            older_than_ms=older_than_ms,
            transactional_id_pattern=transactional_id_pattern,
        )

    async def describe_transactions(
        self, transactional_ids: str | Iterable[str]
    ) -> Results[str, TransactionDescription]:
        """State, producer and partitions of transactional ids."""
        from tidelog.client.admin.transactions import describe_transactions

        return await describe_transactions(self._started(), _named(transactional_ids))

    async def fence_producers(self, transactional_ids: str | Iterable[str]) -> Results[str, ProducerIdAndEpoch]:
        """Abort the open transactions of these ids and fence their producers."""
        from tidelog.client.admin.transactions import fence_producers

        return await fence_producers(self._started(), _named(transactional_ids))

    async def list_open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """The open transactions in these partitions."""
        from tidelog.client.admin.transactions import list_open_transactions

        return await list_open_transactions(self._started(), partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, written_before_ms: int
    ) -> list[OpenTransaction]:
        """Open transactions, last written to before this time, that no coordinator will end."""
        from tidelog.client.admin.transactions import find_hanging_transactions

        return await find_hanging_transactions(self._started(), partitions, written_before_ms=written_before_ms)

    async def abort_transaction(
        self, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int = -1
    ) -> None:
        """Make the partition's leader abort the producer's open transaction there, as its coordinator would.

        Only for hanging transactions: for any other, the coordinator would not know.
        """
        from tidelog.client.admin.transactions import abort_transaction

        await abort_transaction(
            self._started(),
            topic_partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )

    # The cluster

    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, its controller and its brokers."""
        from tidelog.client.admin.cluster import describe_cluster

        return await describe_cluster(self._started())

    async def describe_features(self) -> FeatureMetadata:
        """Finalized features, such as `metadata.version` and `transaction.version`, and supported ones."""
        from tidelog.client.admin.cluster import describe_features

        return await describe_features(self._started())

    async def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[int, Sequence[LogDir]]:
        """The log directories of these brokers or of all, with the replicas of these partitions or of all."""
        from tidelog.client.admin.cluster import describe_log_dirs

        return await describe_log_dirs(self._started(), broker_ids, partitions)

    async def alter_replica_log_dirs(
        self, broker_id: int, targets: Mapping[TopicPartition, str]
    ) -> Results[TopicPartition, None]:
        """Start moving replicas of this broker to other log directories of the same broker, given by path.

        Naming a replica's current directory cancels its move. `describe_log_dirs` shows the progress of the others.
        """
        from tidelog.client.admin.cluster import alter_replica_log_dirs

        return await alter_replica_log_dirs(self._started(), broker_id, targets)

    async def elect_leaders(
        self,
        election_type: ElectionType | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders for these partitions, or for all that need it; by default each partition's first replica.

        A partition already led by its preferred replica gets the error ELECTION_NOT_NEEDED.
        """
        from tidelog.client.admin.replicas import elect_leaders
        from tidelog.client.admin.types import ElectionType

        kind = ElectionType.PREFERRED if election_type is None else election_type
        return await elect_leaders(self._started(), kind, partitions)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Start moving partitions to these brokers, the preferred leader first; None cancels a move."""
        from tidelog.client.admin.replicas import alter_partition_reassignments

        return await alter_partition_reassignments(self._started(), targets)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions being reassigned, among these or all."""
        from tidelog.client.admin.replicas import list_partition_reassignments

        return await list_partition_reassignments(self._started(), partitions)

    async def unregister_broker(self, node_id: int) -> None:
        """Remove a broker that is gone for good; it must not be running."""
        from tidelog.client.admin.replicas import unregister_broker

        await unregister_broker(self._started(), node_id)


def _named(names: str | Iterable[str]) -> list[str]:
    """Names without duplicates; a single string counts as a list of one, not as its letters."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))
