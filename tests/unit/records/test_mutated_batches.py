"""Sound batches with random changes: refused, or read alike by every reader. Both twins agree on which."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidelog.log import LogConfig
from tidelog.log.validation import validate_batch
from tidelog.protocol import KafkaError
from tidelog.records import (
    Compression,
    CorruptBatchError,
    compress,
    decode_records,
    encode_batch,
    parse_header,
    view_records,
)

if TYPE_CHECKING:
    from tests.unit.records.conftest import Twin

NOW_MS = 1_700_000_000_000
HEADER_BYTES = 61

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        st.integers(NOW_MS - 10_000, NOW_MS),
    ),
    min_size=1,
    max_size=8,
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from(["flip", "set", "cut", "insert", "repeat"]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
CODECS = st.sampled_from(list(Compression))


def mutate(data: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    changed = bytearray(data)
    for place, how, value in changes:
        at = place % (len(changed) + 1)
        if how == "insert":
            changed.insert(at, value)
        elif how == "repeat":
            changed[at:at] = changed[at : at + value % 40]
        elif how == "cut":
            del changed[at : at + 1 + value % 4]
        elif at < len(changed):
            changed[at] = value if how == "set" else changed[at] ^ (1 << value % 8)
    return bytes(changed)


def with_payload(batch: bytes, payload: bytes) -> bytearray:
    """The batch with another records part, and a length and a checksum that are right for it."""
    made = bytearray(batch[:HEADER_BYTES]) + payload
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return made


@settings(deadline=None, max_examples=int(os.environ.get("MUTATIONS", "200")))
@given(records=RECORDS, changes=CHANGES, codec=CODECS, inside=st.booleans())
@example(records=[(None, b"", [], NOW_MS)], changes=[(0, "insert", 0)], codec=Compression.LZ4, inside=True)
def test_a_changed_batch_is_refused_or_read_alike(
    compiled: Twin,
    interpreted: Twin,
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    changes: list[tuple[int, str, int]],
    codec: Compression,
    inside: bool,
) -> None:
    plain = bytes(encode_batch(records))
    payload = plain[HEADER_BYTES:]
    # Within what is compressed, or in the compressed bytes themselves.
    payload = compress(codec, mutate(payload, changes)) if inside else mutate(compress(codec, payload), changes)
    batch = with_payload(bytes(encode_batch(records, compression=codec)), payload)
    try:
        taken = validate_batch(memoryview(batch), LogConfig(), NOW_MS)
    except KafkaError:
        taken = None
    if taken is None:
        assert_refused(compiled, batch)
        assert_refused(interpreted, batch)
        return
    read = decode_records(taken.records)
    assert [record.offset for record in read] == list(range(len(records)))
    ours = [(record.offset, record.timestamp, record.key, record.value) for record in read]
    header = taken.header
    opened = bytes(view_records(taken.records, header))
    for twin in (compiled, interpreted):
        scan = twin.kernel_check.scan_records(opened, len(records), header.base_timestamp, 0)
        assert max(-1, scan.max_timestamp) == header.max_timestamp
        objects = twin.kernel.decode_objects(opened, len(records), 0, header.base_timestamp, 0, False)
        assert [(record.offset, record.timestamp, record.key, record.value) for record in objects] == ours
    if any("\ufffd" in key for record in read for key, _ in record.headers):
        return  # aiokafka, unlike the Java client and librdkafka, reads no header key that is not UTF-8
    theirs = [
        (record.offset, record.timestamp, record.key, record.value) for record in AiokafkaBatch(bytes(taken.records))
    ]
    assert theirs == ours


def assert_refused(twin: Twin, batch: bytearray) -> None:
    """By its framing, by the kernel, or for a timestamp too far ahead."""
    header = parse_header(batch)
    try:
        opened = bytes(view_records(batch, header))
        scan = twin.kernel_check.scan_records(opened, header.records_count, header.base_timestamp, 0)
    except CorruptBatchError:
        return
    assert scan.max_timestamp > NOW_MS + 3_600_000
