"""Fetch sessions: what a client may leave out, what it is told, and what the cache may cost."""

from __future__ import annotations

import uuid

import pytest

from tidelog.broker.fetch_session import EVICTION_AGE_MS, FetchExchange, FetchKey, FetchSessionCache, PartitionFetch
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode, KafkaError


def wanted(*names: str, offset: int = 0) -> list[PartitionFetch]:
    return [PartitionFetch(name, ZERO_UUID, 0, offset, 1000) for name in names]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(start_ms=0)


@pytest.fixture
def cache(clock: VirtualClock) -> FetchSessionCache:
    return FetchSessionCache(2, clock, partitions_max=10)


def start(cache: FetchSessionCache, *names: str) -> FetchExchange:
    return cache.open(0, 0, wanted(*names), (), uses_topic_ids=False)


def go_on(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    *names: str,
    offset: int = 0,
    forgotten: tuple[FetchKey, ...] = (),
) -> FetchExchange:
    return cache.open(session_id, epoch, wanted(*names, offset=offset), forgotten, uses_topic_ids=False)


def topics(exchange: FetchExchange) -> list[str]:
    return [fetch.topic for fetch in exchange.fetches]


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_a_session_begins_at_epoch_0_and_keeps_its_partitions(cache: FetchSessionCache) -> None:
    first = start(cache, "a", "b")
    assert first.session_id > 0
    assert not first.is_incremental
    second = go_on(cache, first.session_id, 1)
    assert second.session_id == first.session_id
    assert second.is_incremental
    assert topics(second) == ["a", "b"]
    third = go_on(cache, first.session_id, 2, "b", "c", offset=7, forgotten=(("a", 0),))
    assert [(fetch.topic, fetch.fetch_offset) for fetch in third.fetches] == [("b", 7), ("c", 7)]
    assert cache.partitions_count == 2


def test_wrong_ids_and_epochs_are_refused_and_change_nothing(cache: FetchSessionCache) -> None:
    session_id = start(cache, "a").session_id
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(cache, session_id + 1, 1)
    for epoch in (2, 7):
        with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            go_on(cache, session_id, epoch, "b")
    with refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR):
        cache.open(session_id, 1, [], (), uses_topic_ids=True)
    assert topics(go_on(cache, session_id, 1)) == ["a"]
    with refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        go_on(cache, session_id, 1)


def test_no_session_is_made_without_being_asked_for(cache: FetchSessionCache) -> None:
    exchange = go_on(cache, 0, -1, "a")
    assert exchange.session_id == 0
    assert topics(exchange) == ["a"]
    assert start(cache).session_id == 0
    assert len(cache) == 0


def test_final_epoch_and_a_new_start_close_the_session(cache: FetchSessionCache) -> None:
    session_id = start(cache, "a").session_id
    assert go_on(cache, session_id, -1, "a").session_id == 0
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(cache, session_id, 1)
    session_id = start(cache, "a").session_id
    renewed = go_on(cache, session_id, 0, "a")
    assert renewed.session_id not in (0, session_id)
    assert len(cache) == 1
    assert cache.partitions_count == 1


def test_a_session_that_forgot_everything_ends(cache: FetchSessionCache) -> None:
    session_id = start(cache, "a").session_id
    assert go_on(cache, session_id, 1, forgotten=(("a", 0),)).session_id == 0
    assert len(cache) == 0


def test_the_epoch_wraps_to_1(cache: FetchSessionCache) -> None:
    exchange = start(cache, "a")
    assert exchange.session is not None
    exchange.session.epoch = 2**31 - 1
    go_on(cache, exchange.session_id, 2**31 - 1)
    assert go_on(cache, exchange.session_id, 1).is_incremental


def test_partitions_that_gave_data_go_to_the_end(cache: FetchSessionCache) -> None:
    exchange = start(cache, "a", "b", "c")
    assert exchange.session is not None
    exchange.session.move_to_end(("a", 0))
    exchange.session.move_to_end(("not there", 0))
    assert topics(go_on(cache, exchange.session_id, 1)) == ["b", "c", "a"]


def test_topic_ids_are_keys_of_their_own() -> None:
    topic_id = uuid.uuid4()
    assert PartitionFetch("", topic_id, 3, 0, 0).key == (topic_id, 3)
    assert PartitionFetch("a", ZERO_UUID, 3, 0, 0).key == ("a", 3)


def test_a_partition_is_told_when_something_changed() -> None:
    fetch = wanted("a")[0]
    assert fetch.must_be_told(5, 0, has_news=False, is_error=False)
    assert not fetch.must_be_told(5, 0, has_news=False, is_error=False)
    assert fetch.must_be_told(5, 0, has_news=True, is_error=False)
    assert fetch.must_be_told(6, 0, has_news=False, is_error=False)
    assert fetch.must_be_told(6, 2, has_news=False, is_error=False)
    # An error is told each time, and so is its end, even where the offsets are those that were told before it.
    assert fetch.must_be_told(6, 2, has_news=False, is_error=True)
    assert fetch.must_be_told(6, 2, has_news=False, is_error=True)
    assert fetch.must_be_told(6, 2, has_news=False, is_error=False)
    assert not fetch.must_be_told(6, 2, has_news=False, is_error=False)


def test_a_full_cache_evicts_the_longest_unused(cache: FetchSessionCache, clock: VirtualClock) -> None:
    old, used = start(cache, "a").session_id, start(cache, "b").session_id
    assert start(cache, "c").session_id == 0
    clock.advance(ms=EVICTION_AGE_MS)
    go_on(cache, used, 1)
    clock.advance(ms=1)
    assert start(cache, "c").session_id > 0
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(cache, old, 1)
    assert go_on(cache, used, 2).is_incremental


def test_larger_sessions_outrank_aged_ones(cache: FetchSessionCache, clock: VirtualClock) -> None:
    small, large = start(cache, "a").session_id, start(cache, "a", "b").session_id
    clock.advance(ms=EVICTION_AGE_MS / 2)
    go_on(cache, small, 1)
    go_on(cache, large, 1)
    clock.advance(ms=EVICTION_AGE_MS / 2 + 1)
    assert start(cache, "x").session_id == 0
    assert start(cache, "x", "y", "z").session_id > 0
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(cache, small, 2)
    assert len(cache) == 2


def test_partitions_in_sessions_are_bounded(cache: FetchSessionCache) -> None:
    assert start(cache, *(str(number) for number in range(11))).session_id == 0
    session_id = start(cache, *(str(number) for number in range(10))).session_id
    assert session_id > 0
    with refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND):
        go_on(cache, session_id, 1, "one too many")
    assert (len(cache), cache.partitions_count) == (0, 0)


def test_a_cache_of_no_slots_serves_without_sessions(clock: VirtualClock) -> None:
    assert start(FetchSessionCache(0, clock), "a").session_id == 0
