"""A member of the consumer protocol by itself: heartbeats out, answers made by hand in."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence

import pytest

from tidelog.client.consumer.group_refusals import UnreleasedInstanceError
from tidelog.client.consumer.membership import Identity
from tidelog.client.consumer.membership_consumer import ConsumerConfig, ConsumerMember, new_member_id
from tidelog.client.errors import ConnectionLostError, FatalError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

PAUSE_MS = 100
INTERVAL_MS = 5_000
IDS = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def name_of(topic_id: uuid.UUID) -> str | None:
    return next((name for name, known in IDS.items() if known == topic_id), None)


def make_member(regex: str | None = None, instance_id: str | None = None) -> ConsumerMember:
    config = ConsumerConfig("g", instance_id=instance_id, remote_assignor="uniform", rack="r1")
    member = ConsumerMember(config, lambda failures: PAUSE_MS * failures, member_id="m")
    member.subscribe(frozenset({"t"}), regex)
    return member


def beat(
    member: ConsumerMember,
    now_ms: float,
    *,
    epoch: int = 1,
    code: ErrorCode = ErrorCode.NONE,
    given: Mapping[str, Sequence[int]] | None = None,
) -> ConsumerGroupHeartbeatRequest:
    """Take the heartbeat that is due and answer it."""
    request = member.next_request(now_ms)
    assert isinstance(request, ConsumerGroupHeartbeatRequest)
    assignment = None
    if given is not None:
        rows = [
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=IDS[topic], partitions=list(numbers))
            for topic, numbers in given.items()
        ]
        assignment = Assignment(topic_partitions=rows)
    answer = ConsumerGroupHeartbeatResponse(
        error_code=code,
        member_id="m" if code is ErrorCode.NONE else None,
        member_epoch=epoch if code is ErrorCode.NONE else 0,
        heartbeat_interval_ms=INTERVAL_MS,
        assignment=assignment,
    )
    member.on_response(request, answer, now_ms)
    member.name_topics(name_of)
    return request


def take_turn(member: ConsumerMember, now_ms: float) -> tuple[str, Sequence[TopicPartition], Sequence[TopicPartition]]:
    turn = member.begin_turn()
    assert turn is not None
    member.turn_done(turn, now_ms)
    return ("lost" if turn.is_lost else "revoked"), turn.going, turn.coming


def make_stable(member: ConsumerMember, given: Mapping[str, Sequence[int]]) -> None:
    beat(member, 0, given=given)
    take_turn(member, 0)
    beat(member, 0)


def owned_in(request: ConsumerGroupHeartbeatRequest) -> set[TopicPartition] | None:
    if request.topic_partitions is None:
        return None
    return {
        TopicPartition(name_of(row.topic_id) or "", number)
        for row in request.topic_partitions
        for number in row.partitions
    }


def test_the_first_heartbeat_tells_all_and_later_ones_nothing_new() -> None:
    member = make_member()
    first = beat(member, 0, given={"t": [0, 1]})
    assert (first.member_id, first.member_epoch, first.rebalance_timeout_ms) == ("m", 0, 300_000)
    assert (first.subscribed_topic_names, first.server_assignor, first.rack_id) == (["t"], "uniform", "r1")
    assert first.topic_partitions == []
    assert take_turn(member, 10) == ("revoked", (), (T0, T1))
    confirmation = beat(member, 10, epoch=2)
    assert owned_in(confirmation) == {T0, T1}
    assert confirmation.member_epoch == 1
    assert member.next_request(10 + INTERVAL_MS - 1) is None
    assert member.next_at_ms() == 10 + INTERVAL_MS
    quiet = beat(member, 10 + INTERVAL_MS, epoch=2)
    assert quiet == ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=2)


def test_what_is_taken_away_is_given_up_before_it_is_confirmed() -> None:
    member = make_member()
    make_stable(member, {"t": [0, 1]})
    beat(member, INTERVAL_MS, epoch=2, given={"t": [0]})
    assert member.next_request(INTERVAL_MS) is None, "the user still reads it"
    heartbeat = beat(member, 2 * INTERVAL_MS, epoch=2)
    assert owned_in(heartbeat) is None
    assert take_turn(member, 11_000) == ("revoked", (T1,), ())
    assert owned_in(beat(member, 11_000, epoch=3)) == {T0}


def test_an_assignment_that_is_told_twice_is_taken_over_once() -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    beat(member, INTERVAL_MS, epoch=2, given={"t": [0]})
    assert member.turn() is None


def test_the_first_assignment_is_told_even_if_it_is_empty() -> None:
    member = make_member()
    beat(member, 0, given={})
    assert take_turn(member, 0) == ("revoked", (), ())
    assert owned_in(beat(member, 0)) == set()


def test_a_newcomer_without_partitions_asks_again_soon_and_then_as_often_as_told() -> None:
    member = make_member()
    beat(member, 0, given={})
    take_turn(member, 0)
    beats_at_ms: list[float] = []
    now_ms = 0.0
    while len(beats_at_ms) < 9:
        now_ms = max(member.next_at_ms(), now_ms)
        beat(member, now_ms)
        beats_at_ms.append(now_ms)
    early = [at for at in beats_at_ms if at < INTERVAL_MS]
    assert len(early) <= 7
    assert beats_at_ms[-1] - beats_at_ms[-2] == INTERVAL_MS

    member = make_member()
    make_stable(member, {"t": [0]})
    assert member.next_at_ms() == INTERVAL_MS, "who has partitions has nothing to wait for"


def test_topics_without_a_name_wait() -> None:
    member = make_member()
    request = member.next_request(0)
    rows = [ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=IDS["t"], partitions=[0])]
    answer = ConsumerGroupHeartbeatResponse(
        member_epoch=1, heartbeat_interval_ms=INTERVAL_MS, assignment=Assignment(topic_partitions=rows)
    )
    member.on_response(request, answer, 0)
    assert member.unknown_topic_ids() == {IDS["t"]}
    assert member.turn() is None
    member.name_topics(name_of)
    assert take_turn(member, 0) == ("revoked", (), (T0,))


def test_a_changed_subscription_is_told_at_once() -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    member.subscribe(frozenset({"t", "u"}), None)
    request = beat(member, 100, epoch=1)
    assert (request.subscribed_topic_names, request.topic_partitions) == (["t", "u"], None)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_loses_all_and_joins_anew(code: ErrorCode) -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    beat(member, INTERVAL_MS, code=code)
    assert member.identity == Identity(-1, "m", None)
    assert member.next_request(INTERVAL_MS) is None, "first the user is told"
    assert take_turn(member, INTERVAL_MS) == ("lost", (T0,), ())
    again = beat(member, INTERVAL_MS, epoch=7, given={"t": [0]})
    assert (again.member_epoch, again.subscribed_topic_names, again.topic_partitions) == (0, ["t"], [])
    assert take_turn(member, INTERVAL_MS) == ("revoked", (), (T0,))


def test_fenced_while_the_user_takes_an_assignment_over() -> None:
    member = make_member()
    beat(member, 0, given={"t": [0]})
    turn = member.begin_turn()
    assert turn is not None
    beat(member, INTERVAL_MS, code=ErrorCode.FENCED_MEMBER_EPOCH)
    assert member.next_request(INTERVAL_MS) is None
    member.turn_done(turn, INTERVAL_MS)
    assert take_turn(member, INTERVAL_MS) == ("lost", (T0,), ())
    assert beat(member, INTERVAL_MS).member_epoch == 0


def test_after_a_lost_heartbeat_all_is_told_again() -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    request = member.next_request(INTERVAL_MS)
    member.on_failure(request, ConnectionLostError("lost"), INTERVAL_MS)
    assert member.coordinator_is_suspect
    assert member.next_request(INTERVAL_MS + PAUSE_MS - 1) is None
    again = beat(member, INTERVAL_MS + PAUSE_MS)
    assert (again.subscribed_topic_names, owned_in(again), again.member_epoch) == (["t"], {T0}, 1)


@pytest.mark.parametrize(
    ("code", "is_suspect"),
    [
        (ErrorCode.NOT_COORDINATOR, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False),
    ],
)
def test_a_coordinator_that_is_not_ready_is_asked_again(code: ErrorCode, is_suspect: bool) -> None:
    member = make_member()
    beat(member, 0, code=code)
    assert member.coordinator_is_suspect is is_suspect
    assert member.next_at_ms() == PAUSE_MS
    assert beat(member, PAUSE_MS).member_epoch == 0


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ErrorCode.UNSUPPORTED_ASSIGNOR, "no assignor uniform"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, "group.consumer.max.size"),
        (ErrorCode.INVALID_REQUEST, "refused"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "refused"),
    ],
)
def test_a_refusal_is_told_to_the_user_and_tried_again_after_that(code: ErrorCode, text: str) -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    beat(member, INTERVAL_MS, code=code)
    assert text in str(member.error)
    assert take_turn(member, INTERVAL_MS) == ("lost", (T0,), ())
    assert member.next_request(10 * INTERVAL_MS) is None
    member.error_taken()
    assert beat(member, 10 * INTERVAL_MS).member_epoch == 0


def test_an_instance_id_that_is_taken() -> None:
    member = make_member(instance_id="desk-1")
    beat(member, 0, code=ErrorCode.UNRELEASED_INSTANCE_ID)
    assert isinstance(member.error, UnreleasedInstanceError)
    assert isinstance(member.error, FatalError)
    assert "desk-1" in str(member.error)
    member.error_taken()
    assert member.next_request(1_000_000) is None


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("desk-1", -2)])
def test_leaving(instance_id: str | None, epoch: int) -> None:
    member = make_member(instance_id=instance_id)
    make_stable(member, {"t": [0]})
    assert member.leave_request().member_epoch == epoch
    assert member.poll_expired() is True
    assert member.is_stale
    assert member.next_request(100_000) is None
    assert take_turn(member, 100_000) == ("lost", (T0,), ())
    member.poll_resumed()
    assert beat(member, 100_000).member_epoch == 0


def test_leaving_in_the_middle_of_a_turn_and_joining_again() -> None:
    member = make_member()
    beat(member, 0, given={"t": [0]})
    assert member.begin_turn() is not None
    member.left()
    assert member.next_request(0) is None
    member.subscribe(frozenset({"t"}), None)
    assert member.turn() is None
    assert beat(member, 0).member_epoch == 0


def test_a_regular_expression_is_told_instead_of_names() -> None:
    member = make_member("t.*")
    first = beat(member, 0, given={"t": [0], "u": [0]})
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == ([], "t.*")
    assert take_turn(member, 0) == ("revoked", (), (T0, U0))
    beat(member, 0)
    member.subscribe(frozenset({"u"}), None)
    changed = beat(member, 10)
    assert (changed.subscribed_topic_names, changed.subscribed_topic_regex) == (["u"], "")


def test_a_regular_expression_that_the_coordinator_refuses_is_matched_by_the_client() -> None:
    member = make_member("(?<=t).*")
    beat(member, 0, code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert member.error is None
    again = beat(member, 0)
    assert (again.subscribed_topic_names, again.subscribed_topic_regex) == (["t"], None)
    member.subscribe(frozenset({"t", "u"}), "(?<=t).*")
    assert beat(member, 10).subscribed_topic_names == ["t", "u"]


def test_a_refused_commit_makes_the_member_ask_at_once_where_it_stands() -> None:
    member = make_member()
    make_stable(member, {"t": [0]})
    member.on_commit_error(ErrorCode.STALE_MEMBER_EPOCH, Identity(0, "m"))
    assert member.next_request(10) is None
    member.on_commit_error(ErrorCode.STALE_MEMBER_EPOCH, member.identity)
    assert owned_in(beat(member, 10)) == {T0}


def test_ids_have_the_form_of_kafkas() -> None:
    made = new_member_id()
    assert len(made) == 22
    assert uuid.UUID(bytes=base64.urlsafe_b64decode(made + "==")).version == 4
    assert made != new_member_id()
