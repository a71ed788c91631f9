"""Sequences and epochs of an idempotent producer."""

from __future__ import annotations

import pytest

from tidelog.client.producer.batch import SEQUENCE_MASK, ProducerBatch
from tidelog.client.producer.idempotence import EPOCH_MAX, Idempotence
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def batch_of(records: int, topic_partition: TopicPartition = TP) -> ProducerBatch:
    batch = ProducerBatch(topic_partition, bytearray(2000), 2000, 0.0, lambda: None)
    for _ in range(records):
        batch.append(None, b"v", None, 0)
    batch.close()
    return batch


def sent(idempotence: Idempotence, *sizes: int, topic_partition: TopicPartition = TP) -> list[ProducerBatch]:
    batches = [batch_of(size, topic_partition) for size in sizes]
    for batch in batches:
        idempotence.number(batch)
        batch.in_flight = True
    return batches


@pytest.fixture
def idempotence() -> Idempotence:
    made = Idempotence()
    made.set_producer_id(1000, 0)
    return made


def test_batches_are_numbered_by_their_records(idempotence: Idempotence) -> None:
    batches = sent(idempotence, 3, 2, 1)
    assert [batch.base_sequence for batch in batches] == [0, 3, 5]
    (other,) = sent(idempotence, 1, topic_partition=OTHER)
    assert other.base_sequence == 0
    idempotence.number(batches[0])
    assert batches[0].base_sequence == 0


def test_sequences_start_over_after_the_largest(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 4)
    idempotence.on_delivered(first, 0)
    idempotence._partitions[TP].next_sequence = SEQUENCE_MASK - 1
    idempotence._partitions[TP].last_acked_sequence = SEQUENCE_MASK - 2
    batches = sent(idempotence, 4, 1)
    assert [batch.base_sequence for batch in batches] == [SEQUENCE_MASK - 1, 2]
    assert batches[0].last_sequence == 1
    idempotence.on_delivered(batches[0], 100)
    assert idempotence._partitions[TP].last_acked_sequence == 1
    assert idempotence._partitions[TP].is_next(batches[1].base_sequence)


def test_nothing_overtakes_the_first_batch_of_an_epoch(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    later = batch_of(1)
    assert not idempotence.may_send(later)
    idempotence.on_delivered(first, 0)
    assert idempotence.may_send(later)


def test_a_retry_waits_for_older_ones(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 1, 1)
    for batch in (first, second):
        batch.in_flight = False
    assert not idempotence.may_send(second)
    assert idempotence.may_send(first)
    idempotence.on_delivered(first, 0)
    assert idempotence.may_send(second)


def test_a_batch_behind_a_failed_one_is_sent_again(idempotence: Idempotence) -> None:
    _, second = sent(idempotence, 1, 1)
    assert idempotence.may_retry(second, OUT_OF_ORDER, -1)
    assert not idempotence.needs_epoch_bump


def test_a_gap_where_none_can_be_makes_a_new_epoch(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 2, 3)
    assert idempotence.may_retry(first, OUT_OF_ORDER, -1)
    assert idempotence.needs_epoch_bump
    assert not idempotence.can_bump_epoch  # the second is still on its way under the old numbers
    assert not idempotence.may_send(batch_of(1))
    first.in_flight = second.in_flight = False
    assert idempotence.can_bump_epoch
    idempotence.bump_epoch()
    assert (idempotence.producer_id, idempotence.producer_epoch) == (1000, 1)
    assert [(batch.producer_epoch, batch.base_sequence) for batch in (first, second)] == [(1, 0), (1, 2)]
    assert first.sequence_was_reset
    assert idempotence.may_send(first)


def test_other_partitions_take_the_new_epoch_when_nothing_is_under_way(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    (other,) = sent(idempotence, 1, topic_partition=OTHER)
    idempotence.on_delivered(other, 0)
    (other,) = sent(idempotence, 1, topic_partition=OTHER)
    first.in_flight = False
    idempotence.on_failed(first, may_be_stored=False)
    idempotence.bump_epoch()
    following = batch_of(1, OTHER)
    assert not idempotence.may_send(following)
    idempotence.on_delivered(other, 1)
    assert idempotence.may_send(following)
    idempotence.number(following)
    assert (following.producer_epoch, following.base_sequence) == (1, 0)


def test_the_last_epoch_gives_the_producer_id_up(idempotence: Idempotence) -> None:
    idempotence.set_producer_id(1000, EPOCH_MAX)
    (first,) = sent(idempotence, 1)
    first.in_flight = False
    idempotence.may_retry(first, OUT_OF_ORDER, -1)
    idempotence.bump_epoch()
    assert not idempotence.has_producer_id
    idempotence.set_producer_id(2000, 0)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (2000, 0, 0)
    assert idempotence.may_send(first)


def test_a_forgotten_producer_starts_over_when_its_records_are_gone(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    idempotence.on_delivered(first, 10)
    (second,) = sent(idempotence, 1)
    assert idempotence.may_retry(second, ErrorCode.UNKNOWN_PRODUCER_ID, 50)
    assert (second.base_sequence, idempotence.needs_epoch_bump) == (0, False)


def test_a_forgotten_producer_whose_records_are_there_needs_an_epoch(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    idempotence.on_delivered(first, 10)
    (second,) = sent(idempotence, 1)
    assert idempotence.may_retry(second, ErrorCode.UNKNOWN_PRODUCER_ID, 5)
    assert idempotence.needs_epoch_bump


def test_a_batch_given_up_under_way_is_resolved_when_nothing_is_left(idempotence: Idempotence) -> None:
    first, second = sent(idempotence, 1, 1)
    idempotence.on_failed(first, may_be_stored=True)
    assert idempotence.resolve() == []
    assert not idempotence.may_send(batch_of(1))
    idempotence.on_delivered(second, 1)  # so the first was stored after all
    assert idempotence.resolve() == []
    assert not idempotence.needs_epoch_bump
    assert idempotence.may_send(batch_of(1))


def test_a_gap_that_may_have_stayed_makes_a_new_epoch(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    idempotence.on_failed(first, may_be_stored=True)
    assert idempotence.resolve() == [TP]
    assert idempotence.needs_epoch_bump
    idempotence.bump_epoch()
    (second,) = sent(idempotence, 1)
    assert (second.producer_epoch, second.base_sequence) == (1, 0)


def test_a_transaction_closes_the_gap_of_a_refused_batch() -> None:
    idempotence = Idempotence(is_transactional=True)
    idempotence.set_producer_id(1000, 0)
    _, second, third = sent(idempotence, 2, 3, 4)
    idempotence.on_failed(second, may_be_stored=False)
    assert third.base_sequence == 2
    (fourth,) = sent(idempotence, 1)
    assert fourth.base_sequence == 6
    assert not idempotence.needs_epoch_bump


def test_a_transaction_with_a_gap_needs_a_new_epoch() -> None:
    idempotence = Idempotence(is_transactional=True)
    idempotence.set_producer_id(1000, 0)
    (first,) = sent(idempotence, 1)
    assert not idempotence.may_retry(first, OUT_OF_ORDER, -1)
    idempotence.on_failed(first, may_be_stored=True)
    assert idempotence.resolve() == [TP]
    assert idempotence.needs_epoch_bump


def test_the_parts_of_a_split_batch_share_its_sequences(idempotence: Idempotence) -> None:
    whole, behind = sent(idempotence, 5, 1)
    parts = [batch_of(2), batch_of(3)]
    idempotence.replace(whole, parts)
    assert [part.base_sequence for part in parts] == [0, 2]
    assert [idempotence.order_of(batch) for batch in (*parts, behind)] == [0, 1, 2]
    assert idempotence.may_send(parts[0])
    assert not idempotence.may_send(parts[1])


def test_other_errors_are_retried_by_their_own_table(idempotence: Idempotence) -> None:
    (first,) = sent(idempotence, 1)
    assert idempotence.may_retry(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert not idempotence.may_retry(first, ErrorCode.INVALID_RECORD, -1)
