"""Record batches of magic 2: headers, compression, records as objects and as Arrow, control markers.

The broker reads the headers of batches (`batch`) and has the records of produced batches checked (`kernel_check`). Code
that looks at single records is in the compiled kernel. `arrow` is not imported here, because pyarrow is large and a
broker doesn't need it.
"""

from __future__ import annotations

from tidelog.records import kernel as _kernel
from tidelog.records.batch import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchSpan,
    Compression,
    TimestampType,
    assign_offsets,
    check_crc,
    iter_headers,
    parse_header,
    set_log_append_time,
    set_max_timestamp,
)
from tidelog.records.codec import (
    KEYLESS_INDEXES_MAX,
    BatchDraft,
    NewRecord,
    close_records,
    decode_records,
    encode_batch,
    find_timestamp,
    open_records,
    recompress,
    view_records,
)
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from tidelog.records.control import (
    ControlRecord,
    ControlRecordType,
    draft_marker,
    encode_control_batch,
    parse_control_record,
)
from tidelog.records.errors import CorruptBatchError, OversizedBatchError, TimestampRangeError, UnsupportedMagicError
from tidelog.records.kernel import Record
from tidelog.records.kernel_check import RecordsScan, scan_records

__all__ = [
    "BATCH_HEADER_SIZE",
    "DECOMPRESSED_BYTES_MAX",
    "KEYLESS_INDEXES_MAX",
    "LOG_OVERHEAD",
    "MAGIC",
    "TRANSACTIONAL_BIT",
    "BatchDraft",
    "BatchHeader",
    "BatchSpan",
    "Compression",
    "ControlRecord",
    "ControlRecordType",
    "CorruptBatchError",
    "NewRecord",
    "OversizedBatchError",
    "Record",
    "RecordsScan",
    "TimestampRangeError",
    "TimestampType",
    "UnsupportedMagicError",
    "assign_offsets",
    "check_crc",
    "close_records",
    "compress",
    "decode_records",
    "decompress",
    "draft_marker",
    "encode_batch",
    "encode_control_batch",
    "find_timestamp",
    "iter_headers",
    "kernel_is_compiled",
    "open_records",
    "parse_control_record",
    "parse_header",
    "recompress",
    "scan_records",
    "set_log_append_time",
    "set_max_timestamp",
    "view_records",
]


def kernel_is_compiled() -> bool:
    """Whether the loops over records are compiled; without a compiler at build time they are interpreted."""
    return not (_kernel.__file__ or "").endswith(".py")
