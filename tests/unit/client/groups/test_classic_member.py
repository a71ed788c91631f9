"""A classic member by itself: answers made by hand, among them those that a coordinator gives when things go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tidelog.client.consumer.assignors import Assignor, MemberSubscription, RangeAssignor, TopicLayout
from tidelog.client.consumer.member_bytes import read_subscription, write_assignment, write_subscription
from tidelog.client.consumer.membership import Identity
from tidelog.client.consumer.membership_classic import ClassicConfig, ClassicMember
from tidelog.client.consumer.sticky_assignors import CooperativeStickyAssignor
from tidelog.client.errors import ClientError, ConnectionLostError, FencedInstanceError, InvalidResponseError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

PAUSE_MS = 100
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def make_member(*assignors: Assignor, instance_id: str | None = None) -> ClassicMember:
    config = ClassicConfig("g", assignors or (RangeAssignor(),), instance_id=instance_id, rack="r1")
    member = ClassicMember(config, lambda failures: PAUSE_MS * failures)
    member.subscribe(frozenset({"t"}))
    return member


def joined(member: ClassicMember, request: object, now_ms: float, *, generation: int = 1, leads: bool = False) -> None:
    """Answer a join."""
    assert isinstance(request, JoinGroupRequest)
    members = []
    if leads:
        data = request.protocols[0].metadata
        members = [JoinGroupResponseMember(member_id="m", metadata=data)]
    name = request.protocols[0].name
    answer = JoinGroupResponse(
        generation_id=generation,
        protocol_name=name,
        leader="m" if leads else "other",
        member_id="m",
        members=members,
    )
    member.on_response(request, answer, now_ms)


def synced(member: ClassicMember, now_ms: float, *partitions: TopicPartition) -> SyncGroupRequest:
    request = member.next_request(now_ms)
    assert isinstance(request, SyncGroupRequest)
    member.on_response(request, SyncGroupResponse(assignment=write_assignment(partitions)), now_ms)
    return request


def take_turn(member: ClassicMember, now_ms: float) -> tuple[str, Sequence[TopicPartition], Sequence[TopicPartition]]:
    turn = member.begin_turn()
    assert turn is not None
    member.turn_done(turn, now_ms)
    return ("lost" if turn.is_lost else "revoked"), turn.going, turn.coming


def make_stable(member: ClassicMember, *partitions: TopicPartition, now_ms: float = 0.0) -> None:
    joined(member, member.next_request(now_ms), now_ms)
    synced(member, now_ms, *partitions)
    take_turn(member, now_ms)
    assert member.is_stable
    assert member.owned == frozenset(partitions)


def refuse_heartbeat(member: ClassicMember, code: ErrorCode, now_ms: float = 3_000) -> None:
    request = member.next_request(now_ms)
    assert isinstance(request, HeartbeatRequest)
    member.on_response(request, HeartbeatResponse(error_code=code), now_ms)


def test_the_first_join_tells_all_and_comes_again_with_the_id_that_the_coordinator_gave() -> None:
    member = make_member(RangeAssignor(), CooperativeStickyAssignor())
    first = member.next_request(0)
    assert isinstance(first, JoinGroupRequest)
    assert (first.member_id, first.session_timeout_ms, first.rebalance_timeout_ms) == ("", 45_000, 300_000)
    assert [row.name for row in first.protocols] == ["range", "cooperative-sticky"]
    told = read_subscription("m", first.protocols[0].metadata, None)
    assert told == MemberSubscription(frozenset({"t"}), rack="r1")
    assert member.next_request(0) is None, "one request at a time"
    member.on_response(first, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="given"), 0)
    second = member.next_request(0)
    assert isinstance(second, JoinGroupRequest)
    assert second.member_id == "given"
    assert member.turn() is None


def test_a_follower_sends_no_plan_and_a_leader_sends_one() -> None:
    follower, leader = make_member(), make_member()
    joined(follower, follower.next_request(0), 0)
    assert follower.topics_needed() is None
    assert synced(follower, 0).assignments == []
    joined(leader, leader.next_request(0), 0, leads=True)
    assert leader.topics_needed() == frozenset({"t"})
    assert leader.next_request(0) is None
    leader.share_out(TopicLayout({"t": 2}))
    request = synced(leader, 0, T0, T1)
    assert [(row.member_id, row.assignment) for row in request.assignments] == [("m", write_assignment([T0, T1]))]
    assert (request.protocol_type, request.protocol_name) == ("consumer", "range")


def test_a_leader_that_is_told_so_sends_no_plan_but_looks_after_the_topics() -> None:
    member = make_member(instance_id="i")
    request = member.next_request(0)
    assert isinstance(request, JoinGroupRequest)
    data = request.protocols[0].metadata
    answer = JoinGroupResponse(
        generation_id=4,
        protocol_name="range",
        leader="m",
        member_id="m",
        skip_assignment=True,
        members=[JoinGroupResponseMember(member_id="m", metadata=data)],
    )
    member.on_response(request, answer, 0)
    member.share_out(TopicLayout({"t": 2}))
    assert synced(member, 0, T0, T1).assignments == []
    take_turn(member, 0)
    member.on_partition_counts({"t": 2, "other": 5})
    assert member.turn() is None
    member.on_partition_counts({"t": 3})
    assert take_turn(member, 0) == ("revoked", (T0, T1), ())


def test_only_the_leader_minds_partitions_that_are_added() -> None:
    member = make_member()
    make_stable(member, T0)
    member.on_partition_counts({"t": 9})
    assert member.turn() is None


def test_heartbeats_are_sent_at_their_times_also_while_the_user_is_away() -> None:
    member = make_member()
    make_stable(member, T0)
    assert member.next_request(2_999) is None
    assert member.next_at_ms() == 3_000
    refuse_heartbeat(member, ErrorCode.NONE)
    refuse_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS, 6_000)
    # The user has to give its partitions up first; until then the place is kept.
    assert member.next_request(8_999) is None
    refuse_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS, 9_000)
    assert take_turn(member, 9_500) == ("revoked", (T0,), ())
    assert isinstance(member.next_request(9_500), JoinGroupRequest)


def test_a_cooperative_member_joins_without_the_user_and_keeps_what_it_has() -> None:
    member = make_member(CooperativeStickyAssignor())
    make_stable(member, T0, T1)
    refuse_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    assert member.turn() is None
    request = member.next_request(3_000)
    assert isinstance(request, JoinGroupRequest)
    told = read_subscription("m", request.protocols[0].metadata, None)
    assert (set(told.owned), told.generation) == ({T0, T1}, 1)
    joined(member, request, 3_100, generation=2)
    synced(member, 3_100, T0)
    # Until the user has given it up, T1 is still this member's.
    assert member.owned == {T0, T1}
    assert isinstance(member.next_request(6_100), HeartbeatRequest)
    member.on_failure(member._in_flight, ConnectionLostError("x"), 6_100)
    assert take_turn(member, 6_150) == ("revoked", (T1,), ())
    again = member.next_request(6_300)
    assert isinstance(again, JoinGroupRequest)
    assert "gave partitions up" in (again.reason or "")
    assert set(read_subscription("m", again.protocols[0].metadata, None).owned) == {T0}


def test_a_cooperative_member_gives_up_a_topic_before_it_joins_without_it() -> None:
    member = make_member(CooperativeStickyAssignor())
    make_stable(member, T0)
    member.subscribe(frozenset({"u"}))
    assert take_turn(member, 10) == ("revoked", (T0,), ())
    request = member.next_request(10)
    assert isinstance(request, JoinGroupRequest)
    assert read_subscription("m", request.protocols[0].metadata, None).topics == {"u"}


@pytest.mark.parametrize(("code", "kept_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "m")])
def test_a_member_that_was_thrown_out_has_lost_what_it_had(code: ErrorCode, kept_id: str) -> None:
    member = make_member()
    make_stable(member, T0)
    refuse_heartbeat(member, code)
    assert not member.identity.is_member
    assert member.next_request(3_000) is None
    assert take_turn(member, 3_000) == ("lost", (T0,), ())
    request = member.next_request(3_000)
    assert isinstance(request, JoinGroupRequest)
    assert request.member_id == kept_id


def test_thrown_out_while_the_user_takes_an_assignment_over() -> None:
    """What was just taken over is lost, and the member does not join before."""
    member = make_member()
    joined(member, member.next_request(0), 0)
    synced(member, 0, T0)
    turn = member.begin_turn()
    assert turn is not None
    refuse_heartbeat(member, ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.next_request(3_000) is None
    member.turn_done(turn, 3_000)
    assert take_turn(member, 3_000) == ("lost", (T0,), ())
    assert isinstance(member.next_request(3_000), JoinGroupRequest)


def test_thrown_out_while_the_user_gives_up_a_part() -> None:
    member = make_member(CooperativeStickyAssignor())
    member.subscribe(frozenset({"t", "u"}))
    make_stable(member, T0, TopicPartition("u", 0))
    member.subscribe(frozenset({"u"}))
    turn = member.begin_turn()
    assert turn is not None
    refuse_heartbeat(member, ErrorCode.UNKNOWN_MEMBER_ID)
    member.turn_done(turn, 3_000)
    assert take_turn(member, 3_000) == ("lost", (TopicPartition("u", 0),), ())


def test_a_fenced_static_member_can_not_go_on() -> None:
    member = make_member(instance_id="desk-1")
    make_stable(member, T0)
    refuse_heartbeat(member, ErrorCode.FENCED_INSTANCE_ID)
    assert isinstance(member.error, FencedInstanceError)
    assert "group.instance.id desk-1" in str(member.error)
    assert take_turn(member, 3_000) == ("lost", (T0,), ())
    member.error_taken()
    assert member.error is not None
    assert member.next_request(100_000) is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "range, cooperative-sticky"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.max.size"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, "session.timeout.ms=45000"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "refused"),
        (ErrorCode.INVALID_GROUP_ID, "refused"),
    ],
)
def test_a_refused_join_is_told_to_the_user_and_tried_again_after_that(code: ErrorCode, text: str) -> None:
    member = make_member(RangeAssignor(), CooperativeStickyAssignor())
    member.on_response(member.next_request(0), JoinGroupResponse(error_code=code), 0)
    assert text in str(member.error)
    assert member.next_request(1_000_000) is None
    member.error_taken()
    assert isinstance(member.next_request(1_000_000), JoinGroupRequest)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_a_coordinator_that_moved_is_looked_up_and_asked_again(code: ErrorCode, is_lost: bool) -> None:
    member = make_member()
    request = member.next_request(0)
    if is_lost:
        member.on_failure(request, ConnectionLostError("lost"), 0)
    else:
        member.on_response(request, JoinGroupResponse(error_code=code), 0)
    assert member.coordinator_is_suspect
    assert member.next_request(PAUSE_MS - 1) is None
    assert member.next_at_ms() == PAUSE_MS
    assert isinstance(member.next_request(PAUSE_MS), JoinGroupRequest)


def test_pauses_grow_with_the_failures_and_end_with_a_success() -> None:
    member = make_member()
    now_ms = 0.0
    for failures in (1, 2, 3):
        request = member.next_request(now_ms)
        member.on_response(request, JoinGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), now_ms)
        assert not member.coordinator_is_suspect
        assert member.next_at_ms() == now_ms + failures * PAUSE_MS
        now_ms = member.next_at_ms()
    make_stable(member, T0, now_ms=now_ms)
    request = member.next_request(now_ms + 3_000)
    member.on_failure(request, ConnectionLostError("lost"), now_ms + 3_000)
    assert member.next_at_ms() == now_ms + 3_000 + PAUSE_MS


@pytest.mark.parametrize("assignor", [RangeAssignor(), CooperativeStickyAssignor()])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_sync_that_comes_to_nothing_leads_to_another_join(assignor: Assignor, is_lost: bool) -> None:
    member = make_member(assignor)
    make_stable(member, T0)
    refuse_heartbeat(member, ErrorCode.REBALANCE_IN_PROGRESS)
    if not assignor.is_cooperative:
        take_turn(member, 3_000)
    joined(member, member.next_request(3_000), 3_000, generation=2)
    request = member.next_request(3_000)
    assert isinstance(request, SyncGroupRequest)
    if is_lost:
        member.on_failure(request, ConnectionLostError("lost"), 3_000)
    else:
        member.on_response(request, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), 3_000)
    assert member.turn() is None
    assert member.owned == ({T0} if assignor.is_cooperative else frozenset())
    again = member.next_request(4_000)
    assert isinstance(again, JoinGroupRequest)
    assert again.member_id == "m"


def test_a_subscription_that_changes_during_a_join_is_joined_with_next() -> None:
    member = make_member()
    request = member.next_request(0)
    member.subscribe(frozenset({"u"}))
    joined(member, request, 0)
    synced(member, 0, T0)
    assert member.turn() is not None
    turn = take_turn(member, 1_000)
    assert turn == ("revoked", (), ()), "what is no longer wanted was not taken over"
    again = member.next_request(1_000)
    assert isinstance(again, JoinGroupRequest)
    assert read_subscription("m", again.protocols[0].metadata, None).topics == {"u"}


def test_answers_after_the_member_left_change_nothing() -> None:
    member = make_member()
    request = member.next_request(0)
    assert member.poll_expired() is False, "the coordinator gave no id yet, so there is nothing to tell it"
    joined(member, request, 0)
    assert member.is_stale
    assert not member.identity.is_member
    assert member.next_request(0) is None
    member.poll_resumed()
    assert isinstance(member.next_request(0), JoinGroupRequest)


def test_leaving_in_the_middle_of_a_turn_and_joining_again() -> None:
    member = make_member()
    joined(member, member.next_request(0), 0)
    synced(member, 0, T0)
    assert member.begin_turn() is not None
    member.left()
    assert member.next_request(0) is None
    member.subscribe(frozenset({"t"}))
    assert member.turn() is None
    assert isinstance(member.next_request(0), JoinGroupRequest)


def test_commits_that_are_refused_say_the_same_as_heartbeats() -> None:
    member = make_member()
    make_stable(member, T0)
    member.on_commit_error(ErrorCode.UNKNOWN_MEMBER_ID, Identity(0, "m"))
    assert member.identity.is_member, "about an older generation"
    member.on_commit_error(ErrorCode.REBALANCE_IN_PROGRESS, member.identity)
    assert member.identity.is_member
    assert take_turn(member, 0)[0] == "revoked"
    member = make_member()
    make_stable(member, T0)
    member.on_commit_error(ErrorCode.ILLEGAL_GENERATION, member.identity)
    assert take_turn(member, 0)[0] == "lost"


def test_an_assignment_that_cannot_be_read() -> None:
    member = make_member()
    joined(member, member.next_request(0), 0)
    request = member.next_request(0)
    member.on_response(request, SyncGroupResponse(assignment=b"\x00"), 0)
    assert isinstance(member.error, InvalidResponseError)
    member.error_taken()
    joined(member, member.next_request(0), 0)
    request = member.next_request(0)
    member.on_response(request, SyncGroupResponse(assignment=b""), 0)
    assert take_turn(member, 0) == ("revoked", (), ())
    assert member.is_stable


class Own(Assignor):
    """An assignor with a plan of the test's choice, or an error."""

    name = "own"

    def __init__(
        self, plan: Mapping[str, Sequence[TopicPartition]] | Exception, *, is_cooperative: bool = False
    ) -> None:
        self.plan = plan
        self.is_cooperative = is_cooperative

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan


@pytest.mark.parametrize(
    ("assignor", "text"),
    [
        (Own(ValueError("no idea")), "assignor own failed: no idea"),
        (Own({"stranger": [T0]}), "stranger, which are not members"),
        (Own({"m": [T0], "n": [T0]}), "t-0 to both"),
        (Own({"m": [T1], "n": []}, is_cooperative=True), "while n owns it"),
    ],
)
def test_an_own_assignor_that_goes_wrong_is_blamed(assignor: Assignor, text: str) -> None:
    member = make_member(assignor)
    request = member.next_request(0)
    members = [
        JoinGroupResponseMember(
            member_id=member_id,
            metadata=write_subscription(MemberSubscription(frozenset({"t"}), owned=(T1,) if member_id == "n" else ())),
        )
        for member_id in "mn"
    ]
    answer = JoinGroupResponse(generation_id=1, protocol_name="own", leader="m", member_id="m", members=members)
    member.on_response(request, answer, 0)
    member.share_out(TopicLayout({"t": 2}))
    assert type(member.error) is ClientError
    assert text in str(member.error)
