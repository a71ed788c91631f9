"""Transaction markers."""

from __future__ import annotations

import pytest

from tidelog.records import (
    ControlRecordType,
    CorruptBatchError,
    Record,
    check_crc,
    decode_records,
    encode_control_batch,
    parse_control_record,
    parse_header,
)


@pytest.mark.parametrize("control_type", list(ControlRecordType))
def test_marker_round_trip(control_type: ControlRecordType) -> None:
    data = encode_control_batch(
        control_type, producer_id=8, producer_epoch=3, coordinator_epoch=21, timestamp_ms=1000, base_offset=5
    )
    header = parse_header(data)
    check_crc(data, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 3, -1)
    [record] = decode_records(data)
    assert (record.offset, record.timestamp) == (5, 1000)
    assert parse_control_record(record) == (control_type, 21, 0)


def test_unknown_control_type_is_no_marker() -> None:
    assert parse_control_record(Record(0, 0, b"\0\0\0\2", b"whatever")).type is None


def test_later_version_is_read_as_far_as_known() -> None:
    record = Record(0, 0, b"\0\1\0\1more", b"\0\1\0\0\0\7more")
    assert parse_control_record(record) == (ControlRecordType.COMMIT, 7, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\0"),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", None),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
    ],
)
def test_malformed_marker_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatchError):
        parse_control_record(Record(0, 0, key, value))
