"""Groups of the new consumer protocol, without a broker: who gets what, when, and which errors (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode

ORDERS = {("orders", number) for number in range(6)}


def _settle(*consumers: Any) -> None:
    """Heartbeats in turn until nothing changes any more; more rounds than any rebalance needs would be a bug."""
    for _ in range(20):
        before = [(consumer.epoch, consumer.partitions) for consumer in consumers]
        for consumer in consumers:
            assert consumer.beat() is ErrorCode.NONE
        if before == [(consumer.epoch, consumer.partitions) for consumer in consumers]:
            return
    pytest.fail("the group does not settle")


def test_one_member_gets_everything_at_once(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"])
    assert one.beat() is ErrorCode.NONE
    assert one.partitions == ORDERS
    assert one.epoch == 1


def test_a_second_member_waits_until_the_first_gave_up(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    assert two.partitions == set()  # all of its part is still the first one's
    one.beat()  # is told to give up, and does
    assert len(one.partitions) == 3
    two.beat()
    assert two.partitions == set()  # nobody has said that they were given up
    one.beat()  # says so
    two.beat()
    assert one.partitions | two.partitions == ORDERS
    assert not one.partitions & two.partitions
    _settle(one, two)
    assert bench.shard.describe_consumer_group("group").group_state == "Stable"


def test_a_member_that_leaves_gives_its_partitions_to_the_others(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    _settle(one, two)
    assert two.leave() is ErrorCode.NONE
    _settle(one)
    assert one.partitions == ORDERS


def test_a_silent_member_is_removed(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    _settle(one, two)
    for _ in range(13):
        bench.advance(4_000)
        one.beat()
    assert one.partitions == ORDERS
    assert two.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    history = bench.shard.describe_consumer_group("group", include_history=True).history
    assert [row.cause for row in history] == ["member joined", "member joined", "member timed out"]
    assert [(row.members_before, row.members_after) for row in history] == [(0, 1), (1, 2), (2, 1)]
    assert all(row.stood_still_ms >= 0 for row in history)
    assert history[2].stood_still_ms == 3_000  # from the end of the session until the other one was heard again


def test_who_does_not_give_up_in_its_rebalance_time_is_removed(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    stubborn = one.request()
    one.beat()
    for _ in range(3):
        bench.advance(4_000)
        answer = bench.ask(stubborn)  # still claims what it should have given up
        two.beat()
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    _settle(two)
    assert two.partitions == ORDERS


def test_topics_that_grow_are_shared_out_anew(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders", "later"])
    one.beat()
    bench.change_topics(lambda topics: topics.put("orders", 8))
    one.beat()
    assert one.partitions == {("orders", number) for number in range(8)}
    bench.change_topics(lambda topics: topics.put("later", 1))
    one.beat()
    assert ("later", 0) in one.partitions
    history = bench.shard.describe_consumer_group("group", include_history=True).history
    assert [row.cause for row in history] == ["member joined", "partitions grew", "partitions grew"]


def test_topics_that_grow_while_a_write_is_in_flight_are_noticed(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"])
    bench.holds_appends = True
    first = bench.send(one.request())
    bench.change_topics(lambda topics: topics.put("orders", 8))
    bench.release()
    bench.holds_appends = False
    one.take(bench.answers[first])
    _settle(one)
    assert len(one.partitions) == 8


def test_a_changed_subscription_takes_and_gives(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"])
    one.beat()
    assert one.change(["prices"]) is ErrorCode.NONE
    _settle(one)
    assert one.partitions == {("prices", number) for number in range(3)}


def test_regular_expressions_find_topics_made_later(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", regex="orders.*")
    one.beat()
    assert one.partitions == ORDERS
    bench.change_topics(lambda topics: topics.put("orders-eu", 2))
    one.beat()
    assert one.partitions == ORDERS | {("orders-eu", 0), ("orders-eu", 1)}


@pytest.mark.parametrize("names", [None, []])
def test_a_regular_expression_that_matches_nothing_yet_waits(
    bench: Any, make_consumer: Any, names: list[str] | None
) -> None:
    one = make_consumer(bench, "one", regex="later.*")
    request = one.request()
    request.subscribed_topic_names = names
    assert one.take(bench.ask(request)) is ErrorCode.NONE
    assert one.beat() is ErrorCode.NONE
    assert one.partitions == set()
    bench.change_topics(lambda topics: topics.put("later-on", 2))
    one.beat()
    assert one.partitions == {("later-on", 0), ("later-on", 1)}


def test_regular_expressions_match_internal_topics_too(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", regex="__consumer_.*")
    one.beat()
    assert one.partitions == {("__consumer_offsets", number) for number in range(50)}


def test_a_member_may_join_before_it_subscribes(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", [])
    assert one.beat() is ErrorCode.NONE
    assert (one.epoch, one.partitions) == (1, set())
    assert one.change(["orders"]) is ErrorCode.NONE
    assert one.partitions == ORDERS


def test_members_have_room_for_so_much_in_a_group_and_in_all(make_bench: Any, make_consumer: Any) -> None:
    config = GroupConfig(tidelog_group_max_bytes=100_000, tidelog_group_coordinator_max_bytes=120_000)
    bench = make_bench(config)
    topics = [f"{number}".ljust(200) for number in range(200)]
    one, two = make_consumer(bench, "one", topics), make_consumer(bench, "two", topics)
    assert one.beat() is ErrorCode.NONE
    assert two.beat() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert make_consumer(bench, "t" * 30_000, topics[:2]).beat() is ErrorCode.NONE
    other = two.request()
    other.group_id = "other"
    assert bench.ask(other).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert one.beat() is ErrorCode.NONE
    assert one.leave() is ErrorCode.NONE
    assert bench.ask(other).error_code == ErrorCode.NONE
    bench.advance(60_000)
    assert two.beat() is ErrorCode.NONE


def test_a_bad_regular_expression_is_refused(bench: Any, make_consumer: Any) -> None:
    assert make_consumer(bench, "one", regex="orders(").beat() is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not bench.log


def test_a_regular_expression_that_stalls_others_does_not_stall_this(bench: Any, make_consumer: Any) -> None:
    bench.change_topics(lambda topics: topics.put("a" * 249, 1))
    assert make_consumer(bench, "one", regex="(a+)+b").beat() is ErrorCode.NONE


def test_range_gives_the_same_run_of_each_topic(bench: Any, make_consumer: Any) -> None:
    bench.change_topics(lambda topics: topics.put("refunds", 6))
    consumers = [make_consumer(bench, name, ["orders", "refunds"], assignor="range") for name in ("a", "b", "c")]
    for consumer in consumers:
        consumer.beat()
    _settle(*consumers)
    for consumer in consumers:
        numbers = {topic: {n for name, n in consumer.partitions if name == topic} for topic in ("orders", "refunds")}
        assert numbers["orders"] == numbers["refunds"]
        assert len(numbers["orders"]) == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    bench: Any, make_consumer: Any, changes: dict[str, Any], error: ErrorCode
) -> None:
    request = make_consumer(bench, "one", ["orders"]).request()
    for name, value in changes.items():
        setattr(request, name, value)
    assert bench.ask(request).error_code == error
    assert not bench.log


def test_version_0_has_the_coordinator_name_the_member(bench: Any, make_consumer: Any) -> None:
    request = make_consumer(bench, "", ["orders"]).request()
    assert bench.ask(request, version=0).member_id


def test_epochs_that_are_not_the_members_are_fenced(bench: Any, make_consumer: Any) -> None:
    members = [make_consumer(bench, name, ["orders"]) for name in ("one", "two", "three")]
    for member in members:
        member.beat()
        _settle(*members[: members.index(member) + 1])
    one = members[0]
    for epoch in (one.epoch + 1, one.epoch - 2):
        assert epoch > 0
        assert bench.ask(one.request(epoch=epoch)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = make_consumer(bench, "four", ["orders"])
    assert bench.ask(stranger.request(epoch=2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    # A fenced member joins again under its id, and has nothing until it is told.
    again = bench.ask(one.request(epoch=0))
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, one.epoch)
    assert again.assignment is not None


def test_a_lost_answer_is_given_again(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"])
    bench.ask(one.request())  # the answer is lost, and the member asks again as it did
    assert one.beat() is ErrorCode.NONE
    assert one.partitions == ORDERS
    assert one.epoch == 1


def test_a_static_member_comes_back_to_what_it_had(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"], instance_id="a")
    two = make_consumer(bench, "two", ["orders"], instance_id="b")
    one.beat()
    two.beat()
    _settle(one, two)
    had, others = one.partitions, two.partitions
    intruder = make_consumer(bench, "another", ["orders"], instance_id="a")
    assert intruder.beat() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.leave(-2) is ErrorCode.NONE
    epoch = two.epoch
    again = make_consumer(bench, "one-again", ["orders"], instance_id="a")
    assert again.beat() is ErrorCode.NONE
    assert again.partitions == had
    assert two.beat() is ErrorCode.NONE
    assert (two.partitions, two.epoch) == (others, epoch)
    assert one.beat() is ErrorCode.UNRELEASED_INSTANCE_ID  # its place is taken


def test_a_static_member_that_stays_away_loses_its_partitions(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"], instance_id="a")
    two = make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    _settle(one, two)
    one.leave(-2)
    for _ in range(10):
        bench.advance(5_000)
        two.beat()
    assert two.partitions == ORDERS


def test_more_members_than_allowed(make_bench: Any, make_consumer: Any) -> None:
    bench = make_bench(GroupConfig(group_consumer_max_size=1))
    assert make_consumer(bench, "one", ["orders"]).beat() is ErrorCode.NONE
    assert make_consumer(bench, "two", ["orders"]).beat() is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_requests_wait_for_the_write_before_them(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    bench.holds_appends = True
    first, second = bench.send(one.request()), bench.send(two.request())
    assert not bench.answers
    assert len(bench.held) == 1
    bench.release()
    assert one.take(bench.answers[first]) is ErrorCode.NONE
    assert two.take(bench.answers[second]) is ErrorCode.NONE
    assert one.partitions == ORDERS
    assert two.partitions == set()


def test_those_that_waited_are_handled_one_by_one(bench: Any, make_consumer: Any) -> None:
    """In the order in which they came, also of those that come meanwhile; one that writes has the rest wait again."""
    members = [make_consumer(bench, f"m{number}", ["orders"]) for number in range(4)]
    bench.holds_appends = bench.holds_work = True
    exchanges = [bench.send(member.request()) for member in members[:3]]
    bench.release()
    assert list(bench.answers) == exchanges[:1]
    exchanges.append(bench.send(members[3].request()))
    assert not bench.held
    for number in range(1, 4):
        assert list(bench.answers) == exchanges[:number]
        bench.step()
        assert len(bench.held) == 1
        bench.release()
    assert list(bench.answers) == exchanges
    late = bench.send(members[0].request())
    bench.release()
    assert late in bench.answers, "nobody waits for anything any more"


def test_those_that_waited_are_refused_when_the_coordinator_moves(bench: Any, make_consumer: Any) -> None:
    members = [make_consumer(bench, f"m{number}", ["orders"]) for number in range(3)]
    bench.holds_appends = bench.holds_work = True
    exchanges = [bench.send(member.request()) for member in members]
    bench.release()
    bench.run(bench.shard.on_unloaded(ErrorCode.NOT_COORDINATOR))
    answers = [bench.answers[exchange].error_code for exchange in exchanges]
    assert answers == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR]


def test_a_refused_write_changes_nothing(bench: Any, make_consumer: Any) -> None:
    one = make_consumer(bench, "one", ["orders"])
    bench.fails_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert one.beat() is ErrorCode.NOT_COORDINATOR
    assert bench.shard.describe_consumer_group("group").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert one.beat() is ErrorCode.NONE
    assert one.partitions == ORDERS


def test_a_new_coordinator_goes_on_where_the_old_one_was(bench: Any, make_consumer: Any) -> None:
    one, two = make_consumer(bench, "one", ["orders"]), make_consumer(bench, "two", ["orders"])
    one.beat()
    two.beat()
    one.beat()
    bench.restart()
    _settle(one, two)
    assert one.partitions | two.partitions == ORDERS
    assert not one.partitions & two.partitions


def test_many_members_that_come_at_once_get_one_assignment(make_bench: Any, make_consumer: Any) -> None:
    bench = make_bench(GroupConfig(group_consumer_assignment_interval_ms=1_000))
    consumers = [make_consumer(bench, f"m{number}", ["orders"]) for number in range(6)]
    for consumer in consumers:
        consumer.beat()
    assert bench.shard.describe_consumer_group("group").group_state == "Assigning"
    bench.advance(1_000)
    _settle(*consumers)
    assert [len(consumer.partitions) for consumer in consumers] == [1] * 6
    history = bench.shard.describe_consumer_group("group", include_history=True).history
    assert len(history) == 2
