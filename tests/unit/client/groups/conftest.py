"""Whole groups without sockets: members of the client against the broker's own coordinator, in virtual time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest

from tidelog.client.consumer.assignors import TopicLayout
from tidelog.client.consumer.group_settings import choose_assignors
from tidelog.client.consumer.membership import Turn
from tidelog.client.consumer.membership_classic import ClassicConfig, ClassicMember
from tidelog.client.consumer.membership_consumer import ConsumerConfig, ConsumerMember
from tidelog.client.errors import ConnectionLostError
from tidelog.client.types import TopicPartition
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
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest
from tidelog.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

GROUP = "g"
START_MS = 1_800_000_000_000
PAUSE_MS = 100.0


@dataclass
class Topics:
    """A cluster's topics by name, with their partition counts."""

    counts: dict[str, int] = field(default_factory=dict)

    def topic_id(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_DNS, name) if name in self.counts else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return tuple(frozenset() for _ in range(self.partition_count(name)))

    def topic_names(self) -> Collection[str]:
        return self.counts.keys()


class SimulatedMember:
    """A consumer: a member, the request it waits for, and what its user knows."""

    def __init__(self, member: ClassicMember | ConsumerMember) -> None:
        self.member = member
        self.request: object | None = None
        self.exchange = 0
        self.turn: Turn | None = None
        self.is_gone = False
        self.told: list[tuple[str, tuple[TopicPartition, ...]]] = []

    @property
    def holds(self) -> frozenset[TopicPartition]:
        """What the user may be reading: what is owned, and what a turn under way is bringing."""
        bringing = frozenset() if self.turn is None or self.turn.assignment is None else self.turn.assignment
        return self.member.owned | bringing


class SimulatedGroup:
    """One coordinator and its members."""

    def __init__(self, kind: str, counts: dict[str, int], **config: Any) -> None:
        self.kind = kind
        self.topics = Topics(dict(counts))
        self._config = GroupConfig(group_initial_rebalance_delay_ms=0, **config)
        self.members: list[SimulatedMember] = []
        self.now_ms = 0.0
        self._log: list[GroupRecord] = []
        self._timers: dict[TimerKey, float] = {}
        self._answers: dict[int, object] = {}
        self._exchange = 0
        self.shard = self._new_shard()

    # The coordinator

    def _new_shard(self) -> GroupShard:
        return GroupShard(0, self._config, Topics(dict(self.topics.counts)))

    @property
    def _now(self) -> Now:
        return Now(self.now_ms, START_MS + int(self.now_ms))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Work(steps):
                    for step in steps:
                        self._carry_out(step)
                case Answer(exchange, response):
                    self._answers[exchange] = response
                case Append():
                    self._log += action.records
                    self._carry_out(self.shard.on_appended(action.token, ErrorCode.NONE, self._now))
                case SetTimer(key, due_ms):
                    self._timers[key] = due_ms
                case CancelTimer(key):
                    self._timers.pop(key, None)

    def advance(self, ms: float) -> None:
        end_ms = self.now_ms + ms
        while True:
            due = [(due_ms, key) for key, due_ms in self._timers.items() if due_ms <= end_ms]
            if not due:
                break
            due_ms, key = min(due, key=lambda pair: pair[0])
            self.now_ms = max(self.now_ms, due_ms)
            del self._timers[key]
            self._carry_out(self.shard.on_timer(key, self._now))
        self.now_ms = end_ms

    def restart_coordinator(self) -> None:
        """Another broker takes over what is in the log; everyone who waits loses the connection."""
        self._timers.clear()
        self._answers.clear()
        self.shard = self._new_shard()
        for offset, record in enumerate(self._log):
            self.shard.replay(record, offset)
        self._carry_out(chain.from_iterable(self.shard.on_loaded(self._now)))
        for each in self.members:
            self.fail_request(each)

    def grow(self, topic: str, count: int) -> None:
        """The topic has more partitions now, and all members hear of it."""
        self.topics.counts[topic] = count
        self._carry_out(self.shard.on_topics_changed(Topics(dict(self.topics.counts)), self._now))
        for each in self.members:
            if isinstance(each.member, ClassicMember):
                each.member.on_partition_counts(dict(self.topics.counts))

    def known_member_ids(self) -> set[str]:
        if self.kind == "consumer":
            described = self.shard.describe_consumer_group(GROUP)
            return {row.member_id for row in described.members}
        return {row.member_id for row in self.shard.describe_group(GROUP).members}

    # The members

    def add(
        self, topics: Collection[str], instance_id: str | None = None, session_timeout_ms: int = 10_000
    ) -> SimulatedMember:
        member: ClassicMember | ConsumerMember
        if self.kind == "consumer":
            member = ConsumerMember(
                ConsumerConfig(GROUP, instance_id=instance_id, rebalance_timeout_ms=30_000), lambda failures: PAUSE_MS
            )
        else:
            assignors = choose_assignors(self.kind.split(","))
            config = ClassicConfig(
                GROUP,
                assignors,
                instance_id=instance_id,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=30_000,
            )
            member = ClassicMember(config, lambda failures: PAUSE_MS)
        simulated = SimulatedMember(member)
        member.subscribe(frozenset(topics), None)
        self.members.append(simulated)
        return simulated

    def send(self, each: SimulatedMember, *, is_lost: bool = False) -> bool:
        """Let the member do what it wants to do next; whether it wanted anything."""
        member = each.member
        if each.is_gone or each.request is not None:
            return False
        member.coordinator_is_suspect = False
        if isinstance(member, ClassicMember) and member.topics_needed() is not None:
            member.share_out(TopicLayout(dict(self.topics.counts)))
            return True
        if isinstance(member, ConsumerMember):
            member.name_topics(self.topics.topic_name)
        request = member.next_request(self.now_ms)
        if request is None:
            return False
        self._exchange += 1
        each.request, each.exchange = request, self._exchange
        if is_lost:
            self.fail_request(each)
        else:
            self._deliver(request, self._exchange)
        return True

    def _deliver(self, request: object, exchange: int) -> None:
        client = Client("client", "/127.0.0.1", 9)
        match request:
            case JoinGroupRequest():
                self._carry_out(self.shard.join(request, client, self._now, exchange))
            case SyncGroupRequest():
                self._carry_out(self.shard.sync(request, self._now, exchange))
            case HeartbeatRequest():
                self._carry_out(self.shard.heartbeat(request, self._now, exchange))
            case LeaveGroupRequest():
                leave = run_through(self.shard.leave(request, Client("client", "/127.0.0.1", 5)))
                self._carry_out(leave(self._now, exchange))
            case ConsumerGroupHeartbeatRequest():
                client = Client("client", "/127.0.0.1", 1)
                self._carry_out(self.shard.consumer_heartbeat(request, client, self._now, exchange))
            case _:
                raise TypeError(request)

    def receive(self, each: SimulatedMember, *, is_lost: bool = False) -> bool:
        """Hand the member the answer it waits for, if there is one."""
        if each.request is None or each.exchange not in self._answers:
            return False
        answer = self._answers.pop(each.exchange)
        if is_lost:
            self.fail_request(each)
        else:
            request, each.request = each.request, None
            each.member.on_response(request, answer, self.now_ms)
        return True

    def fail_request(self, each: SimulatedMember) -> None:
        request, each.request = each.request, None
        if request is not None:
            each.member.on_failure(request, ConnectionLostError("lost"), self.now_ms)

    def begin_turn(self, each: SimulatedMember) -> bool:
        """The user polls: what goes is taken away, what comes is there from now on."""
        if each.is_gone or each.turn is not None:
            return False
        each.member.poll_resumed()
        turn = each.turn = each.member.begin_turn()
        if turn is None:
            return False
        if turn.tells_going:
            each.told.append(("lost" if turn.is_lost else "revoked", turn.going))
        return True

    def end_turn(self, each: SimulatedMember) -> bool:
        turn, each.turn = each.turn, None
        if turn is None:
            return False
        if turn.assignment is not None:
            each.told.append(("assigned", turn.coming))
        each.member.turn_done(turn, self.now_ms)
        return True

    def leave(self, each: SimulatedMember) -> None:
        """Close the consumer."""
        self.end_turn(each)
        identity = each.member.identity
        each.is_gone = True
        each.request = None
        self._exchange += 1
        if isinstance(each.member, ConsumerMember):
            self._deliver(each.member.leave_request(), self._exchange)
        elif identity.instance_id is None and identity.member_id:
            leaving = [MemberIdentity(member_id=identity.member_id)]
            self._deliver(LeaveGroupRequest(group_id=GROUP, members=leaving), self._exchange)
        each.member.left()

    def stop_polling(self, each: SimulatedMember) -> None:
        """The user exceeds max.poll.interval.ms."""
        if each.is_gone or each.member.is_stale:
            return
        identity = each.member.identity
        leave = each.member.leave_request() if isinstance(each.member, ConsumerMember) else None
        if each.member.poll_expired():
            self._exchange += 1
            leaving = [MemberIdentity(member_id=identity.member_id)]
            self._deliver(leave or LeaveGroupRequest(group_id=GROUP, members=leaving), self._exchange)
        each.request = None

    def crash(self, each: SimulatedMember) -> None:
        each.is_gone = True
        each.request = None

    # What is expected

    def step_all(self) -> bool:
        """Everyone does what can be done now; whether anything happened."""
        did = False
        for each in self.members:
            did = self.receive(each) or did
            did = self.end_turn(each) or did
            did = self.begin_turn(each) or did
            did = self.send(each) or did
        return did

    def settle(self, ms: float = 120_000, step_ms: float = 500) -> None:
        """Let time pass with everybody well, until all is quiet."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            for _ in range(1000):
                if not self.step_all():
                    break
            else:
                raise AssertionError("the group never comes to rest")
            self.check_one_owner()
            self.advance(step_ms)

    def check_one_owner(self) -> None:
        """Among the members that the coordinator counts as such, nobody reads what another reads."""
        known = self.known_member_ids()
        owners: dict[TopicPartition, SimulatedMember] = {}
        for each in self.members:
            if each.is_gone or each.member.identity.member_id not in known:
                continue
            for partition in each.holds:
                assert partition not in owners, f"{partition} has two owners"
                owners[partition] = each

    def owned(self) -> dict[TopicPartition, int]:
        """How many members that are there own each partition."""
        owners: dict[TopicPartition, int] = {}
        for each in self.members:
            if not each.is_gone:
                for partition in each.member.owned:
                    owners[partition] = owners.get(partition, 0) + 1
        return owners

    def wanted(self) -> set[TopicPartition]:
        return {TopicPartition(topic, number) for topic, count in self.topics.counts.items() for number in range(count)}


@pytest.fixture
def simulate() -> Callable[..., SimulatedGroup]:
    """Makes a group of a kind: assignors by name, or "consumer" for the consumer protocol."""
    return SimulatedGroup
