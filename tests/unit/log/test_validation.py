"""What a leader refuses, with which code, and what it changes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from tidelog.log import LogConfig
from tidelog.log.validation import ValidatedBatch, split_into_runs, validate_batch
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import Compression, TimestampType, check_crc, decode_records, encode_batch, parse_header

HOUR_MS = 3_600_000


NOW_MS = 1_700_000_000_000


def batch_of(
    values: Sequence[bytes] = (b"value",),
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    is_control: bool = False,
) -> memoryview:
    keys = keys or [None] * len(values)
    timestamps = timestamps or [NOW_MS] * len(values)
    records = [(key, value, (), time) for key, value, time in zip(keys, values, timestamps, strict=True)]
    batch = encode_batch(
        records,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=is_control,
    )
    return memoryview(batch)


def validate(batch: memoryview, config: LogConfig | None = None) -> ValidatedBatch:
    return validate_batch(batch, config or LogConfig(), NOW_MS)


def refusal(batch: memoryview, config: LogConfig | None = None) -> KafkaError:
    before = bytes(batch)
    with pytest.raises(KafkaError) as refused:
        validate(batch, config)
    assert bytes(batch) == before, "a refused batch must not be changed"
    return refused.value


def patched(batch: memoryview, position: int, layout: str, value: int) -> memoryview:
    """The batch with one field of its header changed and a CRC that is right for it."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return memoryview(changed)


def test_a_batch_passes_as_it_is() -> None:
    batch = batch_of([b"a", b"b"])
    before = bytes(batch)
    validated = validate(batch)
    assert validated.records is batch
    assert bytes(batch) == before
    assert validated.log_append_time_ms == -1


def test_records_are_not_opened_where_they_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("decode_records", "view_records", "scan_records", "close_records"):
        monkeypatch.setattr(f"tidelog.log.validation.{name}", None)
    validate(batch_of([b"a", b"b"], compression=Compression.ZSTD), LogConfig(tidelog_records_check="none"))


@pytest.mark.parametrize("position", [17, 21, 40, 57, 65])
def test_a_wrong_crc_is_refused(position: int) -> None:
    batch = batch_of([b"some value"])
    batch[position] ^= 1
    assert refusal(batch).code is ErrorCode.CORRUPT_MESSAGE


def test_what_is_not_exactly_one_batch_is_refused() -> None:
    assert refusal(memoryview(bytearray())).code is ErrorCode.INVALID_RECORD
    two = memoryview(bytearray(batch_of()) + bytearray(batch_of()))
    assert refusal(two).code is ErrorCode.INVALID_RECORD
    assert refusal(memoryview(bytearray(batch_of())[:-1])).code is ErrorCode.INVALID_RECORD
    assert refusal(memoryview(bytearray(batch_of())[:30])).code is ErrorCode.INVALID_RECORD


def test_the_beginning_of_another_batch_is_left_out() -> None:
    batch = batch_of()
    assert validate(memoryview(bytearray(batch) + bytearray(batch)[:-1])).records == batch


@pytest.mark.parametrize(
    ("magic", "code"),
    [(0, ErrorCode.INVALID_RECORD), (1, ErrorCode.INVALID_RECORD), (3, ErrorCode.CORRUPT_MESSAGE)],
)
def test_other_magics_are_refused(magic: int, code: ErrorCode) -> None:
    batch = batch_of()
    batch[16] = magic
    assert refusal(batch).code is code


def test_counts_must_agree() -> None:
    assert refusal(patched(batch_of([b"a", b"b"]), 57, ">i", 1)).code is ErrorCode.INVALID_RECORD
    assert refusal(patched(batch_of([b"a", b"b"]), 23, ">i", 5)).code is ErrorCode.INVALID_RECORD


def test_control_batches_and_negative_sequences_are_refused() -> None:
    assert refusal(batch_of(is_control=True)).code is ErrorCode.INVALID_RECORD
    assert refusal(batch_of(producer_id=1, producer_epoch=0)).code is ErrorCode.INVALID_RECORD


def test_unknown_codecs_and_foreign_timestamp_types_are_refused() -> None:
    assert refusal(patched(batch_of(), 21, ">h", 5)).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(patched(batch_of(), 21, ">h", 8)).code is ErrorCode.INVALID_TIMESTAMP


def test_sizes() -> None:
    batch = batch_of([bytes(500)])
    assert refusal(batch, LogConfig(max_message_bytes=len(batch) - 1)).code is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(batch, LogConfig(segment_bytes=len(batch) - 1)).code is ErrorCode.RECORD_LIST_TOO_LARGE
    validate(batch, LogConfig(max_message_bytes=len(batch), segment_bytes=len(batch)))


def test_timestamps_too_far_ahead_name_their_records() -> None:
    validate(batch_of(timestamps=[NOW_MS + HOUR_MS]))
    error = refusal(batch_of([b"a", b"b", b"c"], timestamps=[NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS]))
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [1]


def test_timestamps_too_old() -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000)
    validate(batch_of(timestamps=[NOW_MS - 1000]), config)
    error = refusal(batch_of([b"a", b"b"], timestamps=[NOW_MS - 1001, NOW_MS]), config)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.record_errors] == [0]


def test_log_append_time_is_written_in_place() -> None:
    batch = batch_of([b"a", b"b"], timestamps=[1, 2])
    validated = validate(batch, LogConfig(message_timestamp_type="LogAppendTime"))
    assert validated.log_append_time_ms == NOW_MS
    header = parse_header(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == NOW_MS
    check_crc(batch, header)
    assert [record.timestamp for record in decode_records(batch)] == [NOW_MS, NOW_MS]


def test_a_compacted_topic_needs_keys() -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    validate(batch_of([b"a"], keys=[b""]), config)
    error = refusal(batch_of([b"a", b"b", b"c"], keys=[b"k", None, b"k"]), config)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1]


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_the_topics_compression_wins(codec: Compression) -> None:
    values = [b"value" * 20] * 10
    validated = validate(batch_of(values), LogConfig(compression_type=codec.label))
    assert validated.header.compression is codec
    check_crc(validated.records, validated.header)
    assert [record.value for record in decode_records(validated.records)] == values
    back = validate(batch_of(values, compression=codec), LogConfig(compression_type="uncompressed"))
    assert back.header.compression is Compression.NONE
    kept = batch_of(values, compression=codec)
    assert validate(kept, LogConfig(compression_type=codec.label)).records is kept


def test_broken_records_are_not_recompressed() -> None:
    batch = patched(batch_of([b"value"]), 61, ">b", 0x7E)
    assert refusal(batch, LogConfig(compression_type="zstd")).code is ErrorCode.INVALID_RECORD


def test_runs_of_a_followers_batches_fit_into_segments() -> None:
    data = bytearray()
    for base_offset in (10, 11, 15, 16):
        batch = bytearray(batch_of([bytes(40)]))
        struct.pack_into(">q", batch, 0, base_offset)
        data += batch
    size = len(data) // 4
    epochs = {"leader_epoch": 0, "last_epoch": -1}
    runs = split_into_runs(memoryview(data)[:-1], 10, 2 * size, **epochs)
    assert [(start, [(position, header.base_offset) for position, header in run]) for start, run in runs] == [
        (0, [(0, 10), (size, 11)]),
        (2 * size, [(0, 15)]),
    ]
    with pytest.raises(KafkaError) as refused:
        split_into_runs(memoryview(data), 11, 2 * size, **epochs)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    data[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        split_into_runs(memoryview(data), 10, 2 * size, **epochs)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


OPENING = [
    LogConfig(),
    LogConfig(cleanup_policy=frozenset({"compact"})),
    LogConfig(compression_type="uncompressed"),
    LogConfig(compression_type="lz4"),
]


@pytest.mark.parametrize("config", OPENING, ids=["plain", "compacted", "uncompressed", "recompressed"])
@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_a_batch_that_opens_to_too_much_is_refused(config: LogConfig, codec: Compression) -> None:
    bomb = batch_of([bytes(65 << 20)], keys=[b"key"], compression=codec)
    assert len(bomb) < config.max_message_bytes
    error = refusal(bomb, config)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert error.message is not None
    assert "send smaller batches" in error.message


def test_how_much_a_batch_may_open_to_follows_max_message_bytes() -> None:
    batch = batch_of([bytes(17 << 20)], keys=[b"key"], compression=Compression.ZSTD)
    validate(batch, LogConfig(cleanup_policy=frozenset({"compact"}), max_message_bytes=2 << 20))


@pytest.mark.parametrize("count", [1, 100_000])
def test_records_to_blame_are_not_looked_for_in_bombs(count: int) -> None:
    """One batch with one huge value, one with very many records: neither is worth making objects of."""
    value = bytes(4 << 20) if count == 1 else b""
    batch = batch_of([value] * count, timestamps=[NOW_MS + 2 * HOUR_MS] * count, compression=Compression.ZSTD)
    error = refusal(batch)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert not error.record_errors
