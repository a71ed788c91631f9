from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.client.batches import Batch
from tidelog.client.errors import BrokerError, ClientError, NoSuchPartitionError
from tidelog.client.produce import Producer
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tests.unit.client.conftest import Fake

RETRIABLE = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]


def values(fake: Fake, partition: int) -> list[bytes | None]:
    return [record.value for record in fake.broker.logs.get(partition, [])]


def test_delivers_in_order_to_the_partition_of_the_key(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake(partitions=3)
    with Producer(fake.cluster, batch_bytes=100) as producer:
        for number in range(50):
            producer.send("t", b"%d" % number, key=b"same", headers=[("h", b"1")], timestamp_ms=number)
    logs = [log for log in fake.broker.logs.values() if log]
    assert len(logs) == 1
    assert [record.value for record in logs[0]] == [b"%d" % number for number in range(50)]
    assert [record.timestamp for record in logs[0]] == list(range(50))
    assert logs[0][0].headers == (("h", b"1"),)
    assert producer.delivery.delivered_records == producer.delivery.queued_records == 50
    assert producer.delivery.delivered_bytes == 50 * 4 + 10 + 80


def test_keyless_records_fill_batches_of_one_partition_after_another(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake(partitions=4)
    with Producer(fake.cluster, batch_bytes=200) as producer:
        for number in range(400):
            producer.send("t", b"%03d" % number)
    assert sum(len(values(fake, partition)) for partition in range(4)) == 400
    assert all(values(fake, partition) for partition in range(4))
    assert producer.delivery.requests < 60


def test_acks_0_counts_what_was_sent(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake()
    with Producer(fake.cluster, acks=0) as producer:
        producer.send("t", b"x", partition=1)
    assert producer.delivery.delivered_records == 1
    assert values(fake, 1) == [b"x"]


def test_null_and_empty_values_stay_apart(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake()
    with Producer(fake.cluster) as producer:
        producer.send("t", None, key=b"k", partition=0)
        producer.send("t", b"", partition=0)
    assert [(record.key, record.value) for record in fake.broker.logs[0]] == [(b"k", None), (None, b"")]


def test_refuses_a_wrong_topic_or_partition_at_once(make_fake: Callable[..., Fake]) -> None:
    producer = Producer(make_fake().cluster)
    with pytest.raises(NoSuchPartitionError, match="tidelog topics create other"):
        producer.send("other", b"x")
    with pytest.raises(NoSuchPartitionError, match="no partition 7; it has 0 to 1"):
        producer.send("t", b"x", partition=7)


def test_idempotence_needs_acks_all(make_fake: Callable[..., Fake]) -> None:
    with pytest.raises(ValueError, match="acks=all"):
        Producer(make_fake().cluster, acks=1, idempotent=True)


def test_a_batch_too_large_is_sent_in_halves_and_a_record_too_large_fails_alone(make_fake: Callable[..., Fake]) -> None:
    failed: list[tuple[int, ClientError]] = []

    def on_failure(batch: Batch, error: ClientError) -> None:
        failed.append((len(batch.records), error))

    fake = make_fake(batch_bytes_max=400)
    with Producer(fake.cluster, idempotent=True, batch_bytes=2000, on_failure=on_failure) as producer:
        for number in range(60):
            producer.send("t", b"x" * 1000 if number == 20 else b"%02d" % number, partition=0)
    assert values(fake, 0) == [b"%02d" % number for number in range(60) if number != 20]
    assert len(failed) == 1
    assert failed[0][0] == 1
    assert isinstance(failed[0][1], BrokerError)
    assert failed[0][1].code is ErrorCode.MESSAGE_TOO_LARGE
    assert producer.delivery.failed_records == 1
    assert producer.delivery.delivered_records == 59


def test_gives_up_when_the_delivery_timeout_is_over(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake(faults=deque([ErrorCode.NOT_ENOUGH_REPLICAS] * 10_000))
    with Producer(fake.cluster, delivery_timeout_s=20) as producer:
        producer.send("t", b"x", partition=0)
    assert producer.delivery.failed_records == 1
    assert producer.delivery.retries > 3
    assert isinstance(producer.delivery.first_error, BrokerError)
    assert 20 <= fake.cluster.monotonic() < 25


def test_the_buffer_is_bounded(make_fake: Callable[..., Fake]) -> None:
    fake = make_fake()
    producer = Producer(fake.cluster, batch_bytes=10_000, buffer_bytes=20_000)
    for _ in range(500):
        producer.send("t", b"x" * 100, partition=0)
        assert producer.delivery.queued_records - producer.delivery.delivered_records < 250
    producer.flush()
    assert producer.delivery.delivered_records == 500


def test_nothing_overtakes_a_batch_that_may_be_stored(make_fake: Callable[..., Fake]) -> None:
    # The second batch is stored but its answer is lost, and a repeat is refused while four others pass it. Were more
    # sent then, the broker would not know it among its last five any more and take the next repeat for a gap.
    faults = [None, "lose", None, None, None, None, ErrorCode.NOT_ENOUGH_REPLICAS, "lose"]
    fake = make_fake(faults=deque(faults))
    with Producer(fake.cluster, idempotent=True, batch_bytes=10) as producer:
        for number in range(30):
            producer.send("t", b"%d" % number, partition=0)
    assert values(fake, 0) == [b"%d" % number for number in range(30)]
    assert producer.delivery.failed_records == 0


FAULTS = st.lists(st.sampled_from([None, None, "lose", "drop", *RETRIABLE]), max_size=40)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, records=st.integers(1, 60), batch_bytes=st.integers(20, 200), data=st.data())
def test_idempotent_delivery_is_exactly_once_and_in_order_whatever_fails(
    make_fake: Callable[..., Fake],
    faults: list[ErrorCode | str | None],
    records: int,
    batch_bytes: int,
    data: st.DataObject,
) -> None:
    fake = make_fake(faults=deque(faults))
    with Producer(fake.cluster, idempotent=True, batch_bytes=batch_bytes) as producer:
        for number in range(records):
            producer.send("t", b"%d" % number, partition=number % 2)
            if data.draw(st.booleans()):
                producer.flush()
    for partition in range(2):
        assert values(fake, partition) == [b"%d" % number for number in range(records) if number % 2 == partition]
    assert producer.delivery.delivered_records == records


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS, records=st.integers(1, 60), batch_bytes=st.integers(20, 200))
def test_without_idempotence_nothing_is_lost_or_reordered(
    make_fake: Callable[..., Fake], faults: list[ErrorCode | str | None], records: int, batch_bytes: int
) -> None:
    fake = make_fake(faults=deque(faults))
    with Producer(fake.cluster, batch_bytes=batch_bytes) as producer:
        for number in range(records):
            producer.send("t", b"%d" % number, partition=number % 2)
    assert producer.delivery.delivered_records == records
    for partition in range(2):
        # A batch whose answer was lost may stand twice; the first of each keeps the order.
        firsts = list(dict.fromkeys(values(fake, partition)))
        assert firsts == [b"%d" % number for number in range(records) if number % 2 == partition]
