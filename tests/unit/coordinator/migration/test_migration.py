"""One group, two protocols: members of one go while members of the other come, and records keep flowing."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.protocol import ErrorCode

ORDERS = {("orders", number) for number in range(4)}


def _settle(bench: Any, *consumers: Any) -> None:
    for _ in range(30):
        bench.advance(1_000)
        for consumer in consumers:
            consumer.step()
    owned = [consumer.partitions for consumer in consumers]
    assert set().union(*owned) == ORDERS
    assert sum(map(len, owned)) == len(ORDERS)


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_a_rolling_upgrade_and_back(make_bench: Any, old_consumer: Any, new_consumer: Any, cooperative: bool) -> None:
    bench = make_bench()
    old = [old_consumer(bench, name, ["orders"], cooperative=cooperative) for name in ("a", "b")]
    _settle(bench, *old)
    assert bench.kind == "classic"
    new = [new_consumer(bench, "c", ["orders"])]
    _settle(bench, *old, *new)
    assert bench.kind == "consumer"
    old[0].leave()
    new.append(new_consumer(bench, "d", ["orders"]))
    _settle(bench, old[1], *new)
    new[0].leave()
    _settle(bench, old[1], new[1])
    assert bench.kind == "consumer"
    new[1].leave()
    assert bench.kind == "classic"
    _settle(bench, old[1])
    history = bench.shard.state.groups["group"].history
    assert len({rebalance.generation_id for rebalance in history}) == len(history)


def test_no_upgrade_where_it_is_not_allowed(make_bench: Any, old_consumer: Any, new_consumer: Any) -> None:
    bench = make_bench("downgrade")
    old = old_consumer(bench, "a", ["orders"])
    _settle(bench, old)
    assert new_consumer(bench, "b", ["orders"]).beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert bench.kind == "classic"
    old.step()
    assert old.partitions == ORDERS


def test_no_downgrade_where_it_is_not_allowed(make_bench: Any, old_consumer: Any, new_consumer: Any) -> None:
    bench = make_bench("upgrade")
    old, new = old_consumer(bench, "a", ["orders"]), new_consumer(bench, "b", ["orders"])
    _settle(bench, old)
    _settle(bench, old, new)
    new.leave()
    assert bench.kind == "consumer"
    _settle(bench, old)


def test_an_administrator_removes_a_member_of_either_protocol(
    make_bench: Any, old_consumer: Any, new_consumer: Any
) -> None:
    bench = make_bench("bidirectional")
    old = old_consumer(bench, "a", ["orders"])
    first, second = new_consumer(bench, "b", ["orders"]), new_consumer(bench, "c", ["orders"])
    _settle(bench, old)
    _settle(bench, old, first, second)
    assert first.be_removed(times=2) == [0, 0]
    assert first.be_removed() == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert bench.kind == "consumer"
    assert second.be_removed() == [0]
    assert bench.kind == "classic"
    _settle(bench, old)
    assert old.partitions == ORDERS


def test_an_empty_group_of_either_kind_gives_its_place(make_bench: Any, old_consumer: Any, new_consumer: Any) -> None:
    bench = make_bench("disabled")
    new = new_consumer(bench, "a", ["orders"])
    new.beat()
    new.leave()
    old = old_consumer(bench, "b", ["orders"])
    _settle(bench, old)
    assert bench.kind == "classic"
    old.leave()
    again = new_consumer(bench, "c", ["orders"])
    _settle(bench, again)
    assert bench.kind == "consumer"
    bench.restart()
    assert bench.kind == "consumer"


def test_a_refused_write_leaves_the_group_as_it_was(make_bench: Any, old_consumer: Any, new_consumer: Any) -> None:
    bench = make_bench()
    old, new = old_consumer(bench, "a", ["orders"]), new_consumer(bench, "b", ["orders"])
    _settle(bench, old)
    bench.fails = True
    assert new.beat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.kind == "classic"
    old.step()
    assert old.partitions == ORDERS
    assert new.beat() is ErrorCode.NONE
    assert bench.kind == "consumer"


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions(
    make_bench: Any, old_consumer: Any, new_consumer: Any
) -> None:
    bench = make_bench()
    old = [old_consumer(bench, name, ["orders"], instance_id=name, cooperative=True) for name in ("a", "b")]
    _settle(bench, *old)
    had = set(old[0].partitions)
    new = new_consumer(bench, "a-2", ["orders"], instance_id="a")
    assert new.beat() is ErrorCode.NONE
    assert new.partitions == had
    _settle(bench, new, old[1])
    # And back: the last one of the new protocol is replaced, so the group is classic again.
    back = old_consumer(bench, "a", ["orders"], instance_id="a", cooperative=True)
    back.step()
    assert bench.kind == "classic"
    _settle(bench, back, old[1])


def test_a_classic_member_that_does_not_join_again_is_removed(
    make_bench: Any, old_consumer: Any, new_consumer: Any
) -> None:
    bench = make_bench()
    old, new = old_consumer(bench, "a", ["orders"]), new_consumer(bench, "b", ["orders"])
    _settle(bench, old)
    new.beat()
    for _ in range(40):
        bench.advance(1_000)
        new.step()
    assert new.partitions == ORDERS


def test_protocols_that_have_nothing_in_common_are_refused(
    make_bench: Any, old_consumer: Any, new_consumer: Any
) -> None:
    bench = make_bench()
    old, new = old_consumer(bench, "a", ["orders"]), new_consumer(bench, "b", ["orders"])
    _settle(bench, old)
    _settle(bench, old, new)
    stranger = old_consumer(bench, "c", ["orders"], cooperative=True)
    stranger.step()
    assert not stranger.partitions
    assert stranger.generation < 0


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
def test_a_group_that_moves_right_after_its_way_back_still_rebalances(
    make_bench: Any, old_consumer: Any, new_consumer: Any, cooperative: bool
) -> None:
    bench = make_bench()
    old = old_consumer(bench, "a", ["orders"], cooperative=cooperative)
    _settle(bench, old)
    new = new_consumer(bench, "b", ["orders"])
    _settle(bench, old, new)
    new.leave()
    assert bench.kind == "classic"
    bench.restart()  # before the old member has joined again: only the record tells that it must
    assert bench.kind == "classic"
    _settle(bench, old)


def test_a_member_that_has_not_joined_again_keeps_what_it_has_over_both_ways(
    make_bench: Any, old_consumer: Any, new_consumer: Any
) -> None:
    """A new consumer comes, leaves and comes again, before the old one has heard that it is to give something up."""
    bench = make_bench()
    old = old_consumer(bench, "a", ["orders"], cooperative=True)
    _settle(bench, old)
    first, again = new_consumer(bench, "b", ["orders"]), new_consumer(bench, "c", ["orders"])
    first.beat()
    first.leave()
    assert bench.kind == "classic"
    again.beat()
    assert bench.kind == "consumer"
    assert old.partitions == ORDERS
    assert not again.partitions
    _settle(bench, old, again)
