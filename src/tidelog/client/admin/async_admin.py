"""The admin client on an event loop.

What always holds: a call about several things gives `Results`, in which each has its value or its error; a call about
one thing, and a list of all there are, raises. Calls try again while they fail for a reason that may pass, for at most
`default.api.timeout.ms`; those that change something are not repeated after a lost connection, because the broker may
have carried them out. The logic is in the modules beside this one, each loaded when one of its calls is first made.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

from tidelog.client.admin.settings import ADMIN_SETTINGS, AdminOptions
from tidelog.client.errors import ClosedError
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.fork_guard import ForkGuard

if TYPE_CHECKING:
    from tidelog.client.admin.cluster_types import ClusterDescription, FeatureMetadata, LogDir
    from tidelog.client.admin.config_types import ConfigEntry, ConfigResource, ResourceType
    from tidelog.client.admin.configs import Changes
    from tidelog.client.admin.group_types import GroupDescription, GroupListing
    from tidelog.client.admin.offset_types import DeletedRecords, IsolationLevel, ListedOffset, TimeOrSpec
    from tidelog.client.admin.results import Results
    from tidelog.client.admin.topic_types import CreatedTopic, DeletedTopic, NewPartitions, NewTopic
    from tidelog.client.admin.transaction_types import (
        OpenTransaction,
        PartitionProducer,
        ProducerIdAndEpoch,
        TransactionDescription,
        TransactionListing,
    )
    from tidelog.client.settings import ClientSettings
    from tidelog.client.types import OffsetAndMetadata, TopicMetadata, TopicPartition

TopicT = TypeVar("TopicT", str, uuid.UUID)


class AsyncAdmin:
    """Everything that brokers do for those who look after a cluster, as coroutines.

    Made in or outside of an event loop; it connects with its first call and belongs to that call's loop.
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[AdminOptions]) -> None:
        self._is_closed = True  # until all is well: what fails here need not be closed
        self.settings: ClientSettings = ADMIN_SETTINGS.read(settings, options)
        self._cluster = Cluster(ClusterSettings.read(self.settings))
        self._fork_guard = ForkGuard("AsyncAdmin")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections; once is enough."""
        if not self._is_closed:
            self._is_closed = True
            if not self._fork_guard.forked:
                await self._cluster.close()

    def __del__(self) -> None:
        if not self._is_closed and self._loop is not None and not self._fork_guard.forked:
            warnings.warn(f"{type(self).__name__} was not closed", ResourceWarning, source=self, stacklevel=2)

    def _started(self) -> Cluster:
        """The cluster, for a call that is about to be made."""
        self._fork_guard.check()
        if self._is_closed:
            raise ClosedError("this admin client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this AsyncAdmin belongs to another event loop; make one for this loop")
        return self._cluster

    # Topics

    async def create_topics(
        self, topics: NewTopic | str | Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        """Make topics; one that is only named gets the brokers' default numbers of partitions and replicas."""
        from tidelog.client.admin.topics import create_topics

        return await create_topics(self._started(), topics, validate_only=validate_only)

    async def delete_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, DeletedTopic]:
        """Delete topics by their names or their ids."""
        from tidelog.client.admin.topics import delete_topics, topic_keys

        results = await delete_topics(self._started(), topic_keys(topics))
        return cast("Results[TopicT, DeletedTopic]", results)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicMetadata]:
        """All topics with their partitions, sorted by name."""
        from tidelog.client.admin.topics import list_topics

        return await list_topics(self._started(), include_internal=include_internal)

    async def describe_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, TopicMetadata]:
        """Topics by their names or their ids, with leaders and replicas of their partitions."""
        from tidelog.client.admin.topics import describe_topics, topic_keys

        results = await describe_topics(self._started(), topic_keys(topics))
        return cast("Results[TopicT, TopicMetadata]", results)

    async def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Grow topics to these numbers of partitions."""
        from tidelog.client.admin.topics import create_partitions

        return await create_partitions(self._started(), counts, validate_only=validate_only)

    async def wait_for_topics(self, topics: str | Iterable[str]) -> None:
        """Until brokers have heard of topics that were just made and their partitions have leaders."""
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
        """The settings of topics, brokers, groups..., by name; only those named, when names are given."""
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
        """Change settings and leave the others as they are: a mapping of new values (None: back to the default), or
        `ConfigChange` rows, which can also add to lists and take away from them."""
        from tidelog.client.admin.configs import incremental_alter_configs

        return await incremental_alter_configs(self._started(), changes, validate_only=validate_only)

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """What has settings, of these types or of all."""
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
        """State, members and what each has, of groups of either protocol; Tidelog also tells why they rebalanced."""
        from tidelog.client.admin.groups import describe_consumer_groups

        return await describe_consumer_groups(self._started(), _named(group_ids), include_history=include_history)

    async def delete_consumer_groups(self, group_ids: str | Iterable[str]) -> Results[str, None]:
        """Delete groups that have no members, with their offsets."""
        from tidelog.client.admin.groups import delete_consumer_groups

        return await delete_consumer_groups(self._started(), _named(group_ids))

    async def remove_members_from_consumer_group(
        self, group_id: str, group_instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> Results[str, None]:
        """Make static members leave, by their `group.instance.id`, or all members when none are named.

        Members without such an id are named by their member id in the results. One that still runs joins again.
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
        """What groups have committed, of all partitions or of those given; partitions without are left out.

        With `require_stable` it waits while a transaction is about to commit offsets.
        """
        from tidelog.client.admin.group_offsets import list_consumer_group_offsets

        wanted = groups if isinstance(groups, Mapping) else dict.fromkeys(_named(groups))
        return await list_consumer_group_offsets(self._started(), wanted, require_stable=require_stable)

    async def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> Results[TopicPartition, None]:
        """Commit these offsets for a group that has no members now."""
        from tidelog.client.admin.group_offsets import alter_consumer_group_offsets

        return await alter_consumer_group_offsets(self._started(), group_id, offsets)

    async def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Forget committed offsets of topics to which no member subscribes."""
        from tidelog.client.admin.group_offsets import delete_consumer_group_offsets

        return await delete_consumer_group_offsets(self._started(), group_id, partitions)

    # Offsets and records

    async def list_offsets(
        self,
        partitions: Mapping[TopicPartition, TimeOrSpec],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Results[TopicPartition, ListedOffset]:
        """The first offset at or after each time, or at one of the special ones (`OffsetSpec`)."""
        from tidelog.client.admin.offsets import list_offsets

        return await list_offsets(self._started(), partitions, isolation_level=isolation_level)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, DeletedRecords]:
        """Drop all records before these offsets (-1: all there are)."""
        from tidelog.client.admin.offsets import delete_records

        return await delete_records(self._started(), before)

    # Producers and transactions

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, Sequence[PartitionProducer]]:
        """The producers that the leaders of these partitions remember."""
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
        """All transactional ids, or those that fit, sorted; every broker is asked.

        With `older_than_ms` only transactions that have been open for longer, so unless states are given only open
        ones. The pattern is a regular expression in the syntax of RE2.
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
        """End what the producers of these ids have open, and shut them out from now on."""
        from tidelog.client.admin.transactions import fence_producers

        return await fence_producers(self._started(), _named(transactional_ids))

    async def list_open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """The transactions that are open in these partitions."""
        from tidelog.client.admin.transactions import list_open_transactions

        return await list_open_transactions(self._started(), partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, written_before_ms: int
    ) -> list[OpenTransaction]:
        """Open transactions, last written to before this time, that no coordinator is going to end."""
        from tidelog.client.admin.transactions import find_hanging_transactions

        return await find_hanging_transactions(self._started(), partitions, written_before_ms=written_before_ms)

    async def abort_transaction(
        self, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int = -1
    ) -> None:
        """Have the partition's leader end what the producer has open there, as if its coordinator had aborted it.

        Only for hanging transactions: the coordinator of any other would not hear of it.
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
        """What the cluster has agreed on, as `metadata.version` and `transaction.version`, and what could be."""
        from tidelog.client.admin.cluster import describe_features

        return await describe_features(self._started())

    async def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[int, Sequence[LogDir]]:
        """The log directories of these brokers or of all, with the replicas of these partitions or of all."""
        from tidelog.client.admin.cluster import describe_log_dirs

        return await describe_log_dirs(self._started(), broker_ids, partitions)


def _named(names: str | Iterable[str]) -> list[str]:
    """Names without repetition; one alone counts as a list of one, not as its letters."""
    return [names] if isinstance(names, str) else list(dict.fromkeys(names))
