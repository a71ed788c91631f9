"""What a leader checks before it appends a batch, and the changes that a topic's settings make to it.

What always holds: a returned batch has magic 2, a correct CRC, and the topic's compression and timestamp type. If a
client sent it, every client can read its records to the end, each has its own offset, and the header has the largest
timestamp; only `tidelog.records.check=none` leaves that to the producer. A rejected batch is unchanged. The error codes
are Kafka's; where Kafka fails with UNKNOWN_SERVER_ERROR, or stores what its consumers can't read, the code is
INVALID_RECORD. It does not know the log: offsets, sequences and epochs are checked elsewhere. What followers fetch from
a leader goes through `split_into_runs`, because the leader has checked its records.

`validate_batch` may run in any thread. `takes_long` says when it should not run on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidelog.log.config import FOREVER, LogConfig
from tidelog.log.index import RELATIVE_OFFSET_MAX
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    BATCH_HEADER_SIZE,
    KEYLESS_INDEXES_MAX,
    LOG_OVERHEAD,
    MAGIC,
    BatchDraft,
    BatchHeader,
    Compression,
    CorruptBatchError,
    OversizedBatchError,
    Record,
    RecordsScan,
    TimestampRangeError,
    check_crc,
    close_records,
    decode_records,
    iter_headers,
    parse_header,
    scan_records,
    set_log_append_time,
    set_max_timestamp,
    view_records,
)

NO_TIMESTAMP = -1
_ATTRIBUTES_LOW_BYTE_AT = 22
_MAGIC_AT = 16
_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_CONTROL_BIT = 0x20
_NO_PRODUCER_EPOCH = -1
# The smallest length field of any magic: what Kafka takes for the beginning of a batch.
_LEGACY_LENGTH_MIN = 14
# At most this many wrong records of a batch are listed: a response must stay small.
RECORD_ERRORS_MAX = 100

_OPENED_FACTOR_MAX = 64
_OPENED_BYTES_MIN = 64 * 1024 * 1024
"""A batch may hold this many times max.message.bytes of its topic when it is opened, at least 64 MiB.

A few kB can hold a GiB. A client that is told MESSAGE_TOO_LARGE splits its batch and sends it again.
"""

LOOP_PLAIN_BYTES_MAX = 1280 * 1024
"""Larger uncompressed batches are checked in a thread.

A megabyte takes 0.1 ms in records of 100 bytes, 1 ms in empty records and 1.8 ms in empty headers, the worst found.
"""

LOOP_PACKED_BYTES_MAX = 16 * 1024
LOOP_OPENED_BYTES_MAX = 256 * 1024
"""Larger compressed batches are opened in a thread, and those that turn out to open to more than this.

The loop should not wait for a codec. A batch of 9 kB takes 0.05 ms in gzip, the slowest, too little to be worth a
thread.
"""

# Records are made into objects only to tell a producer which of them are wrong. Beyond this it is told about the batch
# alone: a MiB of the smallest headers takes a tenth of a second.
_BLAMED_BYTES_MAX = 1024 * 1024
_BLAMED_RECORDS_MAX = 20_000


class LongCheckError(Exception):
    """The batch decompresses to more than may be checked on the event loop; a thread has to validate it."""


class ValidatedBatch(NamedTuple):
    records: memoryview
    header: BatchHeader
    log_append_time_ms: int


def takes_long(records: memoryview, config: LogConfig) -> bool:
    """Whether a client's batch should be validated in a thread, judging by its first bytes."""
    size_bytes = len(records)
    if size_bytes <= LOOP_PACKED_BYTES_MAX or not config.opens_batches:
        return False
    if size_bytes > LOOP_PLAIN_BYTES_MAX:
        return True
    is_compressed = records[_ATTRIBUTES_LOW_BYTE_AT] & _COMPRESSION_MASK != Compression.NONE
    return is_compressed or config.compression_type not in ("producer", "uncompressed")


def validate_batch(records: memoryview, config: LogConfig, now_ms: int, *, on_loop: bool = False) -> ValidatedBatch:
    """A client's batch, ready to be appended; raises KafkaError with the code and the records at fault.

    `on_loop`: raise LongCheckError rather than decompress much.
    """
    records, header = _only_batch(records)
    if header.base_offset:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch has base offset {header.base_offset}, not 0")
    _check_size(header.size_bytes, config)
    try:
        check_crc(records, header)
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    _check_client_batch(header)
    stamps = config.uses_log_append_time
    target = _topic_compression(header.compression, config)
    must_have_keys = config.is_compacted
    if config.checks_records or must_have_keys or target is not header.compression:
        opened, scan = _open(records, header, config, find_keyless=must_have_keys, on_loop=on_loop)
        if scan.keyless_indexes:
            raise _keyless(scan)
        max_timestamp = max(scan.max_timestamp, NO_TIMESTAMP)
        if not stamps:
            _check_timestamps(records, header, config, now_ms, scan.min_timestamp, max_timestamp)
        if target is not header.compression:
            header = header._replace(max_timestamp=max_timestamp)
            records = memoryview(close_records(opened, header, target, config.compression_level))
            header = parse_header(records)
            _check_size(header.size_bytes, config)
        elif header.max_timestamp != max_timestamp and not stamps:
            set_max_timestamp(records, max_timestamp)
            header = parse_header(records)
    elif not stamps:
        _check_timestamps(records, header, config, now_ms, header.base_timestamp, header.max_timestamp)
    if stamps:
        set_log_append_time(records, now_ms)
        header = parse_header(records)
    return ValidatedBatch(records, header, now_ms if stamps else NO_TIMESTAMP)


def fit_draft(draft: BatchDraft, config: LogConfig, now_ms: int) -> int:
    """Make a broker's own batch as the topic wants it; returns the log append time, if records get that.

    Raises KafkaError if it is too large, which is all that can be wrong with it.
    """
    target = draft.compression
    if config.compression_type != "producer" and not draft.is_control:
        target = draft.compression = _topic_compression(target, config)
    if target is not Compression.NONE:
        draft.compress(config.compression_level)
    _check_size(len(draft.buffer), config)
    if not config.uses_log_append_time:
        return NO_TIMESTAMP
    draft.stamp(now_ms)
    return now_ms


def split_into_runs(
    records: memoryview, next_offset: int, segment_bytes: int, *, leader_epoch: int, last_epoch: int
) -> list[tuple[int, list[tuple[int, BatchHeader]]]]:
    """A leader's batches in runs that fit into a segment: where each run starts, and positions within it with headers.

    Every CRC is checked; offsets may only grow, with gaps where the leader has compacted its log; epochs never go
    below that of the last batch in the log. A batch that is cut off at the end is left out. So is everything from the
    first batch on whose epoch is above that of the fetch: the leader sends from its file, and when it has lost its role
    meanwhile, the file may hold what a later leader wrote there (KAFKA-18723).
    """
    runs: list[tuple[int, list[tuple[int, BatchHeader]]]] = []
    first_offset = next_offset
    try:
        for position, header in iter_headers(records, allow_partial=True):
            check_crc(records, header, position)
            epoch = header.partition_leader_epoch
            if epoch > leader_epoch:
                break
            if epoch < last_epoch:
                raise CorruptBatchError(f"a batch of epoch {epoch} follows one of epoch {last_epoch}")
            if header.base_offset < next_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {header.base_offset} is below the log's end {next_offset}"
                )
            is_far = header.last_offset - first_offset > RELATIVE_OFFSET_MAX
            if not runs or is_far or position + header.size_bytes - runs[-1][0] > segment_bytes:
                runs.append((position, []))
                first_offset = header.base_offset
            start, batches = runs[-1]
            batches.append((position - start, header))
            next_offset, last_epoch = header.next_offset, epoch
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    return runs


def _only_batch(records: memoryview) -> tuple[memoryview, BatchHeader]:
    """The one whole batch that a request brings for a partition; what follows it may only be a beginning of another."""
    try:
        header = parse_header(records)
    except CorruptBatchError as error:
        size_bytes = _next_batch_size(records)
        is_corrupt = size_bytes is not None and records[_MAGIC_AT] == MAGIC and size_bytes < BATCH_HEADER_SIZE
        code = ErrorCode.CORRUPT_MESSAGE if is_corrupt else ErrorCode.INVALID_RECORD
        raise KafkaError(code, error.reason) from error
    if header.size_bytes != len(records):
        if _next_batch_size(records[header.size_bytes :]) is not None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "a request must contain exactly one record batch per partition")
        records = records[: header.size_bytes]
    return records, header


def _next_batch_size(records: memoryview) -> int | None:
    """How many bytes the batch there has, of any magic; None when it is not whole. Kafka splits requests like this."""
    if len(records) < LOG_OVERHEAD:
        return None
    length = int.from_bytes(records[8:LOG_OVERHEAD], "big", signed=True)
    if length < _LEGACY_LENGTH_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch length of {length} is below the minimum")
    if len(records) <= _MAGIC_AT:
        return None
    if records[_MAGIC_AT] > MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch has magic {records[_MAGIC_AT]}")
    return LOG_OVERHEAD + length if len(records) >= LOG_OVERHEAD + length else None


def _check_size(size_bytes: int, config: LogConfig) -> None:
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {size_bytes} bytes, max.message.bytes of the topic is {config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the record batch has {size_bytes} bytes, segment.bytes of the topic is {config.segment_bytes}",
        )


def _check_client_batch(header: BatchHeader) -> None:
    if header.records_count != header.last_offset_delta + 1 or not header.records_count:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"the batch announces {header.records_count} records and {header.last_offset_delta + 1} offsets",
        )
    attributes = header.attributes
    if attributes & _CONTROL_BIT:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.producer_id >= 0 and header.producer_epoch < _NO_PRODUCER_EPOCH:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {header.producer_epoch} of producer {header.producer_id}"
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"base sequence {header.base_sequence} of producer {header.producer_id} is negative",
        )
    if attributes & _TIMESTAMP_TYPE_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    if attributes & _COMPRESSION_MASK > Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {attributes & _COMPRESSION_MASK} is unknown"
        )


def _check_timestamps(
    records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int, earliest_ms: int, latest_ms: int
) -> None:
    """Refuse records that are too old or too far ahead; the earliest and the latest time in the batch are known."""
    latest_taken_ms = now_ms + config.message_timestamp_after_max_ms
    before_max_ms = config.message_timestamp_before_max_ms
    earliest_taken_ms = now_ms - before_max_ms
    is_too_old = earliest_ms < earliest_taken_ms and earliest_ms != NO_TIMESTAMP and before_max_ms != FOREVER
    if latest_ms <= latest_taken_ms and not is_too_old:
        return

    def out_of_range(record: Record) -> bool:
        return record.timestamp != NO_TIMESTAMP and not earliest_taken_ms <= record.timestamp <= latest_taken_ms

    taken = f"the topic takes timestamps up to {latest_taken_ms}"
    if before_max_ms != FOREVER:
        taken = f"the topic takes timestamps from {earliest_taken_ms} to {latest_taken_ms}"
    raise KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps of the batch go from {earliest_ms} to {latest_ms}; {taken}",
        _record_errors(records, header, out_of_range, f"the timestamp is out of range: {taken}"),
    )


def _record_errors(
    records: memoryview, header: BatchHeader, is_wrong: Callable[[Record], bool], message: str
) -> list[tuple[int, str | None]]:
    """The records to blame; the batch is refused whatever they are, so one that is not opened names none."""
    if len(records) > _BLAMED_BYTES_MAX or header.records_count > _BLAMED_RECORDS_MAX:
        return []
    try:
        opened = decode_records(records, check_crc=False, max_bytes=_BLAMED_BYTES_MAX)
    except CorruptBatchError:
        return []
    wrong = [index for index, record in enumerate(opened) if is_wrong(record)]
    return [(index, message) for index in wrong[:RECORD_ERRORS_MAX]]


def _topic_compression(compression: Compression, config: LogConfig) -> Compression:
    label = config.compression_type
    if label == "producer":
        return compression
    return Compression.NONE if label == "uncompressed" else Compression.from_label(label)


def _open(
    records: memoryview, header: BatchHeader, config: LogConfig, *, find_keyless: bool, on_loop: bool
) -> tuple[memoryview, RecordsScan]:
    """The records, decompressed and found sound."""
    opened_bytes_max = max(_OPENED_BYTES_MIN, _OPENED_FACTOR_MAX * config.max_message_bytes)
    try:
        opened = view_records(records, header, max_bytes=LOOP_OPENED_BYTES_MAX if on_loop else opened_bytes_max)
        keyless_indexes_max = KEYLESS_INDEXES_MAX if find_keyless else 0
        return opened, scan_records(opened, header.records_count, header.base_timestamp, keyless_indexes_max)
    except OversizedBatchError as error:
        if on_loop:
            raise LongCheckError(error.reason) from error
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"{error.reason}; send smaller batches or raise max.message.bytes of the topic"
        ) from error
    except TimestampRangeError as error:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, error.reason) from error
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error


def _keyless(scan: RecordsScan) -> KafkaError:
    message = "a compacted topic takes no record without a key"
    return KafkaError(ErrorCode.INVALID_RECORD, message, [(index, message) for index in scan.keyless_indexes])
