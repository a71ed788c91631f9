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
    Record,
    UnsupportedMagicError,
    check_crc,
    decode_records,
    iter_headers,
    parse_header,
    recompress,
    set_log_append_time,
    validate_records,
)

NO_TIMESTAMP = -1
_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_CONTROL_BIT = 0x20
# More than this many wrong records of a batch are not named one by one: an answer must stay small.
RECORD_ERRORS_MAX = 100


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
    if "compact" in config.cleanup_policy and not header.is_control:
        _check_keys(records, header)
    if config.compression_type != "producer":
        records, header = _with_topic_compression(records, header, config)
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
        _record_errors(records, out_of_range, f"the timestamp is not within {earliest_ms} and {latest_ms}"),
    )


def _record_errors(
    records: memoryview, is_wrong: Callable[[Record], bool], message: str
) -> list[tuple[int, str | None]]:
    """The records to blame; the batch is refused whatever they are, so one that can't be opened names none."""
    try:
        opened = decode_records(records, check_crc=False)
    except CorruptBatchError:
        return []
    wrong = [index for index, record in enumerate(opened) if is_wrong(record)]
    return [(index, message) for index in wrong[:RECORD_ERRORS_MAX]]


def _check_keys(records: memoryview, header: BatchHeader) -> None:
    try:
        summary = validate_records(records, header)
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error
    if summary.keyless_indexes:
        message = "a compacted topic takes no record without a key"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, [(index, message) for index in summary.keyless_indexes])


def _with_topic_compression(
    records: memoryview, header: BatchHeader, config: LogConfig
) -> tuple[memoryview, BatchHeader]:
    label = config.compression_type
    target = Compression.NONE if label == "uncompressed" else Compression.from_label(label)
    if header.compression is target:
        return records, header
    try:
        # What is written again must be sound: a reader would blame the broker for it.
        validate_records(records, header)
        changed = memoryview(recompress(records, target, config.compression_level))
    except CorruptBatchError as error:
        raise KafkaError(ErrorCode.INVALID_RECORD, error.reason) from error
    header = parse_header(changed)
    _check_size(header, config)
    return changed, header
