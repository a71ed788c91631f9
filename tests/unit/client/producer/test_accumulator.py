"""Batches that wait: when they are opened, when they are ready, in which order they leave, and what memory bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from tidelog.client.errors import ClientError, RecordTooLargeError
from tidelog.client.producer.accumulator import Accumulator, NoRoom, PartitionQueue
from tidelog.client.producer.batch import ProducerBatch, split_records
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import RecordMetadata, TopicPartition
from tidelog.common.clock import VirtualClock
from tidelog.records.kernel import decode_objects

VALUE = b"x" * 90  # 98 bytes as a record, or a little less


class Scene:
    """An accumulator with a turned clock, which counts how often the sender was woken."""

    def __init__(self, **options: object) -> None:
        self.clock = VirtualClock(start_ms=0)
        self.settings = ProducerSettings.read(None, {"batch_size": 1000, "linger_ms": 10, **options})
        self.wakes = 0
        self.leaders = [0, 1, 2]
        self.accumulator = Accumulator(self.settings, self.clock.monotonic_ms, self.wake, lambda _: self.leaders[:])
        self.topic = self.accumulator.set_partitions("t", 3)

    def wake(self) -> None:
        self.wakes += 1

    @property
    def now_ms(self) -> float:
        return self.clock.monotonic_ms()

    def append(
        self, partition: int | None = 0, value: bytes | None = VALUE, key: bytes | None = None
    ) -> DeliveryFuture:
        return self.accumulator.append(self.topic, partition, key, value, None, 0, None)

    def fill(self, count: int, partition: int | None = 0) -> list[DeliveryFuture]:
        return [self.append(partition) for _ in range(count)]

    def queue(self, partition: int = 0) -> PartitionQueue:
        return self.topic.queue(partition)

    def is_ready(self, partition: int = 0) -> bool:
        return self.accumulator.ready_at_ms(self.queue(partition), self.now_ms) <= self.now_ms

    def take(self, partition: int = 0) -> ProducerBatch:
        return self.accumulator.take(self.queue(partition), self.now_ms)

    def done(self, batch: ProducerBatch) -> None:
        self.accumulator.answered(batch)
        batch.deliver(0)
        self.accumulator.release(batch)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def values(batch: ProducerBatch) -> list[bytes | None]:
    assert batch.buffer is not None
    records = decode_objects(bytes(batch.buffer[61 : batch.size]), batch.count, 0, batch.base_timestamp, 0, False)
    return [record.value for record in records]


def test_a_batch_lingers(scene: Scene) -> None:
    scene.append()
    assert scene.wakes == 1
    assert not scene.is_ready()
    assert scene.accumulator.ready_at_ms(scene.queue(), scene.now_ms) == 10
    scene.clock.advance(ms=10)
    assert scene.is_ready()


def test_the_sender_is_not_woken_for_a_time_it_knows(scene: Scene) -> None:
    scene.accumulator.next_look_ms = 5.0
    scene.append()
    assert scene.wakes == 0
    scene.accumulator.next_look_ms = math.inf
    scene.append(partition=1)
    assert scene.wakes == 1


def test_a_full_batch_is_ready_at_once(scene: Scene) -> None:
    scene.fill(9)
    assert not scene.is_ready()
    scene.wakes = 0
    scene.append()
    assert scene.wakes == 2  # one for the full batch, one for the new one's linger
    assert scene.is_ready()
    assert [batch.count for batch in scene.queue().batches] == [9, 1]
    assert [batch.is_open for batch in scene.queue().batches] == [False, True]


@pytest.mark.parametrize("reason", ["wanted", "flush", "memory"])
def test_some_things_end_the_lingering(scene: Scene, reason: str) -> None:
    future = scene.append()
    if reason == "wanted":
        assert isinstance(future.batch, ProducerBatch)
        future.batch.want()
    elif reason == "flush":
        scene.accumulator.is_flushing += 1
    else:
        scene.accumulator.pool.wait_for(10, lambda: None)
    assert scene.is_ready()


def test_a_muted_partition_is_never_ready(scene: Scene) -> None:
    scene.append()
    scene.clock.advance(seconds=1)
    scene.queue().is_muted = True
    assert scene.accumulator.ready_at_ms(scene.queue(), scene.now_ms) == math.inf


def test_taking_closes_the_open_batch(scene: Scene) -> None:
    first = scene.append()
    batch = scene.take()
    assert batch.in_flight
    assert not batch.is_open
    assert scene.queue().in_flight == 1
    assert not scene.accumulator.active
    assert scene.append().batch is not batch
    scene.done(batch)
    assert first.done()
    assert scene.queue().in_flight == 0


def test_records_of_a_partition_leave_in_order(scene: Scene) -> None:
    for number in range(30):
        scene.append(value=b"%02d" % number + VALUE)
    left = []
    while scene.queue().batches:
        left += values(scene.take())
    assert left == [b"%02d" % number + VALUE for number in range(30)]


def test_the_partition_that_was_served_waits_for_its_next_turn(scene: Scene) -> None:
    for partition in (2, 0, 1):
        scene.fill(15, partition)
    assert [queue.topic_partition.partition for queue in scene.accumulator.active] == [2, 0, 1]
    scene.take(2)
    assert [queue.topic_partition.partition for queue in scene.accumulator.active] == [0, 1, 2]


def test_a_retry_goes_before_what_was_never_sent(scene: Scene) -> None:
    scene.fill(20)
    first = scene.take()
    scene.accumulator.answered(first)
    scene.accumulator.put_back(first, scene.now_ms + 100, None)
    assert scene.queue().batches[0] is first
    assert scene.accumulator.ready_at_ms(scene.queue(), scene.now_ms) == 100
    scene.clock.advance(ms=100)
    assert scene.is_ready()


def test_retries_keep_the_order_of_their_sequences(scene: Scene) -> None:
    scene = Scene(batch_growth_max_bytes=0)
    scene.fill(40)
    taken = [scene.take() for _ in range(3)]
    order = {batch: number for number, batch in enumerate(taken)}
    for number, batch in enumerate(taken):
        batch.set_producer(1, 0, number)
    for number in (2, 0, 1):
        scene.accumulator.put_back(taken[number], 0, lambda batch: order[batch])
    assert list(scene.queue().batches)[:3] == taken


def test_batches_that_wait_grow(scene: Scene) -> None:
    scene.fill(40)
    sizes = [batch.size for batch in scene.queue().batches]
    assert len(sizes) == 2
    assert sizes[0] <= 1000 < sizes[1]


def test_batches_grow_to_their_bound_only() -> None:
    scene = Scene(batch_growth_max_bytes=3000)
    scene.fill(100)
    assert [batch.size <= 3000 for batch in scene.queue().batches] == [True] * len(scene.queue().batches)
    assert max(batch.size for batch in scene.queue().batches) > 2500


def test_without_growth_batches_have_the_size_of_kafkas() -> None:
    scene = Scene(batch_growth_max_bytes=0)
    scene.fill(40)
    assert [batch.count for batch in scene.queue().batches] == [9, 9, 9, 9, 4]


def test_memory_is_bounded_and_comes_back() -> None:
    scene = Scene(buffer_memory=3000, batch_growth_max_bytes=0)
    scene.fill(27)
    with pytest.raises(NoRoom) as caught:
        scene.append()
    assert caught.value.size == 1000
    assert scene.accumulator.pool.available_bytes == 0
    scene.done(scene.take())
    assert scene.accumulator.pool.available_bytes == 1000
    scene.append()


def test_a_record_larger_than_a_batch_has_one_of_its_own(scene: Scene) -> None:
    scene.append()
    future = scene.append(value=b"x" * 5000)
    assert future.index == 0
    assert [batch.count for batch in scene.queue().batches] == [1, 1]
    scene.done(scene.take())
    scene.done(scene.take())
    assert scene.accumulator.pool.lent_bytes == 0


def test_records_that_can_never_be_sent_are_refused() -> None:
    scene = Scene(max_request_size=2000, buffer_memory=1500)
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size, 2000"):
        scene.append(value=b"x" * 2000)
    with pytest.raises(RecordTooLargeError, match=r"buffer\.memory, 1500"):
        scene.append(value=b"x" * 1800)


def test_batches_are_never_larger_than_a_request() -> None:
    scene = Scene(batch_size=5000, max_request_size=2000)
    scene.fill(100)
    assert max(batch.size for batch in scene.queue().batches) <= 2000


def test_what_is_too_old_is_taken_out() -> None:
    scene = Scene(delivery_timeout_ms=1000, request_timeout_ms=100)
    scene.append()
    scene.clock.advance(ms=500)
    scene.append(partition=1)
    scene.clock.advance(ms=500)
    (expired,) = scene.accumulator.expired(scene.now_ms)
    assert expired.topic_partition == TopicPartition("t", 0)
    assert [queue.topic_partition.partition for queue in scene.accumulator.active] == [1]
    text = str(scene.accumulator.timeout_error(expired, None))
    assert "1 records to partition t-0" in text
    assert "delivery.timeout.ms, 1000" in text
    assert scene.append().batch is not expired


def test_keyless_records_stay_until_a_batch_is_full_and_then_move(scene: Scene) -> None:
    seen = []
    for _ in range(200):
        future = scene.append(partition=None)
        assert isinstance(future.batch, ProducerBatch)
        seen.append(future.batch.topic_partition.partition)
    runs = [seen[0]] + [after for before, after in itertools.pairwise(seen) if before != after]
    assert set(seen) == {0, 1, 2}
    assert len(runs) <= 200 // 9 + 1


def test_keyless_records_avoid_partitions_without_a_leader(scene: Scene) -> None:
    scene.leaders = [1]
    futures = scene.fill(50, None)
    assert {future.batch.topic_partition.partition for future in futures} == {1}  # type: ignore[attr-defined]
    scene.leaders = []
    assert scene.fill(1, None)


def test_a_topic_that_grows_has_more_queues(scene: Scene) -> None:
    scene.accumulator.set_partitions("t", 5)
    assert scene.append(partition=4).index == 0
    scene.accumulator.set_partitions("t", 3)
    assert scene.topic.partitions == 5


def test_a_topic_made_anew_may_have_fewer_partitions(scene: Scene) -> None:
    gone = scene.append(partition=2)
    scene.append(partition=0)
    scene.accumulator.set_partitions("t", 1, is_new=True)
    assert scene.topic.partitions == 1
    assert scene.accumulator.appender.append("t", VALUE, b"any key", None, None, None) == 1
    assert scene.accumulator.appender.append("t", VALUE, None, None, 2, None) == 0
    scene.leaders = [0, 1, 2]
    assert {future.batch.topic_partition.partition for future in scene.fill(20, None)} == {0}  # type: ignore[attr-defined]
    batch = scene.take(2)  # what was there is still sent, and refused by the broker if the partition is gone
    assert batch is gone.batch
    scene.done(batch)
    scene.accumulator.set_partitions("t", 3)
    assert scene.append(partition=2).index == 0


def test_a_split_batch_keeps_its_records_and_its_waiters(scene: Scene) -> None:
    told: list[int] = []

    def tell(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        assert metadata is not None
        told.append(metadata.offset)

    futures = [
        scene.accumulator.append(scene.topic, 0, b"k%d" % number, VALUE, None, number, tell) for number in range(8)
    ]
    batch = scene.take()
    scene.accumulator.answered(batch)
    scene.accumulator.split(batch, None, None)
    parts = list(scene.queue().batches)
    assert len(parts) > 1
    assert sum(part.count for part in parts) == 8
    assert scene.accumulator.pool.lent_bytes == 0
    offset = 100
    for part in parts:
        scene.take()
        assert not futures[-1].done()
        part.deliver(offset)
        offset += part.count
    assert [future.result(0).offset for future in futures] == list(range(100, 108))
    assert [future.result(0).timestamp for future in futures] == list(range(8))
    assert told == list(range(100, 108))


def test_a_batch_that_was_too_large_does_not_grow_so_far_again(scene: Scene) -> None:
    scene.fill(60)
    scene.take()
    large = scene.take()
    scene.accumulator.answered(large)
    scene.accumulator.split(large, None, None)
    assert scene.queue().growth_max == max(large.size // 2, 1000)


def test_splitting_makes_one_record_a_batch_at_least() -> None:
    batch = ProducerBatch(TopicPartition("t", 0), bytearray(10_000), 10_000, 0.0, lambda: None)
    for _ in range(3):
        batch.append(b"k", b"x" * 2000, None, 1)
    parts = split_records(batch, 1000)
    assert [part.count for part in parts] == [1, 1, 1]


def test_all_can_be_taken_out(scene: Scene) -> None:
    scene.fill(30)
    first = scene.take()
    scene.accumulator.put_back(first, 0, None)
    taken = scene.accumulator.take_all(unsent_only=True)
    assert first not in taken
    assert list(scene.queue().batches) == [first]
    assert scene.accumulator.take_all(unsent_only=False) == [first]
    assert (scene.accumulator.waiting_batches, scene.accumulator.ready_bytes) == (0, 0)


def test_counts_of_what_waits_add_up(scene: Scene) -> None:
    def check() -> None:
        waiting = [batch for queue in scene.accumulator.active for batch in queue.batches]
        assert scene.accumulator.waiting_batches == len(waiting)
        assert scene.accumulator.ready_bytes == sum(batch.size for batch in waiting if not batch.is_open)

    steps: list[Callable[[], object]] = [
        lambda: scene.fill(25, 0),
        lambda: scene.fill(12, 1),
        lambda: scene.accumulator.put_back(scene.take(0), 0, None),
        lambda: scene.take(1),
        lambda: scene.accumulator.split(scene.take(0), None, None),
        lambda: scene.accumulator.take_queue(scene.queue(0)),
        lambda: scene.take(1),
    ]
    for step in steps:
        step()
        check()
