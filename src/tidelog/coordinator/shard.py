"""All groups of one partition of __consumer_offsets: requests, timers and outcomes of writes in, actions out.

What always holds: a durable change is written first and takes effect when it is committed, in the order of the writes;
nothing is answered before that. A replay of the records gives the same groups and offsets.

    shard = GroupShard(partition, config, image)
    shard.replay(record, offset)            for every record of the partition, then
    shard.on_loaded(now)                    after which requests may be handed in

Requests that may name thousands of things are prepared in steps, each of which leaves all that others see as it is;
what comes out of that is a `Prepared`, called immediately after the last step or some time later, never in between. Any
other request may be handed in meanwhile, so it checks again what was found before.

The handlers share a ShardState: `offset_requests` for offsets, `group_requests` for groups of any kind,
`classic_requests` for members of classic groups, `consumer_requests` for members of the new protocol. Each handler of
one kind of group has `replay(key, value)` for its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.common.steps import Steps
from tidelog.coordinator.actions import (
    Action,
    ActionSteps,
    Client,
    GroupRecord,
    Now,
    Prepared,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.coordinator.classic_in_consumer import ClassicInConsumer
from tidelog.coordinator.classic_requests import ClassicRequests
from tidelog.coordinator.config import GroupConfig, GroupConfigs, GroupImage
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.coordinator.consumer_requests import ConsumerRequests
from tidelog.coordinator.consumer_writer import GroupWriter
from tidelog.coordinator.group_records import GroupMetadataKey, OffsetCommitKey, UnknownRecords, decode_record
from tidelog.coordinator.group_requests import GroupRequests
from tidelog.coordinator.memory import GroupMemory
from tidelog.coordinator.offset_requests import NO_PRODUCER_ID, OffsetRequests
from tidelog.coordinator.shard_state import ShardState
from tidelog.coordinator.txn_offset_requests import TxnOffsetRequests
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tidelog.protocol.messages.k08_offset_commit import OffsetCommitRequest
    from tidelog.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from tidelog.protocol.messages.k11_join_group import JoinGroupRequest
    from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest
    from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest
    from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest
    from tidelog.protocol.messages.k15_describe_groups import DescribedGroup
    from tidelog.protocol.messages.k16_list_groups import ListedGroup
    from tidelog.protocol.messages.k28_txn_offset_commit import TxnOffsetCommitRequest
    from tidelog.protocol.messages.k47_offset_delete import OffsetDeleteRequest
    from tidelog.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from tidelog.protocol.messages.k69_consumer_group_describe import DescribedGroup as DescribedConsumerGroup

_EXPIRATION: TimerKey = ("", "offset-expiration")


class GroupShard:
    """The coordinator of one partition's groups."""

    def __init__(
        self,
        partition: int,
        config: GroupConfig,
        image: GroupImage,
        memory: GroupMemory | None = None,
        configs: GroupConfigs | None = None,
    ) -> None:
        """`memory` is the budget that all shards of a broker share, `configs` what groups have of their own."""
        self.state = ShardState(partition, config, image, memory, configs)
        self._offsets = OffsetRequests(self.state)
        self._txn_offsets = TxnOffsetRequests(self.state, self._offsets)
        self._groups = GroupRequests(self.state, self._offsets)
        self._writer = GroupWriter(self.state)
        self._classic = ClassicRequests(self.state, ClassicInConsumer(self.state, self._writer))
        self._consumer = ConsumerRequests(self.state, self._writer)
        self._unknown_records = UnknownRecords(f"__consumer_offsets-{self.state.partition}")

    # Loading and unloading

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition; raises ProtocolError if it can't be read.

        With a producer id it belongs to a transaction, whose end decides whether it takes effect.
        """
        decoded = decode_record(record)
        if decoded is None:
            self._unknown_records.warn(record.key, offset)
            return
        key, value = decoded
        if isinstance(key, OffsetCommitKey):
            self._offsets.replay(key, value, offset, producer_id)
        elif isinstance(key, GroupMetadataKey):
            self._classic.replay(key, value)
        else:
            self._consumer.replay(key, value)

    def replay_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker that ends a transaction."""
        self._offsets.replay_transaction_end(producer_id, committed=committed)

    def on_loaded(self, now: Now) -> ActionSteps:
        """All records have been replayed: start the timers."""
        self.state.memory.count()
        self.state.offsets_memory.count()
        self.state.pending_ids.count()
        for group in tuple(self.state.groups.values()):
            yield group.on_loaded(now)
        yield [self._offsets.on_topics_deleted(), self._next_expiration(now)]

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        """This broker is no longer the coordinator: answer all waiting requests; nothing may be called after this."""
        actions = self._writer.on_unloaded(error)
        for group in self.state.groups.values():
            actions += group.on_unloaded(error)
        self.state.memory.release()
        self.state.offsets_memory.release()
        self.state.pending_ids.release()
        return actions

    def on_abandoned(self, group_id: str, exchange: int, now: Now) -> list[Action]:
        """The connection of a waiting request is gone; nobody will read the answer."""
        return self._classic.on_abandoned(group_id, exchange, now)

    # What happens

    def on_appended(self, token: int, error: ErrorCode, now: Now) -> list[Action]:
        """A write is committed (NONE), or refused, in which case none of it is in the log."""
        return self.state.appends.finish(token, error, now)

    def on_txn_appended(self, token: int, error: ErrorCode, first_offset: int, now: Now) -> list[Action]:
        """A write in a transaction is committed (NONE), from this offset on, or refused."""
        return self._txn_offsets.finish(token, error, first_offset)

    def on_txn_marker(self, producer_id: int, *, committed: bool) -> list[Action]:
        """A marker that ends a producer's transaction in this partition is committed."""
        return self._offsets.end_transaction(producer_id, committed=committed)

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]:
        """A timer is due; the first part of its key is the group's id."""
        if key == _EXPIRATION:
            return [self._offsets.expire(now), self._next_expiration(now)]
        group = self.state.groups.get(str(key[0]))
        if isinstance(group, ConsumerGroup):
            return self._consumer.on_timer(group, key, now)
        actions = [] if group is None else group.on_timer(key, now)
        self._classic.forget_unused(str(key[0]))
        return actions

    def on_topics_changed(self, image: GroupImage, now: Now) -> list[Action]:
        """Topics were created, deleted or given more partitions."""
        old, self.state.image = self.state.image, image
        groups = tuple(self.state.groups.values())
        changes = (group.on_topics_changed(image, now) for group in groups)
        return [self._offsets.on_topics_deleted(old), Work(changes)]

    def _next_expiration(self, now: Now) -> SetTimer:
        return SetTimer(_EXPIRATION, now.monotonic_ms + self.state.config.offsets_retention_check_interval_ms)

    # Offsets

    def offset_commit(self, request: OffsetCommitRequest, client: Client, now: Now) -> Steps[Prepared]:
        return self._offsets.commit(request, client, now)

    def txn_offset_commit(self, request: TxnOffsetCommitRequest, permit: object, now: Now) -> Steps[Prepared]:
        """The permit lets the transaction write to this partition; it comes back with the write."""
        return self._txn_offsets.commit(request, permit, now)

    def offset_fetch(self, group: OffsetFetchRequestGroup, *, require_stable: bool) -> Steps[OffsetFetchResponseGroup]:
        return self._offsets.fetch(group, require_stable=require_stable)

    def offset_delete(self, request: OffsetDeleteRequest) -> Steps[Prepared]:
        return self._offsets.delete(request)

    # Groups of any kind

    def list_groups(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        return self._groups.list_groups(states, types)

    def describe_group(self, group_id: str, *, include_history: bool = False) -> DescribedGroup:
        return self._groups.describe(group_id, include_history=include_history)

    def delete_group(self, group_id: str, exchange: int) -> list[Action]:
        """Answers with an ErrorCode."""
        return self._groups.delete(group_id, exchange)

    # Classic groups

    def join(self, request: JoinGroupRequest, client: Client, now: Now, exchange: int) -> list[Action]:
        return self._classic.join(request, client, now, exchange)

    def sync(self, request: SyncGroupRequest, now: Now, exchange: int) -> list[Action]:
        return self._classic.sync(request, now, exchange)

    def heartbeat(self, request: HeartbeatRequest, now: Now, exchange: int) -> list[Action]:
        return self._classic.heartbeat(request, now, exchange)

    def leave(self, request: LeaveGroupRequest, client: Client) -> Steps[Prepared]:
        return self._classic.leave(request, client)

    # Groups of the new consumer protocol

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, now: Now, exchange: int
    ) -> list[Action]:
        return self._consumer.heartbeat(request, client, now, exchange)

    def describe_consumer_group(self, group_id: str, *, include_history: bool = False) -> DescribedConsumerGroup:
        return self._consumer.describe(group_id, include_history=include_history)
