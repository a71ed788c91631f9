"""Produce over a plain socket, in every version that changed something."""

from __future__ import annotations

import struct
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceRequest, ProduceResponse, TopicProduceData
from tidelog.records import Compression, decode_records, encode_batch, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    from tidelog.protocol.messages.k01_fetch import PartitionData
    from tidelog.records import Record
    from tidelog.testing import Broker

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]
    RecordsOf = Callable[[PartitionData], list[Record]]
    Connect = Callable[[Broker], RawClient]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_appends(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf, version: int
) -> None:
    topic = new_topic()
    assert raw.produce(topic, batch(b"a", b"b"), version=version).base_offset == 0
    answer = raw.produce(topic, batch(b"c"), version=version, acks=1)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert [(record.offset, record.value) for record in records(raw.fetch(topic, 0))] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]


def test_version_13_names_topics_by_id(raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 13: an id that no topic has, or has no more, is refused."""
    topic = new_topic()
    topic_id = topic_id_of(broker, topic)
    good = raw.produce_many({(topic, 0): batch(b"a")}, version=13, topic_ids={topic: topic_id})
    assert good.responses[0].topic_id == topic_id
    assert good.responses[0].partition_responses[0].error_code == 0
    stale = raw.produce_many({(topic, 0): batch(b"a")}, version=13, topic_ids={topic: uuid.uuid4()})
    assert stale.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    beyond = raw.produce_many({(topic, 7): batch(b"a")}, version=13, topic_ids={topic: topic_id})
    assert beyond.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partitions_fail_on_their_own(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 19: an unknown topic or partition is told, the others of the request succeed; nothing is created."""
    topic = new_topic(partitions=2)
    for _ in range(2):
        response = raw.produce_many(
            {(topic, 0): batch(b"a"), ("never made", 0): batch(b"a"), (topic, 9): batch(b"a"), (topic, 1): batch(b"a")}
        )
        codes = {
            (one.name, partition.index): partition.error_code
            for one in response.responses
            for partition in one.partition_responses
        }
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {(topic, 0): 0, ("never made", 0): unknown, (topic, 9): unknown, (topic, 1): 0}


@pytest.mark.parametrize("acks", [2, -2, 7])
def test_unknown_acks_are_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, acks: int) -> None:
    """Behaviour 20: acks that are none of -1, 0, 1."""
    topic = new_topic()
    answer = raw.produce(topic, batch(b"a"), acks=acks)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
    assert raw.list_offset(topic, -1).offset == 0


def test_acks_0_gets_no_answer(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, produce: Callable[..., ProduceRequest]
) -> None:
    """Behaviour 20: the next answer on the connection is that of the next request."""
    topic = new_topic()
    for value in (b"a", b"b"):
        raw.send(PRODUCE, 9, produce({(topic, 0): batch(value)}, acks=0))
    assert raw.list_offset(topic, -1).offset == 2


def test_acks_0_with_an_error_closes_the_connection(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, produce: Callable[..., ProduceRequest]
) -> None:
    """Behaviour 20: the one sign that such a producer can notice."""
    raw.send(PRODUCE, 9, produce({(new_topic(), 5): batch(b"a")}, acks=0))
    assert raw.is_closed_by_broker()


def test_a_wrong_checksum_is_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 21: nothing of the batch is kept."""
    topic = new_topic()
    broken = batch(b"value")
    broken[-1] ^= 0xFF
    assert raw.produce(topic, broken).error_code == ErrorCode.CORRUPT_MESSAGE
    assert raw.list_offset(topic, -1).offset == 0


def test_a_wrong_length_is_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 21: lengths that do not add up."""
    topic = new_topic()
    for length in (-1, 0, 48, 10_000):
        broken = batch(b"value")
        struct.pack_into(">i", broken, 8, length)
        assert raw.produce(topic, broken).error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert raw.produce(topic, batch(b"value")[:30]).error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert raw.list_offset(topic, -1).offset == 0


def test_only_one_whole_client_batch_is_taken(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 22: two batches, none, another magic, a control batch, a sequence below zero."""
    topic = new_topic()
    invalid = ErrorCode.INVALID_RECORD
    assert raw.produce(topic, batch(b"a") + batch(b"b")).error_code == invalid
    assert raw.produce(topic, None).error_code == invalid
    assert raw.produce(topic, b"").error_code == invalid
    old_magic = batch(b"a")
    old_magic[16] = 1
    assert raw.produce(topic, old_magic).error_code == invalid
    assert raw.produce(topic, batch(b"a", is_control=True)).error_code == invalid
    assert raw.produce(topic, batch(b"a", producer_id=5, producer_epoch=0, base_sequence=-1)).error_code == invalid
    assert raw.list_offset(topic, -1).offset == 0


def test_large_batches_are_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 23: above max.message.bytes, above segment.bytes."""
    small = new_topic(max_message_bytes="1000")
    assert raw.produce(small, batch(bytes(2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce(small, batch(bytes(500))).error_code == 0
    narrow = new_topic(max_message_bytes="3000000", segment_bytes="1048576")
    assert raw.produce(narrow, batch(bytes(2_000_000))).error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_timestamps_from_the_future_are_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 24: with the record's index from version 8 on."""
    topic = new_topic()
    future_ms = time.time_ns() // 1_000_000 + 2 * 3_600_000
    answer = raw.produce(topic, batch(b"a", b"b", timestamp_ms=future_ms), version=9)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert answer.error_message
    assert raw.produce(topic, batch(b"a", timestamp_ms=future_ms), version=7).error_code == ErrorCode.INVALID_TIMESTAMP
    assert raw.produce(topic, batch(b"a", timestamp_ms=future_ms - 5_400_000)).error_code == 0


def test_compacted_topics_need_keys(raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 25: the batch is dropped whole, the records without a key are named."""
    topic = new_topic(cleanup_policy="compact")
    now_ms = time.time_ns() // 1_000_000
    mixed = encode_batch([(b"k", b"a", (), now_ms), (None, b"b", (), now_ms)], now_ms=now_ms)
    answer = raw.produce(topic, mixed)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert raw.list_offset(topic, -1).offset == 0


def test_zstd_needs_version_7(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 26: for producing; fetching has its own test."""
    topic = new_topic()
    zstd = batch(b"a" * 100, compression=Compression.ZSTD)
    assert raw.produce(topic, zstd, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert raw.produce(topic, zstd, version=7).error_code == 0


def test_log_append_time(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf) -> None:
    """Behaviour 27: the broker's time is answered and written into the batch, whose checksum holds."""
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    answer = raw.produce(topic, batch(b"a", b"b", timestamp_ms=1_000))
    assert answer.log_append_time_ms >= before_ms
    data = raw.fetch(topic, 0)
    assert isinstance(data.records, memoryview)
    header = parse_header(data.records)
    assert header.attributes & 0x08
    assert header.max_timestamp == answer.log_append_time_ms
    assert {record.timestamp for record in records(data)} == {answer.log_append_time_ms}


@pytest.mark.parametrize("compression", list(Compression))
def test_what_the_producer_sent_is_kept(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, compression: Compression
) -> None:
    """Behaviours 28 and 29: identical bytes but for base offset and leader epoch, which the checksum does not cover."""
    topic = new_topic()
    raw.produce(topic, batch(b"first"))
    sent = batch(b"some value " * 20, b"", None, compression=compression)
    assert raw.produce(topic, sent).base_offset == 1
    data = raw.fetch(topic, 1)
    assert isinstance(data.records, memoryview)
    assert bytes(data.records[16:]) == bytes(sent[16:])
    assert parse_header(data.records).base_offset == 1


def test_the_topics_own_compression_wins(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf
) -> None:
    """Behaviour 28: compression.type of the topic."""
    topic = new_topic(compression_type="zstd")
    raw.produce(topic, batch(b"value " * 100, compression=Compression.GZIP))
    data = raw.fetch(topic, 0)
    assert isinstance(data.records, memoryview)
    assert parse_header(data.records).compression is Compression.ZSTD
    assert [record.value for record in records(data)] == [b"value " * 100]


def test_records_come_back_as_they_were(raw: RawClient, new_topic: NewTopic, records: RecordsOf) -> None:
    """Behaviour 29: headers in order with repeated names and null values, null and empty keys and values."""
    topic = new_topic()
    now_ms = time.time_ns() // 1_000_000
    headers = (("h", b"1"), ("h", None), ("a", b""), ("h", b"2"))
    sent = [(None, None, (), now_ms), (b"", b"", headers, now_ms + 1), (b"k", b"v", (), now_ms - 5)]
    assert raw.produce(topic, encode_batch(sent, now_ms=now_ms)).error_code == 0
    got = [
        (record.key, record.value, tuple(record.headers), record.timestamp) for record in records(raw.fetch(topic, 0))
    ]
    assert got == sent


def test_idempotent_producers(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 30: repeats of the last five batches, gaps, epochs, and a producer that the log does not know."""
    topic = new_topic()

    def send(sequence: int, *values: bytes, epoch: int = 0, producer_id: int = 77) -> tuple[int, int]:
        sent = batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        answer = raw.produce(topic, sent)
        return answer.error_code, answer.base_offset

    assert [send(sequence, b"v") for sequence in range(6)] == [(0, offset) for offset in range(6)]
    assert [send(sequence, b"v") for sequence in range(1, 6)] == [(0, offset) for offset in range(1, 6)]
    assert send(7, b"gap")[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(6, b"v") == (0, 6)
    assert send(3, b"new epoch", epoch=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, b"new epoch", epoch=1) == (0, 7)
    assert send(7, b"old epoch", epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(2**31 - 1, b"x", b"y", producer_id=78) == (0, 8)
    # The batch began at the last sequence there is, so its second record had sequence 0.
    assert send(1, b"z", producer_id=78) == (0, 10)
    assert raw.list_offset(topic, -1).offset == 11


def test_min_insync_replicas(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 31: refused with acks=all only, and before anything is appended."""
    topic = new_topic(min_insync_replicas="2")
    assert raw.produce(topic, batch(b"a")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert raw.list_offset(topic, -1).offset == 0
    assert raw.produce(topic, batch(b"a"), acks=1).error_code == 0


@pytest.mark.parametrize("flush_messages", ["1", "3", "9223372036854775807"])
def test_requests_in_flight_stay_in_order(
    raw: RawClient,
    new_topic: NewTopic,
    batch: MakeBatch,
    records: RecordsOf,
    produce: Callable[..., ProduceRequest],
    flush_messages: str,
) -> None:
    """Behaviour 31: five at a time, flushed before the acknowledgement or not."""
    topic = new_topic(flush_messages=flush_messages)
    sent: list[tuple[int, int]] = []
    answered = []
    for sequence in range(50):
        request = produce(
            {(topic, 0): batch(str(sequence).encode(), producer_id=5, producer_epoch=0, base_sequence=sequence)},
            acks=-1 if sequence % 2 else 1,
        )
        sent.append((sequence, raw.send(PRODUCE, 9, request)))
        if len(sent) == 5:
            _, correlation_id = sent.pop(0)
            answered.append(raw.receive(PRODUCE, 9, correlation_id, ProduceResponse))
    answered += [raw.receive(PRODUCE, 9, correlation_id, ProduceResponse) for _, correlation_id in sent]
    answers = [response.responses[0].partition_responses[0] for response in answered]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, offset) for offset in range(50)]
    assert [record.value for record in records(raw.fetch(topic, 0))] == [str(number).encode() for number in range(50)]


def test_one_flush_serves_many_connections(
    broker: Broker, connect: Connect, new_topic: NewTopic, batch: MakeBatch, produce: Callable[..., ProduceRequest]
) -> None:
    """Each of several producers is acknowledged when its own records are on disk."""
    topic = new_topic(flush_messages="1")
    clients = [connect(broker) for _ in range(8)]
    for _ in range(5):
        ids = [client.send(PRODUCE, 9, produce({(topic, 0): batch(b"a")})) for client in clients]
        for client, correlation_id in zip(clients, ids, strict=True):
            answer = client.receive(PRODUCE, 9, correlation_id, ProduceResponse)
            offset = answer.responses[0].partition_responses[0].base_offset
            assert flushed_offset_of(broker, topic) > offset
    assert clients[0].list_offset(topic, -1).offset == 40


def test_an_empty_request_is_answered_empty(raw: RawClient, new_topic: NewTopic) -> None:
    assert raw.ask(PRODUCE, 9, ProduceRequest(acks=-1), ProduceResponse).responses == []
    topic = TopicProduceData(name=new_topic())
    assert raw.ask(PRODUCE, 9, ProduceRequest(acks=1, topic_data=[topic]), ProduceResponse).responses[0].name


@pytest.mark.parametrize("producer_id", [9, -1])
def test_transactional_records_need_a_transactional_id(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, producer_id: int
) -> None:
    topic = new_topic()
    sent = batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert raw.produce(topic, sent).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert raw.list_offset(topic, -1).offset == 0


def test_the_records_of_one_request_do_not_leak_into_the_next(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """The receive buffer is used again: what was appended must not change with it."""
    topic = new_topic()
    sent = [batch(bytes([number]) * (1 + number * 37 % 4000)) for number in range(60)]
    for one in sent:
        raw.produce(topic, one)
    data = raw.fetch(topic, 0)
    assert isinstance(data.records, memoryview)
    assert [record.value for one in sent for record in decode_records(one)] == [
        record.value for position in positions(data.records) for record in decode_records(data.records, position)
    ]


def positions(records: memoryview) -> list[int]:
    found = []
    position = 0
    while position < len(records):
        found.append(position)
        position += parse_header(records, position).size_bytes
    return found


def topic_id_of(broker: Broker, topic: str) -> uuid.UUID:
    return broker.server.services.controller.image.topics[topic].topic_id


def flushed_offset_of(broker: Broker, topic: str) -> int:
    return broker.server.services.replicas.find(topic, 0).log.flushed_offset
