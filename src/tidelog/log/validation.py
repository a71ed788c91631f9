"""What a leader asks of a batch before it appends it, and the changes that a topic's settings make to it.

What always holds: a batch that comes back has magic 2, a right CRC, one offset a record and the topic's compression
and timestamp type; a refused one was not changed. As long as the topic keeps the producer's compression and is not
compacted, the records are not opened: only the 61 bytes of the header are read, and the CRC computed. It does not
know the log: offsets, sequences and epochs are checked elsewhere.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from tidelog.log.config import FOREVER, LogConfig
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    BatchHeader,
    Compression,
    CorruptBatchError,
    OversizedBatchError,
    Record,
    UnsupportedMagicError,
    check_crc,
    check_records,
    close_records,
    decode_records,
    iter_headers,
    open_records,
    parse_header,
    set_log_append_time,
)

NO_TIMESTAMP = -1
_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_CONTROL_BIT = 0x20
# More than this many wrong records of a batch are not named one by one: an answer must stay small.
RECORD_ERRORS_MAX = 100

_OPENED_FACTOR_MAX = 16
"""A batch that is opened may hold this many times max.message.bytes of its topic, at least 16 MiB.

The work is done on the event loop: 16 MiB take 50 to 70 ms in the slowest codec, and a few kB can hold a GiB. A client
that is told MESSAGE_TOO_LARGE splits its batch and sends it again.
"""
_OPENED_BYTES_MIN = 16 * 1024 * 1024

# Records are made into objects only to tell a producer which of them are wrong. Beyond this it is told about the batch
# alone: a MiB of the smallest headers takes a tenth of a second.
_BLAMED_BYTES_MAX = 1024 * 1024
_BLAMED_RECORDS_MAX = 20_000


class AppendOrigin(enum.Enum):
    """Who sends the batch: only what comes from a client is checked in full."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class ValidatedBatch(NamedTuple):
    records: memoryview
    header: BatchHeader
    log_append_time_ms: int


def validate_batch(records: memoryview, config: LogConfig, now_ms: int, origin: AppendOrigin) -> ValidatedBatch:
    """The batch as it may be appended; raises KafkaError with the code and the records that are to blame."""
    header = _only_header(records)
    _check_size(header, config)
    try:
        check_crc(records, header)
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    if origin is AppendOrigin.CLIENT:
        _check_client_batch(header)
    log_append_time_ms = NO_TIMESTAMP
    if config.message_timestamp_type == "LogAppendTime":
        log_append_time_ms = now_ms
    else:
        _check_timestamps(records, header, config, now_ms)
    # The coordinator writes keys always, and its small batches are many.
    must_have_keys = origin is AppendOrigin.CLIENT and "compact" in config.cleanup_policy and not header.is_control
    target = _topic_compression(header, config)
    if must_have_keys or target is not header.compression:
        opened = _open(records, header, config, must_have_keys=must_have_keys)
        if target is not header.compression:
            records = memoryview(close_records(opened, header, target, config.compression_level))
            header = parse_header(records)
            _check_size(header, config)
    if log_append_time_ms != NO_TIMESTAMP:
        set_log_append_time(records, log_append_time_ms)
        header = parse_header(records)
    return ValidatedBatch(records, header, log_append_time_ms)


def split_into_runs(
    records: memoryview, next_offset: int, segment_bytes: int
) -> list[tuple[int, list[tuple[int, BatchHeader]]]]:
    """A leader's batches in runs that fit into a segment: where each run starts, and positions within it with headers.

    Every CRC is checked, offsets may only grow, and a batch that is cut off at the end is left out.
    """
    runs: list[tuple[int, list[tuple[int, BatchHeader]]]] = []
    try:
        for position, header in iter_headers(records, allow_partial=True):
            check_crc(records, header, position)
            if header.base_offset < next_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {header.base_offset} is below the log's end {next_offset}"
                )
            next_offset = header.next_offset
            if not runs or position + header.size_bytes - runs[-1][0] > segment_bytes:
                runs.append((position, []))
            start, batches = runs[-1]
            batches.append((position - start, header))
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    return runs


def _only_header(records: memoryview) -> BatchHeader:
    if not len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request holds no record batch for the partition")
    try:
        header = parse_header(records)
    except UnsupportedMagicError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, error.reason) from error
    if header.size_bytes != len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request must hold exactly one record batch a partition")
    return header


def _check_size(header: BatchHeader, config: LogConfig) -> None:
    size_bytes = header.size_bytes
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
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"base sequence {header.base_sequence} of producer {header.producer_id} is negative",
        )
    if attributes & _TIMESTAMP_TYPE_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    if attributes & _COMPRESSION_MASK > Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {attributes & _COMPRESSION_MASK} is not known"
        )


def _check_timestamps(records: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    before_max_ms = config.message_timestamp_before_max_ms
    earliest_ms = now_ms - before_max_ms if before_max_ms != FOREVER else NO_TIMESTAMP
    if header.max_timestamp <= latest_ms and (
        before_max_ms == FOREVER or header.base_timestamp >= earliest_ms or header.base_timestamp == NO_TIMESTAMP
    ):
        return

    def out_of_range(record: Record) -> bool:
        return record.timestamp != NO_TIMESTAMP and not earliest_ms <= record.timestamp <= latest_ms

    raise KafkaError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps of the batch go from {header.base_timestamp} to {header.max_timestamp}; "
        f"the topic takes those from {earliest_ms} to {latest_ms}",
        _record_errors(records, header, out_of_range, f"the timestamp is not within {earliest_ms} and {latest_ms}"),
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


def _topic_compression(header: BatchHeader, config: LogConfig) -> Compression:
    label = config.compression_type
    if label == "producer" or header.is_control:
        return header.compression
    return Compression.NONE if label == "uncompressed" else Compression.from_label(label)


def _open(records: memoryview, header: BatchHeader, config: LogConfig, *, must_have_keys: bool) -> bytes:
    """The records, decompressed and found sound: of what the broker writes anew a reader would blame the broker."""
    opened_bytes_max = max(_OPENED_BYTES_MIN, _OPENED_FACTOR_MAX * config.max_message_bytes)
    try:
        opened = open_records(records, header, max_bytes=opened_bytes_max)
        summary = check_records(opened, header)
    except OversizedBatchError as error:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"{error.reason}; send smaller batches or raise max.message.bytes of the topic"
        ) from error
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error
    if must_have_keys and summary.keyless_indexes:
        message = "a compacted topic takes no record without a key"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, [(index, message) for index in summary.keyless_indexes])
    return opened
