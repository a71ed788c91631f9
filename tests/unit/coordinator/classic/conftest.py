"""A coordinator of classic groups by hand: time stands still until it is moved, and writes are decided by the test."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from struct import pack
from typing import TypeVar

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
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

T = TypeVar("T")

WALL_START_MS = 1_700_000_000_000
GROUP = "readers"


class Topics:
    """The cluster's topics: names and how many partitions they have."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def topic_id(self, name: str) -> uuid.UUID | None:
        return uuid.uuid5(uuid.NAMESPACE_DNS, name) if name in self._counts else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self._counts if self.topic_id(name) == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self._counts.get(name, 0)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return (frozenset(),) * self.partition_count(name)

    def topic_names(self) -> Collection[str]:
        return self._counts.keys()


def subscription(*topics: str, version: int = 0, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
    """What a consumer says of itself: a version, its topics, and what it likes to add."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", version, len(topics)) + names + rest


class Coordinator:
    """One shard with its surroundings."""

    def __init__(self, config: GroupConfig | None = None, topics: dict[str, int] | None = None) -> None:
        self.config = config or GroupConfig()
        self.image = Topics(topics or {})
        self.now_ms = 1_000.0
        self.answers: dict[int, object] = {}
        self.waiting: set[int] = set()
        self.timers: dict[TimerKey, float] = {}
        # What is committed, in order; what was asked to be written waits here while `holds_writes`.
        self.log: list[GroupRecord] = []
        self.writes: deque[Append] = deque()
        self.holds_writes = False
        self._exchange = 0
        self.shard = GroupShard(0, self.config, self.image)
        self._carry_out(chain.from_iterable(self.shard.on_loaded(self.now)))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_START_MS + round(self.now_ms))

    @property
    def group(self) -> ClassicGroup:
        group = self.shard.state.groups[GROUP]
        assert isinstance(group, ClassicGroup)
        return group

    @property
    def has_group(self) -> bool:
        return GROUP in self.shard.state.groups

    # Requests: each gives the number of its exchange; `answer` takes what came for it.

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client_id: str = "client",
        reason: str | None = None,
        group: str = GROUP,
    ) -> int:
        announced = {"range": subscription("t")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in announced.items()],
            reason=reason,
        )
        client = Client(client_id, "/127.0.0.1", version)
        return self._ask(lambda exchange: self.shard.join(request, client, self.now, exchange))

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group: str = GROUP,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=assigned, assignment=part)
                for assigned, part in (assignments or {}).items()
            ],
        )
        return self._ask(lambda exchange: self.shard.sync(request, self.now, exchange))

    def heartbeat(
        self, member_id: str, generation_id: int, *, instance: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation_id, member_id=member_id, group_instance_id=instance
        )
        exchange = self._ask(lambda exchange: self.shard.heartbeat(request, self.now, exchange))
        return ErrorCode(self.answer(exchange, HeartbeatResponse).error_code)

    def leave(
        self, *leaving: MemberIdentity, member_id: str = "", version: int = 5, group: str = GROUP
    ) -> LeaveGroupResponse:
        request = LeaveGroupRequest(group_id=group, member_id=member_id, members=list(leaving))
        client = Client("client", "/127.0.0.1", version)
        exchange = self._ask(lambda exchange: run_through(self.shard.leave(request, client))(self.now, exchange))
        return self.answer(exchange, LeaveGroupResponse)

    def is_waiting(self, exchange: int) -> bool:
        return exchange in self.waiting

    def answer(self, exchange: int, kind: type[T]) -> T:
        response = self.answers[exchange]
        assert isinstance(response, kind)
        return response

    def joined(self, exchange: int) -> JoinGroupResponse:
        return self.answer(exchange, JoinGroupResponse)

    def synced(self, exchange: int) -> SyncGroupResponse:
        return self.answer(exchange, SyncGroupResponse)

    # Several steps at once

    def new_id(self, client_id: str = "client") -> str:
        """An id to join with, as dynamic members get it first."""
        answer = self.joined(self.join(client_id=client_id))
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return answer.member_id

    def form(self, count: int, **options: object) -> list[str]:
        """A stable group of dynamic members; the first leads. Each is assigned its number."""
        ids = [self.new_id() for _ in range(count)]
        joins = [self.join(member_id, **options) for member_id in ids]  # type: ignore[arg-type] # as `join` takes them
        self.finish_rebalance(joins)
        return ids

    def finish_rebalance(self, joins: list[int]) -> int:
        """Let the join phase end, have all sync; gives the generation."""
        while any(self.is_waiting(exchange) for exchange in joins):
            self.advance(self.config.group_initial_rebalance_delay_ms)
        answers = [self.joined(exchange) for exchange in joins]
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        (leader,) = (answer for answer in answers if answer.leader == answer.member_id)
        parts = {member.member_id: f"part {number}".encode() for number, member in enumerate(leader.members)}
        syncs = [self.sync(answer.member_id, answer.generation_id) for answer in answers if answer is not leader]
        syncs.append(self.sync(leader.member_id, leader.generation_id, parts))
        assert {self.synced(exchange).error_code for exchange in syncs} == {ErrorCode.NONE}
        return leader.generation_id

    # Time, writes, and the end

    def advance(self, ms: float) -> None:
        """Move time on, through every timer that is due on the way."""
        end_ms = self.now_ms + ms
        while True:
            due = min(self.timers.items(), key=lambda timer: timer[1], default=None)
            if due is None or due[1] > end_ms:
                break
            key, due_ms = due
            self.now_ms = max(self.now_ms, due_ms)
            del self.timers[key]
            self._carry_out(self.shard.on_timer(key, self.now))
        self.now_ms = end_ms

    def decide_write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The write that waits longest is committed, or refused with this error."""
        write = self.writes.popleft()
        if error is ErrorCode.NONE:
            self.log += write.records
        self._carry_out(self.shard.on_appended(write.token, error, self.now))

    def grow(self, topic: str, count: int) -> None:
        self.image = Topics({topic: count})
        self._carry_out(self.shard.on_topics_changed(self.image, self.now))

    def crash(self) -> None:
        """Whatever is not committed is lost, whoever waits is cut off, and another coordinator loads the records."""
        self.waiting.clear()
        self.timers.clear()
        self.writes.clear()
        self.shard = GroupShard(0, self.config, self.image)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self._carry_out(chain.from_iterable(self.shard.on_loaded(self.now)))

    def abandon(self, exchange: int) -> None:
        """The connection of a request that waits is closed."""
        self.waiting.discard(exchange)
        self._carry_out(self.shard.on_abandoned(GROUP, exchange, self.now))

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        self._carry_out(self.shard.on_unloaded(error))

    def _ask(self, hand_in: Callable[[int], list[Action]]) -> int:
        self._exchange += 1
        exchange = self._exchange
        self.waiting.add(exchange)
        self._carry_out(hand_in(exchange))
        return exchange

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Work):
                for step in action.steps:
                    self._carry_out(step)
            elif isinstance(action, Answer):
                # One that was cut off is gone; nobody may be answered twice.
                if action.exchange in self.waiting:
                    self.waiting.remove(action.exchange)
                    self.answers[action.exchange] = action.response
                else:
                    assert action.exchange not in self.answers, f"answered twice: {action}"
            elif isinstance(action, Append):
                self.writes.append(action)
                if not self.holds_writes:
                    self.decide_write()
            elif isinstance(action, CancelTimer):
                self.timers.pop(action.key, None)
            else:
                assert isinstance(action, SetTimer)
                self.timers[action.key] = action.due_ms


@pytest.fixture
def coordinator() -> Coordinator:
    """With Kafka's settings, and a topic "t" of four partitions."""
    return Coordinator(topics={"t": 4})


@pytest.fixture
def new_coordinator() -> type[Coordinator]:
    return Coordinator


@pytest.fixture
def subscribe() -> Callable[..., bytes]:
    """What a consumer of these topics says of itself."""
    return subscription
