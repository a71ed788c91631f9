from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

from tidelog.client.cluster import TopicPartition
from tidelog.client.consume import BEGINNING, END, Consumer, Start
from tidelog.client.errors import BrokerError, InvalidResponseError
from tidelog.client.produce import Producer
from tidelog.protocol import ErrorCode
from tidelog.records import ControlRecordType, encode_control_batch

if TYPE_CHECKING:
    from tests.unit.client.conftest import Fake

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def filled(make_fake: Callable[..., Fake]) -> Fake:
    """Ten records in each of two partitions, three a batch; record n of a partition has timestamp 100 * n."""
    fake = make_fake()
    with Producer(fake.cluster, batch_bytes=40) as producer:
        for number in range(10):
            for partition in range(2):
                producer.send("t", b"%d" % number, partition=partition, timestamp_ms=100 * number)
    return fake


def read(fake: Fake, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, list[int]]:
    consumer = Consumer(fake.cluster)
    consumer.assign(starts, stop_at_end=True)
    offsets: dict[TopicPartition, list[int]] = {key: [] for key in starts}
    for topic_partition, records in consumer:
        offsets[topic_partition] += [record.offset for record in records]
    return offsets


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (BEGINNING, 0),
        (END, 10),
        (Start(offset=0), 0),
        (Start(offset=4), 4),
        (Start(offset=10), 10),
        (Start(offset=-3), 7),
        (Start(offset=-99), 0),
        (Start(timestamp=450), 5),
        (Start(timestamp=500), 5),
        (Start(timestamp=99_999), 10),
    ],
)
def test_starts_where_it_is_told(filled: Fake, start: Start, first: int) -> None:
    expected = list(range(first, 10))
    assert read(filled, {P0: start, P1: start}) == {P0: expected, P1: expected}


def test_stops_at_the_end_as_it_was_at_the_start(filled: Fake) -> None:
    consumer = Consumer(filled.cluster)
    consumer.assign({P0: BEGINNING}, stop_at_end=True)
    with Producer(filled.cluster) as producer:
        producer.send("t", b"late", partition=0)
    assert sum(len(records) for _, records in consumer) == 10


def test_follows_a_partition(filled: Fake) -> None:
    consumer = Consumer(filled.cluster)
    consumer.assign({P0: END})
    assert consumer.poll() is None
    with Producer(filled.cluster) as producer:
        producer.send("t", b"new", partition=0)
    fetched = consumer.poll()
    assert fetched is not None
    assert fetched.topic_partition == P0
    assert [record.value for record in fetched.records] == [b"new"]
    assert consumer.position(P0) == 11
    assert not consumer.is_done


def test_passes_over_control_records(filled: Fake) -> None:
    marker = encode_control_batch(
        ControlRecordType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=10
    )
    filled.broker.batches[0] += marker
    filled.broker.logs[0].append(filled.broker.logs[0][-1])  # the marker takes an offset
    assert read(filled, {P0: BEGINNING}) == {P0: list(range(10))}


def test_names_the_range_for_an_offset_that_is_not_there(filled: Fake) -> None:
    consumer = Consumer(filled.cluster)
    consumer.assign({P0: Start(offset=11)})
    assert consumer.poll() is None
    with pytest.raises(BrokerError, match="no offset 11; it holds 0 up to 10"):
        consumer.poll()


def test_one_partitions_passing_error_costs_the_other_no_records(filled: Fake) -> None:
    filled.broker.fetch_errors = deque([ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
    assert read(filled, {P0: BEGINNING, P1: BEGINNING}) == {P0: list(range(10)), P1: list(range(10))}


def collect(consumer: Consumer, into: list[int]) -> None:
    for _, records in consumer:
        into += [record.offset for record in records]


def test_records_are_handed_out_before_the_error_of_another_partition(filled: Fake) -> None:
    filled.broker.fetch_errors = deque([ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
    consumer = Consumer(filled.cluster)
    consumer.assign({P0: BEGINNING, P1: BEGINNING})
    offsets: list[int] = []
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        collect(consumer, offsets)
    assert offsets == list(range(10))


def test_gives_up_on_errors_that_do_not_pass(filled: Fake) -> None:
    filled.broker.fetch_errors = deque([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 10_000)
    consumer = Consumer(filled.cluster, patience_s=10)
    consumer.assign({P0: BEGINNING})
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        collect(consumer, [])
    assert 10 < filled.cluster.monotonic() < 15


def test_a_damaged_batch_is_named_after_what_is_before_it_was_given_out(filled: Fake) -> None:
    filled.broker.batches[0][-1] ^= 0xFF
    consumer = Consumer(filled.cluster)
    consumer.assign({P0: BEGINNING})
    offsets: list[int] = []
    with pytest.raises(InvalidResponseError, match="partition t-0 holds a damaged batch at or after offset"):
        collect(consumer, offsets)
    assert 0 < len(offsets) < 10
    assert offsets == list(range(len(offsets)))
    with pytest.raises(InvalidResponseError, match=f"offset {len(offsets)}"):
        collect(consumer, offsets)
