from __future__ import annotations

import pytest

from tidelog.client.batches import SEQUENCE_COUNT, Batch, PartitionQueue, record_size_bytes
from tidelog.client.cluster import TopicPartition
from tidelog.protocol import ErrorCode


@pytest.fixture
def queue() -> PartitionQueue:
    """Six batches of two records; the first is acknowledged, so that others may be sent together."""
    queue = PartitionQueue(TopicPartition("t", 0))
    for number in range(12):
        queue.add((None, b"%d" % number, (), 0), 10, 20, now_s=0)
    first = queue.next_to_send(5, 0)
    assert first is not None
    queue.acknowledged(first)
    return queue


def send(queue: PartitionQueue, count: int, now_s: float = 0) -> list[Batch]:
    sent = []
    for _ in range(count):
        batch = queue.next_to_send(5, now_s)
        assert batch is not None
        batch.in_flight = True
        sent.append(batch)
    return sent


def test_nothing_overtakes_the_first_batch_of_a_producer() -> None:
    queue = PartitionQueue(TopicPartition("t", 0))
    for number in range(4):
        assert queue.add((None, b"%d" % number, (), 0), 10, 10, now_s=0)
    [first] = send(queue, 1)
    assert queue.next_to_send(5, 0) is None
    queue.acknowledged(first)
    assert [batch.base_sequence for batch in send(queue, 3)] == [1, 2, 3]


def test_sequences_follow_one_another(queue: PartitionQueue) -> None:
    assert [batch.base_sequence for batch in send(queue, 5)] == [2, 4, 6, 8, 10]
    assert queue.next_to_send(5, 0) is None


def test_after_a_failure_all_under_way_are_awaited_then_sent_again_one_by_one(queue: PartitionQueue) -> None:
    one, two, three = send(queue, 3)
    one.attempts += 1
    queue.failed_for_now(one, retry_at_s=7)
    assert queue.next_to_send(5, 10) is None
    queue.acknowledged(two)
    queue.failed_for_now(three, retry_at_s=5)
    assert queue.next_to_send(5, 6) is None
    assert send(queue, 1, now_s=7) == [one]
    assert queue.next_to_send(5, 10) is None
    queue.acknowledged(one)
    assert send(queue, 1, now_s=7) == [three]


def test_halves_keep_their_place_and_numbers(queue: PartitionQueue) -> None:
    one, two = send(queue, 2)
    queue.split(one)
    queue.failed_for_now(two, 0)
    assert [(batch.base_sequence, len(batch.records)) for batch in queue.batches][:3] == [(2, 1), (3, 1), (4, 2)]
    assert sum(batch.size_bytes for batch in list(queue.batches)[:2]) == 2 * record_size_bytes(None, b"2", ())


def test_a_gap_is_told_from_a_batch_out_of_turn(queue: PartitionQueue) -> None:
    one, two = send(queue, 2)
    assert queue.is_out_of_turn(two, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not queue.is_out_of_turn(one, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not queue.is_out_of_turn(two, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_renumbering_starts_from_0_and_alone(queue: PartitionQueue) -> None:
    queue.renumber()
    assert [batch.base_sequence for batch in queue.batches] == [0, 2, 4, 6, 8]
    send(queue, 1)
    assert queue.next_to_send(5, 0) is None


def test_sequences_wrap(queue: PartitionQueue) -> None:
    batch = next(iter(queue.batches))
    batch.base_sequence = SEQUENCE_COUNT - 1
    queue.split(batch)
    assert [half.base_sequence for half in list(queue.batches)[:2]] == [SEQUENCE_COUNT - 1, 0]


def test_a_record_too_large_for_the_open_batch_gets_its_own() -> None:
    queue = PartitionQueue(TopicPartition("t", 0))
    assert not queue.add((None, b"a", (), 0), 10, 100, now_s=0)
    assert queue.add((None, b"b", (), 0), 500, 100, now_s=0)
    assert [len(batch.records) for batch in queue.batches] == [1, 1]
    assert queue.open_batch is None
    assert not queue.close_batch()
