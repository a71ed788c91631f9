"""The synchronous admin client: the calls of `AsyncAdmin`, run on an event loop in a background thread.

What always holds: several threads may use it at the same time; an interrupted call is abandoned.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tidelog.client.admin.async_admin import AsyncAdmin
from tidelog.client.admin.settings import AdminOptions
from tidelog.client.errors import ClientError, ClosedError
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.client.network.loop_thread import LoopThread
from tidelog.common.closing import Closing

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

ResultT = TypeVar("ResultT")
TopicT = TypeVar("TopicT", str, uuid.UUID)


class Admin(Closing):
    """Manages the topics, settings, groups, offsets, transactions and log directories of a cluster.

    A call about several items returns `Results`: a mapping that holds each item's value or raises its error.
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[AdminOptions]) -> None:
        self._thread: LoopThread | None = None
        self._fork_guard = ForkGuard("Admin")
        self._admin = AsyncAdmin(settings, **options)
        self.settings: ClientSettings = self._admin.settings
        self._thread = LoopThread("tidelog-admin")

    def close(self) -> None:
        """Close all connections and stop the thread; may be called again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if not self._fork_guard.forked:
            thread.run(self._admin.close())
        thread.close()

    def __del__(self) -> None:
        if self._thread is not None and not self._fork_guard.forked:
            warnings.warn("Admin was not closed", ResourceWarning, source=self, stacklevel=2)
            if self._thread.may_wait:
                self.close()
            else:
                self._thread.close()

    def _run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        thread = self._thread
        try:
            self._fork_guard.check()
            if thread is None:
                raise ClosedError("this admin client is closed")
        except ClientError:
            call.close()
            raise
        return thread.run(call)

    # Topics

    def create_topics(
        self, topics: NewTopic | str | Iterable[NewTopic | str], *, validate_only: bool = False
    ) -> Results[str, CreatedTopic]:
        """Create topics; for a plain name, the broker's defaults decide partitions and replicas."""
        return self._run(self._admin.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, DeletedTopic]:
        """Delete topics by name or id."""
        return self._run(self._admin.delete_topics(topics))

    def list_topics(self, *, include_internal: bool = False) -> list[TopicMetadata]:
        """All topics with their partitions, sorted by name."""
        return self._run(self._admin.list_topics(include_internal=include_internal))

    def describe_topics(self, topics: TopicT | Iterable[TopicT]) -> Results[TopicT, TopicMetadata]:
        """Topics by name or id, with the leaders and replicas of their partitions."""
        return self._run(self._admin.describe_topics(topics))

    def create_partitions(
        self, counts: Mapping[str, int | NewPartitions], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Add partitions to topics, up to these totals."""
        return self._run(self._admin.create_partitions(counts, validate_only=validate_only))

    def wait_for_topics(self, topics: str | Iterable[str]) -> None:
        """Wait until all brokers know the new topics and their partitions have leaders."""
        return self._run(self._admin.wait_for_topics(topics))

    # Settings

    def describe_configs(
        self,
        resources: ConfigResource | Iterable[ConfigResource],
        names: Sequence[str] | None = None,
        *,
        include_documentation: bool = False,
        include_synonyms: bool = False,
    ) -> Results[ConfigResource, Mapping[str, ConfigEntry]]:
        """The settings of topics, brokers, groups and so on, by name; all, or only those in `names`."""
        return self._run(
            self._admin.describe_configs(
                resources, names, include_documentation=include_documentation, include_synonyms=include_synonyms
            )
        )

    def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Changes], *, validate_only: bool = False
    ) -> Results[ConfigResource, None]:
        """Change only the given settings: a mapping of new values (None resets to the default), or `ConfigChange` rows,
        which can also append to lists and remove from them."""
        return self._run(self._admin.incremental_alter_configs(changes, validate_only=validate_only))

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """All resources that have settings, of these types or of any type."""
        return self._run(self._admin.list_config_resources(types))

    # Groups

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), protocol_types: Iterable[str] = ()
    ) -> list[GroupListing]:
        """All groups, or those in these states and of these types, sorted by id; every broker is asked."""
        return self._run(self._admin.list_groups(states=states, types=types, protocol_types=protocol_types))

    def describe_consumer_groups(
        self, group_ids: str | Iterable[str], *, include_history: bool = False
    ) -> Results[str, GroupDescription]:
        """State, members and assignments of groups of either protocol; Tidelog also reports why they rebalanced."""
        return self._run(self._admin.describe_consumer_groups(group_ids, include_history=include_history))

    def delete_consumer_groups(self, group_ids: str | Iterable[str]) -> Results[str, None]:
        """Delete groups without members, along with their offsets."""
        return self._run(self._admin.delete_consumer_groups(group_ids))

    def remove_members_from_consumer_group(
        self, group_id: str, group_instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> Results[str, None]:
        """Remove static members by their `group.instance.id`, or all members if none are named.

        In the results, members without such an id appear under their member id. A member still running rejoins.
        """
        return self._run(self._admin.remove_members_from_consumer_group(group_id, group_instance_ids, reason=reason))

    def list_consumer_group_offsets(
        self,
        groups: str | Iterable[str] | Mapping[str, Iterable[TopicPartition] | None],
        *,
        require_stable: bool = False,
    ) -> Results[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of groups, for all partitions or those given; others are left out.

        With `require_stable` it waits for open transactions that are committing offsets.
        """
        return self._run(self._admin.list_consumer_group_offsets(groups, require_stable=require_stable))

    def alter_consumer_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> Results[TopicPartition, None]:
        """Commit these offsets for a group that currently has no members."""
        return self._run(self._admin.alter_consumer_group_offsets(group_id, offsets))

    def delete_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Delete committed offsets of topics that no member subscribes to."""
        return self._run(self._admin.delete_consumer_group_offsets(group_id, partitions))

    # Offsets and records

    def list_offsets(
        self,
        partitions: Mapping[TopicPartition, TimeOrSpec],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> Results[TopicPartition, ListedOffset]:
        """The first offset at or after each time, or the offset that an `OffsetSpec` names."""
        return self._run(self._admin.list_offsets(partitions, isolation_level=isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, DeletedRecords]:
        """Delete all records before these offsets (-1: all records)."""
        return self._run(self._admin.delete_records(before))

    # Producers and transactions

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, Sequence[PartitionProducer]]:
        """The producers that the leaders of these partitions know."""
        return self._run(self._admin.describe_producers(partitions))

    def list_transactions(
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
        return self._run(
            self._admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                older_than_ms=older_than_ms,
                transactional_id_pattern=transactional_id_pattern,
            )
        )

    def describe_transactions(self, transactional_ids: str | Iterable[str]) -> Results[str, TransactionDescription]:
        """State, producer and partitions of transactional ids."""
        return self._run(self._admin.describe_transactions(transactional_ids))

    def fence_producers(self, transactional_ids: str | Iterable[str]) -> Results[str, ProducerIdAndEpoch]:
        """Abort the open transactions of these ids and fence their producers."""
        return self._run(self._admin.fence_producers(transactional_ids))

    def list_open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """The open transactions in these partitions."""
        return self._run(self._admin.list_open_transactions(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, written_before_ms: int
    ) -> list[OpenTransaction]:
        """Open transactions, last written to before this time, that no coordinator will end."""
        return self._run(self._admin.find_hanging_transactions(partitions, written_before_ms=written_before_ms))

    def abort_transaction(
        self, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int = -1
    ) -> None:
        """Make the partition's leader abort the producer's open transaction there, as its coordinator would.

        Only for hanging transactions: for any other, the coordinator would not know.
        """
        return self._run(
            self._admin.abort_transaction(
                topic_partition,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
            )
        )

    # The cluster

    def describe_cluster(self) -> ClusterDescription:
        """The cluster's id, its controller and its brokers."""
        return self._run(self._admin.describe_cluster())

    def describe_features(self) -> FeatureMetadata:
        """Finalized features, such as `metadata.version` and `transaction.version`, and supported ones."""
        return self._run(self._admin.describe_features())

    def describe_log_dirs(
        self, broker_ids: Iterable[int] | None = None, *, partitions: Iterable[TopicPartition] | None = None
    ) -> Results[int, Sequence[LogDir]]:
        """The log directories of these brokers or of all, with the replicas of these partitions or of all."""
        return self._run(self._admin.describe_log_dirs(broker_ids, partitions=partitions))

    def alter_replica_log_dirs(
        self, broker_id: int, targets: Mapping[TopicPartition, str]
    ) -> Results[TopicPartition, None]:
        """Start moving replicas of this broker to other log directories of the same broker, given by path.

        Naming a replica's current directory cancels its move. `describe_log_dirs` shows the progress of the others.
        """
        return self._run(self._admin.alter_replica_log_dirs(broker_id, targets))

    def elect_leaders(
        self,
        election_type: ElectionType | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> Results[TopicPartition, None]:
        """Elect leaders for these partitions, or for all that need it; by default each partition's first replica.

        A partition already led by its preferred replica gets the error ELECTION_NOT_NEEDED.
        """
        return self._run(self._admin.elect_leaders(election_type, partitions))

    def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Start moving partitions to these brokers, the preferred leader first; None cancels a move."""
        return self._run(self._admin.alter_partition_reassignments(targets))

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions being reassigned, among these or all."""
        return self._run(self._admin.list_partition_reassignments(partitions))

    def unregister_broker(self, node_id: int) -> None:
        """Remove a broker that is gone for good; it must not be running."""
        self._run(self._admin.unregister_broker(node_id))
