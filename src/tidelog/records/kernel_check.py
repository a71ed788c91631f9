"""Checks the records of a produced batch: every length, every offset delta, every timestamp; compiled like `kernel`.

What always holds: any client can read a batch that passes to its end, and its offset deltas count from 0. The compiled
loop runs without the interpreter's lock and creates no objects. If it finds anything wrong, the loop that raises
exceptions checks the batch again to say what. The input is the records part of a batch, decompressed.
"""

from __future__ import annotations

from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel import Bytes, RecordReader, decode_objects

INT64_MAX = 0x7FFFFFFFFFFFFFFF
NO_TIMESTAMP = -1
IS_COMPILED = not __file__.endswith(".py")


class RecordsScan:
    """The findings of `scan_records`, made without an object per record."""

    __slots__ = ("index_of_max_timestamp", "keyless_indexes", "max_timestamp", "min_timestamp")

    max_timestamp: int
    min_timestamp: int  # of the records that have a timestamp; the largest int64 if none has
    index_of_max_timestamp: int
    keyless_indexes: list[int]

    def __init__(self) -> None:
        self.max_timestamp = NO_TIMESTAMP
        self.min_timestamp = INT64_MAX
        self.index_of_max_timestamp = -1
        self.keyless_indexes = []


def scan_records(data: Bytes, count: int, base_timestamp: int, keyless_indexes_max: int) -> RecordsScan:
    """Walk through the records of a producer's batch; raises CorruptBatchError at the first error.

    At most this many records without a key are listed; with 0, keys are not checked.
    """
    scan = RecordsScan()
    is_scanned = False
    if IS_COMPILED:
        is_scanned = scan_fast(  # type: ignore[name-defined]  # noqa: F821  # the .pxd file has it
            scan, data, count, base_timestamp, keyless_indexes_max > 0
        )
    if not is_scanned:
        scan = RecordsScan()
        if IS_COMPILED or hasattr(RecordReader, "next_record"):
            scan_slowly(scan, data, count, base_timestamp, keyless_indexes_max)
        else:
            scan_objects(scan, data, count, base_timestamp, keyless_indexes_max)
    return scan


def scan_slowly(scan: RecordsScan, data: Bytes, count: int, base_timestamp: int, keyless_indexes_max: int) -> None:
    reader = RecordReader(data, count, 0, base_timestamp, 0, False)
    for index in range(count):
        position = reader.position
        reader.next_record()
        while data[position] >= 0x80:
            position += 1
        # The byte after the length. None of its bits is in use, but kafka-python and aiokafka read it as a varint.
        if data[position + 1] >= 0x80:
            raise reader.problem(f"has attributes {data[position + 1]:#04x}")
        if reader.offset != index:
            raise reader.problem(f"has offset delta {reader.offset} instead of {index}")
        reader.skip_headers()
        reader.end_record()
        if index == 0 or reader.timestamp > scan.max_timestamp:
            scan.max_timestamp = reader.timestamp
            scan.index_of_max_timestamp = index
        if reader.timestamp < scan.min_timestamp and reader.timestamp != NO_TIMESTAMP:
            scan.min_timestamp = reader.timestamp
        if reader.key_length < 0 and len(scan.keyless_indexes) < keyless_indexes_max:
            scan.keyless_indexes.append(index)
    reader.end_records()


def scan_objects(scan: RecordsScan, data: Bytes, count: int, base_timestamp: int, keyless_indexes_max: int) -> None:
    """Like `scan_slowly`, if `kernel` was compiled and this module was not: its reader has no Python methods."""
    for index, record in enumerate(decode_objects(bytes(data), count, 0, base_timestamp, 0, False)):
        if record.offset != index:
            raise CorruptBatchError(f"record {index} of the batch has offset delta {record.offset} instead of {index}")
        if index == 0 or record.timestamp > scan.max_timestamp:
            scan.max_timestamp = record.timestamp
            scan.index_of_max_timestamp = index
        if record.timestamp < scan.min_timestamp and record.timestamp != NO_TIMESTAMP:
            scan.min_timestamp = record.timestamp
        if record.key is None and len(scan.keyless_indexes) < keyless_indexes_max:
            scan.keyless_indexes.append(index)
