"""Who may commit offsets, plainly or in a transaction: every wrong member, generation or epoch is told so (KIP-447).

The codes are those that Apache Kafka 4.3.1 gives to the same requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tidelog.coordinator.actions import Client
from tidelog.protocol import ErrorCode
from tidelog.protocol.codec import encode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from tests.unit.coordinator.offsets.conftest import Offsets

OK = ErrorCode.NONE
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
STALE = ErrorCode.STALE_MEMBER_EPOCH
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS

PRODUCER_ID = 7


class Member(NamedTuple):
    """Whom a commit names."""

    member_id: str
    generation: int
    instance: str | None = None


def classic_member(offsets: Offsets, group_id: str, instance: str | None = None, *, synced: bool = True) -> Member:
    """The only member of a classic group."""
    metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=["t"]), 0)
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    client = Client("client", "/127.0.0.1", 3)
    exchange = offsets.submit(lambda number: offsets.shard.join(request, client, offsets.now, number))
    offsets.advance(minutes=0.1)
    joined = offsets.answer(JoinGroupResponse, exchange)
    assert joined.error_code == OK
    if synced:
        sync = SyncGroupRequest(group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id)
        offsets.submit(lambda number: offsets.shard.sync(sync, offsets.now, number))
    return Member(joined.member_id, joined.generation_id, instance)


def emptied_group(offsets: Offsets, group_id: str) -> Member:
    """The last member of a classic group that has none any more."""
    member = classic_member(offsets, group_id)
    request = LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id=member.member_id)])
    client = Client("client", "/127.0.0.1", 5)
    offsets.submit_prepared(offsets.shard.leave(request, client))
    return member


def heartbeat(offsets: Offsets, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    client = Client("client", "/127.0.0.1", 1)
    exchange = offsets.submit(lambda number: offsets.shard.consumer_heartbeat(request, client, offsets.now, number))
    return offsets.answer(ConsumerGroupHeartbeatResponse, exchange)


def new_member(offsets: Offsets, group_id: str, instance: str | None = None) -> Member:
    """The only member of a group of the new protocol, some epochs old."""
    epoch, topics = 0, ["t"]
    for _ in range(3):
        request = ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id="member",
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=topics,
            topic_partitions=[],
        )
        answer = heartbeat(offsets, request)
        assert answer.error_code == OK, answer
        epoch, topics = answer.member_epoch, ["t", "u"]
        offsets.advance(minutes=0.1)
    return Member("member", epoch, instance)


def commit(offsets: Offsets, group_id: str, member: Member, version: int = 9) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        topics=[
            OffsetCommitRequestTopic(
                name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
            )
        ],
    )
    [code] = offsets.commit(request, version)
    return ErrorCode(code)


def commit_in_transaction(offsets: Offsets, group_id: str, member: Member) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=group_id,
        producer_id=PRODUCER_ID,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="t", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=6)]
            )
        ],
    )
    exchange = offsets.submit_prepared(offsets.shard.txn_offset_commit(request, None, offsets.now))
    [topic] = offsets.answer(TxnOffsetCommitResponse, exchange).topics
    return ErrorCode(topic.partitions[0].error_code)


Change = Callable[[Member], Member]

# Who commits, what a plain commit is told, what one in a transaction is told.
CLASSIC: list[tuple[str, Change, ErrorCode, ErrorCode]] = [
    ("the member", lambda m: m, OK, OK),
    ("with the next generation", lambda m: m._replace(generation=m.generation + 1), ILLEGAL, ILLEGAL),
    ("with the last generation", lambda m: m._replace(generation=m.generation - 1), ILLEGAL, ILLEGAL),
    ("without a generation", lambda m: m._replace(generation=-1), ILLEGAL, ILLEGAL),
    ("a stranger", lambda m: m._replace(member_id="stranger"), UNKNOWN, UNKNOWN),
    ("a stranger, next generation", lambda m: Member("stranger", m.generation + 1), UNKNOWN, UNKNOWN),
    ("a stranger without a generation", lambda m: Member("stranger", -1), UNKNOWN, UNKNOWN),
    ("nobody, with the generation", lambda m: m._replace(member_id=""), UNKNOWN, UNKNOWN),
    ("an unknown instance", lambda m: m._replace(instance="other"), UNKNOWN, UNKNOWN),
    ("an unknown instance alone", lambda m: Member("", -1, "other"), UNKNOWN, UNKNOWN),
    # Producers from before KIP-447 name nobody, and are fenced by their epoch alone.
    ("nobody at all", lambda m: Member("", -1), UNKNOWN, OK),
]

STATIC: list[tuple[str, Change, ErrorCode, ErrorCode]] = [
    ("the instance", lambda m: m, OK, OK),
    ("the instance by its member id", lambda m: m._replace(instance=None), OK, OK),
    ("the instance as another member", lambda m: m._replace(member_id="before"), FENCED, FENCED),
    ("the same without a generation", lambda m: Member("before", -1, m.instance), FENCED, FENCED),
    ("the instance, next generation", lambda m: m._replace(generation=m.generation + 1), ILLEGAL, ILLEGAL),
]

NEW: list[tuple[str, Change, ErrorCode, ErrorCode]] = [
    ("the member", lambda m: m, OK, OK),
    ("with an older epoch", lambda m: m._replace(generation=m.generation - 1), STALE, ILLEGAL),
    ("with a later epoch", lambda m: m._replace(generation=m.generation + 1), STALE, ILLEGAL),
    ("without an epoch", lambda m: m._replace(generation=-1), STALE, ILLEGAL),
    ("a stranger", lambda m: m._replace(member_id="stranger"), UNKNOWN, UNKNOWN),
    ("a stranger with a later epoch", lambda m: Member("stranger", m.generation + 1), UNKNOWN, UNKNOWN),
    ("a stranger without an epoch", lambda m: Member("stranger", -1), UNKNOWN, UNKNOWN),
    ("nobody, with the epoch", lambda m: m._replace(member_id=""), UNKNOWN, UNKNOWN),
    ("an instance alone", lambda m: Member("", -1, "other"), UNKNOWN, UNKNOWN),
    ("nobody at all", lambda m: Member("", -1), UNKNOWN, OK),
]

# A group that members have left, or that has had none: as long as no generation is named, anyone may commit.
WITHOUT_MEMBERS: list[tuple[str, Change, ErrorCode, ErrorCode]] = [
    ("nobody at all", lambda m: Member("", -1), OK, OK),
    ("a name without a generation", lambda m: m._replace(generation=-1), OK, OK),
    ("the last member", lambda m: m, UNKNOWN, UNKNOWN),
    ("nobody, with a generation", lambda m: m._replace(member_id=""), UNKNOWN, UNKNOWN),
]

Make = Callable[["Offsets", str], Member]
MADE: dict[str, Make] = {
    "classic": classic_member,
    "static": lambda offsets, group_id: classic_member(offsets, group_id, "instance"),
    "new": new_member,
    "emptied": emptied_group,
    "simple": lambda offsets, group_id: Member("once", 1),
}
ROWS = [
    pytest.param(kind, change, plain, in_transaction, id=f"{kind}: {who}")
    for kind, rows in (
        ("classic", CLASSIC),
        ("static", STATIC),
        ("new", NEW),
        ("emptied", WITHOUT_MEMBERS),
        ("simple", WITHOUT_MEMBERS),
    )
    for who, change, plain, in_transaction in rows
]


@pytest.mark.parametrize(("kind", "change", "plain", "in_transaction"), ROWS)
def test_who_may_commit(
    offsets: Offsets, kind: str, change: Change, plain: ErrorCode, in_transaction: ErrorCode
) -> None:
    # Offsets are there already, so that a group without members is known, too.
    assert commit(offsets, "g", Member("", -1)) is OK
    committer = change(MADE[kind](offsets, "g"))
    written = len(offsets.log)
    assert commit_in_transaction(offsets, "g", committer) is in_transaction
    assert (len(offsets.log) > written) is (in_transaction is OK)
    assert offsets.fetch("g", "t", 0, require_stable=True)[0][1] == (
        ErrorCode.UNSTABLE_OFFSET_COMMIT if in_transaction is OK else OK
    )
    written = len(offsets.log)
    assert commit(offsets, "g", committer) is plain
    assert (len(offsets.log) > written) is (plain is OK)


def test_a_zombie_of_an_earlier_generation_can_not_commit_by_its_transaction(offsets: Offsets) -> None:
    """The application's consumer was thought dead and came back under a new id; its producer lives on."""
    zombie = emptied_group(offsets, "g")
    current = classic_member(offsets, "g")
    assert current.generation > zombie.generation
    assert commit_in_transaction(offsets, "g", zombie) is UNKNOWN
    assert commit_in_transaction(offsets, "g", zombie._replace(member_id=current.member_id)) is ILLEGAL
    offsets.shard.on_txn_marker(PRODUCER_ID, committed=True)
    assert offsets.fetch("g", "t", 0) == [(-1, OK)]
    assert commit_in_transaction(offsets, "g", current) is OK
    offsets.shard.on_txn_marker(PRODUCER_ID, committed=True)
    assert offsets.fetch("g", "t", 0) == [(6, OK)]


def test_a_member_without_its_assignment_commits_in_transactions_only(offsets: Offsets) -> None:
    member = classic_member(offsets, "g", synced=False)
    assert commit(offsets, "g", member) is REBALANCING
    assert commit_in_transaction(offsets, "g", member) is OK
    assert commit_in_transaction(offsets, "g", member._replace(generation=member.generation + 1)) is ILLEGAL


def test_a_group_that_nobody_knows_has_no_generations(offsets: Offsets) -> None:
    member = Member("member", 3)
    assert commit(offsets, "g", member, version=8) is ILLEGAL
    assert commit(offsets, "g", member, version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    assert commit_in_transaction(offsets, "g", member) is ILLEGAL
    assert offsets.shard.list_groups([], []) == []


def test_members_of_the_new_protocol_need_a_version_with_epochs(offsets: Offsets) -> None:
    member = new_member(offsets, "g")
    assert commit(offsets, "g", member, version=8) is ErrorCode.UNSUPPORTED_VERSION
