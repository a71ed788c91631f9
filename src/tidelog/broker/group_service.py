"""Runs the group coordinators of this broker: one shard for each partition of __consumer_offsets that it leads.

What always holds: what `coordinator_service` says about all coordinators. If the outcome of a write is not known within
offsets.commit.timeout.ms, its shard is reloaded. Shards see topics and the settings of groups as they are in the newest
image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.coordinator_service import KEY_CHARACTERS_MAX, CoordinatorService, Held
from tidelog.broker.delayed_produce import PendingAppend, track_append
from tidelog.broker.group_image import ClusterTopics
from tidelog.broker.group_loading import load_shard
from tidelog.broker.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from tidelog.broker.partition import ACKS_ALL, Partition
from tidelog.controller.group_configs import group_values
from tidelog.coordinator.actions import Action, AppendInTransaction, Now
from tidelog.coordinator.config import GroupConfig, GroupConfigs
from tidelog.coordinator.shard import GroupShard
from tidelog.coordinator.shard_state import group_memory
from tidelog.log.txn_guard import TransactionGuard
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import TRANSACTIONAL_BIT, BatchDraft, Compression
from tidelog.records.batch import NO_SEQUENCE

if TYPE_CHECKING:
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.request_context import RequestContext
    from tidelog.broker.topic_creation import TopicCreation
    from tidelog.common.clock import Clock
    from tidelog.common.settings import Settings
    from tidelog.common.steps import Steps
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.controller.image import ClusterImage
    from tidelog.controller.requests import NewTopic
    from tidelog.protocol.messages.k28_txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

# From this version of TxnOffsetCommit, producers leave it to the broker to add the offsets to their transactions.
_ADDED_FROM: Final = 5

_GROUP_SETTINGS: Final = (
    "group.consumer.assignment.interval.ms",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.regex.refresh.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
    "tidelog.group.coordinator.max.bytes",
    "tidelog.group.max.bytes",
    "tidelog.group.offsets.max.bytes",
)


class GroupService(CoordinatorService[GroupShard]):
    """The coordinators of all groups whose partition this broker leads."""

    topic = OFFSETS_TOPIC
    noun = "groups"

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        cluster: ClusterView,
        creation: TopicCreation,
        replicas: ReplicaManager,
    ) -> None:
        """To be made on the running event loop."""
        super().__init__(
            clock=clock,
            cluster=cluster,
            creation=creation,
            replicas=replicas,
            commit_timeout_ms=settings.get_int("offsets.commit.timeout.ms"),
            compression=Compression(settings.get_int("offsets.topic.compression.codec")),
        )
        self._settings = settings
        self._config = group_config(settings)
        self._configs = GroupConfigs(self._config, self._own_values)
        self._memory = group_memory(self._config)
        self._load_buffer_bytes = settings.get_int("offsets.load.buffer.size")
        self._topics = ClusterTopics(cluster.image)
        self._unsubscribe: Callable[[], None] | None = None
        self._markers_while_loading: dict[Held[GroupShard], list[tuple[int, bool]]] = {}

    def start(self) -> None:
        self._topics = ClusterTopics(self._cluster.image)
        self._unsubscribe = self._cluster.subscribe(self._on_image)
        self._replicas.on_txn_marker = self._on_txn_marker
        super().start()

    async def close(self) -> None:
        self._replicas.on_txn_marker = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        await super().close()

    def _find(self, key: str) -> Held[GroupShard]:
        if len(key) > KEY_CHARACTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is too long to be stored")
        return super()._find(key)

    def _new_topic(self, image: ClusterImage) -> NewTopic:
        return new_offsets_topic(self._settings, image)

    def _make_shard(self, partition: Partition) -> GroupShard:
        return GroupShard(partition.partition, self._config, self._topics, self._memory, self._configs)

    async def _replay(self, shard: GroupShard, partition: Partition) -> int:
        return await load_shard(shard, partition, self._load_buffer_bytes)

    # Offsets in transactions

    async def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        *,
        refuse: Callable[[ErrorCode], Steps[TxnOffsetCommitResponse]],
        size: int,
    ) -> Any:
        """Write offsets that take effect when their transaction commits; raises KafkaError if nothing was attempted.

        Returns what `submit_prepared` does.
        """
        partition = self._find(request.group_id).partition
        partition.check_leader()
        transactions = self._replicas.transactions
        transaction = transactions.begin(partition, request.producer_id, request.producer_epoch, NO_SEQUENCE)
        guard = None
        if transaction is not None:
            await transactions.confirm(request.transactional_id, [transaction], add=context.version >= _ADDED_FROM)
            if transaction.error:
                raise KafkaError(transaction.error)
            guard = transaction.guard
        return self.submit_prepared(
            request.group_id,
            context,
            lambda shard, client, now: shard.txn_offset_commit(request, guard, now),
            refuse=refuse,
            size=size,
        )

    def _perform(self, held: Held[GroupShard], action: Action, now: Now) -> list[Action]:
        if not isinstance(action, AppendInTransaction):
            return super()._perform(held, action, now)
        token, time_ms = action.token, now.wall_ms
        draft = BatchDraft(
            [(key, value, (), time_ms) for key, value in action.records],
            self._compression,
            action.producer_id,
            action.producer_epoch,
            TRANSACTIONAL_BIT,
        )
        guard = action.permit
        assert guard is None or isinstance(guard, TransactionGuard)  # as commit_in_transaction gave it

        def decided(error: ErrorCode, first_offset: int, now: Now) -> list[Action]:
            return held.shard.on_txn_appended(token, error, first_offset, now)

        return self._write(held, draft, decided, now, guard)

    def _on_txn_marker(self, partition: Partition, producer_id: int, commit: bool, offset: int) -> None:
        """A marker was appended to a partition that this broker leads."""
        held = self._held.get(partition.partition) if partition.topic == self.topic else None
        if held is None or held.partition is not partition or held.leader_epoch != partition.leader_epoch:
            return
        tracked = track_append(partition, offset + 1, held.leader_epoch, ACKS_ALL, None)
        if isinstance(tracked, ErrorCode):
            self._end_transaction(held, producer_id, commit)
        else:
            self._start(self._wait_for_marker(held, producer_id, commit, tracked))

    async def _wait_for_marker(
        self, held: Held[GroupShard], producer_id: int, commit: bool, pending: PendingAppend[None]
    ) -> None:
        await self._replicas.wait_for_acknowledgement([pending], self._commit_timeout_ms)
        if not pending.error:
            self._end_transaction(held, producer_id, commit)
        elif held.is_active:
            self._reload(held, pending.error)

    def _end_transaction(self, held: Held[GroupShard], producer_id: int, commit: bool) -> None:
        if held.is_loaded:
            self._run(held, held.shard.on_txn_marker(producer_id, committed=commit))
        elif held.is_active:
            # The loader may already be past this point, or may not get this far.
            self._markers_while_loading.setdefault(held, []).append((producer_id, commit))

    # Topics and loading

    def _unload(self, held: Held[GroupShard], error: ErrorCode) -> None:
        self._markers_while_loading.pop(held, None)
        super()._unload(held, error)

    def _own_values(self, group_id: str) -> dict[str, int]:
        overrides = self._cluster.image.group_configs(group_id)
        values = group_values(overrides, self._settings) if overrides else {}
        return {name.replace(".", "_"): value for name, value in values.items()}

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is not new.configs:
            # Members learn of it with their next heartbeat, which also starts their session anew.
            self._configs.look_up_again()
        if old.topics_by_id is new.topics_by_id:
            return
        self._topics = ClusterTopics(new)
        for held in tuple(self._held.values()):
            if held.is_loaded:
                self._run(held, held.shard.on_topics_changed(self._topics, self._now()))

    def _finish_loading(self, held: Held[GroupShard]) -> Steps[None]:
        # Topics may have changed while the log was read, and may change while it is made ready.
        held.shard.state.image = self._topics
        yield from super()._finish_loading(held)
        if not held.is_loaded:
            return
        if held.shard.state.image is not self._topics:
            self._run(held, held.shard.on_topics_changed(self._topics, self._now()))
        for producer_id, commit in self._markers_while_loading.pop(held, ()):
            self._run(held, held.shard.on_txn_marker(producer_id, committed=commit))


def group_config(settings: Settings) -> GroupConfig:
    """The settings of groups as their coordinators read them."""
    values: dict[str, Any] = {name.replace(".", "_"): settings[name] for name in _GROUP_SETTINGS}
    values["group_consumer_assignors"] = tuple(values["group_consumer_assignors"])
    return GroupConfig(**values)
