"""Subscriptions, assignments and positions: what a change keeps and what it makes void."""

from __future__ import annotations

import re
import threading

import pytest

from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END, OffsetReset, SubscriptionState
from tidelog.client.errors import ClientError
from tidelog.client.types import OffsetAndMetadata, TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def assigned(*partitions: TopicPartition) -> SubscriptionState:
    subscription = SubscriptionState()
    subscription.assign_manually(partitions)
    return subscription


def test_a_new_assignment_keeps_what_stays() -> None:
    subscription = assigned(A, B)
    subscription.seek(A, 5)
    subscription.seek(B, 7)
    generation = subscription.generation
    subscription.set_assignment([B, C])
    assert subscription.assigned() == {B, C}
    assert subscription.position(B) == 7
    assert subscription.position(C) is None
    assert subscription.needs_position() == [C]
    assert subscription.generation > generation
    with pytest.raises(ClientError, match="t-0 is not assigned"):
        subscription.position(A)
    subscription.set_assignment([A])
    assert subscription.position(A) is None, "a partition that comes back begins anew"


def test_a_lookup_that_ends_after_a_seek_changes_nothing() -> None:
    subscription = assigned(A)
    version = subscription.state(A).version
    subscription.seek(A, 5, 2)
    assert not subscription.found(A, version, 99)
    assert not subscription.request_reset(A, TO_END, version)
    assert subscription.position(A) == 5
    assert subscription.consumed() == {A: OffsetAndMetadata(5, 2)}
    assert subscription.found(A, subscription.state(A).version, 99, 4)
    assert subscription.consumed() == {A: OffsetAndMetadata(99, 4)}


def test_a_reset_takes_the_position_away() -> None:
    subscription = assigned(A, B)
    subscription.seek(A, 5)
    subscription.request_reset(A, TO_BEGINNING)
    assert subscription.position(A) is None
    assert subscription.consumed() == {}
    assert [state.topic_partition for state in subscription.needs_reset()] == [A]
    assert subscription.needs_position() == [B]


def test_a_reset_by_duration_counts_from_its_moment() -> None:
    assert OffsetReset(0, back_ms=1_000).timestamp_at(5_000) == 4_000
    assert TO_END.timestamp_at(5_000) == -1


def test_positions_advance_only_for_the_version_that_was_read() -> None:
    subscription = assigned(A)
    subscription.seek(A, 5)
    state = subscription.state(A)
    version = state.version
    subscription.advance(state, version, 9, 3)
    assert subscription.consumed() == {A: OffsetAndMetadata(9, 3)}
    subscription.seek(A, 1)
    subscription.advance(state, version, 10, 3)
    assert subscription.position(A) == 1


def test_fetches_advance_only_from_where_they_were_asked() -> None:
    subscription = assigned(A)
    subscription.seek(A, 5)
    state = subscription.state(A)
    assert subscription.fetched(state, state.version, 5, 9, 1)
    assert not subscription.fetched(state, state.version, 5, 9, 1), "the same answer from another broker"
    assert (state.position, state.fetch_offset, state.fetch_epoch) == (5, 9, 1)
    subscription.fetch_again(state, state.version)
    assert state.fetch_offset == 5


def test_negative_offsets_are_refused() -> None:
    with pytest.raises(ValueError, match="seek_to_beginning"):
        assigned(A).seek(A, -1)


def test_pausing() -> None:
    subscription = assigned(A, B)
    subscription.seek(A, 0)
    subscription.pause([A])
    assert subscription.paused() == {A}
    assert not subscription.state(A).is_fetchable
    subscription.resume([A])
    assert subscription.state(A).is_fetchable
    with pytest.raises(ClientError):
        subscription.pause([A, C])


def test_subscribing_and_assigning_exclude_each_other() -> None:
    subscription = assigned(A)
    with pytest.raises(ClientError, match="unsubscribe"):
        subscription.subscribe(["t"])
    subscription.unsubscribe()
    assert subscription.assigned() == frozenset()
    subscription.subscribe(["t"])
    with pytest.raises(ClientError, match="unsubscribe"):
        subscription.assign_manually([A])


def test_a_pattern_matches_whole_names_and_follows_metadata() -> None:
    subscription = SubscriptionState()
    subscription.subscribe_pattern(re.compile("orders-.*"))
    assert subscription.is_subscribed
    assert subscription.match(["orders-1", "my-orders-1", "x"])
    assert subscription.topics == {"orders-1"}
    assert not subscription.match(["orders-1", "y"])
    assert subscription.match(["orders-1", "orders-2"])
    assert subscription.topics == {"orders-1", "orders-2"}
    subscription.subscribe(["x"])
    assert not subscription.match(["orders-1"])


def test_changes_are_told() -> None:
    told: list[str] = []
    subscription = SubscriptionState(on_change=lambda: told.append("changed"))
    subscription.assign_manually([A])
    told.clear()
    subscription.seek(A, 1)
    subscription.pause([A])
    subscription.resume([A])
    subscription.set_assignment([A, B])
    assert len(told) == 4


def test_two_threads_never_leave_a_position_that_none_of_them_set() -> None:
    """The loop advances what it fetched while the user seeks: the fetch offset always belongs to the last seek."""
    subscription = assigned(A)
    subscription.seek(A, 0)
    state = subscription.state(A)
    stop = threading.Event()

    def fetch() -> None:
        while not stop.is_set():
            version, offset = state.version, state.fetch_offset
            subscription.fetched(state, version, offset, offset + 1, 0)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        for number in range(3_000):
            base = (number + 1) * 1_000_000
            subscription.seek(A, base)
            assert base <= state.fetch_offset < base + 1_000_000
    finally:
        stop.set()
        thread.join()
