"""Produce and Fetch that name so many partitions that they are handled in steps: the answers are the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.broker.partition import Partition, PartitionRead
from tidelog.log import NotInMemoryError
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient

    from tidelog.testing import Broker

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]

PARTITIONS = 300


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(PARTITIONS)


def fetch_of_all(topic: str, *, offset: int = 0, max_wait_ms: int = 0, max_bytes: int = 1 << 30) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index in reversed(range(PARTITIONS))
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


def sizes(response: FetchResponse) -> list[tuple[int, int]]:
    found = []
    for topic in response.responses:
        for data in topic.partitions:
            assert data.error_code == 0
            assert isinstance(data.records, memoryview)
            found.append((data.partition_index, len(data.records)))
    return found


def produce_to_all(raw: RawClient, topic: str, batch: bytearray, **how: Any) -> list[tuple[int, int, int]]:
    answer = raw.produce_many({(topic, index): batch for index in range(PARTITIONS)}, **how)
    [rows] = answer.responses
    return [(row.index, row.error_code, row.base_offset) for row in rows.partition_responses]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        time.sleep(0.002)


def waiting(broker: Broker, topic: str, partition: int) -> int:
    replicas = broker.server.services.replicas
    return replicas.waiting(replicas.find(topic, partition))


def test_all_is_appended_and_read_in_the_order_asked_for(raw: RawClient, topic: str, batch: MakeBatch) -> None:
    one = batch(b"a")
    assert produce_to_all(raw, topic, one) == [(index, 0, 0) for index in range(PARTITIONS)]
    assert produce_to_all(raw, topic, one, acks=1) == [(index, 0, 1) for index in range(PARTITIONS)]
    response = raw.fetch_many(fetch_of_all(topic))
    assert sizes(response) == [(index, 2 * len(one)) for index in reversed(range(PARTITIONS))]


def test_the_limit_of_bytes_holds_for_all_partitions_together(raw: RawClient, topic: str, batch: MakeBatch) -> None:
    one = batch(b"a" * 100)
    produce_to_all(raw, topic, one)
    given = sizes(raw.fetch_many(fetch_of_all(topic, max_bytes=150 * len(one))))
    assert [size for _, size in given] == [len(one)] * 150 + [0] * (PARTITIONS - 150)
    # The first batch is given whole, however small the limit.
    given = sizes(raw.fetch_many(fetch_of_all(topic, max_bytes=1)))
    assert [size for _, size in given] == [len(one)] + [0] * (PARTITIONS - 1)


@pytest.mark.parametrize("partition", [0, PARTITIONS - 1])
def test_a_long_poll_is_woken_by_any_partition(
    raw: RawClient, broker: Broker, connect: Callable[[Broker], RawClient], topic: str, batch: MakeBatch, partition: int
) -> None:
    asked = raw.send(FETCH, 12, fetch_of_all(topic, max_wait_ms=60_000))
    wait_until(lambda: all(waiting(broker, topic, index) for index in (0, PARTITIONS - 1)))
    one = batch(b"a")
    connect(broker).produce(topic, one, partition=partition)
    answer = raw.receive(FETCH, 12, asked, FetchResponse)
    assert dict(sizes(answer)) == {index: len(one) * (index == partition) for index in range(PARTITIONS)}
    assert not waiting(broker, topic, 0)


def test_a_long_poll_ends_when_its_time_is_over(raw: RawClient, broker: Broker, topic: str) -> None:
    assert dict(sizes(raw.fetch_many(fetch_of_all(topic, max_wait_ms=20)))) == dict.fromkeys(range(PARTITIONS), 0)
    assert not waiting(broker, topic, 0)


def test_a_long_poll_leaves_with_its_connection(
    raw: RawClient, broker: Broker, connect: Callable[[Broker], RawClient], topic: str
) -> None:
    other = connect(broker)
    other.send(FETCH, 12, fetch_of_all(topic, max_wait_ms=600_000))
    wait_until(lambda: bool(waiting(broker, topic, 0)))
    other.reset()
    wait_until(lambda: not any(waiting(broker, topic, index) for index in range(PARTITIONS)))


class _ColdError(NotInMemoryError):
    def bring_in(self) -> None:
        pass


def test_what_is_on_disk_only_is_read_once_it_is_in_memory(
    raw: RawClient, topic: str, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = batch(b"a")
    produce_to_all(raw, topic, one)
    read = Partition.read
    tried: Counter[Partition] = Counter()

    def read_when_warm(partition: Partition, *args: Any, in_memory: bool = False, **more: Any) -> PartitionRead:
        tried[partition] += 1
        if in_memory and tried[partition] == 1:
            raise _ColdError
        return read(partition, *args, in_memory=in_memory, **more)

    monkeypatch.setattr(Partition, "read", read_when_warm)
    assert dict(sizes(raw.fetch_many(fetch_of_all(topic)))) == dict.fromkeys(range(PARTITIONS), len(one))
    # Each goes on where it stopped: what was read before is not read again.
    assert set(tried.values()) == {2}


def test_a_session_of_many_partitions_tells_what_changed(raw: RawClient, topic: str, batch: MakeBatch) -> None:
    first = fetch_of_all(topic)
    first.session_epoch = 0
    answer = raw.fetch_many(first)
    assert answer.session_id
    assert len(sizes(answer)) == PARTITIONS
    one = batch(b"a")
    raw.produce(topic, one, partition=7)
    request = FetchRequest(session_id=answer.session_id, session_epoch=1, min_bytes=1, max_bytes=1 << 30)
    assert sizes(raw.fetch_many(request)) == [(7, len(one))]


def test_later_produces_do_not_overtake(raw: RawClient, topic: str, batch: MakeBatch) -> None:
    one, last = batch(b"a"), PARTITIONS - 1
    rows = [PartitionProduceData(index=index, records=one) for index in range(PARTITIONS)]
    large = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=rows)])
    small = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=rows[-1:])]
    )
    asked = [raw.send(PRODUCE, 9, request) for request in (large, small, large, small)]
    answers = [raw.receive(PRODUCE, 9, number, ProduceResponse) for number in asked]
    ends = [answer.responses[0].partition_responses[-1] for answer in answers]
    assert [(end.index, end.error_code, end.base_offset) for end in ends] == [(last, 0, n) for n in range(4)]


def test_each_partition_fails_on_its_own(raw: RawClient, topic: str, batch: MakeBatch) -> None:
    one = batch(b"a")
    batches = {(topic, index): one for index in range(PARTITIONS + 1)}
    [rows] = raw.produce_many(batches).responses
    errors = [row.error_code for row in rows.partition_responses]
    assert errors == [0] * PARTITIONS + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_failure_without_acknowledgement_closes_the_connection(
    raw: RawClient, broker: Broker, connect: Callable[[Broker], RawClient], topic: str, batch: MakeBatch
) -> None:
    rows = [PartitionProduceData(index=index, records=batch(b"a")) for index in range(PARTITIONS + 1)]
    topics = [TopicProduceData(name=topic, partition_data=rows)]
    other = connect(broker)
    other.send(PRODUCE, 9, ProduceRequest(acks=0, timeout_ms=10_000, topic_data=topics))
    assert other.is_closed_by_broker()
    # What came before the failure is there, and nothing is held for the connection any more.
    assert raw.fetch(topic, 0, partition=PARTITIONS - 1).high_watermark == 1
