"""The small parts of a producer: memory, partitioners, interceptors, settings, batches and their futures."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import threading
from collections import Counter

import pytest

from tidelog.client.errors import BrokerError, ClientError, ConfigError, RequestTimeoutError
from tidelog.client.producer.arrow_rows import RowsFuture
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.buffer_pool import BufferPool
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.interceptors import InterceptorChain, ProducerRecord
from tidelog.client.producer.partitioners import PartitionLoad, RoundRobinPartitioner, StickyChoice
from tidelog.client.producer.settings import PRODUCER_TABLE, ProducerOptions, ProducerSettings
from tidelog.client.types import RecordMetadata, TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.records.batch import Compression
from tidelog.records.codec import decode_records, encode_batch
from tidelog.records.kernel_build import TopicSlots

TP = TopicPartition("t", 3)


# Memory


def test_a_pool_lends_up_to_its_bound_and_reuses() -> None:
    pool = BufferPool(1000)
    first, second = pool.lend(400), pool.lend(400)
    assert first is not None
    assert second is not None
    assert pool.lend(400) is None
    pool.give_back(first, keep=True)
    assert pool.available_bytes == 600
    assert pool.lend(400) is first


def test_kept_buffers_make_way_for_other_sizes() -> None:
    pool = BufferPool(1000)
    kept = [pool.lend(250) for _ in range(4)]
    for buffer in kept:
        assert buffer is not None
        pool.give_back(buffer, keep=True)
    assert pool._free_bytes == 1000
    assert pool.lend(600) is not None
    assert pool._free_bytes <= 400


def test_those_who_wait_for_memory_are_woken_in_order() -> None:
    pool = BufferPool(1000)
    lent = [pool.lend(500), pool.lend(500)]
    woken: list[str] = []
    pool.wait_for(600, lambda: woken.append("large"))
    pool.wait_for(100, lambda: woken.append("small"))
    pool.give_back(lent[0], keep=False)  # type: ignore[arg-type]  # both were lent
    pool.wake_waiters()
    assert woken == []  # nobody overtakes the one who came first
    pool.give_back(lent[1], keep=False)  # type: ignore[arg-type]
    pool.wake_waiters()
    assert woken == ["large", "small"]
    assert not pool.has_waiters


def test_waiters_are_woken_once_a_portion_is_free() -> None:
    pool = BufferPool(1000)
    lent = [pool.lend(100) for _ in range(10)]
    woken: list[int] = []
    waiter = pool.wait_for(100, lambda: woken.append(1))
    for buffer in lent[:4]:
        pool.give_back(buffer, keep=True)  # type: ignore[arg-type]
    pool.wake_waiters(at_least=500)
    assert woken == []
    pool.forget(waiter)
    pool.forget(waiter)
    pool.wake_waiters()
    assert woken == []


# Partitioners


def test_round_robin_takes_turns() -> None:
    partitioner = RoundRobinPartitioner()
    chosen = [partitioner.partition("t", None, None, 3) for _ in range(9)]
    assert Counter(chosen) == {0: 3, 1: 3, 2: 3}
    assert all((after - before) % 3 == 1 for before, after in itertools.pairwise(chosen))


def test_a_sticky_choice_is_due_after_a_batch() -> None:
    slots = TopicSlots(2, True, True)
    choice = StickyChoice(slots, 100)
    assert choice.is_due
    choice.move([PartitionLoad(1, 0)])
    assert not choice.is_due
    assert slots.sticky_partition == 1
    slots.note_sticky(100)
    assert choice.is_due


def test_the_longer_a_queue_the_less_likely_it_is_chosen() -> None:
    choice = StickyChoice(TopicSlots(3, True, True), 100, random.Random(7))
    loads = [PartitionLoad(0, 0), PartitionLoad(1, 3), PartitionLoad(2, 1)]
    counts = Counter(choice.pick(loads) for _ in range(8000))
    # Kafka's example: of 8 chances 4 are for the empty queue, 1 for that of three batches, 3 for the one between.
    assert counts[0] == pytest.approx(4000, rel=0.1)
    assert counts[1] == pytest.approx(1000, rel=0.2)
    assert counts[2] == pytest.approx(3000, rel=0.1)


def test_equal_queues_are_chosen_alike() -> None:
    choice = StickyChoice(TopicSlots(4, True, True), 100, random.Random(7))
    counts = Counter(choice.pick([PartitionLoad(number, 5) for number in range(4)]) for _ in range(8000))
    assert min(counts.values()) > 1800


# Interceptors


class Shouting:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value.upper())


class Broken:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("no")

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        raise RuntimeError("no")


class Marking:
    def __init__(self) -> None:
        self.told: list[RecordMetadata | None] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + b"!")

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        self.told.append(metadata)


def test_interceptors_run_in_order_past_those_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    marking = Marking()
    chain = InterceptorChain([Shouting(), Broken(), marking])  # type: ignore[list-item]  # a method may be missing
    assert chain.on_send(ProducerRecord("t", b"hey")).value == b"HEY!"
    metadata = RecordMetadata("t", 0, 1, 2, 3, 4)
    with caplog.at_level(logging.ERROR):
        chain.on_acknowledgement(metadata, None)
    assert marking.told == [metadata]
    assert "Broken.on_acknowledgement failed" in caplog.text


# Settings


def test_kafkas_defaults() -> None:
    settings = ProducerSettings.read(None, {})
    assert (settings.batch_size, settings.linger_ms, settings.buffer_memory) == (16_384, 5, 33_554_432)
    assert (settings.acks, settings.enable_idempotence, settings.max_in_flight) == (-1, True, 5)
    assert (settings.max_block_s, settings.delivery_timeout_ms, settings.request_timeout_ms) == (60, 120_000, 30_000)
    assert (settings.max_request_size, settings.retries) == (1_048_576, 2**31 - 1)
    assert settings.compression is Compression.NONE


def test_every_setting_has_its_keyword() -> None:
    options = set(ProducerOptions.__annotations__)
    assert options == {name.replace(".", "_") for name in PRODUCER_TABLE.rows}


@pytest.mark.parametrize(
    ("given", "idempotent"),
    [
        ({}, True),
        ({"acks": 1}, False),
        ({"acks": "0"}, False),
        ({"retries": 0}, False),
        ({"max_in_flight_requests_per_connection": 6}, False),
        ({"enable_idempotence": False}, False),
        ({"acks": "-1"}, True),
    ],
)
def test_idempotence_yields_to_what_was_given(given: dict[str, object], idempotent: bool) -> None:
    assert ProducerSettings.read(None, given).enable_idempotence is idempotent


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"enable_idempotence": True, "acks": 1}, "enable.idempotence needs acks=all, not 1"),
        ({"enable_idempotence": True, "retries": 0}, "needs retries above 0"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "of at most 5, not 6"),
        ({"transactional_id": "t", "acks": 1}, "a producer with a transactional.id needs acks=all"),
        ({"transactional_id": "t", "enable_idempotence": False}, "needs enable.idempotence"),
        ({"delivery_timeout_ms": 100}, "must be at least linger.ms + request.timeout.ms, which is 30005"),
        ({"acks": 2}, "expected all, 1 or 0"),
        ({"compression_type": "brotli"}, "compression.type"),
        ({"linger": 5}, "did you mean"),
        ({"partitioner_class": "random"}, "expected default, round_robin or a partitioner"),
        ({"key_serializer": "text"}, "key.serializer"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerSettings.read(None, given)
    assert text in str(caught.value)


def test_a_default_delivery_timeout_makes_room_for_a_long_linger() -> None:
    assert ProducerSettings.read(None, {"linger_ms": 200_000}).delivery_timeout_ms == 230_000


def test_an_own_partitioner_may_be_a_function() -> None:
    settings = ProducerSettings.read(None, {"partitioner_class": lambda topic, key, value, partitions: partitions - 1})
    assert settings.partitioner is not None
    assert settings.partitioner.partition("t", None, None, 4) == 3


# Batches and futures


def batch_with(records: int, value: bytes = b"value") -> tuple[ProducerBatch, list[DeliveryFuture]]:
    batch = ProducerBatch(TP, bytearray(10_000), 10_000, 0.0, lambda: None)
    futures = []
    for number in range(records):
        index = batch.append(b"key", value, None, 100 + number)
        future = DeliveryFuture()
        future.fill_in(batch, index, 100 + number, 3, len(value), None)
        futures.append(future)
    return batch, futures


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_sealed_batch_is_what_encode_batch_writes(compression: Compression, is_transactional: bool) -> None:
    batch, _ = batch_with(20, b"v" * 50)
    batch.set_producer(77, 3, 1234)
    expected = encode_batch(
        [(b"key", b"v" * 50, (), 100 + number) for number in range(20)],
        compression=compression,
        producer_id=77,
        producer_epoch=3,
        base_sequence=1234,
        is_transactional=is_transactional,
    )
    assert bytes(batch.seal(compression, None, is_transactional=is_transactional)) == bytes(expected)


def test_a_batch_is_sealed_anew_with_every_epoch() -> None:
    batch, _ = batch_with(2)
    batch.set_producer(77, 0, 10)
    batch.seal(Compression.ZSTD, 3, is_transactional=False)
    batch.set_producer(77, 1, 0)
    sealed = batch.seal(Compression.ZSTD, 3, is_transactional=False)
    assert [record.value for record in decode_records(sealed)] == [b"value", b"value"]  # which checks the CRC
    assert batch.sequence_was_reset


def test_futures_of_a_delivered_batch() -> None:
    batch, futures = batch_with(3)
    assert not futures[0].done()
    assert batch.deliver(500)
    assert not batch.deliver(600)
    assert [future.result(0) for future in futures] == [
        RecordMetadata("t", 3, 500 + number, 100 + number, 3, 5) for number in range(3)
    ]
    assert futures[0].exception(0) is None
    assert "delivered" in repr(futures[0])


def test_the_brokers_time_counts_where_it_stamps() -> None:
    batch, futures = batch_with(2)
    batch.deliver(500, log_append_time=999)
    assert futures[1].result(0).timestamp == 999


def test_no_offset_is_known_without_acks() -> None:
    batch, futures = batch_with(2)
    batch.deliver(-1)
    assert futures[1].result(0).offset == -1


def test_futures_of_a_failed_batch() -> None:
    batch, futures = batch_with(3)
    error = BrokerError(ErrorCode.INVALID_RECORD, "bad records")
    batch.fail(error, {1: "it has no key"})
    assert "it has no key" in str(futures[1].exception(0))
    assert "1 other records of its batch were refused" in str(futures[0].exception(0))
    with pytest.raises(BrokerError, match="no key"):
        futures[1].result(0)


def test_a_result_can_be_waited_for_in_another_thread() -> None:
    batch, futures = batch_with(1)
    with pytest.raises(RequestTimeoutError, match="partition t-3 was not acknowledged within 0"):
        futures[0].result(0)
    assert batch.is_wanted
    results: list[RecordMetadata] = []
    waiting = threading.Thread(target=lambda: results.append(futures[0].result(30)))
    waiting.start()
    batch.deliver(7)
    waiting.join(30)
    assert results[0].offset == 7


def test_callbacks_are_called_once_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    batch, futures = batch_with(2)
    told: list[object] = []

    def fail(future: DeliveryFuture) -> None:
        raise RuntimeError("no")

    futures[0].add_done_callback(fail)
    futures[0].add_done_callback(told.append)
    batch.deliver(7)
    assert told == [futures[0]]
    assert "a callback of a future failed" in caplog.text
    futures[1].add_done_callback(told.append)
    assert told == futures


def test_rows_are_told_once_while_their_batches_end() -> None:
    """Half of the batches end in another thread while the callback is added."""
    for _ in range(200):
        batches = [batch_with(1)[0] for _ in range(20)]
        for batch in batches[:10]:
            batch.deliver(7)
        told: list[object] = []
        begin = threading.Barrier(2)

        def end_the_others(left: list[ProducerBatch], begin: threading.Barrier) -> None:
            begin.wait(30)
            for batch in left:
                batch.deliver(7)

        ending = threading.Thread(target=end_the_others, args=(batches[10:], begin))
        ending.start()
        rows = RowsFuture(batches)
        begin.wait(30)
        rows.add_done_callback(told.append)
        ending.join(30)
        assert told == [rows]


def test_delivery_callbacks_get_metadata_or_error(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[RecordMetadata | None, ClientError | None]] = []
    for fails in (False, True):
        batch, (future,) = batch_with(1)
        future.fill_in(batch, 0, 100, 3, 5, lambda metadata, error: told.append((metadata, error)))
        broken = DeliveryFuture()
        broken.fill_in(batch, 0, 100, 3, 5, lambda metadata, error: 1 / 0)
        if fails:
            batch.fail(BrokerError(ErrorCode.INVALID_RECORD))
        else:
            batch.deliver(7)
    assert told[0] == (RecordMetadata("t", 3, 7, 100, 3, 5), None)
    assert told[1][0] is None
    assert isinstance(told[1][1], BrokerError)
    assert "a delivery callback failed" in caplog.text


def test_futures_can_be_awaited() -> None:
    async def run() -> None:
        batch, futures = batch_with(2)
        asyncio.get_running_loop().call_soon(batch.deliver, 7)
        assert (await futures[1]).offset == 8
        assert (await futures[1]).offset == 8
        failed, (future,) = batch_with(1)
        asyncio.get_running_loop().call_soon(failed.fail, BrokerError(ErrorCode.INVALID_RECORD, "no"))
        with pytest.raises(BrokerError, match="no"):
            await future

    asyncio.run(run())
