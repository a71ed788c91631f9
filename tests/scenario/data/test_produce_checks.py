"""What a partition asks of a batch, clause by clause, over a plain socket (behaviours 20 to 30)."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import crc32c
import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceRequest
from tidelog.records import Compression, encode_batch, parse_header
from tidelog.testing import Broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    from tidelog.protocol.messages.k01_fetch import PartitionData
    from tidelog.records import Record

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]
    RecordsOf = Callable[[PartitionData], list[Record]]
    Connect = Callable[[Broker], RawClient]

CRC_POSITION, CRC_FROM, MAGIC_POSITION = 17, 21, 16
LAST_OFFSET_DELTA_POSITION, RECORDS_COUNT_POSITION, RECORDS_FROM = 23, 57, 61
SEQUENCE_MAX = 2**31 - 1


def sealed(batch: bytearray) -> bytearray:
    """The batch with a checksum that fits what was done to it."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c.crc32c(bytes(batch[CRC_FROM:])))
    return batch


def broken_crc(batch: bytearray) -> bytearray:
    batch[-1] ^= 0xFF
    return batch


@pytest.mark.parametrize("partition", [0, 9])
def test_acks_0_with_a_bad_batch_closes_only_its_connection(
    broker: Broker,
    connect: Connect,
    new_topic: NewTopic,
    batch: MakeBatch,
    produce: Callable[..., ProduceRequest],
    partition: int,
) -> None:
    """Behaviour 20: whatever the error; nothing of the batch is kept."""
    topic = new_topic()
    bad, good = connect(broker), connect(broker)
    bad.send(PRODUCE, 9, produce({(topic, partition): broken_crc(batch(b"a"))}, acks=0))
    assert bad.is_closed_by_broker()
    assert good.list_offset(topic, -1).offset == 0


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(RECORDS_FROM, 0x7E, id="a record longer than the batch"),
        pytest.param(RECORDS_FROM, 0x02, id="a record shorter than its fields"),
        pytest.param(RECORDS_FROM, 0x01, id="a record of negative length"),
        pytest.param(RECORDS_FROM + 3, 0x08, id="an offset delta out of order"),
        pytest.param(RECORDS_FROM + 4, 0x7E, id="a key longer than its record"),
    ],
)
@pytest.mark.parametrize(
    "setting", [{}, {"tidelog_records_check": "none", "cleanup_policy": "compact"}, {"compression_type": "lz4"}]
)
def test_records_that_do_not_add_up_are_invalid(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, position: int, value: int, setting: dict[str, str]
) -> None:
    """Behaviour 21: the checksum being right; whatever else the topic's settings make of the batch."""
    topic = new_topic(**setting)
    lying = batch(b"one", b"two")
    lying[position] = value
    assert raw.produce(topic, sealed(lying)).error_code == ErrorCode.INVALID_RECORD
    assert raw.list_offset(topic, -1).offset == 0


def test_a_wrong_checksum_comes_before_what_else_is_wrong(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviours 21 and 22: CORRUPT_MESSAGE, of which a producer may try again, and not INVALID_RECORD."""
    assert raw.produce(new_topic(), broken_crc(batch(b"a", is_control=True))).error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("version", [3, 8, 12])
@pytest.mark.parametrize("magic", [0, 1, 3])
def test_only_magic_2_is_taken(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, magic: int, version: int) -> None:
    """Behaviour 22."""
    topic = new_topic()
    other = batch(b"a")
    other[MAGIC_POSITION] = magic
    code = ErrorCode.INVALID_RECORD if magic < 2 else ErrorCode.CORRUPT_MESSAGE
    assert raw.produce(topic, other, version=version).error_code == code
    assert raw.list_offset(topic, -1).offset == 0


@pytest.mark.parametrize(
    ("position", "number"),
    [
        pytest.param(RECORDS_COUNT_POSITION, 3, id="more records than offsets"),
        pytest.param(RECORDS_COUNT_POSITION, 1, id="fewer records than offsets"),
        pytest.param(RECORDS_COUNT_POSITION, 0, id="no records"),
        pytest.param(LAST_OFFSET_DELTA_POSITION, 9, id="more offsets than records"),
        pytest.param(LAST_OFFSET_DELTA_POSITION, 0, id="fewer offsets than records"),
    ],
)
def test_a_batch_has_an_offset_for_each_record(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, position: int, number: int
) -> None:
    """Behaviour 22: the two counts in the header agree."""
    topic = new_topic()
    lying = batch(b"one", b"two")
    struct.pack_into(">i", lying, position, number)
    assert raw.produce(topic, sealed(lying)).error_code == ErrorCode.INVALID_RECORD
    assert raw.list_offset(topic, -1).offset == 0


def test_negative_counts_are_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviours 21 and 22."""
    topic = new_topic()
    lying = batch(b"one")
    struct.pack_into(">i", lying, RECORDS_COUNT_POSITION, -1)
    struct.pack_into(">i", lying, LAST_OFFSET_DELTA_POSITION, -2)
    assert raw.produce(topic, sealed(lying)).error_code == ErrorCode.INVALID_RECORD
    assert raw.list_offset(topic, -1).offset == 0


def test_the_largest_batch_by_default(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 23: 1048588 bytes are taken, one more is not."""
    topic = new_topic()
    largest = 1_048_588
    padding = largest - len(batch(bytes(1_000_000))) + 1_000_000
    assert len(batch(bytes(padding))) == largest
    assert raw.produce(topic, batch(bytes(padding + 1))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce(topic, batch(bytes(padding))).error_code == 0


@pytest.mark.parametrize("version", [7, 8, 13])
def test_only_wrong_records_are_named(raw: RawClient, broker: Broker, new_topic: NewTopic, version: int) -> None:
    """Behaviours 24 and 25: by their index, in versions that have room for it; the whole batch is dropped."""
    topic, compacted = new_topic(), new_topic(cleanup_policy="compact")
    now_ms = time.time_ns() // 1_000_000
    late_ms = now_ms + 2 * 3_600_000
    image = broker.server.services.controller.image
    ids = {name: image.topics[name].topic_id for name in (topic, compacted)}
    batches = {
        (topic, 0): encode_batch([(b"k", b"v", (), ms) for ms in (now_ms, late_ms, now_ms, late_ms)], now_ms=now_ms),
        (compacted, 0): encode_batch([(key, b"v", (), now_ms) for key in (b"k", None, b"")], now_ms=now_ms),
    }
    response = raw.produce_many(batches, version=version, topic_ids=ids)
    first, second = (answer.partition_responses[0] for answer in response.responses)
    assert (first.error_code, second.error_code) == (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD)
    named = [[error.batch_index for error in answer.record_errors] for answer in (first, second)]
    assert named == ([[1, 3], [1]] if version >= 8 else [[], []])
    assert bool(first.error_message and second.error_message) == (version >= 8)
    assert [raw.list_offset(name, -1).offset for name in (topic, compacted)] == [0, 0]


@pytest.mark.parametrize("compression", list(Compression))
def test_the_brokers_time_in_compressed_batches(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf, compression: Compression
) -> None:
    """Behaviour 27: only header fields and the checksum change, the records stay packed as they were."""
    topic = new_topic(message_timestamp_type="LogAppendTime")
    sent = batch(b"a" * 50, b"b" * 50, timestamp_ms=1_000, compression=compression)
    answer = raw.produce(topic, sent)
    data = raw.fetch(topic, 0)
    assert isinstance(data.records, memoryview)
    before, after = parse_header(sent), parse_header(data.records)
    assert after.attributes == before.attributes | 0x08
    assert after.max_timestamp == answer.log_append_time_ms > 1_000
    assert after.crc == crc32c.crc32c(bytes(data.records[CRC_FROM:])) != before.crc
    assert bytes(data.records[RECORDS_FROM:]) == bytes(sent[RECORDS_FROM:])
    assert [record.timestamp for record in records(data)] == [answer.log_append_time_ms] * 2


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_becomes_the_topics_own(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: RecordsOf, target: str
) -> None:
    """Behaviour 28: from any to any; a batch that has it already keeps its bytes."""
    topic = new_topic(compression_type=target)
    codec = Compression.NONE if target == "uncompressed" else Compression.from_label(target)
    for offset, compression in enumerate(Compression):
        sent = batch(b"value " * 50, compression=compression)
        assert raw.produce(topic, sent).base_offset == offset
        data = raw.fetch(topic, offset)
        assert isinstance(data.records, memoryview)
        assert parse_header(data.records).compression is codec
        assert (bytes(data.records[MAGIC_POSITION:]) == bytes(sent[MAGIC_POSITION:])) == (compression is codec)
        assert [(record.offset, record.key, record.value) for record in records(data)] == [
            (offset, b"k", b"value " * 50)
        ]


def test_sequences_wrap(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 30: after 2^31 - 1 comes 0, whether a batch ends there or goes over it; repeats are known across."""
    topic = new_topic()

    def send(sequence: int, *values: bytes) -> tuple[int, int]:
        answer = raw.produce(topic, batch(*values, producer_id=5, producer_epoch=0, base_sequence=sequence))
        return answer.error_code, answer.base_offset

    assert send(SEQUENCE_MAX - 1, b"a", b"b") == (0, 0)
    assert send(1, b"gap")[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, b"c") == (0, 2)
    assert send(SEQUENCE_MAX - 1, b"a", b"b") == (0, 0)
    assert send(0, b"c") == (0, 2)
    over = new_topic()
    topic = over
    assert send(SEQUENCE_MAX, b"a", b"b", b"c") == (0, 0)
    assert send(SEQUENCE_MAX, b"a", b"b", b"c") == (0, 0)
    assert send(1, b"again")[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(2, b"d") == (0, 3)


def test_a_batch_before_the_last_five_is_no_repeat(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 30: nor is one that covers other records than the one it begins with."""
    topic = new_topic()

    def send(sequence: int, *values: bytes) -> int:
        return raw.produce(topic, batch(*values, producer_id=5, producer_epoch=0, base_sequence=sequence)).error_code

    assert [send(sequence, b"v") for sequence in range(7)] == [0] * 7
    assert send(1, b"v") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(6, b"v", b"w") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert raw.list_offset(topic, -1).offset == 7


@pytest.mark.parametrize("ending", ["stop", "crash"])
def test_repeats_are_known_after_a_restart(connect: Connect, batch: MakeBatch, ending: str) -> None:
    """Behaviour 30: all of the last five, with epochs."""
    with Broker() as broker:
        broker.create_topic("t")
        raw = connect(broker)

        def send(sequence: int, epoch: int = 1) -> tuple[int, int]:
            answer = raw.produce("t", batch(b"v", producer_id=5, producer_epoch=epoch, base_sequence=sequence))
            return answer.error_code, answer.base_offset

        assert [send(sequence) for sequence in range(6)] == [(0, offset) for offset in range(6)]
        getattr(broker, ending)()
        broker.start()
        raw = connect(broker)
        assert [send(sequence) for sequence in range(1, 6)] == [(0, offset) for offset in range(1, 6)]
        assert send(7)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(6, epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
        assert send(6) == (0, 6)
