"""Classic groups over plain sockets: how the broker answers members in every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.protocol import ErrorCode
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.groups.conftest import FormGroup, MakeMember, Member

StartBroker = Callable[..., Broker]
FindCoordinator = Callable[[Broker], None]
WaitUntil = Callable[[Callable[[], bool], str], None]


def test_the_first_join_gets_an_id(fast_broker: Broker, new_member: MakeMember) -> None:
    """Behaviour 45"""
    member = new_member(fast_broker)
    assert member.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert member.member_id.startswith("raw-")
    joined = member.join()
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.NONE, 1, member.member_id)


def test_an_instance_joins_at_once(fast_broker: Broker, new_member: MakeMember) -> None:
    """Behaviour 45"""
    joined = new_member(fast_broker, "one").join()
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 1)
    assert joined.member_id.startswith("one-")


def test_the_first_members_are_waited_for(
    start_broker: StartBroker, find_coordinator: FindCoordinator, new_member: MakeMember, wait_until: WaitUntil
) -> None:
    """Behaviour 45"""
    clock = VirtualClock()
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 3_000}
    broker = start_broker(clock, settings=settings)
    find_coordinator(broker)
    first, second = new_member(broker), new_member(broker)
    first.enter()
    wait_until(lambda: len(_group(broker).members) == 1, "the first join never arrived")
    _advance(broker, clock, 2_999)
    assert second.join().error_code == ErrorCode.MEMBER_ID_REQUIRED
    second.send_join()
    wait_until(lambda: len(_group(broker).members) == 2, "the second join never arrived")
    _advance(broker, clock, 1)
    # Somebody came: others may follow.
    assert new_member(broker).heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.is_waiting()
    _advance(broker, clock, 3_000)
    assert first.joined().generation_id == 1
    assert second.joined().generation_id == 1


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins_and_leaves(fast_broker: Broker, new_member: MakeMember, version: int) -> None:
    """Behaviours 45 and 49"""
    member = new_member(fast_broker)
    joined = member.join(version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = member.join(version)
    assert joined.error_code == ErrorCode.NONE
    assert (joined.protocol_name, joined.protocol_type) == ("range", "consumer" if version >= 7 else None)
    assert [told.member_id for told in joined.members] == [member.member_id]
    synced = member.sync({member.member_id: b"all"}, min(version, 5))
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"all")
    assert member.heartbeat(version=min(version, 4)) == ErrorCode.NONE
    left = member.leave(version=min(version, 5))
    assert left.error_code == ErrorCode.NONE
    assert [told.error_code for told in left.members] == ([ErrorCode.NONE] if version >= 3 else [])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "of nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(
    fast_broker: Broker, new_member: MakeMember, changes: dict[str, object], error: ErrorCode
) -> None:
    """Behaviour 46"""
    member = new_member(fast_broker)
    for name, value in changes.items():
        setattr(member, name, value)
    assert member.join().error_code == error


def test_a_group_without_a_name(fast_broker: Broker, new_member: MakeMember) -> None:
    """Behaviour 46"""
    member = new_member(fast_broker, group="")
    assert member.sync().error_code == ErrorCode.INVALID_GROUP_ID
    assert member.heartbeat() == ErrorCode.INVALID_GROUP_ID
    assert member.leave().error_code == ErrorCode.INVALID_GROUP_ID


def test_members_must_speak_alike(fast_broker: Broker, new_member: MakeMember, form_group: FormGroup) -> None:
    """Behaviour 46"""
    form_group(fast_broker, 1)
    stranger = new_member(fast_broker)
    stranger.protocols = {"roundrobin": b""}
    assert stranger.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger.protocols, stranger.protocol_type = {"range": b""}, "connect"
    assert stranger.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("protocol_type", ["connect", "sr"])
def test_other_protocol_types_pass_through(fast_broker: Broker, new_member: MakeMember, protocol_type: str) -> None:
    """Behaviour 46"""
    member = new_member(fast_broker)
    member.protocol_type, member.protocols = protocol_type, {"v1": b"\x00\x01 of their own", "v0": b""}
    member.enter()
    joined = member.joined()
    assert (joined.protocol_type, joined.protocol_name) == (protocol_type, "v1")
    assert joined.members[0].metadata == b"\x00\x01 of their own"
    assert member.sync({member.member_id: b"theirs"}).assignment == b"theirs"


def test_heartbeats_and_commits_in_a_rebalance(
    fast_broker: Broker, new_member: MakeMember, form_group: FormGroup
) -> None:
    """Behaviour 47"""
    leader, follower = form_group(fast_broker)
    assert leader.heartbeat() == ErrorCode.NONE
    assert leader.heartbeat(leader.generation_id - 1) == ErrorCode.ILLEGAL_GENERATION
    assert leader.commit(leader.generation_id - 1) == ErrorCode.ILLEGAL_GENERATION
    stranger = new_member(fast_broker)
    stranger.member_id = "stranger"
    assert stranger.heartbeat(leader.generation_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.commit(leader.generation_id) == ErrorCode.UNKNOWN_MEMBER_ID

    other = new_member(fast_broker)
    other.member_id, other.generation_id = follower.member_id, follower.generation_id
    leader.send_join()
    other.until_rebalance()
    assert other.commit() == ErrorCode.NONE
    follower.send_join()
    assert (leader.joined().error_code, follower.joined().error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert follower.heartbeat() == ErrorCode.NONE
    assert follower.commit() == ErrorCode.REBALANCE_IN_PROGRESS


def test_commits_without_membership(fast_broker: Broker, new_member: MakeMember, form_group: FormGroup) -> None:
    """Behaviour 48"""
    tool = new_member(fast_broker)
    assert tool.commit(-1) == ErrorCode.NONE
    (member,) = form_group(fast_broker, 1)
    assert tool.commit(-1) == ErrorCode.UNKNOWN_MEMBER_ID
    member.leave()
    assert tool.commit(-1) == ErrorCode.NONE


def test_only_the_leader_sees_the_members_and_followers_wait_for_it(fast_broker: Broker, form_group: FormGroup) -> None:
    """Behaviour 49"""
    leader, follower = form_group(fast_broker)
    leader.send_join()
    follower.until_rebalance()
    assert not follower.join().members
    assert {told.member_id for told in leader.joined().members} == {leader.member_id, follower.member_id}
    follower.send_sync()
    assert leader.heartbeat() == ErrorCode.NONE
    assert follower.is_waiting()
    assert leader.sync({leader.member_id: b"mine", follower.member_id: b"yours"}).assignment == b"mine"
    assert follower.synced().assignment == b"yours"


def test_members_vote_for_the_protocol(fast_broker: Broker, new_member: MakeMember) -> None:
    """Behaviour 49"""
    voters = [("a", "b", "c"), ("c", "b"), ("c", "b", "a")]
    members: list[Member] = []
    for names in voters:
        member = new_member(fast_broker)
        member.protocols = dict.fromkeys(names, b"")
        member.join()
        member.send_join()
        if members:
            members[0].until_rebalance()
            for other in members:
                other.send_join()
        members.append(member)
        chosen = [other.joined().protocol_name for other in members]
    assert chosen == ["c", "c", "c"]


def test_the_death_of_a_leader_that_owes_an_assignment(
    start_broker: StartBroker, find_coordinator: FindCoordinator, new_member: MakeMember, wait_until: WaitUntil
) -> None:
    """Behaviours 49 and 54"""
    clock = VirtualClock()
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    broker = start_broker(clock, settings=settings)
    find_coordinator(broker)
    leader, follower = new_member(broker), new_member(broker)
    leader.enter()
    assert leader.joined().members
    follower.enter()
    wait_until(lambda: len(_group(broker).members) == 2, "the second join never arrived")
    assert len(leader.join().members) == 2
    follower.joined()
    follower.send_sync()
    wait_until(lambda: len(_group(broker).members.pending_sync) == 1, "the sync never arrived")
    leader.client.reset()
    _advance(broker, clock, 9_999)
    assert len(_group(broker).members) == 2
    _advance(broker, clock, 1)
    assert follower.synced().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    joined = follower.join()
    assert (joined.generation_id, joined.leader) == (3, follower.member_id)


def test_who_is_late_for_a_rebalance_is_dropped_and_nobody_else(
    start_broker: StartBroker, find_coordinator: FindCoordinator, new_member: MakeMember, wait_until: WaitUntil
) -> None:
    """Behaviour 49"""
    clock = VirtualClock()
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    broker = start_broker(clock, settings=settings)
    find_coordinator(broker)
    late = new_member(broker)
    late.session_ms, late.rebalance_ms = 600_000, 30_000
    late.enter()
    late.joined()
    late.sync({late.member_id: b"all"})
    prompt = new_member(broker)
    prompt.rebalance_ms = 10_000
    prompt.enter()
    wait_until(lambda: _group(broker).state == "PreparingRebalance", "the rebalance never began")
    _advance(broker, clock, 29_999)
    assert late.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert prompt.is_waiting()
    _advance(broker, clock, 1)
    joined = prompt.joined()
    assert [told.member_id for told in joined.members] == [prompt.member_id]
    assert late.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_cooperative_metadata_passes_through_and_a_second_rebalance_follows(
    fast_broker: Broker, new_member: MakeMember
) -> None:
    """Behaviour 51"""
    # Version 3: a topic, no user data, owned partitions, their generation, a rack.
    owned = bytes.fromhex("0003 00000001 000174 ffffffff 00000001 000174 00000002 00000000 00000001 00000007 000172")
    first = new_member(fast_broker)
    first.protocols = {"cooperative-sticky": owned}
    first.enter()
    joined = first.joined()
    assert joined.members[0].metadata == owned
    assert first.sync({first.member_id: b"0,1,2,3"}).assignment == b"0,1,2,3"

    second = new_member(fast_broker)
    second.protocols = {"cooperative-sticky": owned.replace(b"\x00\x00\x00\x07", b"\xff\xff\xff\xff")}
    second.enter()
    first.until_rebalance()
    told = {told.member_id: told.metadata for told in first.join().members}
    assert told == {first.member_id: owned, second.joined().member_id: second.protocols["cooperative-sticky"]}
    # First the partitions that are to move are given up, and nobody has them.
    first.send_sync({first.member_id: b"0,1"})
    assert (first.synced().assignment, second.sync().assignment) == (b"0,1", b"")
    generation_id = first.generation_id
    # Then whoever gave something up joins again, and they are handed over.
    first.protocols = {"cooperative-sticky": owned.replace(b"\x00\x00\x00\x07", b"\x00\x00\x00\x08")}
    first.send_join(reason="need to revoke partitions and re-join")
    second.until_rebalance()
    second.send_join()
    assert first.joined().generation_id == second.joined().generation_id == generation_id + 1
    first.send_sync({first.member_id: b"0,1", second.member_id: b"2,3"})
    assert (first.synced().assignment, second.sync().assignment) == (b"0,1", b"2,3")


def test_a_full_group(
    start_broker: StartBroker, find_coordinator: FindCoordinator, form_group: FormGroup, new_member: MakeMember
) -> None:
    """Behaviour 54"""
    settings = {"group.max.size": 2, "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    broker = start_broker(settings=settings)
    find_coordinator(broker)
    members = form_group(broker)
    assert new_member(broker).join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert {member.heartbeat() for member in members} == {ErrorCode.NONE}


def test_a_session_ends_by_the_broker_s_clock(
    start_broker: StartBroker, find_coordinator: FindCoordinator, new_member: MakeMember
) -> None:
    """Behaviour 54"""
    clock = VirtualClock()
    settings = {"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0}
    broker = start_broker(clock, settings=settings)
    find_coordinator(broker)
    member = new_member(broker)
    member.enter()
    member.joined()
    member.sync({member.member_id: b"all"})
    for _ in range(3):
        _advance(broker, clock, 9_999)
        assert member.heartbeat() == ErrorCode.NONE
    _advance(broker, clock, 10_000)
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_broker_does_not_wait_for_members_that_wait_for_others_when_it_stops(
    fast_broker: Broker, form_group: FormGroup, caplog: pytest.LogCaptureFixture
) -> None:
    leader, follower = form_group(fast_broker)
    leader.send_join()
    follower.until_rebalance()
    fast_broker.stop()
    assert leader.client.was_closed()
    assert not [record for record in caplog.records if "still waiting" in record.getMessage()]


def test_a_restart_is_not_noticed_by_members(
    fast_broker: Broker, form_group: FormGroup, new_member: MakeMember
) -> None:
    leader, follower = form_group(fast_broker)
    fast_broker.crash()
    fast_broker.start()
    for member, part in ((leader, b"part 0"), (follower, b"part 1")):
        again = new_member(fast_broker)
        again.member_id, again.generation_id = member.member_id, member.generation_id
        assert again.heartbeat() == ErrorCode.NONE
        assert again.sync().assignment == part
        assert again.commit() == ErrorCode.NONE


def _advance(broker: Broker, clock: VirtualClock, ms: int) -> None:
    """Move the broker's time on, and wait until what became due by that is done."""
    clock.advance(ms=ms)

    async def after_the_timers(_: BrokerServer) -> None:
        """It is taken up in turn, and the timers are before it."""

    broker.call(after_the_timers)


def _group(broker: Broker) -> ClassicGroup:
    """The group as the coordinator has it, to wait until a request has arrived."""
    (shard,) = broker.server.services.groups.shards()
    group = shard.state.groups["readers"]
    assert isinstance(group, ClassicGroup)
    return group
