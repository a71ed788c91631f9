"""Consumers of both protocols around one shard, whose log is a list and whose clock is turned by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from struct import pack
from typing import Any

import pytest

from tidelog.common.steps import run_through
from tidelog.coordinator.actions import (
    Action,
    Answer,
    Append,
    CancelTimer,
    Client,
    GroupRecord,
    Now,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode, encode
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
    read_member_bytes,
)
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

GROUP = "group"
COUNTS = {"orders": 4, "prices": 2}
START_MS = 1_800_000_000_000


class Topics:
    def __init__(self) -> None:
        self.counts = dict(COUNTS)

    def topic_id(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_DNS, name) if name in self.counts else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return (frozenset(),) * self.partition_count(name)

    def topic_names(self) -> Collection[str]:
        return self.counts.keys()


class Bench:
    """One coordinator after another over one log."""

    def __init__(self, policy: str = "bidirectional") -> None:
        self.topics = Topics()
        self.config = GroupConfig(
            group_consumer_assignment_interval_ms=0,
            group_initial_rebalance_delay_ms=0,
            group_consumer_migration_policy=policy,
        )
        self.ms = 0.0
        self.log: list[GroupRecord] = []
        self.timers: dict[TimerKey, float] = {}
        self.answers: dict[int, Any] = {}
        self.exchange = 0
        self.fails = False
        self.shard = GroupShard(0, self.config, self.topics)

    @property
    def now(self) -> Now:
        return Now(self.ms, START_MS + int(self.ms))

    def run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Work(steps):
                    for step in steps:
                        self.run(step)
                case Answer(exchange, response):
                    assert exchange not in self.answers, "answered twice"
                    self.answers[exchange] = response
                case Append(records, token):
                    error = ErrorCode.NOT_ENOUGH_REPLICAS if self.fails else ErrorCode.NONE
                    self.fails = False
                    if not error:
                        self.log += records
                    self.run(self.shard.on_appended(token, error, self.now))
                case SetTimer(key, due_ms):
                    self.timers[key] = due_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)

    def ask(self, call: Callable[[GroupShard, Client, Now, int], list[Action]], version: int) -> int:
        self.exchange += 1
        self.run(call(self.shard, Client("client", "/127.0.0.1", version), self.now, self.exchange))
        return self.exchange

    def advance(self, ms: float) -> None:
        end_ms = self.ms + ms
        while due := [(due_ms, str(key), key) for key, due_ms in self.timers.items() if due_ms <= end_ms]:
            due_ms, _, key = min(due)
            self.ms = max(self.ms, due_ms)
            del self.timers[key]
            self.run(self.shard.on_timer(key, self.now))
        self.ms = end_ms

    def restart(self) -> None:
        self.timers.clear()
        self.shard = GroupShard(0, self.config, self.topics)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self.run(chain.from_iterable(self.shard.on_loaded(self.now)))

    @property
    def kind(self) -> str:
        listed = self.shard.list_groups((), ())
        return listed[0].group_type.lower() if listed else "none"


Partition = tuple[str, int]


class NewConsumer:
    """A member of the new protocol."""

    def __init__(self, bench: Bench, name: str, topics: list[str], instance_id: str | None = None) -> None:
        self.bench, self.name, self.topics, self.instance_id = bench, name, topics, instance_id
        self.epoch = 0
        self.partitions: set[Partition] = set()
        self.is_gone = False
        self.says_all = False

    def beat(self, *, epoch: int | None = None, lose: bool = False) -> ErrorCode:
        epoch = self.epoch if epoch is None else epoch
        whole = epoch == 0 or self.says_all
        rows: dict[uuid.UUID, list[int]] = {}
        for topic, number in self.partitions:
            topic_id = self.bench.topics.topic_id(topic)
            assert topic_id is not None
            rows.setdefault(topic_id, []).append(number)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=10_000 if whole else -1,
            subscribed_topic_names=self.topics if whole else None,
            topic_partitions=[]
            if epoch == 0
            else [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in rows.items()
            ],
        )
        exchange = self.bench.ask(lambda shard, *rest: shard.consumer_heartbeat(request, *rest), 1)
        response = self.bench.answers[exchange]
        error = ErrorCode(response.error_code)
        if lose:
            self.says_all = True
            return error
        self.says_all = bool(error)
        if error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch, self.partitions = 0, set()
        elif not error and epoch >= 0:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.partitions = {
                    (self.bench.topics.topic_name(row.topic_id) or "", number)
                    for row in response.assignment.topic_partitions
                    for number in row.partitions
                }
        return error

    step = beat

    def leave(self) -> None:
        self.beat(epoch=-1)
        self.partitions, self.epoch, self.is_gone = set(), 0, True

    def be_removed(self, times: int = 1) -> list[int]:
        """An administrator takes the member out by LeaveGroup, naming it this often; the errors."""
        identity = MemberIdentity(member_id=self.name, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=GROUP, members=[identity] * times)
        exchange = self.bench.ask(lambda shard, client, *rest: run_through(shard.leave(request, client))(*rest), 5)
        self.partitions, self.epoch, self.is_gone = set(), 0, True
        return [member.error_code for member in self.bench.answers[exchange].members]


class OldConsumer:
    """A member of the classic protocol: eager, or cooperative when it says what it owns and keeps it meanwhile."""

    def __init__(
        self, bench: Bench, name: str, topics: list[str], instance_id: str | None = None, *, cooperative: bool = False
    ) -> None:
        self.bench, self.name, self.topics, self.instance_id = bench, name, topics, instance_id
        self.cooperative = cooperative
        self.protocol = "cooperative-sticky" if cooperative else "range"
        self.member_id = ""
        self.generation = -1
        self.partitions: set[Partition] = set()
        self.joining: int | None = None
        self.syncing: int | None = None
        self.is_leader = False
        self.members: dict[str, ConsumerProtocolSubscription] = {}
        self.is_gone = False

    def step(self) -> None:
        """What its thread does next: goes on with what was answered, or says that it is alive."""
        if self.joining is not None:
            self._joined()
        elif self.syncing is not None:
            self._synced()
        elif self.generation < 0:
            self._join()
        else:
            self._heartbeat()

    def _join(self) -> None:
        if not self.cooperative:
            self.partitions = set()
        owned: dict[str, list[int]] = {}
        for topic, number in self.partitions:
            owned.setdefault(topic, []).append(number)
        subscription = ConsumerProtocolSubscription(
            topics=self.topics,
            owned_partitions=[
                ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in owned.items()
            ],
        )
        request = JoinGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=self.protocol, metadata=pack(">h", 1) + encode(subscription, 1))],
        )
        self.joining = self.bench.ask(lambda shard, *rest: shard.join(request, *rest), 9)
        self._joined()

    def _joined(self) -> None:
        assert self.joining is not None
        response = self.bench.answers.get(self.joining)
        if response is None:
            return
        self.joining = None
        error = ErrorCode(response.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._join()
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._start_over()
        elif not error:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.is_leader = response.leader == self.member_id
            self.members = {
                row.member_id: read_member_bytes(ConsumerProtocolSubscription, row.metadata) for row in response.members
            }
            self._sync()

    def _sync(self) -> None:
        assignments = []
        if self.is_leader:
            for member_id, owned in _share_out(self.members, self.bench.topics.counts).items():
                rows = [
                    ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
                    for topic, numbers in owned.items()
                ]
                body = encode(ConsumerProtocolAssignment(assigned_partitions=rows), 1)
                assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=pack(">h", 1) + body))
        request = SyncGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            generation_id=self.generation,
            assignments=assignments,
        )
        self.syncing = self.bench.ask(lambda shard, client, now, exchange: shard.sync(request, now, exchange), 5)
        self._synced()

    def _synced(self) -> None:
        assert self.syncing is not None
        response = self.bench.answers.get(self.syncing)
        if response is None:
            return
        self.syncing = None
        if response.error_code:
            self._fail(ErrorCode(response.error_code))
            return
        assigned = read_member_bytes(ConsumerProtocolAssignment, response.assignment)
        told = {(row.topic, number) for row in assigned.assigned_partitions for number in row.partitions}
        must_rejoin = self.cooperative and bool(self.partitions - told)
        self.partitions = told
        if must_rejoin:
            self._join()

    def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            generation_id=self.generation,
        )
        exchange = self.bench.ask(lambda shard, client, now, exchange: shard.heartbeat(request, now, exchange), 4)
        error = ErrorCode(self.bench.answers[exchange].error_code)
        if error:
            self._fail(error)

    def _fail(self, error: ErrorCode) -> None:
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._join()
        else:
            self._start_over()

    def _start_over(self) -> None:
        self.partitions, self.generation, self.member_id = set(), -1, ""

    def leave(self) -> None:
        request = LeaveGroupRequest(
            group_id=GROUP, members=[MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)]
        )
        self.bench.ask(lambda shard, client, *rest: run_through(shard.leave(request, client))(*rest), 5)
        self._start_over()
        self.joining = self.syncing = None
        self.is_gone = True


def _share_out(
    members: dict[str, ConsumerProtocolSubscription], counts: dict[str, int]
) -> dict[str, dict[str, list[int]]]:
    """A cooperative leader: everybody keeps what it owns as far as that is fair, and nobody gets what another has."""
    owners = {
        (row.topic, number): member_id
        for member_id, subscription in members.items()
        for row in subscription.owned_partitions
        for number in row.partitions
    }
    shared: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    for topic, count in counts.items():
        takers = sorted(member_id for member_id, subscription in members.items() if topic in subscription.topics)
        for number in range(count if takers else 0):
            wanted = takers[number % len(takers)]
            if owners.get((topic, number), wanted) == wanted:
                shared[wanted].setdefault(topic, []).append(number)
    return shared


@pytest.fixture
def make_bench() -> type[Bench]:
    return Bench


@pytest.fixture
def new_consumer() -> type[NewConsumer]:
    return NewConsumer


@pytest.fixture
def old_consumer() -> type[OldConsumer]:
    return OldConsumer
