from __future__ import annotations

import json

import pytest

from tidelog.cli.record_format import compile_format
from tidelog.records import Record, decode_records, encode_batch

KEY, VALUE = b"k\xff", "wäre".encode()


@pytest.fixture
def record() -> Record:
    batch = encode_batch([(KEY, VALUE, [("h", b"1"), ("n", None)], 123)], base_offset=9, now_ms=0)
    return decode_records(batch)[0]


@pytest.fixture
def empty_record() -> Record:
    return decode_records(encode_batch([(None, None, [], 5)], now_ms=0))[0]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%v", VALUE),
        ("%k", KEY),
        ("%T/%p/%o@%t", b"topic/3/9@123"),
        (r"%k\t%v\n", KEY + b"\t" + VALUE + b"\n"),
        ("100%%", b"100%"),
        ("%h", b"h=1,n="),
        ("", b""),
        (r"a\\b", b"a\\b"),
    ],
)
def test_templates(record: Record, template: str, expected: bytes) -> None:
    assert compile_format(template)("topic", 3, record) == expected


def test_null_is_written_as_its_marker(record: Record, empty_record: Record) -> None:
    assert compile_format("%k=%v", "NULL")("t", 0, empty_record) == b"NULL=NULL"
    assert compile_format("%v")("t", 0, empty_record) == b""
    assert compile_format("%h", "NULL")("t", 0, record) == b"h=1,n=NULL"


@pytest.mark.parametrize("template", ["%x", "%", "a%", r"\q"])
def test_refuses_what_it_does_not_know(template: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder; there are %k|escape"):
        compile_format(template)


def test_json_keeps_every_byte(record: Record, empty_record: Record) -> None:
    write = compile_format("json")
    assert json.loads(write("t", 1, record)) == {
        "topic": "t",
        "partition": 1,
        "offset": 9,
        "timestamp": 123,
        "key_base64": "a/8=",
        "value": "wäre",
        "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}],
    }
    document = json.loads(write("t", 1, empty_record))
    assert document["key"] is None
    assert document["value"] is None
    assert b"\n" not in write("t", 1, record)
