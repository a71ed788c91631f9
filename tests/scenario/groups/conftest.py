"""Members of groups over plain sockets: each has a connection of its own, as a join or sync holds its connection."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k11_join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k13_leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidelog.protocol.messages.k14_sync_group import (
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

GROUP = "readers"
DEADLINE_S = 20.0
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
"""What a consumer of the topic "t" says of itself, in version 0."""


class Member:
    """A member of the group, or somebody who wants to be one."""

    def __init__(self, port: int, instance: str | None = None, group: str = GROUP) -> None:
        self.client = RawClient(port)
        self.instance = instance
        self.group = group
        self.member_id = ""
        self.generation_id = -1
        self.protocols = {"range": SUBSCRIPTION}
        self.protocol_type = "consumer"
        self.protocol_name: str | None = "range"
        self.session_ms = 10_000
        self.rebalance_ms = 60_000

    def send_join(self, version: int = 9, reason: str | None = None) -> None:
        protocols = [JoinGroupRequestProtocol(name=name, metadata=told) for name, told in self.protocols.items()]
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=self.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=protocols,
            reason=reason,
        )
        self.client.send(JOIN_GROUP, request, version)

    def joined(self, version: int = 9) -> JoinGroupResponse:
        """The answer; from now on the member is who it says."""
        _, answer = self.client.receive(JOIN_GROUP, JoinGroupResponse, version)
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = answer.member_id
            self.generation_id = answer.generation_id
        if answer.error_code == ErrorCode.NONE:
            self.protocol_name = answer.protocol_name
        return answer

    def join(self, version: int = 9) -> JoinGroupResponse:
        self.send_join(version)
        return self.joined(version)

    def enter(self) -> None:
        """Get an id and send the join with it, without waiting for the answer."""
        assert self.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.send_join()

    def send_sync(self, parts: dict[str, bytes] | None = None, version: int = 5) -> None:
        assignments = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=part)
            for member_id, part in (parts or {}).items()
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignments=assignments,
        )
        self.client.send(SYNC_GROUP, request, version)

    def synced(self, version: int = 5) -> SyncGroupResponse:
        return self.client.receive(SYNC_GROUP, SyncGroupResponse, version)[1]

    def sync(self, parts: dict[str, bytes] | None = None, version: int = 5) -> SyncGroupResponse:
        self.send_sync(parts, version)
        return self.synced(version)

    def heartbeat(self, generation_id: int | None = None, version: int = 4) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return ErrorCode(self.client.ask(HEARTBEAT, request, HeartbeatResponse, version).error_code)

    def leave(self, *leaving: MemberIdentity, version: int = 5) -> LeaveGroupResponse:
        """Leave, or have others leave."""
        request = LeaveGroupRequest(group_id=self.group)
        if version < 3:
            request.member_id = self.member_id
        else:
            own = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
            request.members = list(leaving) or [own]
        return self.client.ask(LEAVE_GROUP, request, LeaveGroupResponse, version)

    def commit(self, generation_id: int | None = None, offset: int = 1) -> ErrorCode:
        """Commit an offset of partition 0 of the topic "t"."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation_id if generation_id is None else generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        answer = self.client.ask(OFFSET_COMMIT, request, OffsetCommitResponse, 9)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def until_rebalance(self) -> None:
        """Send heartbeats until one is answered that all must join again; what makes it so may still be on its way."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            assert time.monotonic() < deadline_s, "the rebalance never began"

    def is_waiting(self) -> bool:
        """Whether nothing has come yet. An answer that an earlier request of another member brought about is there:
        the broker sends it before it takes up a later request, so ask after one of those."""
        return not select.select([self.client.sock], [], [], 0)[0]


@pytest.fixture
def find_coordinator(connect: Callable[[Broker], RawClient]) -> Callable[[Broker], None]:
    """Ask for the coordinator once, which makes the topic that groups are kept in."""

    def find(broker: Broker) -> None:
        request = FindCoordinatorRequest(key=GROUP)
        answer = connect(broker).ask(FIND_COORDINATOR, request, FindCoordinatorResponse, 3)
        assert answer.error_code == ErrorCode.NONE

    return find


MakeMember = Callable[..., Member]


@pytest.fixture
def new_member() -> Iterator[MakeMember]:
    """Opens connections of members; takes the broker, and what `Member` takes."""
    with ExitStack() as clients:

        def make(broker: Broker, instance: str | None = None, group: str = GROUP) -> Member:
            member = Member(broker.port, instance, group)
            clients.enter_context(member.client)
            return member

        yield make


@pytest.fixture
def fast_broker(start_broker: Callable[..., Broker], find_coordinator: Callable[[Broker], None]) -> Broker:
    """A broker whose groups begin at once, with a topic "t" of four partitions."""
    broker = start_broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 4})
    broker.create_topic("t", 4)
    find_coordinator(broker)
    return broker


FormGroup = Callable[..., list[Member]]


@pytest.fixture
def form_group(new_member: MakeMember) -> FormGroup:
    """A stable group of so many dynamic members, or of these instances; the first leads."""

    def form(broker: Broker, count: int = 2, instances: tuple[str, ...] = ()) -> list[Member]:
        names: tuple[str | None, ...] = instances or (None,) * count
        members = [new_member(broker, name) for name in names]
        return settle(members)

    return form


def settle(members: list[Member]) -> list[Member]:
    """Have them join one after the other until they are one generation, and give each its number as its part."""
    entered: list[Member] = []
    for member in members:
        if member.instance is None:
            assert member.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
        member.send_join()
        if entered:
            entered[0].until_rebalance()
            for other in entered:
                other.send_join()
        entered.append(member)
        answers = [other.joined() for other in entered]
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
        assert len({answer.generation_id for answer in answers}) == 1
        leader = next(other for other, answer in zip(entered, answers, strict=True) if answer.members)
        parts = {other.member_id: b"part %d" % number for number, other in enumerate(entered)}
        for other in entered:
            other.send_sync(parts if other is leader else None)
        assert {other.synced().error_code for other in entered} == {ErrorCode.NONE}
    return members
