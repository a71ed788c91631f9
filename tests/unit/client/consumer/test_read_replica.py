"""Which replica a partition is read from: how long a follower counts, and what happens after it fails."""

from __future__ import annotations

from tidelog.client.consumer.read_replica import NO_REPLICA, ReadReplica

LEASE_S = 300.0


def test_a_follower_counts_until_the_leader_is_due_to_be_asked_again() -> None:
    replica = ReadReplica()
    assert (replica.node_id, replica.expire(1000.0)) == (NO_REPLICA, False)
    replica.prefer(2, 1000.0, LEASE_S)
    assert (replica.expire(1299.0), replica.node_id) == (False, 2)
    # It is said once, so that the leader is woken once.
    assert [replica.expire(1300.0), replica.expire(1301.0)] == [True, False]
    assert replica.node_id == NO_REPLICA


def test_after_failures_the_leader_serves_for_a_growing_while() -> None:
    replica = ReadReplica()
    now_s, pauses = 1000.0, []
    for _ in range(7):
        replica.prefer(2, now_s, LEASE_S)
        assert replica.node_id == 2
        replica.give_up(now_s, LEASE_S)
        began_s = now_s
        while replica.is_leader_only(now_s):
            replica.prefer(2, now_s, LEASE_S)
            assert replica.node_id == NO_REPLICA
            now_s += 10.0
        pauses.append(now_s - began_s)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    replica.prefer(2, now_s, LEASE_S)
    replica.served()
    replica.give_up(now_s, LEASE_S)
    assert not replica.is_leader_only(now_s + 10.0)


def test_a_follower_that_is_left_may_be_named_again_at_once() -> None:
    replica = ReadReplica()
    replica.prefer(2, 1000.0, LEASE_S)
    replica.leave()
    assert (replica.node_id, replica.is_leader_only(1000.0)) == (NO_REPLICA, False)
    replica.prefer(3, 1000.0, LEASE_S)
    assert replica.node_id == 3


def test_a_failure_that_is_heard_of_twice_counts_once() -> None:
    replica = ReadReplica()
    replica.prefer(2, 1000.0, LEASE_S)
    replica.give_up(1000.0, LEASE_S)
    replica.give_up(1005.0, LEASE_S)
    assert not replica.is_leader_only(1010.0)
